//! The mover process.
//!
//! All copies of an order are queued as early as possible. While the first extents are copied, the
//! next are mapped and finished ones unmapped, so that the link waits for neither.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use turnstile_vmm::wire::WireError;

use super::copier::{Copier, CopyFailure, CudaCopier};
use super::protocol::{Answer, Extent, MORE_LINES, Moved, Order};
use crate::line::Line;
use turnstile_gpu::Direction;

/// Longest reason in an answer, in bytes.
pub(super) const DETAIL_BYTES_MAX: usize = 200;

/// Why a mover ended.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The daemon is gone, or does not keep to the protocol.
    #[error("Talking to the daemon failed")]
    Wire(#[from] WireError),
    /// An order arrived out of place.
    #[error("The daemon's order does not belong here: {0}")]
    Order(String),
    /// A thread could not be started.
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

/// Runs the mover on the connection `stream` until the daemon ends it.
///
/// # Errors
/// If the daemon does not keep to the protocol. A refusal of the GPU is no error: it is reported to
/// the daemon.
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
        Err(failure) => return Ok(line.answer(&Answer::from(failure), Vec::new())?),
    };
    for fd in fds {
        let (copier, line) = (copier.clone(), Line::new(UnixStream::from(fd)));
        let thread = std::thread::Builder::new().name("mover".into());
        let serving = thread.spawn(move || {
            if let Err(error) = serve(&*copier, line) {
                log::error!("{error}");
            }
            // When one connection ends, all have to: the daemon ended it, or the mover cannot
            // continue.
            std::process::exit(1);
        });
        serving.map_err(ServeError::Host)?;
    }
    line.answer(&Answer::Done {}, Vec::new())?;
    serve(&*copier, line)
}

/// Serves one connection until it ends.
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
                let pass = Pass::new(copier, &lane, Direction::In);
                let made = |extent| pass.queue(extent, copier.create(extent.bytes));
                let queued = extents.iter().map(made).collect();
                is_fatal = pass.finish(&line, queued)?;
            }
            order => {
                let obeyed = obey(copier, &lane, order, fds);
                let (answer, fds) = obeyed.unwrap_or_else(|failure| {
                    is_fatal = failure.is_fatal;
                    (failure.into(), Vec::new())
                });
                line.answer(&answer, fds)?;
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

/// Maps memory, and copies each extent out as soon as no other process has it mapped. Returns
/// whether the context is gone.
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
    line.answer(&Answer::Done {}, Vec::new())?;
    let pass = Pass::new(copier, lane, Direction::Out);
    let mut queued = Vec::with_capacity(extents.len());
    for (extent, memory) in extents.iter().zip(adopted) {
        let memory = match line.next()? {
            Some((Order::Go { go: true }, _)) => memory,
            Some((Order::Go { go: false }, _)) => {
                memory.and(Err(CopyFailure::of("Left where it is")))
            }
            None => return Ok(false),
            Some((order, _)) => return Err(ServeError::Order(format!("{order:?}"))),
        };
        queued.push(pass.queue(extent, memory));
    }
    pass.finish(line, queued)
}

/// A copy that is queued.
struct Queued<C: Copier> {
    memory: C::Mapped,
    mark: C::Mark,
    /// Handle of new memory, for a move in.
    handle: Option<OwnedFd>,
}

/// Extents that are moved one after the other.
struct Pass<'a, C: Copier> {
    copier: &'a C,
    lane: &'a C::Lane,
    direction: Direction,
    begin: Instant,
}

impl<'a, C: Copier> Pass<'a, C> {
    fn new(copier: &'a C, lane: &'a C::Lane, direction: Direction) -> Self {
        let begin = Instant::now();
        Self {
            copier,
            lane,
            direction,
            begin,
        }
    }

    /// Queues an extent's copy, and exports new memory while the copy runs.
    fn queue(
        &self,
        extent: &Extent,
        memory: Result<C::Mapped, CopyFailure>,
    ) -> Result<Queued<C>, CopyFailure> {
        let (copier, lane, memory) = (self.copier, self.lane, memory?);
        queue(copier, lane, &memory, extent, self.direction)?;
        let mark = copier.mark(lane)?;
        let handle = match self.direction {
            Direction::In => copier.export(&memory).map(Some),
            Direction::Out => Ok(None),
        };
        if handle.is_err() {
            // Memory must stay mapped until the copy has ended.
            copier.wait(&mark)?;
        }
        let handle = handle?;
        Ok(Queued {
            memory,
            mark,
            handle,
        })
    }

    /// Waits for each copy and reports it. Returns whether the context is gone.
    fn finish(
        &self,
        line: &Line,
        all: Vec<Result<Queued<C>, CopyFailure>>,
    ) -> Result<bool, ServeError> {
        let (count, queued) = (all.len(), self.begin.elapsed());
        let (mut since, mut releasing, mut is_fatal) = (self.begin, Duration::ZERO, false);
        for queued in all {
            let waited = queued.and_then(|queued| {
                self.copier.wait(&queued.mark)?;
                Ok(queued)
            });
            let now = Instant::now();
            // CAST: overflows after 584 years.
            let took_ns = now.duration_since(since).as_nanos() as u64;
            since = now;
            // Dropped after the report, as dropping takes time and delays no other process.
            let (mut rest, mut mapped, mut fds) = (None, None, Vec::new());
            let result = match waited {
                Ok(Queued { memory, handle, .. }) => {
                    match handle {
                        Some(handle) => {
                            fds.push(handle);
                            mapped = Some(memory);
                        }
                        // Before the report, which states that the memory is free.
                        None => rest = Some(self.copier.release(memory)),
                    }
                    Moved::Done { took_ns }
                }
                Err(failure) => {
                    is_fatal |= failure.is_fatal;
                    failure.into()
                }
            };
            releasing += now.elapsed();
            line.answer(&Answer::Moved { result }, fds)?;
            drop((rest, mapped));
        }
        log::debug!(
            "{:?}: {count} extents in {:?}: {queued:?} until all were queued, {releasing:?} to let go",
            self.direction,
            self.begin.elapsed()
        );
        Ok(is_fatal)
    }
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
            // Memory must stay mapped until the queued copies have ended.
            copier.wait(&copier.mark(lane)?)?;
            return queued;
        }
        offset += span.1;
    }
    Ok(())
}
