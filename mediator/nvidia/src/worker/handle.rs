//! The daemon's side of a VM's worker: its tables, and its processes one after the other.
//!
//! Locks, outermost first: that of the tables (held during an order and its answer), then that of
//! the current process (held for a clone). [`Worker::activity`], [`Worker::ring`] and the like take
//! only the second.

mod memory;

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use turnstile_abi::{CHANNELS_MAX, CHUNK_BYTES, ErrorCode};
use turnstile_accounting::{Moment, TenantId};
use turnstile_vmm::wire::{FrameReader, send};

use super::super::line::answer;
use super::super::notify::Listener;
use super::board::{Board, Standing};
use super::config::WorkerConfig;
use super::process::{Facts, Maker, Process, host, lost, start_process};
use super::protocol::{Answer, Order, refusal};
use memory::Again;
use turnstile_gpu::layout::Layout;
use turnstile_gpu::ring::{ChannelFault, Ring, check_channel};
use turnstile_gpu::{Allocation, ChannelActivity, ChannelConfig, Refusal, TenantResources};
use turnstile_host::memory_file::memory_file;

/// An open channel, and the number of the process that serves it.
#[derive(Clone, Copy, Debug)]
struct OpenChannel {
    config: ChannelConfig,
    process: u64,
}

#[derive(Debug)]
struct LoadedModule {
    text: File,
    bytes: usize,
}

/// The daemon's record of a VM, kept when its worker ends.
#[derive(Debug)]
struct Tables {
    line: Option<(UnixStream, FrameReader)>,
    layout: Layout,
    /// Number of pages and descriptor of GPU memory, by first page.
    memory: BTreeMap<u32, (u32, OwnedFd)>,
    modules: BTreeMap<u32, LoadedModule>,
    module_text_bytes: usize,
    next_module: u32,
    channels: Vec<Option<OpenChannel>>,
    started: u64,
    last_start: Instant,
}

#[derive(Debug)]
struct Shared {
    tenant: TenantId,
    resources: TenantResources,
    config: WorkerConfig,
    tables: Mutex<Tables>,
    /// Source of a new process's memory if memory of the VM moves; the tables do not have it then.
    again: OnceLock<Again>,
    /// The VM is gone: no further process is started.
    ended: AtomicBool,
    process: Mutex<Arc<Process>>,
    told: Told,
}

/// State for the shared pages of all its processes. Written under the lock of the current process,
/// and never read back from a page, which the worker can write.
#[derive(Debug, Default)]
struct Told {
    suspended: AtomicBool,
    unwatched: AtomicBool,
    clock_ahead_ns: AtomicU64,
}

impl Told {
    fn tell(&self, board: &Board) {
        board.set_suspended(self.suspended.load(Ordering::Relaxed));
        board.set_unwatched(self.unwatched.load(Ordering::Relaxed));
        board.set_clock_ahead(self.clock_ahead_ns.load(Ordering::Relaxed));
    }
}

/// A VM's worker. Dropping it ends the process.
#[derive(Debug)]
pub struct Worker {
    shared: Arc<Shared>,
    make: Maker,
    facts: Facts,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // After a panic under the lock at worst this VM's numbers are out of date.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Worker {
    /// Starts a VM's worker and waits until it is ready. `command` has to call [`super::run`] with
    /// its standard input. With [`WorkerConfig::learn`], `on_listener` gets the id and listener of
    /// this process and of every later one. It has to have calls answered from another thread: the
    /// process does not get ready before.
    ///
    /// # Errors
    /// When the VM's resources cannot be shared with a process, it does not start, or the GPU
    /// refuses.
    pub fn start(
        tenant: TenantId,
        resources: TenantResources,
        config: WorkerConfig,
        command: impl Fn() -> Command + Send + Sync + 'static,
        on_listener: impl Fn(u32, Listener) + Send + Sync + 'static,
    ) -> Result<Self, Refusal> {
        let make = Maker {
            command: Box::new(command),
            on_listener: Box::new(on_listener),
        };
        let started = start_process(&make, tenant, &resources, &config, 0)?;
        let channels = resources.channels.min(CHANNELS_MAX) as usize;
        let pages = usize::try_from(resources.memory_bytes / CHUNK_BYTES).unwrap_or(0);
        let tables = Tables {
            line: Some(started.line),
            layout: Layout::new(pages, config.allocations_max),
            memory: BTreeMap::new(),
            modules: BTreeMap::new(),
            module_text_bytes: 0,
            next_module: 0,
            channels: vec![None; channels],
            started: 1,
            last_start: Instant::now(),
        };
        let shared = Arc::new(Shared {
            tenant,
            resources,
            config,
            tables: Mutex::new(tables),
            again: OnceLock::new(),
            ended: AtomicBool::new(false),
            process: Mutex::new(started.process.clone()),
            told: Told::default(),
        });
        watch_over(&shared, started.process, started.child)?;
        Ok(Self {
            shared,
            make,
            facts: started.facts,
        })
    }

