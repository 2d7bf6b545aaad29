//! Order of the host's calls to a GPU and to VMMs: holds, trapped doorbells, gate answers, new
//! channels, tenants that leave, and memory that is away.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use rustix::event::{EventfdFlags, eventfd};
use turnstile_abi::{CHUNK_BYTES, MAILBOX_RESULTS};
use turnstile_accounting::{
    Anomalies, EngineState, EngineUsage, Signals, SwitchEvent, TenantUsage, Usage, Window,
};
use turnstile_gpu::{Capabilities, ChannelActivity, ChunkId, MemoryEvent, Order};
use turnstile_vmm::wire::{FrameReader, PROTOCOL, Read, ToDaemon};

use super::recording_gpu::{Call, GATES, MOVABLE, RecordingGpu};
use super::*;

const PERIOD: Nanos = Nanos::from_ms(10);

pub(super) struct Bench {
    pub(super) host: Arc<Host>,
    pub(super) gpu: Arc<RecordingGpu>,
    /// Status pages by tenant.
    pub(super) pages: BTreeMap<TenantId, std::fs::File>,
    /// Tenants with a command pending.
    pub(super) busy: Vec<TenantId>,
    /// Gate moves that VMMs have not answered: tenant, channel, number.
    unanswered: Vec<(TenantId, u32, u64)>,
    /// Number of the next record of the engine's log.
    seq: u64,
}

impl Bench {
    pub(super) fn new(capabilities: Capabilities) -> Self {
        let gpu = RecordingGpu::new(capabilities);
        let host = Host::new(gpu.clone(), HostConfig::default()).unwrap();
        Self {
            host: Arc::new(host),
            gpu,
            pages: BTreeMap::new(),
            busy: Vec::new(),
            unanswered: Vec::new(),
            seq: 0,
        }
    }

    /// Takes a VM in.
    pub(super) fn enter(&mut self, name: &str, weight: u32) -> TenantId {
        let (own, theirs) = UnixStream::pair().unwrap();
        let hello = ToDaemon::Hello {
            protocol: PROTOCOL,
            name: name.into(),
            weight: Some(weight),
            gpu_memory_bytes: Some(8 * CHUNK_BYTES),
            regions: Vec::new(),
        };
        let vector: OwnedFd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let (tenant, ..) = self.host.admit(hello, vec![vector], own, 1_000).unwrap();
        let mut reader = FrameReader::new();
        let Ok(Read::Frame(mut frame)) = reader.read::<ToVmm>(&theirs) else {
            panic!("no welcome")
        };
        let status = frame.fds.remove(1);
        self.pages.insert(tenant, status.into());
        self.gpu.connect(tenant, theirs, reader);
        tenant
    }

    /// A VM with an open channel 0; its gate is open and answered.
    pub(super) fn open(&mut self, name: &str, weight: u32) -> TenantId {
        let tenant = self.enter(name, weight);
        self.channel(tenant, 0);
        self.answer();
        self.host.kicked(tenant);
        self.answer();
        tenant
    }

    /// A channel was opened for a mailbox request.
    pub(super) fn channel(&self, tenant: TenantId, channel: u32) {
        let opened = Effect::Opened(channel);
        self.host.mailbox_served(tenant, opened, &done(channel));
    }

    /// Calls since the last one of this.
    pub(super) fn take(&mut self) -> Vec<Call> {
        let calls = self.gpu.take();
        self.unanswered.extend(calls.iter().filter_map(gate));
        calls
    }

    /// VMMs answer all gate moves; returns the calls until then.
    pub(super) fn answer(&mut self) -> Vec<Call> {
        let mut all = self.take();
        while let Some((tenant, channel, seq)) = self.unanswered.pop() {
            self.host.gate_done(tenant, channel, seq, 0);
            all.extend(self.take());
        }
        all
    }

