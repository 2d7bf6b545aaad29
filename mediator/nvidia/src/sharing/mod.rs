//! The sharing core: an NVIDIA GPU on which tenants run together.
//!
//! ```text
//!   observe: log, engine status, busy counter, channel status -> probe -> reading
//!   reading -> mediation (rule `owed`) -> holds -> executor, lease, preemptor
//!                                  \-> time slices -> channel groups
//! ```
//!
//! The hardware divides the engine in time slices. The core polls it each 20 ms, and holds
//! tenants only while another has a turn of its own, by a cap, and while their memory is away.

mod engine_probe;
mod holds;
mod moving;
mod owner;
mod start;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use turnstile_accounting::{EngineId, Moment, Nanos, TenantId};
use turnstile_gpu::{
    Allocation, Ask, COMPUTE, Capabilities, ChannelActivity, ChannelConfig, Channels, Contexts,
    DoorbellChange, EngineReading, EngineStatus, Gpu, Memory, MemoryEvent, Metering, MoveError,
    MoveOrder, Order, ProgramEvent, ProgramRefusal, Refusal, Report, Suspension, TenantMemory,
    TenantResources, Untracked,
};
use turnstile_host::process;
use turnstile_vmm::wire::ObjectChange;

use crate::clock::GpuClock;
use crate::hold::holder::OwnedSwitch;
use crate::hold::watchdog::Watchdog;
use crate::hold::{Channel, SharedHolder, SuspendExecutor};
use crate::preemptor::Preemptor;
use crate::programs::{ProgramChunks, ProgramMemory};
use crate::rm::RmClient;
use crate::sets::Sets;
use crate::tenant::state::Event;
use crate::version::DriverAbi;
use crate::vms::Vms;
use engine_probe::EngineProbe;
pub use holds::{Holds, Reason};
pub use moving::Moving;
pub use start::NvidiaError;
pub(crate) use start::facts;
use start::open_log;

/// Lock order: `holds`, `preemptor`, `probe`, `clock`. The locks of the working sets are taken
/// while none of these is held.
#[derive(Debug)]
// FIELDS: what three threads share, each with a lock of its own, set once, or read only.
struct Shared {
    client: Arc<RmClient>,
    driver: DriverAbi,
    clock: Mutex<GpuClock>,
    probe: Mutex<EngineProbe>,
    executor: SuspendExecutor,
    holds: Mutex<Holds>,
    preemptor: Mutex<Option<Preemptor>>,
    wake: OwnedFd,
    vms: Vms,
    programs: ProgramMemory,
    chunks: ProgramChunks,
    /// Channels that may run when the daemon has ended, of programs that lack memory. Set as it
    /// ends.
    able: OnceLock<BTreeMap<TenantId, Vec<Channel>>>,
    /// Where tenants' memory is, if it moves. Set once, before there are tenants.
    sets: OnceLock<Arc<Sets>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic under a lock is a bug; the other tenants' GPU goes on as well as it can.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn now(&self) -> Moment {
        lock(&self.clock).now()
    }

    /// Holds or releases a tenant for one reason.
    fn hold(&self, tenant: TenantId, reason: Reason, on: bool) {
        let mut holds = lock(&self.holds);
        let Some(held) = holds.set(tenant, reason, on) else {
            return;
        };
        if let (true, Ok(worker)) = (held, self.vms.of(tenant)) {
            worker.set_suspended(true);
        }
        self.executor.submit(tenant, held);
    }

    /// Releases all tenants that the rule holds.
    fn release_all(&self) {
        let held: Vec<TenantId> = lock(&self.holds).of(Reason::Rule).collect();
        for tenant in held {
            self.hold(tenant, Reason::Rule, false);
        }
    }

    /// Tenants that have work which their channels do not show: commands that the worker of a VM
    /// keeps while the VM is held, and requests that need memory that is away.
    fn with_requests(&self) -> BTreeSet<TenantId> {
        let mut found = BTreeSet::from_iter(self.vms.with_commands());
        if let Some(sets) = self.sets() {
            let tenants: Vec<TenantId> = lock(&self.probe).tenants.keys().copied().collect();
            let requests = |tenant: &TenantId| sets.has_request(*tenant);
            found.extend(tenants.into_iter().filter(requests));
        }
        found
    }

    fn changed(&self, tenant: TenantId, pid: u32, changes: &[ObjectChange]) {
        if lock(&self.probe).changed(tenant, pid, changes) {
            self.executor.channels_added(tenant);
        }
        self.inherit(tenant, pid, changes);
    }

    fn happened(&self, tenant: TenantId, event: Event) {
        let now = self.now();
        lock(&self.probe).apply(tenant, event, now);
    }
}

