//! Work of engines, and its outcomes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use turnstile_abi::{CopyDirection, ErrorCode, Launch};
use turnstile_accounting::{Moment, Nanos};

use super::context::{Context, LoadedModule};
use crate::address_space::swap::Moving;
use turnstile_gpu::ring::ChannelFault;
use turnstile_ptx::Scratch;

/// A kernel launch with its module, function and parameters looked up.
#[derive(Debug)]
pub(crate) struct Kernel {
    /// The command.
    pub(crate) launch: Launch,
    /// Its parameters, copied when the command was fetched.
    pub(crate) params: Box<[u8]>,
    /// Its number among the tenant's launches.
    pub(crate) id: u64,
    /// Its module; None where lengths are given and nothing is computed.
    pub(crate) module: Option<Arc<LoadedModule>>,
    /// The block that was stopped in its middle, if one was.
    pub(crate) paused: Mutex<Option<Box<Scratch>>>,
}

impl Kernel {
    /// The block that was stopped, for the thread that goes on with it.
    pub(crate) fn paused(&self) -> MutexGuard<'_, Option<Box<Scratch>>> {
        self.paused.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Work for an engine.
#[derive(Debug)]
pub(crate) enum Work {
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
pub(crate) enum Class {
    /// The compute engine.
    Compute = 0,
    /// Any copy engine.
    Copy = 1,
}

impl Work {
    pub(crate) fn class(&self) -> Class {
        match self {
            Self::Kernel(_) => Class::Compute,
            Self::Copy { .. } | Self::Fill { .. } | Self::Move(_) => Class::Copy,
        }
    }

    /// Whether it is known to touch one of these GPU addresses. A kernel's accesses are not known
    /// beforehand.
    pub(crate) fn touches(&self, range: &std::ops::Range<u64>) -> bool {
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
pub(crate) struct Progress {
    /// Blocks that are done.
    pub(crate) blocks: u64,
    /// Engine time that it has had.
    pub(crate) ran: Nanos,
    /// Virtual time only: what is left of it.
    pub(crate) remaining: Option<Nanos>,
    /// Virtual time only: the error that it will end with.
    pub(crate) fault: Option<ChannelFault>,
}

/// How a piece of work ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
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
pub(crate) struct Stop {
    pub(crate) ended: AtomicBool,
    pub(crate) timed_out: AtomicBool,
    pub(crate) pause: AtomicBool,
    /// When the driver first saw that the work has to end.
    pub(crate) known_since: OnceLock<Moment>,
}

impl Stop {
    /// End at once: the result is not needed any more.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    /// End at once: it ran for too long.
    pub(crate) fn time_out(&self) {
        self.timed_out.store(true, Ordering::Release);
        self.end();
    }

    /// Whether it should end at once.
    pub(crate) fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// What an ended piece of work reports.
    pub(crate) fn outcome(&self) -> Outcome {
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
    pub(crate) fn set_pause(&self, pause: bool) {
        self.pause.store(pause, Ordering::Release);
    }

    /// Whether such a stop is requested.
    pub(crate) fn is_paused(&self) -> bool {
        self.pause.load(Ordering::Acquire)
    }
}

/// Work that waits for an engine.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) work: Arc<Work>,
    pub(crate) progress: Progress,
}

/// A piece of work that an engine begins now.
#[derive(Clone, Debug)]
pub(crate) struct Start {
    /// Index of the engine.
    pub(crate) engine: usize,
    /// When it begins.
    pub(crate) starts_at: Moment,
    /// What is to be done.
    pub(crate) work: Arc<Work>,
    /// How much of it is done already.
    pub(crate) progress: Progress,
    pub(crate) context: Arc<Context>,
    pub(crate) stop: Arc<Stop>,
}
