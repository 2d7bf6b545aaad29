//! A worker's process: starting it, waking it, killing it.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::net::SendFlags;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use turnstile_abi::{CHANNELS_MAX, ErrorCode};
use turnstile_accounting::TenantId;
use turnstile_vmm::wire::{FrameReader, Region, send};
use vm_memory::{GuestMemoryBackend, GuestMemoryRegion};

use super::super::line::answer;
use super::super::notify::{Learning, Listener, NotifyError};
use super::board::Board;
use super::config::WorkerConfig;
use super::confine::user_of;
use super::protocol::{Answer, Order, refusal};
use turnstile_gpu::{Refusal, TenantResources};

/// Properties of the GPU as the worker reports them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Most shared memory of a block, in bytes.
    pub shared_bytes_max: u32,
    /// Memory of the GPU, in bytes.
    pub memory_bytes: u64,
    /// The VM's memory is pinned, so that copies run without the worker.
    pub pinned: bool,
}

/// One process.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) number: u64,
    pub(super) pid: u32,
    pub(super) pidfd: OwnedFd,
    pub(super) board: Board,
    /// Wakes the process. A socket, because its sender alone decides whether a write blocks; with
    /// an eventfd the worker could make the write block.
    wake: UnixStream,
    pub(super) lost: AtomicBool,
}

impl Process {
    pub(super) fn kill(&self) {
        self.lost.store(true, Ordering::Release);
        // Fails if the process has ended.
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    /// Wakes the process; never waits.
    pub(super) fn wake(&self) {
        // A full socket wakes the process as well; a process that has ended needs no wake-up.
        let _ = rustix::net::send(&self.wake, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }
}

/// How the process is started, and what receives the listener of its system calls.
pub(super) struct Maker {
    pub(super) command: Box<dyn Fn() -> Command + Send + Sync>,
    pub(super) on_listener: Box<dyn Fn(u32, Listener) + Send + Sync>,
}

impl std::fmt::Debug for Maker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Maker").finish_non_exhaustive()
    }
}

pub(super) fn host(during: &str, error: impl std::fmt::Display) -> Refusal {
    Refusal {
        code: ErrorCode::HostLimit,
        detail: format!("{during}: {error}"),
    }
}

pub(super) fn lost(detail: &str) -> Refusal {
    Refusal {
        code: ErrorCode::DeviceLost,
        detail: detail.into(),
    }
}

/// A process that has been started and is ready.
pub(super) struct Started {
    pub(super) process: Arc<Process>,
    pub(super) child: Child,
    pub(super) line: (UnixStream, FrameReader),
    pub(super) facts: Facts,
}

/// The first two orders, with the descriptors of what the VM shares.
fn start_orders(
    tenant: TenantId,
    resources: &TenantResources,
    config: &WorkerConfig,
    board: &Board,
    wake: UnixStream,
) -> Result<[(Order, Vec<OwnedFd>); 2], Refusal> {
    let copy = |file: &File| file.try_clone().map(OwnedFd::from);
    let unshared = |what: &str| host("Sharing the VM with its worker failed", what);
    let failed = |error: io::Error| host("Sharing the VM with its worker failed", error);
    let (mut regions, mut fds) = (Vec::new(), Vec::new());
    for region in resources.guest.now().iter() {
        let file = region
            .file_offset()
            .ok_or_else(|| unshared("its memory is no file"))?;
        regions.push(Region {
            gpa: region.start_addr().0,
            bytes: region.len(),
            file_offset: file.start(),
        });
        fds.push(copy(file.file()).map_err(failed)?);
    }
    let doorbells = resources
        .doorbells
        .file()
        .ok_or_else(|| unshared("its doorbells are no file"))?;
    fds.push(copy(doorbells).map_err(failed)?);
    fds.push(copy(board.file()).map_err(failed)?);
    let vectors = resources.interrupts.descriptors().map_err(failed)?;
    let mut others = vec![OwnedFd::from(wake)];
    others.extend(vectors);
    let start = Order::Start {
        device: config.device,
        channels: resources.channels.min(CHANNELS_MAX),
        memory_bytes: resources.memory_bytes,
        kernel_limit_ns: config.kernel_limit.0,
        user: config.own_user.then(|| user_of(tenant.0)),
        regions,
    };
    Ok([(start, fds), (Order::Vectors {}, others)])
}

/// Starts a process and waits until it is ready.
pub(super) fn start_process(
    make: &Maker,
    tenant: TenantId,
    resources: &TenantResources,
    config: &WorkerConfig,
    number: u64,
) -> Result<Started, Refusal> {
    let failed = |error: io::Error| host("Starting the VM's worker failed", error);
    let board = Board::new().map_err(failed)?;
    let (wake, woken) = UnixStream::pair().map_err(failed)?;
    let orders = start_orders(tenant, resources, config, &board, woken)?;
    let (mine, theirs) = UnixStream::pair().map_err(failed)?;
    let mut command = (make.command)();
    command
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null());
    let learn = |error: NotifyError| host("Listening to the VM's worker failed", error);
    let learning = config.learn.then(|| Learning::lay_on(&mut command));
    let learning = learning.transpose().map_err(learn)?;
    let spawned = command.spawn();
    let listener = learning.map_or(Ok(None), Learning::listener);
    let mut child = spawned.map_err(failed)?;
    match listener {
        Ok(Some(listener)) => (make.on_listener)(child.id(), listener),
        Ok(None) => {}
        Err(error) => {
            // Fails if the process has ended.
            let _ = child.kill();
            let _ = child.wait();
            return Err(learn(error));
        }
    }
    // Closes the other end of the connection, which it holds.
    drop(command);
    let ready = (|| {
        // CAST: a process id is positive.
        let pid = Pid::from_raw(child.id() as i32)
            .ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(|errno| failed(errno.into()))?;
        for (order, fds) in orders {
            send(&mine, &order, fds)
                .map_err(|error| host("Starting the VM's worker failed", error))?;
        }
        mine.set_nonblocking(true).map_err(failed)?;
        let mut reader = FrameReader::new();
        let mut facts = None;
        while facts.is_none() {
            let answered = answer(&mine, &mut reader, config.start_limit, || false);
            let (answer, _) = answered
                .map_err(|error| host("Starting the VM's worker failed", format!("it {error}")))?;
            match answer {
                Answer::Ready {
                    multiprocessors,
                    shared_bytes_max,
                    memory_bytes,
                    pinned,
                } => {
                    facts = Some(Facts {
                        multiprocessors,
                        shared_bytes_max,
                        memory_bytes,
                        pinned,
                    });
                }
                Answer::Refused { code, detail } => return Err(refusal(code, detail)),
                _ => return Err(lost("the VM's worker answers another request")),
            }
        }
        let process = Process {
            number,
            pid: child.id(),
            pidfd,
            board,
            wake,
            lost: AtomicBool::new(false),
        };
        Ok((Arc::new(process), (mine, reader), facts.unwrap_or_default()))
    })();
    match ready {
        Ok((process, line, facts)) => Ok(Started {
            process,
            child,
            line,
            facts,
        }),
        Err(refusal) => {
            // Fails if the process has ended.
            let _ = child.kill();
            let _ = child.wait();
            Err(refusal)
        }
    }
}
