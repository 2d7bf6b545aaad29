//! The mover process.
//!
//! All copies of one order are queued as soon as they can be: while the first extents are copied, the next are mapped, and those
//! that are done unmapped, so that the link does not wait for either.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use turnstile_vmm::wire::{FrameReader, Read, WireError, send};

use super::copier::{Copier, CopyFailure, CudaCopier};
use super::protocol::{Answer, Extent, MORE_LINES, Moved, Order};
use crate::gpu::Direction;

/// Longest reason that is told.
pub(super) const DETAIL_BYTES_MAX: usize = 200;

/// Why a mover ended.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The daemon is gone, or does not keep to the protocol.
    #[error("Talking to the daemon failed")]
    Wire(#[from] WireError),
    /// An order came that does not belong there.
    #[error("The daemon's order does not belong here: {0}")]
    Order(String),
    /// No thread.
    #[error("The mover could not be set up")]
    Host(#[source] io::Error),
}

fn cut(mut detail: String) -> String {
    let end = detail.floor_char_boundary(DETAIL_BYTES_MAX);
    detail.truncate(end);
    detail
}

impl From<CopyFailure> for Answer {
    fn from(failure: CopyFailure) -> Self {
        Self::Refused {
            no_room: failure.no_room,
            detail: cut(failure.detail),
        }
    }
}

impl From<CopyFailure> for Moved {
    fn from(failure: CopyFailure) -> Self {
        Self::Not {
            no_room: failure.no_room,
            detail: cut(failure.detail),
        }
    }
}

/// Orders, and answers to them.
struct Line {
    stream: UnixStream,
    reader: FrameReader,
}

impl Line {
    fn new(stream: UnixStream) -> Self {
        let reader = FrameReader::new();
        Self { stream, reader }
    }

    fn next(&mut self) -> Result<Option<(Order, Vec<OwnedFd>)>, WireError> {
        loop {
            match self.reader.read(&self.stream)? {
                Read::Frame(frame) => return Ok(Some((frame.message, frame.fds))),
                Read::End => return Ok(None),
                Read::WouldBlock => {}
            }
        }
    }
}

/// Runs the mover on the connection `stream` until the daemon ends it.
///
/// # Errors
/// If the daemon does not keep to the protocol; a GPU that refuses is the daemon's to hear.
pub fn run(stream: UnixStream) -> Result<(), ServeError> {
    run_with(stream, CudaCopier::new)
}

/// As [`run`], with any GPU.
pub(super) fn run_with<C: Copier>(
    stream: UnixStream,
    make: impl FnOnce(u32) -> Result<C, CopyFailure>,
) -> Result<(), ServeError> {
    let mut line = Line::new(stream);
    let Some((order, fds)) = line.next()? else {
        return Ok(());
    };
    let (Order::Start { device }, MORE_LINES) = (&order, fds.len()) else {
        return Err(ServeError::Order(format!("{order:?}")));
    };
    let copier = match make(*device) {
        Ok(copier) => Arc::new(copier),
        Err(failure) => return Ok(send(&line.stream, &Answer::from(failure), Vec::new())?),
    };
    for fd in fds {
        let (copier, line) = (copier.clone(), Line::new(UnixStream::from(fd)));
        let thread = std::thread::Builder::new().name("mover".into());
        let serving = thread.spawn(move || {
            if let Err(error) = serve(&*copier, line) {
                log::error!("{error}");
            }
            // A line ends with the daemon, or because it cannot go on: the others must not seem to.
            std::process::exit(1);
        });
        serving.map_err(ServeError::Host)?;
    }
    send(&line.stream, &Answer::Done {}, Vec::new())?;
    serve(&*copier, line)
}

/// Serves one line until it ends.
fn serve<C: Copier>(copier: &C, mut line: Line) -> Result<(), ServeError> {
    let lane = copier.lane();
    let lane = lane.map_err(|failure| ServeError::Order(failure.detail))?;
    while let Some((order, fds)) = line.next()? {
        let mut is_fatal = false;
        match order {
            Order::Out { extents } => {
                is_fatal = move_out(copier, &lane, &mut line, &extents, fds)?;
            }
            Order::In { extents } => {
                let create = |extent: &Extent| copier.create(extent.bytes);
                let made = extents.iter().map(|extent| (extent, create(extent)));
                is_fatal = pass(copier, &lane, &line, made, Direction::In)?;
            }
            order => {
                let obeyed = obey(copier, &lane, order, fds);
                let (answer, fds) = obeyed.unwrap_or_else(|failure| {
                    is_fatal = failure.is_fatal;
                    (failure.into(), Vec::new())
                });
                send(&line.stream, &answer, fds)?;
            }
        }
        if is_fatal {
            return Err(ServeError::Order("the GPU's context is gone".into()));
        }
    }
    Ok(())
}

fn obey<C: Copier>(
    copier: &C,
    lane: &C::Lane,
    order: Order,
    fds: Vec<OwnedFd>,
) -> Result<(Answer, Vec<OwnedFd>), CopyFailure> {
    let mut fds = fds.into_iter();
    let mut fd = || {
        let missing = || CopyFailure::of("A descriptor is missing");
        fds.next().ok_or_else(missing)
    };
    let zeroed = |memory: &C::Mapped| {
        copier.zero(lane, memory)?;
        copier.wait(&copier.mark(lane)?)
    };
    match order {
        Order::Start { .. } | Order::Go { .. } | Order::Out { .. } | Order::In { .. } => {
            Err(CopyFailure::of("An order that does not belong here"))
        }
        Order::Pin { at, bytes } => {
            copier.pin(at, bytes, File::from(fd()?))?;
            Ok((Answer::Done {}, Vec::new()))
        }
        Order::Create { bytes } => {
            let memory = copier.create(bytes)?;
            zeroed(&memory)?;
            Ok((Answer::Done {}, vec![copier.export(&memory)?]))
        }
        Order::Zero { bytes } => {
            let memory = copier.adopt(fd()?, bytes)?;
            zeroed(&memory)?;
            Ok((Answer::Done {}, Vec::new()))
        }
    }
}

/// Maps memory, waits until nobody else has it mapped, and copies it out.
fn move_out<C: Copier>(
    copier: &C,
    lane: &C::Lane,
    line: &mut Line,
    extents: &[Extent],
    fds: Vec<OwnedFd>,
) -> Result<bool, ServeError> {
    let mut fds = fds.into_iter();
    let adopted: Vec<_> = extents
        .iter()
        .map(|extent| {
            let missing = || CopyFailure::of("A descriptor is missing");
            copier.adopt(fds.next().ok_or_else(missing)?, extent.bytes)
        })
        .collect();
    drop(fds);
    send(&line.stream, &Answer::Done {}, Vec::new())?;
    let go = match line.next()? {
        Some((Order::Go { go }, _)) => go,
        None => return Ok(false),
        Some((order, _)) => return Err(ServeError::Order(format!("{order:?}"))),
    };
    let stays = |adopted: Result<C::Mapped, CopyFailure>| match adopted {
        Ok(_) if !go => Err(CopyFailure::of("Left where it is")),
        adopted => adopted,
    };
    let all = extents.iter().zip(adopted.into_iter().map(stays));
    pass(copier, lane, line, all, Direction::Out)
}

/// Moves extents one after the other, and tells of each; whether the GPU is of no use any more.
fn pass<'a, C: Copier>(
    copier: &C,
    lane: &C::Lane,
    line: &Line,
    extents: impl Iterator<Item = (&'a Extent, Result<C::Mapped, CopyFailure>)>,
    direction: Direction,
) -> Result<bool, ServeError> {
    let begin = Instant::now();
    let queued: Vec<_> = extents
        .map(|(extent, memory)| {
            let memory = memory?;
            queue(copier, lane, &memory, extent, direction)?;
            let mark = copier.mark(lane)?;
            Ok::<_, CopyFailure>((memory, mark))
        })
        .collect();
    let (count, mapped) = (queued.len(), begin.elapsed());
    let (mut since, mut unmapping, mut is_fatal) = (begin, Duration::ZERO, false);
    for queued in queued {
        let mut fds = Vec::new();
        let mut now = Instant::now();
        let moved = queued.and_then(|(memory, mark)| {
            copier.wait(&mark)?;
            now = Instant::now();
            if direction == Direction::In {
                fds.push(copier.export(&memory)?);
            }
            Ok(())
        });
        unmapping += now.elapsed();
        // CAST: 584 years.
        let took_ns = now.duration_since(since).as_nanos() as u64;
        since = now;
        let result = match moved {
            Ok(()) => Moved::Done { took_ns },
            Err(failure) => {
                is_fatal |= failure.is_fatal;
                failure.into()
            }
        };
        send(&line.stream, &Answer::Moved { result }, fds)?;
    }
    log::debug!(
        "{direction:?}: {count} extents in {:?}: {mapped:?} until all were queued, {unmapping:?} to unmap",
        begin.elapsed()
    );
    Ok(is_fatal)
}

fn queue<C: Copier>(
    copier: &C,
    lane: &C::Lane,
    memory: &C::Mapped,
    extent: &Extent,
    direction: Direction,
) -> Result<(), CopyFailure> {
    let spans = extent.spans.iter();
    let sum = spans
        .clone()
        .try_fold(0u64, |sum, span| sum.checked_add(span.1));
    if sum != Some(extent.bytes) {
        return Err(CopyFailure::of("As many bytes at the host as on the GPU"));
    }
    let mut offset = 0;
    for span in spans {
        let queued = copier.copy(lane, memory, offset, *span, direction);
        if queued.is_err() {
            // What is queued already must not meet unmapped memory.
            copier.wait(&copier.mark(lane)?)?;
            return queued;
        }
        offset += span.1;
    }
    Ok(())
}