    /// Each runs for its milliseconds, one after the other.
    fn log(&mut self, from: Moment, used: &[(TenantId, u64)]) {
        let mut at = from;
        let mut switches = Vec::new();
        let running = used.iter().map(|(id, ms)| (EngineState::Running(*id), *ms));
        for (state, ms) in running.chain([(EngineState::Idle, 0)]) {
            switches.push(SwitchEvent {
                at,
                engine: COMPUTE,
                seq: self.seq,
                state,
            });
            self.seq += 1;
            at = at + Nanos::from_ms(ms);
        }
        self.host.observe(&switches, &[]);
    }

    /// A period with these milliseconds of the compute engine; [`Self::busy`] has work at its end.
    pub(super) fn period(&mut self, used: &[(TenantId, u64)]) -> Vec<Call> {
        let from = self.gpu.reported().now;
        self.log(from, used);
        let usage = usage(from, used);
        let end = usage.window.to();
        {
            let mut reported = self.gpu.reported();
            reported.now = end;
            let busy = self.busy.iter();
            reported.activity = busy.map(|tenant| (*tenant, activity(1, end))).collect();
        }
        self.take();
        self.host.period_end(None, usage, None, &mut Vec::new());
        self.take()
    }
}

pub(super) fn activity(pending: u32, last_active: Moment) -> ChannelActivity {
    ChannelActivity {
        channel: 0,
        pending,
        finished: Some(0),
        stalls: 0,
        last_active,
    }
}

/// A period of one compute engine and two copy engines that do nothing.
pub(super) fn usage(from: Moment, used: &[(TenantId, u64)]) -> Usage {
    let all: u64 = used.iter().map(|(_, ms)| ms).sum();
    let engine = |id: u8| {
        let part = |(tenant, ms): &(TenantId, u64)| TenantUsage {
            tenant: *tenant,
            used_ns: Nanos::from_ms(*ms),
            fault_ns: Nanos::ZERO,
            turns: 1,
            begun: 1,
        };
        let compute = id == 0;
        let idle_ns = Nanos(PERIOD.0 - if compute { all * 1_000_000 } else { 0 });
        EngineUsage {
            engine: EngineId(id),
            tenants: used.iter().filter(|_| compute).map(part).collect(),
            switching_ns: Nanos::ZERO,
            idle_ns,
            unobserved_ns: Nanos::ZERO,
            error_bound_ns: Nanos::ZERO,
        }
    };
    Usage {
        window: Window::starting(from, PERIOD),
        signals: Signals::Events,
        engines: (0..3).map(engine).collect(),
        copied: None,
        anomalies: Anomalies::default(),
    }
}

fn done(id: u32) -> ToVmm {
    ToVmm::MailboxDone {
        id: id.into(),
        error: 0,
        text: String::new(),
        results: [0; MAILBOX_RESULTS],
    }
}

/// Tenant, channel and number of a gate move.
fn gate(call: &Call) -> Option<(TenantId, u32, u64)> {
    match call {
        Call::Sent(tenant, ToVmm::Gate { channel, seq, .. }) => Some((*tenant, *channel, *seq)),
        _ => None,
    }
}

