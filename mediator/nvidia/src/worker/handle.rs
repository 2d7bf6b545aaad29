//! The daemon's side of a VM's worker: its tables, and its processes one after the other.
//!
//! Locks, outermost first: that of the tables (held during an order and its answer), then that of
//! the current process (held for a clone). [`Worker::activity`], [`Worker::ring`] and the like take
//! only the second.

mod memory;
mod tables;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Instant;

use turnstile_abi::{CHANNELS_MAX, CHUNK_BYTES, ErrorCode};
use turnstile_accounting::{Moment, TenantId};

use super::super::notify::Listener;
use super::board::Standing;
use super::config::WorkerConfig;
use super::process::{Facts, Maker, Process, host, lost, start_process};
use super::protocol::{Answer, Order};
use tables::{LoadedModule, OpenChannel, Shared, Tables, WorkerSettings, lock, watch_over};
use turnstile_gpu::layout::Layout;
use turnstile_gpu::ring::check_channel;
use turnstile_gpu::{Allocation, ChannelActivity, ChannelConfig, Refusal, TenantResources};
use turnstile_host::memory_file::memory_file;

/// A VM's worker. Dropping it ends the process.
#[derive(Debug)]
pub struct Worker {
    shared: Arc<Shared>,
    make: Maker,
    facts: Facts,
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
            settings: WorkerSettings::default(),
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

    /// Whether commands were announced that have not finished.
    pub(crate) fn has_commands(&self) -> bool {
        let mut channels = Vec::new();
        self.activity(&mut channels);
        channels.iter().any(|channel| channel.pending > 0)
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
        self.publish(|settings| settings.unwatched.store(open, Ordering::Relaxed));
        self.ring();
    }

    /// Sets the GPU's clock for fences and [`Worker::activity`]; until then they use the wall
    /// clock. Never waits.
    pub(crate) fn set_clock(&self, now: Moment) {
        let ahead_ns = now.0.wrapping_sub(super::serve::now().0);
        self.publish(|settings| settings.clock_ahead_ns.store(ahead_ns, Ordering::Relaxed));
    }

    /// Sets whether the VM's channels are suspended in hardware. Meanwhile time does not count
    /// against the worker's orders and commands. Never waits.
    pub fn set_suspended(&self, suspended: bool) {
        self.publish(|settings| settings.suspended.store(suspended, Ordering::Relaxed));
    }

    fn publish(&self, change: impl FnOnce(&WorkerSettings)) {
        let process = lock(&self.shared.process);
        change(&self.shared.settings);
        self.shared.settings.publish(&process.board);
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
            shared.settings.publish(&started.process.board);
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