    /// Properties of the GPU as the first process reported them.
    pub fn facts(&self) -> Facts {
        self.facts
    }

    /// Process id of the current process; it changes with a restart.
    pub fn pid(&self) -> u32 {
        self.process().pid
    }

    /// Whether the process has ended or was given up. The next request starts another.
    pub fn is_lost(&self) -> bool {
        self.process().is_lost()
    }

    fn process(&self) -> Arc<Process> {
        lock(&self.shared.process).clone()
    }

    /// Opens a channel and returns its number.
    ///
    /// # Errors
    /// The refusal that the guest sees.
    pub fn open_channel(&self, config: ChannelConfig) -> Result<u32, Refusal> {
        check_channel(&self.shared.resources.guest, &config)?;
        let mut tables = self.alive()?;
        let number = tables.channels.iter().position(Option::is_none);
        let number = number.ok_or(ErrorCode::TooManyChannels)?;
        // CAST: below CHANNELS_MAX.
        self.order(&mut tables, &Order::open(number as u32, config), Vec::new())?;
        let process = self.process().number;
        tables.channels[number] = Some(OpenChannel { config, process });
        Ok(number as u32)
    }

    /// Closes a channel. Commands in flight finish first; the state block then shows the end.
    ///
    /// # Errors
    /// The refusal that the guest sees.
    pub fn close_channel(&self, channel: u32) -> Result<(), Refusal> {
        let mut tables = lock(&self.shared.tables);
        let open = tables.channels.get(channel as usize).copied().flatten();
        let open = open.ok_or(ErrorCode::NoSuchChannel)?;
        let process = self.process();
        if open.process == process.number && !process.is_lost() {
            let closed = self.order(&mut tables, &Order::CloseChannel { channel }, Vec::new());
            // If the process ended meanwhile, its channels are closed with it.
            match closed {
                Err(refusal) if refusal.code != ErrorCode::DeviceLost => return Err(refusal),
                Err(_) => self.shared.ring(&open, 0).report_closed(),
                Ok(_) => {}
            }
        } else {
            self.shared.ring(&open, 0).report_closed();
        }
        tables.channels[channel as usize] = None;
        Ok(())
    }

    /// Allocates zeroed GPU memory.
    ///
    /// # Errors
    /// The refusal that the guest sees.
    pub fn allocate(&self, bytes: u64) -> Result<Allocation, Refusal> {
        let mut tables = self.alive()?;
        let found = tables.layout.find(bytes)?;
        let wide = |n: usize| u32::try_from(n).map_err(|_| ErrorCode::OutOfGpuMemory);
        let (page, pages) = (wide(found.start)?, wide(found.len())?);
        let (_, mut fds) = self.order(&mut tables, &Order::Allocate { page, pages }, Vec::new())?;
        let Some(fd) = fds.pop() else {
            self.process().kill();
            return Err(lost("the worker gave no memory"));
        };
        tables.memory.insert(page, (pages, fd));
        Ok(tables.layout.insert(&found))
    }