/// Calls as text; numbers of gate moves are left out.
pub(super) fn show(calls: &[Call]) -> Vec<String> {
    let show = |call: &Call| match call {
        Call::Created(tenant) => format!("create {}", tenant.0),
        Call::Destroyed(tenant) => format!("destroy {}", tenant.0),
        Call::Doorbells(tenant, DoorbellChange::Written) => format!("written {}", tenant.0),
        Call::Doorbells(tenant, DoorbellChange::AnyOpen(open)) => {
            format!("any open {} {open}", tenant.0)
        }
        Call::Orders(orders) => {
            let order = |order: &Order| match order {
                Order::Suspend(tenant) => format!(" suspend {}", tenant.0),
                Order::Resume(tenant) => format!(" resume {}", tenant.0),
                Order::Hold(tenant, engine) => format!(" hold {} {}", tenant.0, engine.0),
                Order::Release(tenant, engine) => format!(" release {} {}", tenant.0, engine.0),
                Order::Slice(tenant, _) => format!(" slice {}", tenant.0),
            };
            format!("gpu{}", orders.iter().map(order).collect::<String>())
        }
        Call::Move(order) => {
            let (owner, cause) = (order.owner.0, order.cause.0);
            let count = order.chunks.len();
            format!("move {:?} {count} of {owner} for {cause}", order.direction)
        }
        Call::Woken => "wake".to_owned(),
        Call::Sent(tenant, message) => match message {
            ToVmm::Gate { channel, state, .. } => format!("gate {} {channel} {state:?}", tenant.0),
            ToVmm::MailboxDone { id, .. } => format!("done {} {id}", tenant.0),
            ToVmm::ChannelClosed { channel } => format!("closed {} {channel}", tenant.0),
            ToVmm::Refused { .. } => format!("refused {}", tenant.0),
            other => format!("{other:?}"),
        },
    };
    calls.iter().map(show).collect()
}

#[test]
fn held_tenant_has_its_gates_closed_before_the_gpu_suspends_it() {
    let mut bench = Bench::new(GATES);
    let (a, b) = (bench.open("a", 100), bench.open("b", 100));
    bench.busy = vec![a, b];
    let calls = bench.period(&[(a, 9), (b, 1)]);
    let expected = ["gate 1 0 Closed", "any open 1 true", "gpu suspend 1"];
    assert_eq!(show(&calls), expected, "8 ms ahead");
    assert!(bench.host.anyone_held() && bench.host.polls_held());
    let answered = show(&bench.answer());
    // A write may have passed before the gate was closed.
    assert_eq!(answered, ["any open 1 false", "written 1"]);
    // What may run again is resumed before another tenant is suspended.
    let calls = bench.period(&[(b, 10)]);
    let expected = [
        "gate 1 0 Open",
        "any open 1 true",
        "gate 2 0 Closed",
        "any open 2 true",
        "gpu resume 1 suspend 2",
    ];
    assert_eq!(show(&calls), expected);
    bench.answer();
    bench.busy = vec![a];
    bench.period(&[(a, 10)]);
    let snapshot = bench.host.snapshot();
    let held: Vec<u64> = snapshot.tenants.iter().map(|one| one.held_ns.0).collect();
    assert_eq!(held, [PERIOD.0, PERIOD.0]);
}

#[test]
fn trapped_doorbell_is_read_by_the_gpu_before_the_gate_opens() {
    let mut bench = Bench::new(GATES);
    let a = bench.enter("a", 100);
    bench.channel(a, 0);
    bench.answer();
    assert!(bench.host.begins_idle() && bench.host.is_idle());
    bench.host.kicked(a);
    let expected = [
        "written 1",
        "any open 1 true",
        "gate 1 0 Open",
        "any open 1 true",
        "gpu resume 1",
        "wake",
    ];
    assert_eq!(show(&bench.take()), expected);
    assert!(!bench.host.is_idle());
    // The gate is opening: a second write needs no further move, and wakes no thread.
    bench.host.kicked(a);
    assert_eq!(show(&bench.take()), ["written 1", "any open 1 true"]);
    assert!(
        !bench.host.begins_idle(),
        "an open gate lets writes through"
    );
    bench.answer();
}

#[test]
fn answer_to_an_earlier_move_sends_the_gate_where_it_is_wanted_now() {
    let mut bench = Bench::new(GATES);
    let a = bench.enter("a", 100);
    bench.channel(a, 0);
    let made = bench.take();
    assert_eq!(
        show(&made),
        [
            "create 1",
            "gate 1 0 Watched",
            "any open 1 false",
            "done 1 0"
        ]
    );
    let (_, channel, seq) = made.iter().find_map(gate).unwrap();
    // Opened while the VMM still makes the gate.
    bench.host.kicked(a);
    bench.take();
    bench.host.gate_done(a, channel, seq + 7, 0);
    let ignored = ["any open 1 true", "written 1"];
    assert_eq!(show(&bench.take()), ignored, "of no request");
    bench.host.gate_done(a, channel, seq, 3);
    let expected = ["gate 1 0 Open", "any open 1 true", "written 1"];
    assert_eq!(show(&bench.take()), expected);
    assert_eq!(bench.host.snapshot().tenants[0].doorbells_trapped, 3);
    assert_eq!(bench.host.snapshot().tenants[0].gate_moves, 2);
}

