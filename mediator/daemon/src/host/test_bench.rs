//! A host over a GPU that records calls, with VMMs that a test answers for.
//!
//! In: tenants, periods, and what the GPU reports. Out: calls as text ([`show`]).

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use rustix::event::{EventfdFlags, eventfd};
use turnstile_abi::{CHUNK_BYTES, MAILBOX_RESULTS};
use turnstile_accounting::{
    Anomalies, EngineId, EngineState, EngineUsage, Moment, Nanos, Signals, SwitchEvent,
    TenantUsage, Usage, Window,
};
use turnstile_gpu::{Capabilities, ChannelActivity, Order};
use turnstile_vmm::wire::{FrameReader, Metadata, PROTOCOL, Read, ToDaemon};

use super::recording_gpu::{Call, RecordingGpu};
use super::*;
use crate::admission;

pub(crate) const PERIOD: Nanos = Nanos::from_ms(10);

pub(crate) struct Bench {
    pub(crate) host: Arc<Host>,
    pub(crate) gpu: Arc<RecordingGpu>,
    /// Status pages by tenant.
    pub(crate) pages: BTreeMap<TenantId, std::fs::File>,
    /// Tenants with a command pending.
    pub(crate) busy: Vec<TenantId>,
    /// Gate moves that VMMs have not answered: tenant, channel, number.
    unanswered: Vec<(TenantId, u32, u64)>,
    /// Number of the next record of the engine's log.
    seq: u64,
}

impl Bench {
    pub(crate) fn new(capabilities: Capabilities) -> Self {
        Self::with(capabilities, HostConfig::default())
    }

    pub(crate) fn of_policy(capabilities: Capabilities, policy: &str) -> Self {
        let config = HostConfig {
            policy: policy.into(),
            ..HostConfig::default()
        };
        Self::with(capabilities, config)
    }

