//! Memory that moves between a GPU and the host: what is asked of a GPU, and what it tells.
//!
//! A GPU numbers the chunks of its tenants. It tells in one order what was allocated, freed and
//! moved ([`crate::Gpu::read_memory_events`]), so that whoever keeps account never has to ask.
//! Chunks keep their addresses. A GPU runs nothing of a tenant of whose chunks one is away or on
//! its way, whatever it is told: a wrong order makes a tenant wait, and never lets it fault.

use turnstile_accounting::{Nanos, TenantId};

/// A chunk of GPU memory. A number is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkId(pub u64);

impl ChunkId {
    /// Those of an allocation of `count` chunks that begins with this one.
    pub fn run(self, count: u64) -> impl Iterator<Item = Self> {
        (self.0..self.0.saturating_add(count)).map(Self)
    }
}

/// Where to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// To the host.
    Out = 0,
    /// To the GPU.
    In = 1,
}

/// Chunks of a suspended tenant to be moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoveOrder {
    /// Whose chunks.
    pub owner: TenantId,
    /// Who is charged for the engine's time.
    pub cause: TenantId,
    /// Where to.
    pub direction: Direction,
    /// Which, in this order.
    pub chunks: Vec<ChunkId>,
}

/// Why a GPU does not take an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MoveError {
    /// Memory of this GPU does not move.
    #[error("This GPU does not move memory")]
    Unsupported,
    /// The tenant may execute: it is not suspended, or a command of it has not ended.
    #[error("Memory of {0} does not move while it may run")]
    MayRun(TenantId),
    /// There is no such tenant.
    #[error("{0} has no context")]
    NoSuchTenant(TenantId),
    /// What was promised meanwhile leaves no room for it.
    #[error("The GPU has no room for what is to come of {0}")]
    NoRoom(TenantId),
}

/// Why a chunk was not moved. It is where it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveFailure {
    /// It was freed, or its owner is gone.
    Gone,
    /// It is there already.
    There,
    /// Where it was to go, there is no room.
    NoRoom,
    /// The copy failed.
    Copy,
}

/// What came of a chunk that was to be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoveReport {
    /// Whose chunk.
    pub owner: TenantId,
    /// Who is charged.
    pub cause: TenantId,
    /// Where to.
    pub direction: Direction,
    /// Which.
    pub chunk: ChunkId,
    /// Bytes that were copied for it; none where the host had them already, or the chunk was never
    /// written.
    pub copied_bytes: u64,
    /// Engine time that it took.
    pub took: Nanos,
    /// Whether it is where it was to go.
    pub result: Result<(), MoveFailure>,
}

/// What happened to a tenant's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryEvent {
    /// Chunks were allocated.
    Allocated {
        /// To whom.
        owner: TenantId,
        /// The first; the others follow.
        first: ChunkId,
        /// How many.
        count: u64,
        /// Bytes of each.
        chunk_bytes: u64,
        /// They are on the GPU; else nowhere yet, as nothing is in them.
        resident: bool,
    },
    /// They were freed, wherever they were.
    Freed {
        /// By whom.
        owner: TenantId,
        /// The first.
        first: ChunkId,
        /// How many.
        count: u64,
    },
    /// A chunk was moved, or not.
    Moved(MoveReport),
    /// So much of a tenant's is on the GPU beside its chunks, and cannot move.
    Fixed {
        /// Whose.
        owner: TenantId,
        /// Bytes, now.
        bytes: u64,
    },
    /// An allocation was refused: host and GPU together have no room for it.
    Refused {
        /// Whose.
        owner: TenantId,
        /// Bytes that it asked for.
        bytes: u64,
    },
}
