//! The worker process: serves the daemon's orders, and advances its channels.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use turnstile_abi::{CHANNELS_MAX, ErrorCode, MODULE_TEXT_BYTES_MAX};
use turnstile_accounting::{Moment, Nanos};
use turnstile_vmm::gate::SharedPages;
use turnstile_vmm::wire::{Region, WireError};
use vm_memory::{FileOffset, GuestAddress};

use super::board::Board;
use super::confine;
use super::cuda::CudaExecutor;
use super::engine::{Engine, Parts};
use super::executor::Executor;
use super::protocol::{Answer, Order};
use crate::line::Line;
use turnstile_gpu::interrupts::{EventfdInterrupts, InterruptsError};
use turnstile_gpu::{ChannelConfig, GuestMemory, Interrupts, Refusal, pace};

/// Why a worker ended.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The daemon is gone, or does not keep to the protocol.
    #[error("Talking to the daemon failed")]
    Wire(#[from] WireError),
    /// An order arrived out of place.
    #[error("The daemon's order does not belong here: {0}")]
    Order(String),
    /// What was handed over cannot be used.
    #[error("What the daemon handed over cannot be used")]
    Resources(#[source] io::Error),
    /// The VM's vectors cannot be used.
    #[error("The VM's vectors cannot be used")]
    Interrupts(#[from] InterruptsError),
    /// A thread could not be started, or the process could not be confined.
    #[error("The worker could not be set up")]
    Host(#[source] io::Error),
}

/// The wall clock, which the GPU's own clock is close to: the driver sets it at its start (SOURCE:
/// measured).
pub(crate) fn now() -> Moment {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    // CAST: overflows after 584 years.
    Moment(since.map_or(0, |since| since.as_nanos() as u64))
}

/// What the daemon gives to a worker.
pub(super) struct Resources {
    pub(super) guest: Arc<GuestMemory>,
    pub(super) doorbells: Arc<SharedPages>,
    board: Arc<Board>,
    wake: File,
    interrupts: Arc<dyn Interrupts>,
    pub(super) device: u32,
    pub(super) memory_bytes: u64,
    kernel_limit: Nanos,
    user: Option<u32>,
}

fn take(fds: &mut std::vec::IntoIter<OwnedFd>) -> Result<OwnedFd, WorkerError> {
    let missing = || WorkerError::Order("a descriptor is missing".into());
    fds.next().ok_or_else(missing)
}

/// Maps the VM's memory; the daemon has checked the regions.
fn map_guest(
    regions: &[Region],
    fds: &mut std::vec::IntoIter<OwnedFd>,
) -> Result<GuestMemory, WorkerError> {
    let mut ranges = Vec::with_capacity(regions.len());
    for region in regions {
        let bytes = usize::try_from(region.bytes);
        let bytes = bytes.map_err(|_| WorkerError::Order("a region is too long".into()))?;
        let file = File::from(take(fds)?);
        let file = FileOffset::new(file, region.file_offset);
        ranges.push((GuestAddress(region.gpa), bytes, Some(file)));
    }
    GuestMemory::from_ranges_with_files(ranges)
        .map_err(|error| WorkerError::Resources(io::Error::other(error)))
}

fn receive(line: &mut Line) -> Result<Option<Resources>, WorkerError> {
    let unexpected = |order: &Order| WorkerError::Order(format!("{order:?}"));
    let Some((order, fds)) = line.next()? else {
        return Ok(None);
    };
    let Order::Start {
        device,
        channels,
        memory_bytes,
        kernel_limit_ns,
        user,
        regions,
    } = order
    else {
        return Err(unexpected(&order));
    };
    let mut fds = fds.into_iter();
    let guest = map_guest(&regions, &mut fds)?;
    let doorbells = SharedPages::from_file(File::from(take(&mut fds)?), channels.min(CHANNELS_MAX));
    let doorbells = doorbells.map_err(WorkerError::Resources)?;
    let board = Board::of(File::from(take(&mut fds)?)).map_err(WorkerError::Resources)?;
    let Some((order, fds)) = line.next()? else {
        return Ok(None);
    };
    if order != (Order::Vectors {}) {
        return Err(unexpected(&order));
    }
    let mut fds = fds.into_iter();
    let wake = File::from(take(&mut fds)?);
    let interrupts = EventfdInterrupts::new(fds.collect())?;
    Ok(Some(Resources {
        guest: Arc::new(guest),
        doorbells: Arc::new(doorbells),
        board: Arc::new(board),
        wake,
        interrupts: Arc::new(interrupts),
        device,
        memory_bytes,
        kernel_limit: Nanos(kernel_limit_ns),
        user,
    }))
}

/// Runs the worker on the connection `stream` until the daemon ends it, or the VM's context ends.
///
/// # Errors
/// If the worker cannot work. A refusal of the GPU is no error: it is reported to the daemon.
pub fn run(stream: UnixStream) -> Result<(), WorkerError> {
    run_with(stream, CudaExecutor::new)
}

/// As [`run`], with any executor.
pub(super) fn run_with<E: Executor>(
    stream: UnixStream,
    make: impl FnOnce(&Resources) -> Result<(E, Answer), Refusal>,
) -> Result<(), WorkerError> {
    let mut line = Line::new(stream);
    let Some(resources) = receive(&mut line)? else {
        return Ok(());
    };
    confine::before_library(resources.user).map_err(WorkerError::Host)?;
    let (executor, facts) = match make(&resources) {
        Ok(made) => made,
        Err(refusal) => return Ok(line.answer(&Answer::from(refusal), Vec::new())?),
    };
    confine::before_threads().map_err(WorkerError::Host)?;
    work(line, resources, executor, &facts)
}

/// Runs the threads of the worker.
fn work<E: Executor>(
    mut line: Line,
    resources: Resources,
    executor: E,
    facts: &Answer,
) -> Result<(), WorkerError> {
    let engine = Engine::new(Parts {
        executor,
        guest: resources.guest,
        doorbells: resources.doorbells,
        interrupts: resources.interrupts,
        board: resources.board,
        kernel_limit: resources.kernel_limit,
        memory_bytes: resources.memory_bytes,
    });
    let engine = Arc::new(engine);
    let ended = Arc::new(AtomicBool::new(false));
    let passing = (engine.clone(), ended.clone());
    let own = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
    let own = File::from(own.map_err(|errno| WorkerError::Host(errno.into()))?);
    let other = own.try_clone().map_err(WorkerError::Host)?;
    let wakes = [own, resources.wake];
    let hang_up = line.stream.try_clone().map_err(WorkerError::Host)?;
    let thread = std::thread::Builder::new()
        .name("engine".into())
        .spawn(move || passes(&passing.0, &wakes, &hang_up, &passing.1))
        .map_err(WorkerError::Host)?;
    confine::before_work().map_err(WorkerError::Host)?;
    line.answer(facts, Vec::new())?;
    let result = orders(&mut line, &engine, &other);
    ended.store(true, Ordering::Release);
    // A full counter wakes the thread as well.
    let _ = rustix::io::write(&other, &1u64.to_ne_bytes());
    let _ = thread.join();
    result
}

/// Serves orders until the connection ends.
fn orders<E: Executor>(
    line: &mut Line,
    engine: &Engine<E>,
    wake: &File,
) -> Result<(), WorkerError> {
    while let Some((order, fds)) = line.next()? {
        let (answer, fds) =
            obey(engine, order, fds).unwrap_or_else(|refusal| (refusal.into(), Vec::new()));
        line.answer(&answer, fds)?;
        // The order may have given the channels something to do.
        let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
    }
    Ok(())
}

fn obey<E: Executor>(
    engine: &Engine<E>,
    order: Order,
    fds: Vec<OwnedFd>,
) -> Result<(Answer, Vec<OwnedFd>), Refusal> {
    let mut fds = fds.into_iter();
    let wrong = || Refusal::from(ErrorCode::BadArgument);
    let answer = match order {
        Order::Start { .. } | Order::Vectors {} => return Err(wrong()),
        Order::Allocate { page, pages } => {
            let fd = engine.allocate(page, pages, None)?;
            return Ok((Answer::Done {}, fd.into_iter().collect()));
        }
        Order::Restore { page, pages } => {
            engine.allocate(page, pages, Some(fds.next().ok_or_else(wrong)?))?;
            Answer::Done {}
        }
        Order::Free { page } => {
            engine.free(page)?;
            Answer::Done {}
        }
        Order::Map { memory } => {
            let mut handles = fds.len().eq(&memory.len()).then_some(fds);
            for (page, pages) in memory {
                engine.map(page, pages, handles.as_mut().and_then(Iterator::next))?;
            }
            Answer::Done {}
        }
        Order::Unmap { pages } => {
            engine.unmap(&pages)?;
            Answer::Done {}
        }
        Order::Drop { pages } => {
            engine.drop_all(&pages)?;
            Answer::Done {}
        }
        Order::LoadModule { handle, bytes } => {
            let mut file = File::from(fds.next().ok_or_else(wrong)?);
            let mut text = String::new();
            let limit = u64::from(bytes).min(MODULE_TEXT_BYTES_MAX);
            // The file offset is shared with the daemon's descriptor and with earlier workers.
            io::Seek::rewind(&mut file).map_err(|_| wrong())?;
            file.take(limit)
                .read_to_string(&mut text)
                .map_err(|_| wrong())?;
            let functions = engine.load_module(handle, &text)?;
            Answer::Module { functions }
        }
        Order::UnloadModule { handle } => {
            engine.unload_module(handle)?;
            Answer::Done {}
        }
        Order::FindFunction { handle, name } => {
            let (function, param_bytes) = engine.find_function(handle, &name)?;
            Answer::Function {
                function,
                param_bytes,
            }
        }
        Order::OpenChannel {
            channel,
            ring_gpa,
            entries,
            state_gpa,
            vector,
        } => {
            let config = ChannelConfig {
                ring_gpa,
                entries,
                state_gpa,
                vector,
            };
            engine.open_channel(channel, config)?;
            Answer::Done {}
        }
        Order::CloseChannel { channel } => {
            engine.close_channel(channel)?;
            Answer::Done {}
        }
    };
    Ok((answer, Vec::new()))
}

/// Advances the channels until the worker ends.
fn passes<E: Executor>(
    engine: &Engine<E>,
    wakes: &[File; 2],
    hang_up: &UnixStream,
    ended: &AtomicBool,
) {
    let mut last_news = Moment(0);
    while !ended.load(Ordering::Acquire) {
        let now = Moment(now().0.wrapping_add(engine.board().clock_ahead()));
        let pass = engine.pass(now);
        if pass.over {
            // Everything was reported; the daemon sees the end of the connection.
            let _ = hang_up.shutdown(std::net::Shutdown::Both);
            return;
        }
        if pass.news || pass.more {
            last_news = now;
            continue;
        }
        let rest = if pass.watching {
            match pace::pause(now.since(last_news)) {
                None => {
                    std::hint::spin_loop();
                    continue;
                }
                rest => rest,
            }
        } else {
            None
        };
        sleep(wakes, hang_up, rest);
    }
}

/// Waits for a wake-up of the worker or the daemon, the end of the daemon, or `rest`.
fn sleep([own, wake]: &[File; 2], hang_up: &UnixStream, rest: Option<Duration>) {
    let rest = rest.map(|rest| Timespec {
        tv_sec: 0,
        // CAST: less than a second.
        tv_nsec: rest.subsec_nanos() as _,
    });
    let mut fds = [
        PollFd::from_borrowed_fd(own.as_fd(), PollFlags::IN),
        PollFd::from_borrowed_fd(wake.as_fd(), PollFlags::IN),
        PollFd::from_borrowed_fd(hang_up.as_fd(), PollFlags::empty()),
    ];
    // An interrupted wait costs one needless pass.
    let _ = poll(&mut fds, rest.as_ref());
    for (number, wake) in [own, wake].into_iter().enumerate() {
        if fds[number].revents().contains(PollFlags::IN) {
            // Empties it of all wake-ups since; this is the only reader.
            let _ = rustix::io::read(wake, &mut [0; 512]);
        }
    }
    if fds[2].revents().intersects(PollFlags::HUP | PollFlags::ERR) {
        // The other thread may be inside the vendor's library, where it stays while the VM is
        // suspended.
        confine::exit();
    }
}
