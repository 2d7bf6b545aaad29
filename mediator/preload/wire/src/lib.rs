//! Messages between the library in a CUDA program and the daemon, about the program's memory.
//!
//! ```text
//!   library                          daemon
//!   Hello                     -->
//!                             <--    Welcome: the limit
//!   Ask: a chunk of `bytes`   -->
//!                             <--    Granted: make it | Restore + handle: map it | Denied
//!   Made + handle             -->
//!                             <--    Release: unmap and release it (the program is suspended)
//!   Released                  -->
//!                             <--    Restore + handle: map it where it was
//!   Restored                  -->
//!   Wants: it has work        -->    (while memory is missing: a suspended program's work
//!                                     is not visible elsewhere)
//!   Freed                     -->
//! ```
//!
//! A frame is one message of a Unix SEQPACKET socket: [`FRAME_BYTES`] bytes, four little-endian
//! words. Some messages have one descriptor: a handle of GPU memory as the driver exports it. The
//! library numbers its chunks from 1 on and uses no number twice. A process has one connection. To
//! the daemon, the connection's end is the end of the process's memory.
//!
//! Each side takes the other's messages as allegations, which are checked in one place:
//! [`ToDaemon::decode`] and [`ToLibrary::decode`]. A frame has one encoding: what is decoded is
//! encoded to the same bytes.
#![deny(unsafe_code)]

#[cfg(feature = "socket")]
pub mod descriptors;
mod frame;
#[cfg(feature = "socket")]
pub mod socket;

pub use frame::FrameError;

/// Version of this protocol.
pub const VERSION: u64 = 2;
/// Bytes of a frame.
pub const FRAME_BYTES: usize = 32;
/// Granule of chunks. SOURCE: cuMemGetAllocationGranularity on an H200 (driver 580.159.04).
pub const GRANULE_BYTES: u64 = 2 << 20;
/// Larger allocations consist of several chunks: a chunk that moves is in two places meanwhile.
/// SOURCE: measured: a copy of this size takes 5 ms; mapping, unmapping and releasing it takes 0.3
/// ms.
pub const EXTENT_BYTES: u64 = 256 << 20;
/// Largest chunk, if the program made it itself: more than any GPU has.
pub(crate) const CHUNK_BYTES_MAX: u64 = 1 << 42;
/// Maximum number of movable chunks of a process; each takes a descriptor in the daemon. Further
/// chunks do not move.
pub const CHUNKS_MAX: usize = 16 << 10;
/// Environment variable with the launcher's socket.
pub const VARIABLE: &str = "TURNSTILE_MEMORY";

/// Number of a chunk. The library counts from 1 on.
pub type ChunkNumber = u64;

/// Why memory of a program does not move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Pin {
    /// Arrays and mipmapped arrays: their layout is the driver's own.
    Array = 0,
    /// Managed memory: the driver moves it itself.
    Managed = 1,
    /// It belongs to another context or GPU than the program's first.
    OtherContext = 2,
    /// Its handle was given to another process, or came from one.
    Shared = 3,
    /// A pool with memory that can be exported.
    Pool = 4,
    /// Made by nodes of a graph.
    Graph = 5,
    /// There are more than [`CHUNKS_MAX`] chunks.
    TooMany = 6,
    /// It was moved by a daemon that is gone; the driver exports a handle only where the memory was
    /// made.
    Orphaned = 7,
    /// The process is ending.
    Ending = 8,
    /// A device process did not get it from the daemon, or another object names it.
    Driver = 9,
}

impl Pin {
    /// All reasons.
    pub const ALL: [Self; 10] = [
        Self::Array,
        Self::Managed,
        Self::OtherContext,
        Self::Shared,
        Self::Pool,
        Self::Graph,
        Self::TooMany,
        Self::Orphaned,
        Self::Ending,
        Self::Driver,
    ];