    fn with(capabilities: Capabilities, config: HostConfig) -> Self {
        let gpu = RecordingGpu::new(capabilities);
        let host = Host::new(gpu.clone(), config).unwrap();
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
    pub(crate) fn enter(&mut self, name: &str, weight: u32) -> TenantId {
        self.enter_as(1_000, name, weight)
    }

    /// Takes a VM of a user in.
    pub(crate) fn enter_as(&mut self, uid: u32, name: &str, weight: u32) -> TenantId {
        let (own, theirs) = UnixStream::pair().unwrap();
        let hello = ToDaemon::Hello {
            protocol: PROTOCOL,
            name: name.into(),
            weight: Some(weight),
            gpu_memory_bytes: Some(8 * CHUNK_BYTES),
            regions: Vec::new(),
            metadata: Metadata::default(),
        };
        let vector: OwnedFd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let (tenant, ..) = admission::admit(&self.host, hello, vec![vector], own, uid).unwrap();
        let mut reader = FrameReader::new();
        let Ok(Read::Frame(mut frame)) = reader.read::<ToVmm>(&theirs) else {
            panic!("no welcome")
        };
        let status = frame.fds.remove(1);
        self.pages.insert(tenant, status.into());
        self.gpu.connect(tenant, theirs, reader);
        tenant
    }

    /// A VM with a channel 0. The gate is open, and the VMM has answered.
    pub(crate) fn open(&mut self, name: &str, weight: u32) -> TenantId {
        let tenant = self.enter(name, weight);
        self.channel(tenant, 0);
        self.answer();
        self.host.kicked(tenant);
        self.answer();
        tenant
    }

    /// A channel was opened for a mailbox request.
    pub(crate) fn channel(&self, tenant: TenantId, channel: u32) {
        let opened = Effect::Opened(channel);
        self.host.mailbox_served(tenant, opened, &done(channel));
    }

    /// Whether a tenant is held.
    pub(crate) fn anyone_held(&self) -> bool {
        self.host.lock().mediation.held().next().is_some()
    }

    /// Calls since the last one of this.
    pub(crate) fn take(&mut self) -> Vec<Call> {
        let calls = self.gpu.take();
        self.unanswered.extend(calls.iter().filter_map(gate));
        calls
    }

    /// VMMs answer all gate moves; returns the calls until then.
    pub(crate) fn answer(&mut self) -> Vec<Call> {
        let mut all = self.take();
        while let Some((tenant, channel, seq)) = self.unanswered.pop() {
            self.host.gate_done(tenant, channel, seq, 0);
            all.extend(self.take());
        }
        all
    }

    /// Each runs for its time, one after the other.
    fn log(&mut self, from: Moment, used: &[(TenantId, Nanos)]) {
        let mut at = from;
        let mut switches = Vec::new();
        let running = used.iter().map(|(id, ns)| (EngineState::Running(*id), *ns));
        for (state, ns) in running.chain([(EngineState::Idle, Nanos::ZERO)]) {
            switches.push(SwitchEvent {
                at,
                engine: COMPUTE,
                seq: self.seq,
                state,
            });
            self.seq += 1;
            at = at + ns;
        }
        self.host.observe(&switches, &[]);
    }

    /// A period with these milliseconds of the compute engine; [`Self::busy`] has work at its end.
    pub(crate) fn period(&mut self, used: Used<'_>) -> Vec<Call> {
        let from = self.gpu.reported().now;
        self.close(usage(from, [used, &[], &[]]))
    }

    /// Ends the period of this usage.
    pub(crate) fn close(&mut self, usage: Usage) -> Vec<Call> {
        let compute = usage.engines[0].tenants.iter();
        let used: Vec<_> = compute.map(|part| (part.tenant, part.used_ns)).collect();
        self.log(usage.window.from(), &used);
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

pub(crate) fn activity(pending: u32, last_active: Moment) -> ChannelActivity {
    ChannelActivity {
        channel: 0,
        pending,
        finished: Some(0),
        stalls: 0,
        last_active,
    }
}

/// Milliseconds of tenants.
pub(crate) type Used<'a> = &'a [(TenantId, u64)];

/// A period of one compute engine and two copy engines.
pub(crate) fn usage(from: Moment, used: [Used<'_>; 3]) -> Usage {
    usage_over(from, PERIOD, used)
}

/// The same for a window of this length.
pub(crate) fn usage_over(from: Moment, length: Nanos, used: [Used<'_>; 3]) -> Usage {
    let part = |(tenant, ms): &(TenantId, u64)| TenantUsage {
        tenant: *tenant,
        used_ns: Nanos::from_ms(*ms),
        fault_ns: Nanos::ZERO,
        turns: 1,
        begun: 1,
    };
    let engine = |(used, id): (Used<'_>, u8)| EngineUsage {
        engine: EngineId(id),
        tenants: used.iter().map(part).collect(),
        switching_ns: Nanos::ZERO,
        idle_ns: Nanos(length.0 - used.iter().map(|(_, ms)| ms * 1_000_000).sum::<u64>()),
        unobserved_ns: Nanos::ZERO,
        error_bound_ns: Nanos::ZERO,
    };
    Usage {
        window: Window::starting(from, length),
        signals: Signals::Events,
        engines: used.into_iter().zip(0..).map(engine).collect(),
        copied: None,
        anomalies: Anomalies::default(),
    }
}

pub(crate) fn done(id: u32) -> ToVmm {
    ToVmm::MailboxDone {
        id: id.into(),
        error: 0,
        text: String::new(),
        results: [0; MAILBOX_RESULTS],
    }
}

/// Tenant, channel and number of a gate move.
pub(crate) fn gate(call: &Call) -> Option<(TenantId, u32, u64)> {
    match call {
        Call::Sent(tenant, ToVmm::Gate { channel, seq, .. }) => Some((*tenant, *channel, *seq)),
        _ => None,
    }
}

/// Calls as text; numbers of gate moves are left out.
pub(crate) fn show(calls: &[Call]) -> Vec<String> {
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