    /// Frees and scrubs the allocation that begins at `va`.
    ///
    /// # Errors
    /// The refusal that the guest sees.
    pub fn free(&self, va: u64) -> Result<(), Refusal> {
        let mut tables = self.alive()?;
        let found = tables.layout.allocation(va)?;
        // CAST: it was a u32 when it was allocated.
        let page = found.start as u32;
        self.order(&mut tables, &Order::Free { page }, Vec::new())?;
        tables.layout.remove(va)?;
        tables.memory.remove(&page);
        Ok(())
    }

    /// Bytes that the VM may still allocate; the GPU may have fewer. Zero while a request is being
    /// served.
    pub fn memory_free_bytes(&self) -> u64 {
        let Ok(tables) = self.shared.tables.try_lock() else {
            return 0;
        };
        let taken = tables.layout.pages_taken() as u64 * CHUNK_BYTES;
        self.shared.resources.memory_bytes.saturating_sub(taken)
    }

    /// Loads a module and returns its handle and the number of its functions.
    ///
    /// # Errors
    /// The refusal that the guest sees.
    pub fn load_module(&self, ptx: &str) -> Result<(u32, u32), Refusal> {
        let mut tables = self.alive()?;
        let config = &self.shared.config;
        if tables.modules.len() >= config.modules_max {
            return Err(ErrorCode::TooManyModules.into());
        }
        if tables.module_text_bytes + ptx.len() > config.module_text_bytes_max {
            return Err(ErrorCode::ModuleTooLarge.into());
        }
        let handle = tables.next_module;
        if tables.modules.contains_key(&handle) {
            // Reached after 2^32 loads.
            return Err(ErrorCode::TooManyModules.into());
        }
        let text = memory_file("turnstile-module", ptx.len() as u64);
        let text = text.map_err(|error| host("Keeping the module's text failed", error))?;
        let written = std::os::unix::fs::FileExt::write_all_at(&text, ptx.as_bytes(), 0);
        written.map_err(|error| host("Keeping the module's text failed", error))?;
        let module = LoadedModule {
            text,
            bytes: ptx.len(),
        };
        let answer = self.shared.load(&mut tables, handle, &module)?;
        let Answer::Module { functions } = answer else {
            self.process().kill();
            return Err(lost("the worker gave no module"));
        };
        tables.next_module = handle.wrapping_add(1);
        tables.module_text_bytes += module.bytes;
        tables.modules.insert(handle, module);
        Ok((handle, functions))
    }

    /// Unloads a module.
    ///
    /// # Errors
    /// The refusal that the guest sees.
    pub fn unload_module(&self, module: u32) -> Result<(), Refusal> {
        let mut tables = self.alive()?;
        if !tables.modules.contains_key(&module) {
            return Err(ErrorCode::NoSuchModule.into());
        }
        self.order(
            &mut tables,
            &Order::UnloadModule { handle: module },
            Vec::new(),
        )?;
        if let Some(module) = tables.modules.remove(&module) {
            tables.module_text_bytes -= module.bytes;
        }
        Ok(())
    }

    /// Index and parameter bytes of a module's function.
    ///
    /// # Errors
    /// The refusal that the guest sees.
    pub fn find_function(&self, module: u32, name: &str) -> Result<(u32, u32), Refusal> {
        let mut tables = self.alive()?;
        let order = Order::FindFunction {
            handle: module,
            name: name.into(),
        };
        match self.order(&mut tables, &order, Vec::new())?.0 {
            Answer::Function {
                function,
                param_bytes,
            } => Ok((function, param_bytes)),
            _ => {
                self.process().kill();
                Err(lost("the worker gave no function"))
            }
        }
    }

    /// Fills in the activity of each open channel from shared words; never waits. Channels that are
    /// being opened or closed at this moment may be missing.
    pub fn activity(&self, channels: &mut Vec<ChannelActivity>) {
        let (process, doorbells) = (self.process(), &self.shared.resources.doorbells);
        for channel in 0..self.shared.resources.channels.min(CHANNELS_MAX) {
            let (get, standing, last_active_ns) = process.board.read(channel);
            let pending = match standing {
                Standing::None => continue,
                Standing::Faulted => 0,
                Standing::Open => {
                    let pending = doorbells.put(channel).wrapping_sub(get);
                    // More than a ring can hold is invalid: the worker faults the channel at its
                    // next pass.
                    if pending > turnstile_abi::RING_ENTRIES_MAX {
                        0
                    } else {
                        pending
                    }
                }
            };
            channels.push(ChannelActivity {
                channel,
                pending,
                finished: None,
                stalls: 0,
                last_active: Moment(last_active_ns),
            });
        }
    }