    /// The reason's name in logs and the API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Array => "array",
            Self::Managed => "managed",
            Self::OtherContext => "other_context",
            Self::Shared => "shared",
            Self::Pool => "pool",
            Self::Graph => "graph",
            Self::TooMany => "too_many",
            Self::Orphaned => "orphaned",
            Self::Ending => "ending",
            Self::Driver => "driver",
        }
    }
}

/// Why a chunk is denied. To the program all are CUDA_ERROR_OUT_OF_MEMORY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Denial {
    /// The tenant's memory.max is reached.
    Limit = 0,
    /// GPU and host together are full.
    Full = 1,
}

impl Denial {
    /// All reasons.
    pub const ALL: [Self; 2] = [Self::Limit, Self::Full];
}

/// Messages of the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToDaemon {
    /// The first message.
    Hello {
        /// [`VERSION`].
        version: u64,
    },
    /// Requests a chunk.
    Ask {
        /// Its number.
        chunk: ChunkNumber,
        /// Bytes, of whole granules.
        bytes: u64,
    },
    /// The chunk was made on the GPU. One descriptor: its handle.
    Made {
        /// Its number: that of a granted chunk, or one that is new to a daemon that started later.
        chunk: ChunkNumber,
        /// Bytes, of whole granules.
        bytes: u64,
    },
    /// A granted chunk was not made after all.
    Spared {
        /// Its number.
        chunk: ChunkNumber,
    },
    /// A chunk is not needed any more, wherever it is.
    Freed {
        /// Its number.
        chunk: ChunkNumber,
    },
    /// A movable chunk does not move any more.
    Kept {
        /// Its number.
        chunk: ChunkNumber,
    },
    /// Other memory of the process on the GPU that cannot move.
    Pinned {
        /// Why.
        reason: Pin,
        /// Current bytes.
        bytes: u64,
    },
    /// Answer to [`ToLibrary::Release`]: the process does not use the chunk any more.
    Released {
        /// Its number.
        chunk: ChunkNumber,
    },
    /// Answer to [`ToLibrary::Restore`]: the chunk is mapped where it was.
    Restored {
        /// Its number.
        chunk: ChunkNumber,
    },
    /// Answer to either: the request failed.
    Failed {
        /// Its number.
        chunk: ChunkNumber,
        /// The driver's result, or zero if the chunk is unknown or in another state.
        result: u32,
    },
    /// Requests the amounts of memory.
    Info {
        /// Number of the request, from the same sequence as chunks.
        question: ChunkNumber,
    },
    /// The program has work for the GPU and lacks memory. Sent once for each time that memory
    /// leaves.
    Wants {},
    /// Requests a chunk that the daemon makes: the answer is [`ToLibrary::Restore`] or
    /// [`ToLibrary::Denied`].
    Take {
        /// Its number.
        chunk: ChunkNumber,
        /// Its bytes.
        bytes: u64,
    },
}

/// Messages of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToLibrary {
    /// Answer to [`ToDaemon::Hello`].
    Welcome {
        /// [`VERSION`].
        version: u64,
        /// Bytes that the tenant may have.
        limit_bytes: u64,
    },
    /// The chunk may be made.
    Granted {
        /// Number of the requested chunk.
        chunk: ChunkNumber,
    },
    /// The chunk is refused.
    Denied {
        /// Number of the requested chunk.
        chunk: ChunkNumber,
        /// Reason of the refusal.
        reason: Denial,
    },
    /// Answer to [`ToDaemon::Info`].
    Memory {
        /// Number of the request.
        question: ChunkNumber,
        /// Bytes that the tenant may still request.
        free_bytes: u64,
        /// Bytes that it may have.
        total_bytes: u64,
    },
    /// Request to unmap and release a chunk.
    Release {
        /// Its number.
        chunk: ChunkNumber,
    },
    /// Request to map a chunk where it was, or was requested. One descriptor: its handle.
    Restore {
        /// Its number.
        chunk: ChunkNumber,
    },
}