#[test]
fn new_channel_of_a_held_tenant_has_a_closed_gate_before_its_guest_knows_it() {
    let mut bench = Bench::new(GATES);
    let (a, b) = (bench.open("a", 100), bench.open("b", 100));
    bench.busy = vec![a, b];
    bench.period(&[(a, 9), (b, 1)]);
    bench.answer();
    bench.host.begins_idle();
    bench.channel(a, 5);
    let expected = ["gate 1 5 Closed", "any open 1 false", "done 1 5"];
    assert_eq!(show(&bench.take()), expected);
    bench.host.mailbox_served(a, Effect::Closed(5), &done(6));
    assert_eq!(show(&bench.take()), ["closed 1 5", "done 1 6"]);
    bench.host.mailbox_served(a, Effect::None, &done(7));
    assert_eq!(show(&bench.take()), ["done 1 7"]);
    // The accounting thread may sleep for long: the gate of a channel may open.
    let mut bench = Bench::new(GATES);
    let a = bench.enter("a", 100);
    assert!(bench.host.begins_idle());
    bench.take();
    bench.channel(a, 0);
    let expected = ["gate 1 0 Watched", "any open 1 false", "wake", "done 1 0"];
    assert_eq!(show(&bench.take()), expected);
}

#[test]
fn tenant_that_leaves_is_gone_before_its_context_and_its_use_stays() {
    let mut bench = Bench::new(GATES);
    let (a, b) = (bench.open("a", 300), bench.open("b", 100));
    bench.busy = vec![a, b];
    bench.period(&[(a, 5), (b, 3)]);
    bench.answer();
    bench.host.leave(a);
    assert_eq!(show(&bench.take()), ["destroy 1"]);
    assert!(!bench.host.is_empty());
    let names = |host: &Host| {
        let snapshot = host.snapshot();
        let names = snapshot.tenants.iter().map(|one| one.name.clone());
        names.collect::<Vec<_>>()
    };
    assert_eq!(names(&bench.host), ["b"]);
    let events = bench.host.journal().after(0, 10).0;
    let last = events.last().unwrap();
    assert_eq!((&*last.kind, &*last.vm), ("vm_left", "a"));
    // Work that ends later is its own, and its account's.
    bench.busy = vec![b];
    bench.period(&[(a, 2), (b, 1)]);
    let charged = |host: &Host| {
        let snapshot = host.snapshot();
        let departed = snapshot.departed[0].compute_ns;
        (departed, snapshot.accounts[0].compute_ns)
    };
    let (seven, eleven) = (Nanos::from_ms(7), Nanos::from_ms(11));
    assert_eq!(charged(&bench.host), (seven, eleven));
    assert_eq!(bench.host.snapshot().departed[0].weight, 300);
    // After a minute it is settled: the sums are the same.
    bench.gpu.reported().now = Moment(0) + Nanos::from_ms(59_999);
    bench.period(&[(b, 1)]);
    assert_eq!(bench.host.lock().leaving.len(), 1);
    bench.period(&[(b, 1)]);
    assert!(bench.host.lock().leaving.is_empty());
    let thirteen = Nanos::from_ms(13);
    assert_eq!(charged(&bench.host), (seven, thirteen));
    // A name is free at once.
    let again = bench.enter("a", 100);
    assert_eq!(again, TenantId(3));
    bench.host.leave(b);
    bench.host.leave(again);
    assert!(bench.host.is_empty());
}