    /// Has the worker read the doorbells now; never waits.
    pub fn ring(&self) {
        self.process().wake();
    }

    /// Sets whether any gate is open, so that doorbells have to be polled; never waits.
    pub fn set_unwatched(&self, open: bool) {
        self.tell(|told| told.unwatched.store(open, Ordering::Relaxed));
        self.ring();
    }

    /// Sets the GPU's clock for fences and [`Worker::activity`]; until then they use the wall
    /// clock. Never waits.
    pub fn set_clock(&self, now: Moment) {
        let ahead_ns = now.0.wrapping_sub(super::serve::now().0);
        self.tell(|told| told.clock_ahead_ns.store(ahead_ns, Ordering::Relaxed));
    }

    /// Sets whether the VM's channels are suspended in hardware. Meanwhile time does not count
    /// against the worker's orders and commands. Never waits.
    pub fn set_suspended(&self, suspended: bool) {
        self.tell(|told| told.suspended.store(suspended, Ordering::Relaxed));
    }

    fn tell(&self, change: impl FnOnce(&Told)) {
        let process = lock(&self.shared.process);
        change(&self.shared.told);
        self.shared.told.tell(&process.board);
    }

    /// Kills the process, which ends its work on the GPU, and has it reaped. Does not wait. Later
    /// requests are refused.
    pub fn end(&self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        self.process().kill();
        // If an order holds the lock, the next request or the drop of this worker closes the
        // descriptors.
        if let Ok(mut tables) = self.shared.tables.try_lock() {
            tables.memory.clear();
        }
    }

