//! Memory that moves between a GPU and the host: the orders to a GPU, and its reports.
//!
//! A GPU numbers the chunks of its tenants. It reports in one order what was allocated, freed and
//! moved ([`crate::Memory::read_memory_events`]), so that the memory manager needs no other calls
//! for its books. Chunks keep their addresses. A GPU runs nothing of a tenant while one of its
//! chunks is missing or in transit, whatever the orders are. A wrong order makes a tenant wait, and
//! never lets it fault.

use turnstile_accounting::{Nanos, TenantId};

/// A chunk of GPU memory. A number is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkId(pub u64);

impl ChunkId {
    /// The chunks of an allocation of `count` chunks that begins with this one.
    pub fn run(self, count: u64) -> impl Iterator<Item = Self> {
        (self.0..self.0.saturating_add(count)).map(Self)
    }
}

/// Direction of a move.
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
    /// Owner of the chunks.
    pub owner: TenantId,
    /// Tenant that is charged for the engine's time.
    pub cause: TenantId,
    /// Direction of the move.
    pub direction: Direction,
    /// The chunks, in the order in which they are moved.
    pub chunks: Vec<ChunkId>,
}

/// Why a GPU refuses an order.
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
    /// Memory that was promised meanwhile leaves no room for it.
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
    /// The destination has no room.
    NoRoom,
    /// The copy failed.
    Copy,
}

/// Result for a chunk that had to be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoveReport {
    /// Owner of the chunk.
    pub owner: TenantId,
    /// Tenant that is charged.
    pub cause: TenantId,
    /// Direction of the move.
    pub direction: Direction,
    /// The chunk.
    pub chunk: ChunkId,
    /// Bytes that were copied for it. Zero if the host had them already, or the chunk was never
    /// written.
    pub copied_bytes: u64,
    /// Engine time of the move.
    pub took: Nanos,
    /// Whether the chunk is at its destination.
    pub result: Result<(), MoveFailure>,
}

/// An event of a tenant's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryEvent {
    /// Chunks were allocated.
    Allocated {
        /// Their owner.
        owner: TenantId,
        /// The first; the others follow.
        first: ChunkId,
        /// Number of chunks.
        count: u64,
        /// Bytes of each.
        chunk_bytes: u64,
        /// Whether they are on the GPU. If not, they are nowhere yet, as they have no content.
        resident: bool,
    },
    /// They were freed, wherever they were.
    Freed {
        /// Their owner.
        owner: TenantId,
        /// The first.
        first: ChunkId,
        /// Number of chunks.
        count: u64,
    },
    /// A chunk was moved, or not.
    Moved(MoveReport),
    /// Memory of a tenant that is on the GPU beside its chunks, and cannot move.
    Fixed {
        /// The tenant.
        owner: TenantId,
        /// Current bytes.
        bytes: u64,
    },
    /// An allocation was refused: host and GPU together have no room for it.
    Refused {
        /// The tenant.
        owner: TenantId,
        /// Bytes that it requested.
        bytes: u64,
    },
}