/// Memory of both does not fit: while one has it, the other waits for its own, resumed by no gate.
#[test]
fn tenant_is_resumed_only_when_its_memory_is_back_and_the_cause_pays_for_the_copies() {
    let mut bench = Bench::new(MOVABLE);
    let (a, b) = (bench.open("a", 100), bench.open("b", 100));
    let allocated = |owner, first, count, resident| MemoryEvent::Allocated {
        owner,
        first: ChunkId(first),
        count,
        chunk_bytes: CHUNK_BYTES,
        resident,
    };
    bench.gpu.reported().now = Moment(1_000_000);
    bench.busy = vec![a];
    let events = [allocated(a, 0, 6, true), allocated(b, 100, 5, false)];
    bench.gpu.reported().events.extend(events);
    bench.period(&[(a, 5)]);
    let calls = bench.period(&[(a, 5)]);
    assert!(calls.iter().all(|call| !matches!(call, Call::Move(_))));
    assert!(bench.host.memory_idle(Moment(21_000_000)) == Nanos::ZERO);
    // Its doorbell opens no way to the engine.
    bench.host.lock().mediation.woke(b, Moment(21_000_000));
    bench.host.kicked(b);
    let calls = show(&bench.take());
    assert!(
        calls.iter().all(|call| !call.contains("resume 2")),
        "{calls:?}"
    );
    // The first one has no more work: its chunks make way, and only then the second one runs.
    bench.busy = vec![b];
    let mut calls = Vec::new();
    for _ in 0..100 {
        calls.extend(bench.period(&[]));
        for _ in 0..4 {
            bench.host.memory_tick();
        }
        calls.extend(bench.answer());
    }
    let calls = show(&calls);
    let place = |text: &str| calls.iter().position(|call| call.contains(text));
    let (suspend, out) = (place("suspend 1"), place("move Out"));
    let home = calls.iter().rposition(|call| call.contains("move In"));
    let resume = place("resume 2");
    let order = [suspend, out, home, resume];
    assert!(order.iter().all(Option::is_some), "{order:?} {calls:?}");
    assert!(order.is_sorted(), "{order:?} {calls:?}");
    assert!(
        calls
            .iter()
            .filter(|call| call.contains("move"))
            .all(|call| call.ends_with("for 2"))
    );
    let snapshot = bench.host.snapshot();
    let memory = |index: usize| snapshot.tenants[index].memory.unwrap();
    let out = memory(0).swapped_out_bytes;
    assert!(out >= 3 * CHUNK_BYTES && memory(0).swapped_in_bytes == 0);
    assert_eq!(memory(0).swapped_bytes, out);
    let both = out + memory(1).swapped_in_bytes;
    assert_eq!((memory(0).moved_bytes, memory(1).moved_bytes), (0, both));
    let took = Nanos(both / CHUNK_BYTES * 10_000);
    assert_eq!(
        (memory(0).moved_ns, memory(1).moved_ns),
        (Nanos::ZERO, took)
    );
    assert_eq!(memory(1).resident_bytes, 5 * CHUNK_BYTES);
}

#[test]
fn reserve_ends_with_its_tenant() {
    let mut bench = Bench::new(MOVABLE);
    let a = bench.enter("a", 100);
    bench
        .host
        .set_settings(
            "a",
            Some(settings::Settings {
                memory: settings::MemoryLimits {
                    min_bytes: 6 * CHUNK_BYTES,
                    max_bytes: Some(6 * CHUNK_BYTES),
                    ..Default::default()
                },
                ..Default::default()
            }),
        )
        .unwrap();
    let room = |host: &Host| host.lock().memory.as_ref().unwrap().unreserved_bytes();
    assert_eq!(room(&bench.host), 2 * CHUNK_BYTES);
    bench.host.leave(a);
    assert_eq!(room(&bench.host), 8 * CHUNK_BYTES);
}