/// An NVIDIA GPU on which tenants run together.
#[derive(Debug)]
pub struct SharedGpu {
    shared: Arc<Shared>,
    capabilities: Capabilities,
    holder: Arc<SharedHolder<OwnedSwitch, Watchdog>>,
    thread: Option<JoinHandle<()>>,
}

/// Interval, within a period, of the check of memory that moves.
pub const MEMORY_TICK: Nanos = Nanos::from_ms(3);

impl Gpu for SharedGpu {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn report(&self) -> Report {
        let (calls, work) = (self.shared.executor.calls(), self.shared.executor.work());
        let mut figures = self.shared.programs.figures();
        let mut probe = lock(&self.shared.probe);
        let (missing, dropped) = probe.losses();
        figures.extend([
            ("suspend_calls", calls.count),
            ("suspend_calls_failed", calls.failed),
            ("suspend_calls_ns", calls.total_ns),
            ("gate_works", work.count),
            ("gate_works_ns", work.wall_ns),
            ("gate_works_cpu_ns", work.cpu_ns),
            ("looks", probe.polls.count),
            ("looks_ns", probe.polls.wall_ns),
            ("looks_cpu_ns", probe.polls.cpu_ns),
            ("log_reads_ns", probe.log_reads.wall_ns),
            ("channel_reads_ns", probe.channel_reads.wall_ns),
            ("log_records", probe.switched),
            ("log_records_missing", missing),
            ("log_records_dropped", dropped),
            ("windows_split", probe.split),
        ]);
        probe
            .processes
            .forget_gone(|pid| process::Identity::of(pid).is_none());
        let of = |(pid, switches): (&u32, &u64)| Untracked {
            pid: *pid,
            name: process::name(*pid),
            switches: *switches,
        };
        // The mover is the daemon's own.
        let strange = |pid: &u32| process::parent(*pid) != Some(std::process::id());
        let unknown = probe.processes.unknown().iter();
        Report {
            figures,
            untracked: unknown.filter(|(pid, _)| strange(pid)).map(of).collect(),
            ..Report::default()
        }
    }

    /// A silent GPU goes on with another log. One that was lost has to be reset by the vendor's
    /// tools, which takes a restart of the daemon: the driver does not open it for another client
    /// before.
    fn ask(&self, ask: Ask) -> Result<Contexts, String> {
        let shared = &self.shared;
        if ask == Ask::TakeBack {
            let log = open_log(shared.client.index(), &shared.driver);
            lock(&shared.probe).begin_anew(log.map_err(|error| error.to_string())?)?;
        } else if let Some(reason) = { lock(&shared.probe).silence() } {
            // Nothing is known by which the rule could let them go.
            shared.release_all();
            return Err(reason);
        }
        Ok(Contexts::Kept)
    }
}

impl Channels for SharedGpu {
    fn create_context(
        &self,
        tenant: TenantId,
        resources: TenantResources,
    ) -> Result<File, Refusal> {
        let shared = self.shared.clone();
        let known = AtomicBool::new(false);
        let started = self
            .shared
            .vms
            .start(tenant, resources, move |pid, changes| {
                let Some(changes) = changes else {
                    lock(&shared.probe).exited(pid);
                    return;
                };
                if !known.swap(true, Ordering::Relaxed) {
                    lock(&shared.probe).add(tenant, pid);
                }
                shared.changed(tenant, pid, changes);
            });
        started.and_then(|file| {
            self.shared.moves(tenant, &self.shared.vms.of(tenant)?);
            Ok(file)
        })
    }

