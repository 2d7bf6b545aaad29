//! The NVIDIA GPU behind the mediator's trait: its tenants are VMs, each served by a worker process, and programs.
//!
//! One thread beside the callers' makes the calls that suspend and resume ([`super::hands`]).

mod counting;
mod figures;
mod hearing;
mod looking;
mod moving;
mod ushering;
mod watched;

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};

use rustix::event::{EventfdFlags, eventfd};
use turnstile_abi::CHUNK_BYTES;
use turnstile_accounting::{EngineId, Moment, Nanos, SwitchEvent, TenantId, Usage};
use turnstile_vmm::wire::ObjectChange;

use super::clock::GpuClock;
use super::costs::Cost;
use super::events::EventLog;
use super::guardian::{Guardian, GuardianError};
use super::hands::{Hands, Holding, Owner};
use super::hold::Channel;
use super::holder::{Holder, OwnedSwitch};
use super::look;
use super::models;
use super::mover::MoverError;
use super::observe::Registers;
use super::probe::CudaError;
use super::programs::{ProgramChunks, ProgramMemory};
use super::rm::{RmClient, RmError};
use super::sets::Sets;
use super::sys::Cuda;
use super::userd::{Borrowed, Borrower, Userds};
use super::usher::Usher;
use super::utilisation::Utilisation;
use super::version::{self, DriverAbi, VersionError};
use super::vms::Vms;
use super::watch::SETTLED;
use super::watch::heard::TOLD;
use super::worker::{Facts, WorkerConfig};
use turnstile_gpu::COMPUTE;
use turnstile_gpu::{
    Allocation, Capabilities, ChannelActivity, ChannelConfig, EngineStatus, Gpu, MemoryEvent,
    MoveError, MoveOrder, ProgramRefusal, Refusal, Suspend, TenantResources, Untracked,
};
use turnstile_host::process;

use counting::{AgeKnown, Counters, Counting, Told};
use hearing::Ears;
use looking::Looker;
use ushering::Ushering;
use watched::Watched;

pub use moving::Moving;

