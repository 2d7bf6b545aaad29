//! What engines do: copies, fills, kernels.

pub(crate) mod clock;
pub(crate) mod context;
pub(crate) mod kernel;
pub(crate) mod work;

use turnstile_abi::{CopyDirection, ErrorCode};
use turnstile_accounting::Nanos;
use vm_memory::{GuestAddress, GuestMemoryBackend, VolatileSlice};

use self::clock::Clock;
use self::context::Context;
use self::kernel::run_real;
use self::work::{Kernel, Outcome, Start, Work};
use super::address_space::{AddressSpace, PageFault};
use super::config::SoftConfig;
use turnstile_host::room::zeroed;

/// Bytes moved between two checks of the clock and of a stop request.
const PIECE: u64 = 256 << 10;

/// A stop request ended the transfer early.
struct Interrupted;

impl From<PageFault> for Outcome {
    fn from(fault: PageFault) -> Self {
        Self::Fault {
            code: ErrorCode::PageFault,
            info: fault.va,
        }
    }
}

/// Executes work in real time. Transfers are paced to the link's rate; kernels run at the speed of
/// the interpreter.
pub(super) fn execute(start: &Start, clock: &Clock, config: &SoftConfig) -> Outcome {
    let pace = |done: u64| {
        let due = start.starts_at + config.link_time(done);
        if clock.sleep_unless_ended(due, &start.stop) {
            Ok(())
        } else {
            Err(Interrupted)
        }
    };
    match &*start.work {
        Work::Kernel(kernel) => run_real(start, kernel, clock, config),
        Work::Move(moving) => {
            moving.run(&start.context.space, |copied| pace(copied).is_ok());
            Outcome::Done
        }
        work => {
            transfer(&start.context, work, pace).unwrap_or_else(|Interrupted| start.stop.outcome())
        }
    }
}

/// Executes a copy, fill or move at once, whatever it costs.
pub(super) fn execute_transfer(context: &Context, work: &Work) -> Outcome {
    if let Work::Move(moving) = work {
        moving.run(&context.space, |_| true);
        return Outcome::Done;
    }
    transfer(context, work, |_| Ok(())).unwrap_or(Outcome::Stopped)
}

/// Bytes that a copy or fill moves, or a move has copied.
pub(super) fn transfer_bytes(work: &Work) -> u64 {
    match work {
        Work::Copy { bytes, .. } | Work::Fill { bytes, .. } => *bytes,
        Work::Move(moving) => moving.copied_bytes(),
        Work::Kernel(_) => 0,
    }
}

/// Moves the bytes of a copy or fill in pieces; calls `after` with the number of bytes moved.
fn transfer(
    context: &Context,
    work: &Work,
    mut after: impl FnMut(u64) -> Result<(), Interrupted>,
) -> Result<Outcome, Interrupted> {
    let space = &context.space;
    // CAST: the decoder bounds a transfer to TRANSFER_BYTES_MAX, a piece is less.
    let whole = transfer_bytes(work) as usize;
    // All of it is checked before any is moved.
    let checked = match *work {
        Work::Copy {
            direction,
            source,
            destination,
            ..
        } => {
            let reads = direction != CopyDirection::GuestToGpu;
            let writes = direction != CopyDirection::GpuToGuest;
            let source = reads.then(|| space.check(source, whole)).transpose();
            source.and(writes.then(|| space.check(destination, whole)).transpose())
        }
        Work::Fill { va, .. } => space.check(va, whole).map(Some),
        Work::Kernel(_) | Work::Move(_) => return Ok(Outcome::Done),
    };
    if let Err(fault) = checked {
        return Ok(fault.into());
    }
    let pattern = match work {
        Work::Fill { pattern, .. } => filled(*pattern, whole.min(PIECE as usize)),
        _ => Some(Vec::new()),
    };
    let Some(pattern) = pattern else {
        return Ok(Outcome::Fault {
            code: ErrorCode::HostLimit,
            info: 0,
        });
    };
    let mut done = 0;
    while done < whole as u64 {
        let piece = (whole as u64 - done)
            .min(PIECE)
            .min(reach(space, work, done)) as usize;
        let moved = match *work {
            Work::Copy {
                direction,
                source,
                destination,
                ..
            } => copy_piece(context, direction, source + done, destination + done, piece),
            Work::Fill { va, .. } => space
                .slice(va + done, piece)
                .map(|slice| slice.copy_from(&pattern[..piece]))
                .map_err(Outcome::from),
            Work::Kernel(_) | Work::Move(_) => Ok(()),
        };
        // A page may have gone meanwhile: freed by the guest.
        if let Err(outcome) = moved {
            return Ok(outcome);
        }
        done += piece as u64;
        after(done)?;
    }
    Ok(Outcome::Done)
}

/// A pattern repeated over so many bytes; none where the host has no memory.
fn filled(pattern: u32, bytes: usize) -> Option<Vec<u8>> {
    let mut buffer = zeroed(bytes)?;
    for part in buffer.chunks_mut(4) {
        part.copy_from_slice(&pattern.to_le_bytes()[..part.len()]);
    }
    Some(buffer)
}

/// Bytes from here on that are contiguous in all GPU memory that the work accesses.
fn reach(space: &AddressSpace, work: &Work, done: u64) -> u64 {
    match *work {
        Work::Copy {
            direction,
            source,
            destination,
            ..
        } => {
            let reads = direction != CopyDirection::GuestToGpu;
            let writes = direction != CopyDirection::GpuToGuest;
            let source = reads.then(|| space.reach(source + done));
            let destination = writes.then(|| space.reach(destination + done));
            source.into_iter().chain(destination).min().unwrap_or(PIECE)
        }
        Work::Fill { va, .. } => space.reach(va + done),
        Work::Kernel(_) | Work::Move(_) => PIECE,
    }
}

fn copy_piece(
    context: &Context,
    direction: CopyDirection,
    source: u64,
    destination: u64,
    bytes: usize,
) -> Result<(), Outcome> {
    let space = &context.space;
    match direction {
        CopyDirection::GuestToGpu => {
            let mut to = space.slice(destination, bytes)?;
            each_slice(context, source, bytes, |from| {
                from.copy_to_volatile_slice(to);
                to = to.offset(from.len()).ok()?;
                Some(())
            })
        }
        CopyDirection::GpuToGuest => {
            let mut from = space.slice(source, bytes)?;
            each_slice(context, destination, bytes, |to| {
                from.subslice(0, to.len()).ok()?.copy_to_volatile_slice(*to);
                from = from.offset(to.len()).ok()?;
                Some(())
            })
        }
        CopyDirection::GpuToGpu => {
            let (from, to) = (
                space.slice(source, bytes)?,
                space.slice(destination, bytes)?,
            );
            from.copy_to_volatile_slice(to);
            Ok(())
        }
    }
}

/// Goes through a range of guest memory, which may span regions.
fn each_slice(
    context: &Context,
    gpa: u64,
    bytes: usize,
    mut act: impl FnMut(&VolatileSlice<'_>) -> Option<()>,
) -> Result<(), Outcome> {
    let not_guest = Outcome::Fault {
        code: ErrorCode::NotGuestMemory,
        info: gpa,
    };
    let guest = context.guest.now();
    for slice in guest.get_slices(GuestAddress(gpa), bytes) {
        act(&slice.map_err(|_| not_guest)?).ok_or(not_guest)?;
    }
    Ok(())
}

/// The length that the parameters of a kernel give.
pub(super) fn given_length(kernel: &Kernel) -> Nanos {
    let word = kernel.params.first_chunk().copied();
    Nanos(u64::from_le_bytes(word.unwrap_or_default()))
}
