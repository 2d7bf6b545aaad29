//! The sharing core: an NVIDIA GPU on which tenants run together.
//!
//! ```text
//!   observe: log, engine status, busy counter, channel status -> looker -> Look
//!   Look -> mediation (rule `owed`) -> holds -> executor, lease, preemptor
//!                                  \-> time slices -> channel groups
//! ```
//!
//! The hardware divides the engine in time slices. The core looks at it each 20 ms, and holds
//! tenants only while another has a turn of its own, by a cap, and while their memory is away.

mod holds;
mod looker;
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
use turnstile_accounting::{EngineId, Moment, Nanos, SwitchEvent, TenantId};
use turnstile_gpu::{
    Allocation, COMPUTE, Capabilities, ChannelActivity, ChannelConfig, EngineStatus, Gpu, Look,
    MemoryEvent, MoveError, MoveOrder, ProgramRefusal, Refusal, TenantResources, Untracked,
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
use crate::version::DriverAbi;
use crate::vms::Vms;
pub use holds::{Holds, Reason};
use looker::Looker;
pub use moving::Moving;
pub use start::NvidiaError;

/// Lock order: `holds`, `preemptor`, `looker`, `clock`. The locks of the working sets are taken
/// while none of these is held.
#[derive(Debug)]
struct Shared {
    client: Arc<RmClient>,
    driver: DriverAbi,
    clock: Mutex<GpuClock>,
    looker: Mutex<Looker>,
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

    /// Tenants that have work which their channels do not show: commands that the worker of a VM
    /// keeps while the VM is held, and requests that need memory that is away.
    fn asking(&self) -> BTreeSet<TenantId> {
        let tenants: Vec<TenantId> = lock(&self.looker).tenants.keys().copied().collect();
        let asks = |tenant: &TenantId| {
            self.sets().is_some_and(|sets| sets.asks(*tenant)) || self.pends(*tenant)
        };
        tenants.into_iter().filter(asks).collect()
    }

    /// Whether commands of a VM are pending.
    fn pends(&self, tenant: TenantId) -> bool {
        let mut channels = Vec::new();
        if let Ok(worker) = self.vms.of(tenant) {
            worker.activity(&mut channels);
        }
        channels.iter().any(|channel| channel.pending > 0)
    }

    fn changed(&self, tenant: TenantId, pid: u32, changes: &[ObjectChange]) {
        if lock(&self.looker).changed(tenant, pid, changes) {
            self.executor.channels_added(tenant);
        }
        self.inherit(tenant, pid, changes);
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

/// How often memory that moves is looked after within a period.
pub const MEMORY_TICK: Nanos = Nanos::from_ms(3);

impl Gpu for SharedGpu {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn now(&self) -> Moment {
        self.shared.now()
    }

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
                    lock(&shared.looker).exited(pid);
                    return;
                };
                if !known.swap(true, Ordering::Relaxed) {
                    lock(&shared.looker).add(tenant, pid);
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
        lock(&self.shared.looker).remove(tenant);
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

    fn memory_free_bytes(&self, tenant: TenantId) -> u64 {
        let worker = self.shared.vms.of(tenant);
        worker.map_or(0, |worker| worker.memory_free_bytes())
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

    fn engine_status(&self, engine: EngineId) -> EngineStatus {
        let resident = || lock(&self.shared.looker).resident();
        let running = (engine == COMPUTE).then(resident).flatten();
        EngineStatus { running }
    }

    /// Orders that were given since the last look are carried out first.
    fn nap(&self, length: Nanos) -> Option<Nanos> {
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
        // An error: a signal came. The caller looks at the time.
        if poll(&mut fds, Some(&timeout)).is_ok_and(|ready| ready > 0) {
            let mut count = [0; 8];
            let _ = rustix::io::read(&shared.wake, &mut count);
        }
        shared.executor.caller_awakes();
        None
    }

    fn wake(&self) {
        // Full: it was woken often enough.
        let _ = rustix::io::write(&self.shared.wake, &1_u64.to_ne_bytes());
    }

    /// The log is read at looks.
    fn read_events(&self, _: &mut Vec<SwitchEvent>) -> bool {
        true
    }

    fn read_look(&self, look: &mut Look) {
        let shared = &self.shared;
        shared.executor.run_pending(&self.holder, &**shared, false);
        lock(&shared.clock).follow(&shared.client, &shared.driver);
        shared.vms.set_clock(shared.now());
        let asking = shared.asking();
        let asks = |tenant| asking.contains(&tenant);
        let mut looker = lock(&shared.looker);
        if let Err(error) = looker.look(|| shared.now(), asks, look) {
            log::error!("{error}");
        }
    }

    fn set_slice(&self, tenant: TenantId, slice: Nanos) {
        lock(&self.shared.looker).groups.order(tenant, slice);
    }

    fn hold(&self, tenant: TenantId, engine: EngineId, held: bool) {
        if engine == COMPUTE {
            self.shared.hold(tenant, Reason::Rule, held);
        }
    }

    fn activity(&self, tenant: TenantId, channels: &mut Vec<ChannelActivity>) {
        if let Ok(worker) = self.shared.vms.of(tenant) {
            worker.activity(channels);
            return;
        }
        let looker = lock(&self.shared.looker);
        let of = looker.tenants.get(&tenant).copied().unwrap_or_default();
        channels.push(ChannelActivity {
            channel: 0,
            pending: of.has_work.into(),
            finished: None,
            stalls: 0,
            last_active: of.active.unwrap_or(Moment(0)),
        });
    }

    fn suspend(&self, tenant: TenantId) {
        self.shared.hold(tenant, Reason::Memory, true);
    }

    fn resume(&self, tenant: TenantId) {
        self.shared.hold(tenant, Reason::Memory, false);
    }

    fn is_quiet(&self, tenant: TenantId) -> bool {
        let sets = self.shared.sets();
        !self.shared.executor.is_pending() && sets.is_some_and(|sets| sets.is_still(tenant))
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

    fn ring(&self, tenant: TenantId) {
        if let Ok(worker) = self.shared.vms.of(tenant) {
            worker.ring();
        }
    }

    fn set_unwatched(&self, tenant: TenantId, open: bool) {
        if let Ok(worker) = self.shared.vms.of(tenant) {
            worker.set_unwatched(open);
        }
    }

    fn add_program(
        &self,
        tenant: TenantId,
        root: u32,
        memory_max_bytes: Option<u64>,
    ) -> Result<(), ProgramRefusal> {
        let card_bytes = self.capabilities.memory_bytes;
        let max_bytes = memory_max_bytes.map_or(card_bytes, |max| max.min(card_bytes));
        self.shared.programs.add(tenant, Some(max_bytes));
        self.shared.chunks.add(tenant, &self.shared.programs);
        lock(&self.shared.looker).add(tenant, root);
        self.wake();
        Ok(())
    }

    fn program_memory(&self, tenant: TenantId, connection: OwnedFd) -> Result<(), String> {
        self.shared.programs.connect(tenant, connection)
    }

    fn program_changed(&self, tenant: TenantId, pid: u32, changes: &[ObjectChange]) {
        self.shared.changed(tenant, pid, changes);
    }

    fn program_exited(&self, _: TenantId, pid: u32) {
        lock(&self.shared.looker).exited(pid);
    }

    fn figures(&self) -> BTreeMap<&'static str, u64> {
        let (calls, work) = (self.shared.executor.calls(), self.shared.executor.work());
        let mut figures = self.shared.programs.figures();
        let looker = lock(&self.shared.looker);
        let (missing, dropped) = looker.losses();
        figures.extend([
            ("suspend_calls", calls.count),
            ("suspend_calls_failed", calls.failed),
            ("suspend_calls_ns", calls.total_ns),
            ("gate_works", work.count),
            ("gate_works_ns", work.wall_ns),
            ("gate_works_cpu_ns", work.cpu_ns),
            ("looks", looker.looks.count),
            ("looks_ns", looker.looks.wall_ns),
            ("looks_cpu_ns", looker.looks.cpu_ns),
            ("log_reads_ns", looker.log_reads.wall_ns),
            ("channel_reads_ns", looker.channel_reads.wall_ns),
            ("log_records", looker.switched),
            ("log_records_missing", missing),
            ("log_records_dropped", dropped),
            ("windows_split", looker.split),
        ]);
        figures
    }

    fn untracked(&self) -> Vec<Untracked> {
        let mut looker = lock(&self.shared.looker);
        let is_gone = |pid| process::Identity::of(pid).is_none();
        looker.processes.forget_gone(is_gone);
        let of = |(pid, switches): (&u32, &u64)| Untracked {
            pid: *pid,
            name: process::name(*pid),
            switches: *switches,
        };
        // The mover is the daemon's own.
        let strange = |pid: &u32| process::parent(*pid) != Some(std::process::id());
        let unknown = looker.processes.unknown().iter();
        unknown.filter(|(pid, _)| strange(pid)).map(of).collect()
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
