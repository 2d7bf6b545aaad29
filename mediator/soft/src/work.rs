//! Work of engines, and its outcomes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use turnstile_abi::{CopyDirection, ErrorCode, Launch};
use turnstile_accounting::{Moment, Nanos};

use super::context::{Context, LoadedModule};
use super::swap::Moving;
use turnstile_gpu::ring::ChannelFault;
use turnstile_ptx::Scratch;

/// A kernel launch with its module, function and parameters looked up.
#[derive(Debug)]
pub(super) struct Kernel {
    /// The command.
    pub(super) launch: Launch,
    /// Its parameters, copied when the command was fetched.
    pub(super) params: Box<[u8]>,
    /// Its number among the tenant's launches.
    pub(super) id: u64,
    /// Its module; None where lengths are given and nothing is computed.
    pub(super) module: Option<Arc<LoadedModule>>,
    /// The block that was stopped in its middle, if one was.
    pub(super) paused: Mutex<Option<Box<Scratch>>>,
}

impl Kernel {
    /// The block that was stopped, for the thread that goes on with it.
    pub(super) fn paused(&self) -> MutexGuard<'_, Option<Box<Scratch>>> {
        self.paused.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Work for an engine.
#[derive(Debug)]
pub(super) enum Work {
    /// Moves bytes.
    Copy {
        /// From where to where.
        direction: CopyDirection,
        /// Source address.
        source: u64,
        /// Destination address.
        destination: u64,
        /// Bytes.
        bytes: u64,
    },
    /// Writes a pattern.
    Fill {
        /// GPU address.
        va: u64,
        /// Bytes.
        bytes: u64,
        /// The pattern.
        pattern: u32,
    },
    /// Runs a kernel.
    Kernel(Kernel),
    /// Moves chunks between the card and the host, for the mediator.
    Move(Moving),
}

/// Which engines can do a piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// The compute engine.
    Compute = 0,
    /// Any copy engine.
    Copy = 1,
}

impl Work {
    pub(super) fn class(&self) -> Class {
        match self {
            Self::Kernel(_) => Class::Compute,
            Self::Copy { .. } | Self::Fill { .. } | Self::Move(_) => Class::Copy,
        }
    }

    /// Whether it is known to touch one of these GPU addresses. A kernel's accesses are not known
    /// beforehand.
    pub(super) fn touches(&self, range: &std::ops::Range<u64>) -> bool {
        let overlaps =
            |va: u64, bytes: u64| va < range.end && range.start < va.saturating_add(bytes);
        match *self {
            Self::Copy {
                direction,
                source,
                destination,
                bytes,
            } => {
                let reads = direction != CopyDirection::GuestToGpu;
                let writes = direction != CopyDirection::GpuToGuest;
                reads && overlaps(source, bytes) || writes && overlaps(destination, bytes)
            }
            Self::Fill { va, bytes, .. } => overlaps(va, bytes),
            Self::Kernel(_) | Self::Move(_) => false,
        }
    }
}

/// How far a kernel got before it was stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Progress {
    /// Blocks that are done.
    pub(super) blocks: u64,
    /// Engine time that it has had.
    pub(super) ran: Nanos,
    /// Virtual time only: what is left of it.
    pub(super) remaining: Option<Nanos>,
    /// Virtual time only: the error that it will end with.
    pub(super) fault: Option<ChannelFault>,
}

/// How a piece of work ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// As it should.
    Done,
    /// With an error that ends its channel.
    Fault {
        /// The code.
        code: ErrorCode,
        /// Address or value.
        info: u64,
    },
    /// Stopped at the mediator's request; can continue from there.
    Preempted(Progress),
    /// Abandoned: its result is not needed any more.
    Stopped,
}

/// Requests to the thread that executes the work. Read only between instructions, pieces or blocks.
#[derive(Debug, Default)]
pub(super) struct Stop {
    pub(super) ended: AtomicBool,
    pub(super) timed_out: AtomicBool,
    pub(super) pause: AtomicBool,
}

impl Stop {
    /// End at once: the result is not needed any more.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    /// End at once: it ran for too long.
    pub(super) fn time_out(&self) {
        self.timed_out.store(true, Ordering::Release);
        self.end();
    }

    /// Whether it should end at once.
    pub(super) fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// What an ended piece of work reports.
    pub(super) fn outcome(&self) -> Outcome {
        if self.timed_out.load(Ordering::Acquire) {
            Outcome::Fault {
                code: ErrorCode::KernelTimeout,
                info: 0,
            }
        } else {
            Outcome::Stopped
        }
    }

    /// Requests a stop at the next point from which the work can continue, or withdraws the
    /// request.
    pub(super) fn set_pause(&self, pause: bool) {
        self.pause.store(pause, Ordering::Release);
    }

    /// Whether such a stop is requested.
    pub(super) fn is_paused(&self) -> bool {
        self.pause.load(Ordering::Acquire)
    }
}

/// Work that waits for an engine.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) work: Arc<Work>,
    pub(super) progress: Progress,
}

/// A piece of work that an engine begins now.
#[derive(Clone, Debug)]
pub(super) struct Start {
    /// Index of the engine.
    pub(super) engine: usize,
    /// When it begins.
    pub(super) starts_at: Moment,
    /// What is to be done.
    pub(super) work: Arc<Work>,
    /// How much of it is done already.
    pub(super) progress: Progress,
    pub(super) context: Arc<Context>,
    pub(super) stop: Arc<Stop>,
}
