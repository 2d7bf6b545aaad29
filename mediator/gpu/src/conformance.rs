//! What every GPU behind the trait has to do, as checks that a backend's tests run.
//!
//! In go a GPU without tenants, a way to let time pass, and a kernel of given length. A check that
//! fails panics with what was missing. The checks leave no tenant behind. They use what
//! [`crate::Capabilities`] promises, and check that the rest is refused.

use std::thread;
use std::time::{Duration, Instant};

use turnstile_abi::{CHUNK_BYTES, Command, CopyDirection, ErrorCode};
use turnstile_accounting::{Demand, EngineState, Nanos, TenantId};
use vm_memory::GuestAddress;

use crate::plain::{PlainChannel, PlainVm};
use crate::{
    COMPUTE, ChannelActivity, ChannelConfig, ChunkId, Contexts, Direction, EngineReading, Gpu,
    MemoryEvent, MoveError, MoveOrder, Order, Suspend, TenantMemory,
};

const A: TenantId = TenantId(1);
const B: TenantId = TenantId(2);
const UNKNOWN: TenantId = TenantId(999);

/// Time in which a suspended tenant would start its work.
const A_WHILE: Nanos = Nanos::from_ms(5);
/// Bytes that a tenant may allocate.
const LIMIT_BYTES: u64 = 16 * CHUNK_BYTES;

/// A GPU to be checked.
#[allow(missing_debug_implementations)]
pub struct Checked<'a> {
    /// The GPU, without tenants.
    pub gpu: &'a dyn Gpu,
    /// Lets some microseconds pass, on the clock of the GPU.
    pub pass: &'a dyn Fn(),
    /// Makes a kernel that runs for this long.
    pub kernel: &'a dyn Fn(&PlainVm, Nanos) -> Command,
    /// Silences the GPU (true), or makes it able to answer again; none if it cannot fall silent.
    pub silence: Option<&'a dyn Fn(bool)>,
}