/// Why the GPU cannot be shared.
#[derive(Debug, thiserror::Error)]
pub enum NvidiaError {
    /// The driver is none that we know.
    #[error("The driver's privileged calls are not used")]
    Version(#[from] VersionError),
    /// The driver refused something.
    #[error("The driver failed (turnstile doctor says what is missing)")]
    Rm(#[from] RmError),
    /// Nobody would resume in our stead.
    #[error("Nobody can be held without a guardian")]
    Guardian(#[from] GuardianError),
    /// The CUDA driver library is needed for what VMs do.
    #[error(
        "The CUDA driver library cannot be used (install the vendor's user libraries, libcuda.so.1)"
    )]
    Cuda(#[from] CudaError),
    /// Memory is to move, and nothing moves it.
    #[error("GPU memory cannot be moved to the host")]
    Mover(#[from] MoverError),
    /// No thread.
    #[error("Starting a thread failed")]
    Thread(#[source] io::Error),
    /// Nothing to wake it by.
    #[error("Making an event descriptor failed")]
    Wake(#[from] rustix::io::Errno),
}

/// What the GPU is.
fn facts(index: u32) -> Result<Facts, CudaError> {
    /// SOURCE: cuda.h: CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK.
    const SHARED_BYTES: i32 = 8;
    /// SOURCE: cuda.h: CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT.
    const MULTIPROCESSORS: i32 = 16;
    let cuda = Cuda::load()?;
    let number = |attribute| {
        let number = cuda.attribute(index, attribute)?;
        Ok::<u32, CudaError>(number.try_into().unwrap_or(0))
    };
    Ok(Facts {
        multiprocessors: number(MULTIPROCESSORS)?,
        shared_bytes_max: number(SHARED_BYTES)?,
        memory_bytes: cuda.total_bytes(index)? / CHUNK_BYTES * CHUNK_BYTES,
        pinned: false,
    })
}

#[derive(Debug)]
struct Shared {
    client: Arc<RmClient>,
    driver: DriverAbi,
    clock: Mutex<GpuClock>,
    /// None where they are not mapped: the driver reads them.
    registers: Option<Arc<Registers>>,
    watched: Mutex<Watched>,
    /// Who is held or about to be.
    hands: Hands,
    ushering: Mutex<Ushering>,
    /// Looking at the status register.
    status: Mutex<Cost>,
    /// Who maps what channels say, if that is to be read; what is mapped, and what reading it costs.
    borrower: Option<Borrower>,
    userds: Mutex<Userds<Borrowed>>,
    asking: Mutex<Cost>,
    /// None if there are none (any more).
    counters: Mutex<Option<Counters>>,
    tell: SyncSender<Told>,
    /// Reading them, and measuring how old they are, by the thread that does.
    counting: Mutex<Cost>,
    age_known: AgeKnown,
    /// By whom tenants' hosts are heard: the thread that naps has them. So often somebody was.
    ears: Mutex<Ears>,
    heard: AtomicU64,
    /// Naps, and looks whether the engine works, of who accounts.
    naps: AtomicU64,
    looks: AtomicU64,
    /// Ends a nap; and whether it is to end when nobody is being held or released any more, to look whether the engine works.
    wake: OwnedFd,
    waits: AtomicBool,
    vms: Vms,
    programs: ProgramMemory,
    chunks: ProgramChunks,
    /// Who may run when the daemon has ended, of programs that lack memory. Set as it does.
    able: OnceLock<BTreeMap<TenantId, Vec<Channel>>>,
    /// Where tenants' memory is, if it moves. Set once, before there are tenants.
    sets: OnceLock<Arc<Sets>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic under a lock is a bug; the others' GPU goes on as well as it can.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An NVIDIA GPU.
#[derive(Debug)]
pub struct NvidiaGpu {
    shared: Arc<Shared>,
    capabilities: Capabilities,
    holding: Arc<Holding<OwnedSwitch, Guardian>>,
    thread: Option<JoinHandle<()>>,
    /// Ends with it.
    _counting: Option<Counting>,
}

impl NvidiaGpu {
    /// Shares the GPU that `config` names. `guardian` starts a process that ends up in [`super::guardian::serve`], `worker` one that ends up
    /// in [`super::worker::run`]. With `usher`, who is suspended is stopped sooner. With `moving`, VMs together may own more memory than there is.
    ///
    /// # Errors
    /// If the driver is not known, refuses, or there is no guardian.
    pub fn start(
        config: WorkerConfig,
        guardian: impl Fn() -> Command + Send + 'static,
        worker: impl Fn() -> Command + Send + Sync + 'static,
        usher: Option<Usher>,
        moving: Option<Moving>,
    ) -> Result<Self, NvidiaError> {
        let (index, channel_words) = (config.device, config.channel_words);
        let vms = Vms::new(config, worker);
        let driver = version::detect()?;
        let client = Arc::new(RmClient::open(index)?);
        let facts = facts(index)?;
        let log = EventLog::start(&client, &driver)?;
        let clock = GpuClock::start(&client, &driver)?;
        let utilisation = match Utilisation::start(index, &client, driver.counters, clock.now()) {
            Ok(utilisation) => Some(utilisation),
            Err(error) => {
                log::warn!("{error}; idle time within residency is charged");
                None
            }
        };
        let registers = match Registers::map(&client, || clock.now()) {
            Ok(registers) => Some(Arc::new(registers)),
            Err(error) => {
                log::warn!("{error}; the GPU's registers are read by the driver, 0.2 ms each");
                None
            }
        };
        let (tell, told) = Counting::channel();
        let counts = utilisation.is_some();
        let first = Guardian::start(guardian())?;
        let chunks = ProgramChunks::default();
        // What all programs may have together.
        let room_bytes = moving.as_ref().map_or(facts.memory_bytes, |moving| {
            moving.card_bytes(facts.memory_bytes) + moving.pool_bytes
        });
        let shared = Arc::new(Shared {
            clock: Mutex::new(clock),
            watched: Mutex::new(Watched::new(
                models::of(index),
                client.clone(),
                log,
                counts,
                told,
                registers.clone(),
            )),
            registers,
            hands: Hands::default(),
            ushering: Mutex::new(Ushering::new(usher)),
            status: Mutex::default(),
            borrower: channel_words.then(|| Borrower(client.clone())),
            userds: Mutex::default(),
            asking: Mutex::default(),
            counters: Mutex::new(utilisation.map(Counters::new)),
            tell,
            counting: Mutex::default(),
            age_known: AgeKnown::new(),
            ears: Mutex::default(),
            heard: AtomicU64::new(0),
            naps: AtomicU64::new(0),
            looks: AtomicU64::new(0),
            wake: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
            waits: AtomicBool::new(false),
            vms,
            programs: ProgramMemory::new(room_bytes, Arc::new(chunks.clone())),
            chunks,
            able: OnceLock::new(),
            sets: OnceLock::new(),
            client: client.clone(),
            driver,
        });
        // Before it is on the engine.
        shared.usher(|_, _| {});
        let (mut memory_bytes, mut host_pool_bytes) = (facts.memory_bytes, 0);
        if let Some(moving) = moving {
            memory_bytes = moving.card_bytes(facts.memory_bytes);
            host_pool_bytes = moving.pool_bytes;
            let sets = moving.start(index, memory_bytes, &shared)?;
            shared.chunks.move_by(sets.clone());
            // Empty until here.
            let _ = shared.sets.set(sets);
        }
        let counting = counts
            .then(|| Counting::begin(shared.clone()))
            .transpose()?;
        if counting.is_none() {
            // Empty until here.
            let _ = shared.age_known.set(false);
        }
        let switch = OwnedSwitch { client, driver };
        let holding = Arc::new(Holding::new(Holder::new(switch, first)));
        let (owner, held) = (shared.clone(), holding.clone());
        let another = move || Guardian::start(guardian());
        let thread = thread::Builder::new()
            .name("gpu-hold".into())
            .spawn(move || owner.hands.run(&held, &*owner, another))
            .map_err(NvidiaError::Thread)?;
        let capabilities = Capabilities {
            compute_engines: 1,
            copy_engines: 0,
            suspend: Suspend::MidKernel,
            engine_holds: false,
            demand: false,
            status_registers: true,
            switch_events: true,
            multiprocessors: facts.multiprocessors,
            shared_bytes_max: facts.shared_bytes_max,
            memory_bytes,
            movable_memory: host_pool_bytes > 0,
            host_pool_bytes,
            software: false,
            aperture: false,
        };
        Ok(Self {
            shared,
            capabilities,
            holding,
            thread: Some(thread),
            _counting: counting,
        })
    }
}

impl Shared {
    fn now(&self) -> Moment {
        lock(&self.clock).now()
    }

    fn is_held(&self, tenant: TenantId) -> bool {
        self.hands.is_held(tenant)
    }

    fn is_moving(&self) -> bool {
        self.hands.is_moving()
    }

    /// Ends the nap of who accounts.
    fn wake(&self) {
        // Full: it was woken often enough.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// Whether who accounts sleeps until what was ordered is done, and has something to look for then: nobody is looked for where nobody waits.
    fn is_waited_for(&self) -> bool {
        self.waits.swap(false, Ordering::AcqRel)
            && self.hands.is_anyone_held()
            && self.look_within(TICK).is_some_and(|within| within < TOLD)
    }

    /// How soon it is worth looking whether the engine works.
    fn look_within(&self, tick: Nanos) -> Option<Nanos> {
        let watched = lock(&self.watched);
        let held = |tenant| self.is_held(tenant);
        watched.watch.look_within(self.now(), tick, held)
    }

    /// A process of a tenant was handed something.
    fn changed(&self, tenant: TenantId, pid: u32, changes: &[ObjectChange]) {
        if lock(&self.watched).watch.changed(tenant, pid, changes) {
            self.hands.has_more(tenant);
        }
        self.inherit(tenant, pid, changes);
    }

    /// A tenant runs again.
    fn let_go(&self, tenant: TenantId) {
        if let Ok(worker) = self.vms.of(tenant) {
            worker.set_suspended(false);
        }
        lock(&self.watched).watch.released(tenant, self.now());
    }
}

/// Who holds, as he sees the GPU.
impl Owner for Shared {
    fn holding(&self, tenant: TenantId) -> Vec<Channel> {
        let all = self.lacks_memory(tenant);
        let watch = &mut lock(&self.watched).watch;
        watch.held(tenant, self.now());
        if all {
            return watch.all_channels(tenant);
        }
        watch.channels(tenant)
    }

    fn everything(&self, tenant: TenantId) -> Vec<Channel> {
        lock(&self.watched).watch.all_channels(tenant)
    }

    fn able(&self, tenant: TenantId) -> Vec<Channel> {
        let able = self.able.get().and_then(|able| able.get(&tenant));
        able.cloned().unwrap_or_default()
    }

    fn suspended(&self, tenant: TenantId) {
        lock(&self.watched).watch.suspended(tenant);
    }

    fn take_engine(&self, tenant: TenantId) {
        Shared::take_engine(self, tenant);
    }

    fn leave_engine(&self) {
        Shared::leave_engine(self);
    }

    fn mend(&self) {
        self.usher(|_, usher| usher.mend());
    }

    fn runs(&self, tenant: TenantId) {
        if let Some(sets) = self.sets() {
            sets.runs(tenant);
        }
        self.let_go(tenant);
    }

    /// Whose memory is not all there stays held.
    fn may_run(&self, tenant: TenantId) -> bool {
        self.sets().is_none_or(|sets| sets.release(tenant))
    }

    fn is_served(&self, tenant: TenantId) -> bool {
        let sets = self.sets();
        sets.is_some_and(|sets| sets.is_served(tenant))
    }

    fn held(&self, tenant: TenantId) -> bool {
        self.sets().is_none_or(|sets| sets.held(tenant))
    }

    fn lacks_memory(&self, tenant: TenantId) -> bool {
        let lacks = |sets: &Arc<Sets>| sets.knows(tenant) && !sets.is_whole(tenant);
        self.sets().is_some_and(lacks)
    }

    fn on_the_engine(&self) -> Option<TenantId> {
        let now = self.now();
        let mut watched = lock(&self.watched);
        watched.refresh_or_say(now);
        watched.watch.residency.resident()
    }

    fn moved(&self) {
        self.see_who_comes();
    }

    fn tell_who_waits(&self) {
        if self.is_waited_for() {
            self.wake();
        }
    }
}

impl Gpu for NvidiaGpu {
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
        let known = Arc::new(AtomicBool::new(false));
        self.shared
            .vms
            .start(tenant, resources, move |pid, changes| {
                let Some(changes) = changes else {
                    lock(&shared.watched).watch.exited(pid);
                    return;
                };
                if !known.swap(true, Ordering::Relaxed) {
                    let now = shared.now();
                    lock(&shared.watched).watch.add(tenant, pid, now);
                }
                shared.changed(tenant, pid, changes);
            })
            .and_then(|file| {
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
        self.shared.hands.want(tenant, false);
        lock(&self.shared.watched).remove(tenant);
    }

    fn open_channel(&self, tenant: TenantId, config: ChannelConfig) -> Result<u32, Refusal> {
        let _pass = self.shared.pass(tenant)?;
        self.shared.vms.of(tenant)?.open_channel(config)
    }

    /// The order would not be answered while the VM is held, and whoever moves its memory would wait behind it.
    fn close_channel(&self, tenant: TenantId, channel: u32) -> Result<(), Refusal> {
        let worker = self.shared.vms.of(tenant)?;
        // Of a process that is gone nothing is asked.
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

    fn load_module(&self, tenant: TenantId, ptx: &str) -> Result<(u32, u32), Refusal> {
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

    /// As of the last reading of the log.
    fn engine_status(&self, engine: EngineId) -> EngineStatus {
        let resident = || lock(&self.shared.watched).watch.residency.resident();
        let running = (engine == COMPUTE).then(resident).flatten();
        EngineStatus { running }
    }

    /// What was ordered since the last is done first.
    fn nap(&self, length: Nanos) -> Option<Nanos> {
        let shared = &self.shared;
        let begin = shared.now();
        let moved = shared.hands.see_to(&self.holding, &**shared, true);
        let told = if moved && shared.is_waited_for() {
            None
        } else {
            shared.naps.fetch_add(1, Ordering::Relaxed);
            let took = shared.now().since(begin);
            shared.nap(Nanos(length.0.saturating_sub(took.0)))
        };
        shared.hands.awake();
        told
    }

    fn wake(&self) {
        self.shared.wake();
    }

    fn has_run_dry(&self) -> bool {
        self.shared.looks.fetch_add(1, Ordering::Relaxed);
        look::is_dry(&mut Looker(&self.shared))
    }

    fn look_again(&self, tick: Nanos) -> Option<Nanos> {
        let shared = &self.shared;
        shared.waits.store(true, Ordering::Release);
        if shared.is_moving() {
            // It is woken, if need be.
            let watched = lock(&shared.watched);
            let held = |tenant| shared.hands.is_to_be_held(tenant);
            return watched.watch.all_tell(self.now(), held).then_some(TOLD);
        }
        shared.look_within(tick)
    }

    fn read_events(&self, events: &mut Vec<SwitchEvent>) -> bool {
        let shared = &self.shared;
        // Where there was no time to sleep.
        shared.hands.see_to(&self.holding, &**shared, false);
        lock(&shared.clock).follow(&shared.client, &shared.driver);
        shared.vms.set_clock(shared.now());
        shared.read_counters();
        // The end is read first: whatever is logged after that lies behind it.
        let now = shared.now();
        let refresh = |looker: &mut Looker<'_>| lock(&looker.0.watched).refresh(now);
        if let Some(Err(error)) = look::glance(&mut Looker(shared), refresh) {
            log::error!("{error}");
            return false;
        }
        let mut watched = lock(&shared.watched);
        let complete = watched.watch.take(now, events);
        watched.count();
        watched.watch.adopt(process::parent);
        complete
    }

    fn has_events(&self) -> bool {
        let shared = &self.shared;
        shared.read_counters();
        if lock(&shared.watched).refresh_shown(shared.now()) {
            return true;
        }
        look::may_decide(&mut Looker(shared))
    }

    fn another_may_stop(&self) -> bool {
        let (watched, now) = (lock(&self.shared.watched), self.now());
        watched.watch.another_may_stop(now)
    }

    fn rests_on(&self) -> Nanos {
        let (watched, now) = (lock(&self.shared.watched), self.now());
        watched.watch.rests_on(now, ALONE, QUIET)
    }

    fn events_behind(&self) -> Nanos {
        SETTLED
    }

    fn qualify(&self, usage: &mut Usage) {
        lock(&self.shared.watched).watch.qualify(usage);
    }

    fn overcharged_ns(&self, tenant: TenantId) -> i64 {
        lock(&self.shared.watched).watch.overcharged_ns(tenant)
    }

    /// A VM's worker knows what is pending; whether it is there often enough to wait for turns, or comes now and then, is seen
    /// on the engine alone.
    fn activity(&self, tenant: TenantId, channels: &mut Vec<ChannelActivity>) {
        let now = self.shared.now();
        let wants = lock(&self.shared.watched).watch.demand.wants(tenant, now);
        if let Ok(worker) = self.shared.vms.of(tenant) {
            worker.activity(channels);
            if let Some(sets) = self.shared.sets().filter(|sets| sets.knows(tenant)) {
                if sets.asks(tenant) {
                    // A request that needs the GPU is work.
                    channels.push(ChannelActivity {
                        channel: u32::MAX,
                        pending: 1,
                        finished: None,
                        stalls: 0,
                        last_active: Moment(0),
                    });
                }
                if self.shared.is_held(tenant) {
                    // What it could not do nobody has seen on the engine.
                    return;
                }
            }
            let pending = channels.iter().any(|channel| channel.pending > 0);
            for channel in channels.iter_mut() {
                channel.last_active = Moment(0);
                channel.pending = if wants { channel.pending } else { 0 };
            }
            if pending || !wants || self.shared.is_held(tenant) {
                return;
            }
        }
        // A program that lacks memory says what it wants by its library.
        let asks = self.shared.sets().is_some_and(|sets| sets.asks(tenant));
        channels.push(ChannelActivity {
            channel: 0,
            pending: (wants || asks).into(),
            finished: None,
            stalls: 0,
            last_active: Moment(0),
        });
    }

    fn suspend(&self, tenant: TenantId) {
        self.carry_out(&[(tenant, true)]);
    }

    fn resume(&self, tenant: TenantId) {
        self.carry_out(&[(tenant, false)]);
    }

    fn carry_out(&self, orders: &[(TenantId, bool)]) {
        let suspended = orders.iter().filter(|(_, suspended)| *suspended);
        let workers = suspended.filter_map(|(tenant, _)| self.shared.vms.of(*tenant).ok());
        workers.for_each(|worker| worker.set_suspended(true));
        self.shared.hands.want_all(orders);
    }

    fn is_quiet(&self, tenant: TenantId) -> bool {
        let sets = self.shared.sets();
        !self.shared.is_moving() && sets.is_some_and(|sets| sets.is_still(tenant))
    }

    fn move_memory(&self, order: MoveOrder) -> Result<(), MoveError> {
        let sets = self.shared.sets().ok_or(MoveError::Unsupported)?;
        sets.order(order)
    }

    fn move_window_bytes(&self) -> u64 {
        let sets = self.shared.sets();
        sets.map_or(0, |sets| 4 * sets.extent_bytes())
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
        let shared = &self.shared;
        // Its whole set has to fit on the card.
        let card_bytes = self.capabilities.memory_bytes;
        let max_bytes = memory_max_bytes.map_or(card_bytes, |max| max.min(card_bytes));
        shared.programs.add(tenant, Some(max_bytes));
        shared.chunks.add(tenant, &shared.programs);
        lock(&self.shared.watched)
            .watch
            .add(tenant, root, self.shared.now());
        Ok(())
    }

    fn program_memory(&self, tenant: TenantId, connection: OwnedFd) -> Result<(), String> {
        self.shared.programs.connect(tenant, connection)
    }

    fn program_changed(&self, tenant: TenantId, pid: u32, changes: &[ObjectChange]) {
        self.shared.changed(tenant, pid, changes);
    }

    fn program_exited(&self, _: TenantId, pid: u32) {
        lock(&self.shared.watched).watch.exited(pid);
    }

    fn figures(&self) -> BTreeMap<&'static str, u64> {
        self.shared.figures()
    }

    fn untracked(&self) -> Vec<Untracked> {
        let of = |(pid, switches): (&u32, &u64)| Untracked {
            pid: *pid,
            name: process::name(*pid),
            switches: *switches,
        };
        let mut watched = lock(&self.shared.watched);
        // Here, as this is asked once a second: while one is known who is no tenant, the log is read more often.
        watched
            .watch
            .forget_gone(|pid| process::Identity::of(pid).is_none());
        let untracked = watched.watch.residency.untracked();
        // The mover is our own.
        let strange = |pid: &u32| process::parent(*pid) != Some(std::process::id());
        let strangers = untracked.iter().filter(|(pid, _)| strange(pid));
        strangers.map(of).collect()
    }
}

/// First turns of tenants that meet: longer than from one latch of the counters to the next.
pub const FIRST_SLICE: Nanos = Nanos::from_ms(120);
/// From one decision to the next where there are no turns. Each reads the log; one who begins is seen so much later at most.
pub const PERIOD: Nanos = Nanos::from_ms(10);
/// The same while nobody shares the engine. SOURCE: measured on an H200: a period in which nothing happens is 115 to 170 us of processor time.
pub const ALONE: Nanos = Nanos::from_ms(30);
/// Periods go on for so long while nobody shares it, nothing is logged and the counters tell nothing, which they do each 100 ms. SOURCE: measured on an H200: beside an idle
/// tenant the daemon took 0.56 to 0.65 % of a core with periods of [`ALONE`]; with 50 ms, begins are known later, and four of 94 charges of pairs were off by more than 0.5 %
/// (before: none of 220).
pub const QUIET: Nanos = Nanos::from_ms(120);
/// How often an engine without work is looked for while somebody is held.
pub const TICK: Nanos = Nanos::from_ms(3);

impl Drop for NvidiaGpu {
    fn drop(&mut self) {
        // Before their libraries are not heard any more. Empty until here.
        let _ = self.shared.able.set(self.shared.able_channels());
        self.shared.vms.end_all();
        self.shared.programs.end_all();
        if let Some(sets) = self.shared.sets() {
            sets.end();
        }
        self.shared.hands.end();
        if let Some(thread) = self.thread.take() {
            // Its panic, if it had one, was reported when it happened.
            let _ = thread.join();
        }
    }
}