    fn destroy_context(&self, tenant: TenantId) {
        self.shared.vms.end(tenant);
        self.shared.programs.remove(tenant);
        if let Some(sets) = self.shared.sets() {
            sets.remove(tenant);
        }
        lock(&self.shared.holds).forget(tenant);
        self.shared.executor.submit(tenant, false);
        lock(&self.shared.probe).remove(tenant);
    }

    fn open_channel(&self, tenant: TenantId, config: ChannelConfig) -> Result<u32, Refusal> {
        let _pass = self.shared.pass(tenant)?;
        self.shared.vms.of(tenant)?.open_channel(config)
    }

    fn close_channel(&self, tenant: TenantId, channel: u32) -> Result<(), Refusal> {
        let worker = self.shared.vms.of(tenant)?;
        // A held VM does not answer the request. A process that is gone gets none.
        let lives = !worker.is_lost();
        let _pass = lives.then(|| self.shared.pass(tenant)).transpose()?;
        worker.close_channel(channel)
    }

    fn load_module(
        &self,
        tenant: TenantId,
        ptx: &str,
        _max_bytes: Option<u64>,
    ) -> Result<(u32, u32), Refusal> {
        let _pass = self.shared.pass(tenant)?;
        self.shared.vms.of(tenant)?.load_module(ptx)
    }

    fn unload_module(&self, tenant: TenantId, module: u32) -> Result<(), Refusal> {
        let _pass = self.shared.pass(tenant)?;
        self.shared.vms.of(tenant)?.unload_module(module)
    }

    fn find_function(
        &self,
        tenant: TenantId,
        module: u32,
        name: &str,
    ) -> Result<(u32, u32), Refusal> {
        let _pass = self.shared.pass(tenant)?;
        self.shared.vms.of(tenant)?.find_function(module, name)
    }

    fn doorbells_changed(&self, tenant: TenantId, change: DoorbellChange) {
        self.shared.vms.doorbells_changed(tenant, change);
    }

    fn program(&self, tenant: TenantId, event: ProgramEvent<'_>) -> Result<(), ProgramRefusal> {
        let shared = &self.shared;
        match event {
            ProgramEvent::Started {
                root,
                memory_max_bytes,
            } => {
                let card_bytes = self.capabilities.memory_bytes;
                let max_bytes = memory_max_bytes.map_or(card_bytes, |max| max.min(card_bytes));
                shared.programs.add(tenant, Some(max_bytes));
                shared.chunks.add(tenant, &shared.programs);
                lock(&shared.probe).add(tenant, root);
                self.wake();
            }
            ProgramEvent::Memory(connection) => {
                let connected = shared.programs.connect(tenant, connection);
                connected.map_err(ProgramRefusal::Refused)?;
            }
            ProgramEvent::Changed { pid, changes } => shared.changed(tenant, pid, changes),
            ProgramEvent::Exited { pid } => lock(&shared.probe).exited(pid),
        }
        Ok(())
    }
}

impl Suspension for SharedGpu {
    fn carry_out(&self, orders: &[Order]) {
        for order in orders {
            match *order {
                Order::Hold(tenant, COMPUTE) => self.shared.hold(tenant, Reason::Rule, true),
                Order::Release(tenant, COMPUTE) => self.shared.hold(tenant, Reason::Rule, false),
                // Copy engines cannot be taken from a tenant alone.
                Order::Hold(..) | Order::Release(..) => {}
                Order::Suspend(tenant) => self.shared.hold(tenant, Reason::Memory, true),
                Order::Resume(tenant) => self.shared.hold(tenant, Reason::Memory, false),
                Order::Slice(tenant, slice) => {
                    lock(&self.shared.probe).groups.order(tenant, slice);
                }
            }
        }
    }
}

impl Memory for SharedGpu {
    fn allocate(&self, tenant: TenantId, bytes: u64) -> Result<Allocation, Refusal> {
        match self.shared.sets() {
            Some(sets) => self.shared.allocate_moving(sets, tenant, bytes),
            None => self.shared.vms.of(tenant)?.allocate(bytes),
        }
    }