impl Checked<'_> {
    /// Runs all checks.
    ///
    /// # Panics
    /// If the GPU fails one.
    pub fn run(&self) {
        self.commands_finish_in_order_and_are_reported();
        self.memory_is_counted_and_zeroed();
        self.requests_of_an_unknown_tenant_are_refused();
        self.a_suspended_tenant_starts_nothing_until_it_is_resumed();
        self.a_held_tenant_starts_nothing_on_that_engine_until_it_is_released();
        self.the_log_has_each_switch_once();
        self.a_tenant_that_leaves_frees_the_engine_and_its_name();
        self.memory_moves_only_where_nothing_runs();
        self.a_wait_ends_when_it_is_woken();
        self.a_silent_gpu_says_so_and_is_taken_back_without_its_contexts();
    }

    fn wait(&self, what: &str, mut done: impl FnMut() -> bool) {
        let begin = Instant::now();
        while !done() {
            assert!(begin.elapsed() < Duration::from_secs(10), "no {what}");
            (self.pass)();
        }
    }

    fn let_pass(&self, length: Nanos) {
        let end = self.gpu.now() + length;
        self.wait("time", || self.gpu.now() >= end);
    }

    fn channel(&self, tenant: TenantId) -> PlainChannel {
        let vm = PlainVm::enter(self.gpu, tenant, 16 << 20, LIMIT_BYTES, 8);
        let channel = vm.and_then(|vm| vm.open_channel(self.gpu, tenant, 64, 3));
        // PANIC: a check has failed, as below.
        channel.expect("a context with a channel")
    }

    fn push_kernel(&self, channel: &mut PlainChannel, length: Nanos) {
        channel.push(&(self.kernel)(&channel.vm, length));
    }

    fn activity(&self, tenant: TenantId) -> Vec<ChannelActivity> {
        let mut channels = Vec::new();
        self.gpu.activity(tenant, &mut channels);
        channels
    }

    fn allocate(&self, tenant: TenantId, bytes: u64) -> u64 {
        self.gpu.allocate(tenant, bytes).expect("GPU memory").va
    }

    /// Copies bytes out of GPU memory.
    fn read(&self, channel: &mut PlainChannel, va: u64, bytes: usize) -> Vec<u8> {
        let destination = channel.vm.take(bytes as u64);
        channel.push(&Command::Copy {
            direction: CopyDirection::GpuToGuest,
            source: va,
            destination,
            bytes: bytes as u64,
        });
        self.finish(channel);
        let mut content = vec![0; bytes];
        let read = channel
            .vm
            .guest
            .read_slice(&mut content, GuestAddress(destination));
        read.expect("memory of a plain VM");
        content
    }

    fn fill(&self, channel: &mut PlainChannel, va: u64, pattern: u32) {
        let bytes = CHUNK_BYTES;
        channel.push(&Command::Fill { va, bytes, pattern });
        self.finish(channel);
    }

    /// Announces what was pushed, and waits until it has finished.
    fn finish(&self, channel: &mut PlainChannel) {
        let value = channel.push_fence(false);
        channel.ring_watched(self.gpu);
        self.wait("fence", || channel.fence().value == value);
    }

    fn commands_finish_in_order_and_are_reported(&self) {
        let begin = self.gpu.now();
        let mut channel = self.channel(A);
        let va = self.allocate(A, CHUNK_BYTES);
        self.fill(&mut channel, va, 0x0403_0201);
        assert_eq!(self.read(&mut channel, va + 2, 6), [3, 4, 1, 2, 3, 4]);
        channel.push_fence(true);
        channel.ring_watched(self.gpu);
        self.wait("interrupt", || channel.vm.interrupts.count(3) == 1);
        self.wait("idle channel", || self.activity(A)[0].pending == 0);
        let activity = self.activity(A)[0];
        assert_eq!((activity.channel, activity.stalls % 2), (channel.number, 0));
        assert!(
            activity
                .finished
                .is_none_or(|finished| finished == channel.put)
        );
        assert!(begin <= activity.last_active, "{activity:?}");
        self.wait("clock", || activity.last_active <= self.gpu.now());
        self.gpu.destroy_context(A);
    }

    fn memory_is_counted_and_zeroed(&self) {
        let mut channel = self.channel(A);
        let before = self.gpu.memory(A);
        let va = self.allocate(A, 3 * CHUNK_BYTES - 5);
        let after = self.gpu.memory(A);
        assert_eq!(before.free_bytes - after.free_bytes, 3 * CHUNK_BYTES);
        if self.gpu.capabilities().memory_held {
            assert_eq!(after.held_bytes - before.held_bytes, 3 * CHUNK_BYTES);
        }
        self.fill(&mut channel, va, 0xdead_beef);
        let refused = self.gpu.allocate(A, after.free_bytes + 1).unwrap_err();
        assert_eq!(refused.code, ErrorCode::OutOfGpuMemory, "{refused}");
        let refused = self.gpu.free(A, va + CHUNK_BYTES).unwrap_err();
        assert_eq!(refused.code, ErrorCode::NoSuchAllocation, "{refused}");
        self.gpu.free(A, va).expect("freed memory");
        assert_eq!(self.gpu.memory(A), before);
        let all = self.allocate(A, before.free_bytes);
        for offset in (0..before.free_bytes).step_by(CHUNK_BYTES as usize) {
            assert_eq!(self.read(&mut channel, all + offset, 8), [0; 8]);
        }
        self.gpu.destroy_context(A);
    }

    fn requests_of_an_unknown_tenant_are_refused(&self) {
        let gpu = self.gpu;
        let config = ChannelConfig {
            ring_gpa: 0,
            entries: 8,
            state_gpa: 0x1000,
            vector: 0,
        };
        assert!(gpu.open_channel(UNKNOWN, config).is_err());
        assert!(gpu.close_channel(UNKNOWN, 0).is_err());
        assert!(gpu.allocate(UNKNOWN, 1).is_err());
        assert!(gpu.free(UNKNOWN, 0).is_err());
        assert!(gpu.load_module(UNKNOWN, "", None).is_err());
        assert_eq!(gpu.memory(UNKNOWN), TenantMemory::default());
        assert!(
            self.activity(UNKNOWN)
                .iter()
                .all(|channel| channel.pending == 0)
        );
        gpu.carry_out(&[Order::Suspend(UNKNOWN), Order::Hold(UNKNOWN, COMPUTE)]);
        gpu.carry_out(&[Order::Resume(UNKNOWN), Order::Release(UNKNOWN, COMPUTE)]);
        gpu.destroy_context(UNKNOWN);
    }

    fn a_suspended_tenant_starts_nothing_until_it_is_resumed(&self) {
        if self.gpu.capabilities().suspend == Suspend::Drains {
            return;
        }
        let mut channel = self.channel(A);
        self.gpu.carry_out(&[Order::Suspend(A)]);
        self.push_kernel(&mut channel, Nanos::from_us(10));
        channel.push_fence(false);
        channel.ring_watched(self.gpu);
        self.wait("announcement", || self.activity(A)[0].pending == 2);
        self.let_pass(A_WHILE);
        assert_eq!(channel.fence().value, 0);
        self.gpu.carry_out(&[Order::Resume(A)]);
        self.wait("fence", || channel.fence().value == 1);
        self.gpu.destroy_context(A);
    }

    fn a_held_tenant_starts_nothing_on_that_engine_until_it_is_released(&self) {
        let can = self.gpu.capabilities();
        if !can.engine_holds {
            return;
        }
        let (mut held, mut other) = (self.channel(A), self.channel(B));
        let opened = held.vm.open_channel(self.gpu, A, 64, 4);
        let mut copies = opened.expect("a second channel");
        let va = self.allocate(A, CHUNK_BYTES);
        self.gpu.carry_out(&[Order::Hold(A, COMPUTE)]);
        self.push_kernel(&mut held, Nanos::from_us(10));
        held.push_fence(false);
        held.ring_watched(self.gpu);
        let mut reading = EngineReading::default();
        let mut demands = |demand| {
            self.gpu.read(&mut reading);
            let events = reading.demand.iter().rev();
            let mut own = events.filter(|event| (event.tenant, event.engine) == (A, COMPUTE));
            !can.demand || own.next().is_some_and(|event| event.demand == demand)
        };
        self.wait("demand", || demands(Demand::Queued));
        // Its copies go on, and so do kernels of another tenant that came later.
        self.fill(&mut copies, va, 1);
        for _ in 0..3 {
            self.push_kernel(&mut other, Nanos::from_us(10));
            self.finish(&mut other);
        }
        assert_eq!(held.fence().value, 0);
        self.gpu.carry_out(&[Order::Release(A, COMPUTE)]);
        self.wait("fence", || held.fence().value == 1);
        self.wait("no demand", || demands(Demand::Nothing));
        assert!(reading.demand.is_sorted_by_key(|event| event.at));
        self.gpu.destroy_context(A);
        self.gpu.destroy_context(B);
    }

    fn the_log_has_each_switch_once(&self) {
        let can = self.gpu.capabilities();
        if can.time_slices {
            return;
        }
        let mut reading = EngineReading::of(self.gpu);
        let mut channel = self.channel(A);
        let length = Nanos::from_ms(3);
        for _ in 0..3 {
            self.push_kernel(&mut channel, length);
        }
        channel.ring_watched(self.gpu);
        let runs = || self.gpu.engine_status(COMPUTE).running;
        self.wait("start", || runs() == Some(A));
        self.finish(&mut channel);
        self.wait("idle engine", || runs().is_none());
        self.gpu.read(&mut reading);
        let log: Vec<_> = reading
            .switches
            .iter()
            .filter(|event| event.engine == COMPUTE)
            .collect();
        assert!(
            log.windows(2)
                .all(|two| two[1].seq == two[0].seq + 1 && two[1].at >= two[0].at)
        );
        let ran = |two: &[&turnstile_accounting::SwitchEvent]| match two[0].state {
            EngineState::Running(A) => two[1].at.since(two[0].at),
            _ => Nanos::ZERO,
        };
        let total: Nanos = log.windows(2).map(ran).sum();
        assert!(total >= Nanos(3 * length.0), "{total:?} in {log:?}");
        assert_eq!(log.last().map(|event| event.state), Some(EngineState::Idle));
        assert_eq!(EngineReading::of(self.gpu).switches, []);
        self.gpu.destroy_context(A);
    }

    fn a_tenant_that_leaves_frees_the_engine_and_its_name(&self) {
        for _ in 0..3 {
            let mut channel = self.channel(A);
            self.push_kernel(&mut channel, Nanos::from_ms(200));
            channel.ring_watched(self.gpu);
            let runs = || self.gpu.engine_status(COMPUTE).running;
            self.wait("start", || runs() == Some(A));
            self.gpu.destroy_context(A);
            assert!(self.gpu.open_channel(A, channel.config).is_err());
            let mut other = self.channel(B);
            self.push_kernel(&mut other, Nanos::from_us(10));
            self.finish(&mut other);
            assert_ne!(runs(), Some(A));
            self.gpu.destroy_context(B);
        }
    }

    fn memory_moves_only_where_nothing_runs(&self) {
        let mut channel = self.channel(A);
        let va = self.allocate(A, CHUNK_BYTES);
        let mut events = Vec::new();
        self.gpu.read_memory_events(&mut events);
        let own = events.iter().rev().find_map(|event| match event {
            MemoryEvent::Allocated {
                owner: A, first, ..
            } => Some(*first),
            _ => None,
        });
        let order = |direction| MoveOrder {
            owner: A,
            cause: A,
            direction,
            chunks: vec![own.unwrap_or(ChunkId(0))],
        };
        let refused = self.gpu.move_memory(order(Direction::Out));
        if !self.gpu.capabilities().moves_memory() {
            assert_eq!((refused, own), (Err(MoveError::Unsupported), None));
            self.gpu.destroy_context(A);
            return;
        }
        assert_eq!(refused, Err(MoveError::MayRun(A)));
        self.fill(&mut channel, va, 0x0101_0101);
        self.gpu.carry_out(&[Order::Suspend(A)]);
        self.wait("quiet tenant", || self.gpu.memory(A).is_quiet);
        for direction in [Direction::Out, Direction::In] {
            self.gpu.move_memory(order(direction)).expect("a move");
            self.wait("moved chunk", || {
                let mut events = Vec::new();
                self.gpu.read_memory_events(&mut events);
                events.iter().any(|event| match event {
                    MemoryEvent::Moved(report) => {
                        report.direction == direction && report.result == Ok(())
                    }
                    _ => false,
                })
            });
        }
        self.gpu.carry_out(&[Order::Resume(A)]);
        assert_eq!(self.read(&mut channel, va, 4), [1; 4]);
        self.gpu.destroy_context(A);
    }

    fn a_wait_ends_when_it_is_woken(&self) {
        let begin = Instant::now();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| self.gpu.wait(Nanos::from_ms(60_000)));
            self.gpu.wake();
            waiter.thread().unpark();
        });
        assert!(begin.elapsed() < Duration::from_secs(50));
    }

    fn a_silent_gpu_says_so_and_is_taken_back_without_its_contexts(&self) {
        assert_eq!(self.gpu.answers(), Ok(()));
        let Some(silence) = self.silence else {
            return;
        };
        for _ in 0..2 {
            let mut before = self.channel(A);
            self.push_kernel(&mut before, Nanos::from_ms(200));
            before.ring_watched(self.gpu);
            let runs = || self.gpu.engine_status(COMPUTE).running == Some(A);
            self.wait("start", runs);
            silence(true);
            self.wait("silence", || self.gpu.answers().is_err());
            let since = self.gpu.now();
            self.let_pass(A_WHILE);
            assert_ne!(self.gpu.answers().unwrap_err(), "", "it stays silent");
            silence(false);
            self.wait("way back", || self.gpu.take_back() == Ok(Contexts::Gone));
            assert_eq!(self.gpu.answers(), Ok(()));
            // Nothing of before is left: no record, no work, no context.
            let log = EngineReading::of(self.gpu).switches;
            assert!(log.iter().all(|event| event.at >= since), "{log:?}");
            assert!(log.iter().all(|event| event.state == EngineState::Idle));
            assert!(!runs() && self.activity(A).is_empty());
            assert!(self.gpu.open_channel(A, before.config).is_err());
            self.gpu.destroy_context(A);
            self.commands_finish_in_order_and_are_reported();
            self.the_log_has_each_switch_once();
        }
    }
}
