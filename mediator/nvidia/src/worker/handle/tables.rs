//! The daemon's record of a VM, and the orders to its current process.
//!
//! In: orders, and a process that is new or has ended. Out: answers, a new process with what the
//! VM has, and faults of the channels that a process left open. Called by [`super::Worker`].

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Child;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use turnstile_abi::ErrorCode;
use turnstile_accounting::TenantId;
use turnstile_vmm::wire::{FrameReader, send};

use super::memory::Again;
use crate::line::answer;
use crate::worker::board::{Board, Standing};
use crate::worker::config::WorkerConfig;
use crate::worker::process::{Process, host, lost};
use crate::worker::protocol::{Answer, Order, refusal};
use turnstile_gpu::layout::Layout;
use turnstile_gpu::ring::{ChannelFault, Ring};
use turnstile_gpu::{ChannelConfig, Refusal, TenantResources};

/// An open channel, and the number of the process that serves it.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenChannel {
    pub(super) config: ChannelConfig,
    pub(super) process: u64,
}

#[derive(Debug)]
pub(super) struct LoadedModule {
    pub(super) text: File,
    pub(super) bytes: usize,
}

/// The daemon's record of a VM, kept when its worker ends.
#[derive(Debug)]
pub(super) struct Tables {
    pub(super) line: Option<(UnixStream, FrameReader)>,
    pub(super) layout: Layout,
    /// Number of pages and descriptor of GPU memory, by first page.
    pub(super) memory: BTreeMap<u32, (u32, OwnedFd)>,
    pub(super) modules: BTreeMap<u32, LoadedModule>,
    pub(super) module_text_bytes: usize,
    pub(super) next_module: u32,
    pub(super) channels: Vec<Option<OpenChannel>>,
    pub(super) started: u64,
    pub(super) last_start: Instant,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) tenant: TenantId,
    pub(super) resources: TenantResources,
    pub(super) config: WorkerConfig,
    pub(super) tables: Mutex<Tables>,
    /// Source of a new process's memory if memory of the VM moves; the tables do not have it then.
    pub(super) again: OnceLock<Again>,
    /// The VM is gone: no further process is started.
    pub(super) ended: AtomicBool,
    pub(super) process: Mutex<Arc<Process>>,
    pub(super) settings: WorkerSettings,
}

/// State for the shared pages of all its processes. Written under the lock of the current process,
/// and never read back from a page, which the worker can write.
#[derive(Debug, Default)]
pub(super) struct WorkerSettings {
    pub(super) suspended: AtomicBool,
    pub(super) unwatched: AtomicBool,
    pub(super) clock_ahead_ns: AtomicU64,
}

impl WorkerSettings {
    pub(super) fn publish(&self, board: &Board) {
        board.set_suspended(self.suspended.load(Ordering::Relaxed));
        board.set_unwatched(self.unwatched.load(Ordering::Relaxed));
        board.set_clock_ahead(self.clock_ahead_ns.load(Ordering::Relaxed));
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // After a panic under the lock at worst this VM's numbers are out of date.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn process(&self) -> Arc<Process> {
        lock(&self.process).clone()
    }

    pub(super) fn ring(&self, open: &OpenChannel, get: u32) -> Ring {
        let TenantResources {
            guest, interrupts, ..
        } = &self.resources;
        Ring::of(guest.clone(), interrupts.clone(), open.config, get)
    }

    /// Sends an order and waits for the answer. A worker that does not answer in time, or wrongly,
    /// is lost.
    pub(super) fn order(
        &self,
        tables: &mut Tables,
        order: &Order,
        fds: Vec<OwnedFd>,
    ) -> Result<(Answer, Vec<OwnedFd>), Refusal> {
        self.order_within(tables, order, fds, self.config.order_limit, true)
    }

    /// As [`Self::order`]. With `pauses`, time in which the VM is suspended does not count.
    pub(super) fn order_within(
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
                    pauses && self.settings.suspended.load(Ordering::Relaxed)
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

    pub(super) fn load(
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
    pub(super) fn restore(&self, tables: &mut Tables) -> Result<(), Refusal> {
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
    pub(super) fn report_lost(&self, tables: &mut Tables, process: &Process) {
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
pub(super) fn watch_over(
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