    fn free(&self, tenant: TenantId, va: u64) -> Result<(), Refusal> {
        match self.shared.sets() {
            Some(sets) => self.shared.free_moving(sets, tenant, va),
            None => self.shared.vms.of(tenant)?.free(va),
        }
    }

    fn memory(&self, tenant: TenantId) -> TenantMemory {
        let worker = self.shared.vms.of(tenant);
        let is_still = self.shared.sets().is_some_and(|sets| sets.is_still(tenant));
        TenantMemory {
            is_quiet: is_still && !self.shared.executor.is_pending(),
            free_bytes: worker.map_or(0, |worker| worker.memory_free_bytes()),
            ..TenantMemory::default()
        }
    }

    fn move_memory(&self, order: MoveOrder) -> Result<(), MoveError> {
        let sets = self.shared.sets().ok_or(MoveError::Unsupported)?;
        sets.order(order)
    }

    fn read_memory_events(&self, events: &mut Vec<MemoryEvent>) {
        if let Some(sets) = self.shared.sets() {
            sets.read_events(events);
        }
    }
}

impl Metering for SharedGpu {
    fn now(&self) -> Moment {
        self.shared.now()
    }

    fn engine_status(&self, engine: EngineId) -> EngineStatus {
        let resident = || lock(&self.shared.probe).resident();
        let running = (engine == COMPUTE).then(resident).flatten();
        EngineStatus { running }
    }

    fn activity(&self, tenant: TenantId, channels: &mut Vec<ChannelActivity>) {
        if let Ok(worker) = self.shared.vms.of(tenant) {
            worker.activity(channels);
            return;
        }
        let probe = lock(&self.shared.probe);
        let of = probe.tenants.get(&tenant).copied().unwrap_or_default();
        channels.push(ChannelActivity {
            channel: 0,
            pending: of.has_work.into(),
            finished: None,
            stalls: 0,
            last_active: of.active.unwrap_or(Moment(0)),
        });
    }

    fn read(&self, reading: &mut EngineReading) {
        let shared = &self.shared;
        shared.executor.run_pending(&self.holder, &**shared, false);
        lock(&shared.clock).follow(&shared.client, &shared.driver);
        shared.vms.set_clock(shared.now());
        let with_requests = shared.with_requests();
        let requests = |tenant| with_requests.contains(&tenant);
        lock(&shared.probe).poll(|| shared.now(), requests, reading);
    }

    /// Orders that were given since the last reading are carried out first.
    fn wait(&self, length: Nanos) -> bool {
        let shared = &self.shared;
        let begin = shared.now();
        shared.executor.run_pending(&self.holder, &**shared, true);
        let left = length.saturating_sub(shared.now().since(begin));
        // CAST: less than a second.
        let timeout = Timespec {
            tv_sec: (left.0 / 1_000_000_000) as i64,
            tv_nsec: (left.0 % 1_000_000_000) as i64,
        };
        let mut fds = [PollFd::new(&shared.wake, PollFlags::IN)];
        // An error: a signal came. The caller reads the time.
        if poll(&mut fds, Some(&timeout)).is_ok_and(|ready| ready > 0) {
            let mut count = [0; 8];
            let _ = rustix::io::read(&shared.wake, &mut count);
        }
        shared.executor.caller_awakes();
        false
    }

    fn wake(&self) {
        // Full: it was woken often enough.
        let _ = rustix::io::write(&self.shared.wake, &1_u64.to_ne_bytes());
    }
}

impl Drop for SharedGpu {
    fn drop(&mut self) {
        // Before their libraries are not listened to any more. Empty until here.
        let _ = self.shared.able.set(self.shared.able_channels());
        self.shared.vms.end_all();
        self.shared.programs.end_all();
        if let Some(sets) = self.shared.sets() {
            sets.end();
        }
        self.shared.executor.end();
        if let Some(thread) = self.thread.take() {
            // Its panic, if it had one, was reported when it happened.
            let _ = thread.join();
        }
    }
}