    /// Locks the tables, with a live process: starts another if the last one has ended.
    fn alive(&self) -> Result<MutexGuard<'_, Tables>, Refusal> {
        let mut tables = lock(&self.shared.tables);
        if self.shared.ended.load(Ordering::SeqCst) {
            tables.memory.clear();
            return Err(lost("the VM is gone"));
        }
        if !self.process().is_lost() {
            return Ok(tables);
        }
        let shared = &self.shared;
        if tables.started > 1 && tables.last_start.elapsed() < shared.config.restart_pause {
            return Err(lost(
                "the VM's worker ended again just after it was started",
            ));
        }
        tables.last_start = Instant::now();
        let before = self.process();
        shared.report_lost(&mut tables, &before);
        let number = tables.started;
        tables.started += 1;
        let started = start_process(
            &self.make,
            shared.tenant,
            &shared.resources,
            &shared.config,
            number,
        )?;
        tables.line = Some(started.line);
        {
            let mut process = lock(&shared.process);
            shared.told.tell(&started.process.board);
            *process = started.process.clone();
        }
        if shared.ended.load(Ordering::SeqCst) {
            // The VM ended after the check above.
            started.process.kill();
        }
        watch_over(shared, started.process, started.child)?;
        let restored = shared.restore(&mut tables);
        if restored.is_err() {
            self.process().kill();
        }
        restored.map(|()| tables)
    }

    fn order(
        &self,
        tables: &mut Tables,
        order: &Order,
        fds: Vec<OwnedFd>,
    ) -> Result<(Answer, Vec<OwnedFd>), Refusal> {
        self.shared.order(tables, order, fds)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    fn process(&self) -> Arc<Process> {
        lock(&self.process).clone()
    }

    fn ring(&self, open: &OpenChannel, get: u32) -> Ring {
        let TenantResources {
            guest, interrupts, ..
        } = &self.resources;
        Ring::of(guest.clone(), interrupts.clone(), open.config, get)
    }

    /// Sends an order and waits for the answer. A worker that does not answer in time, or wrongly,
    /// is lost.
    fn order(
        &self,
        tables: &mut Tables,
        order: &Order,
        fds: Vec<OwnedFd>,
    ) -> Result<(Answer, Vec<OwnedFd>), Refusal> {
        self.order_within(tables, order, fds, self.config.order_limit, true)
    }

    /// As [`Self::order`]. With `pauses`, time in which the VM is suspended does not count.
    fn order_within(
        &self,
        tables: &mut Tables,
        order: &Order,
        fds: Vec<OwnedFd>,
        limit: Duration,
        pauses: bool,
    ) -> Result<(Answer, Vec<OwnedFd>), Refusal> {
        let process = self.process();
        let (stream, reader) = tables
            .line
            .as_mut()
            .ok_or_else(|| lost("the VM's worker is gone"))?;
        let answered = send(stream, order, fds)
            .map_err(|error| error.to_string())
            .and_then(|()| {
                answer(stream, reader, limit, || {
                    pauses && self.told.suspended.load(Ordering::Relaxed)
                })
                .map_err(|error| format!("the VM's worker {error}"))
            });
        match answered {
            Ok((Answer::Refused { code, detail }, _)) => Err(refusal(code, detail)),
            Ok(answer) => Ok(answer),
            Err(detail) => {
                process.kill();
                tables.line = None;
                Err(lost(&detail))
            }
        }
    }

    fn load(
        &self,
        tables: &mut Tables,
        handle: u32,
        module: &LoadedModule,
    ) -> Result<Answer, Refusal> {
        let text = module.text.try_clone();
        let text = text.map_err(|error| host("Handing the module's text over failed", error))?;
        // CAST: at most MODULE_TEXT_BYTES_MAX, or what the configuration permits.
        let bytes = module.bytes as u32;
        let order = Order::LoadModule { handle, bytes };
        Ok(self.order(tables, &order, vec![text.into()])?.0)
    }

    /// Gives a new process the VM's memory and modules.
    fn restore(&self, tables: &mut Tables) -> Result<(), Refusal> {
        let memory = tables
            .memory
            .iter()
            .map(|(page, (pages, fd))| Ok((*page, *pages, fd.try_clone()?)));
        let memory: io::Result<Vec<_>> = memory.collect();
        let memory = memory.map_err(|error| host("Handing GPU memory over failed", error))?;
        for (page, pages, fd) in memory {
            self.order(tables, &Order::Restore { page, pages }, vec![fd])?;
        }
        self.map_again(tables)?;
        let modules = std::mem::take(&mut tables.modules);
        let loaded: Result<(), Refusal> = modules
            .iter()
            .try_for_each(|(handle, module)| self.load(tables, *handle, module).map(|_| ()));
        tables.modules = modules;
        loaded
    }

    /// Faults the channels that the process left open.
    fn report_lost(&self, tables: &mut Tables, process: &Process) {
        for (number, open) in tables.channels.iter().enumerate() {
            let Some(open) = open.filter(|open| open.process == process.number) else {
                continue;
            };
            // CAST: below CHANNELS_MAX.
            let (get, standing, last_active_ns) = process.board.read(number as u32);
            if standing == Standing::Open {
                process
                    .board
                    .note(number as u32, get, Standing::Faulted, last_active_ns);
                let code = ErrorCode::DeviceLost;
                self.ring(&open, get).fault(ChannelFault { code, info: 0 });
            }
        }
    }
}

/// Reaps the process when it ends, and reports the channels that it left open.
fn watch_over(
    shared: &Arc<Shared>,
    process: Arc<Process>,
    mut child: Child,
) -> Result<(), Refusal> {
    // Weak: the thread does not keep a VM alive.
    let weak: Weak<Shared> = Arc::downgrade(shared);
    let name = format!("turnstile-wk{}", shared.tenant.0);
    let watched = process.clone();
    let thread = std::thread::Builder::new().name(name).spawn(move || {
        // If waiting fails, there is nothing to reap.
        let _ = child.wait();
        watched.lost.store(true, Ordering::Release);
        if let Some(shared) = weak.upgrade() {
            let mut tables = lock(&shared.tables);
            shared.report_lost(&mut tables, &watched);
        }
    });
    match thread {
        Ok(_) => Ok(()),
        Err(error) => {
            process.kill();
            Err(host("Watching over the VM's worker failed", error))
        }
    }
}
