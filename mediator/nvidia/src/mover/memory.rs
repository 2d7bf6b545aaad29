//! Memory that a mover moves: on the card, at the host, and after a move that failed.
//!
//! In: descriptors of GPU memory, and pages of the host's pool. Out: the same, each in one place.
//! The mover's handle makes these values, and `sets.rs` keeps them.

use std::io;
use std::os::fd::OwnedFd;

use turnstile_accounting::Nanos;

use super::pages::Pages;

/// Why memory was not made or moved.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MoverError {
    /// The mover has ended or does not answer.
    #[error("The mover {0}")]
    Gone(String),
    /// The GPU has no room.
    #[error("The GPU has no room")]
    NoRoom,
    /// The host's pool has no room.
    #[error("The pool of the host has no room")]
    PoolFull,
    /// The GPU or the host refused something else.
    #[error("{0}")]
    Refused(String),
}

pub(super) fn host(error: impl std::fmt::Display) -> MoverError {
    MoverError::Refused(error.to_string())
}

/// GPU memory, by a descriptor of the daemon. The memory exists until this and all other
/// descriptors and mappings of it are closed.
#[derive(Debug)]
pub struct Resident {
    pub(super) handle: OwnedFd,
    pub(super) bytes: u64,
}

impl Resident {
    /// Memory of `bytes` that another process made and exported as `handle`.
    pub const fn adopt(handle: OwnedFd, bytes: u64) -> Self {
        Self { handle, bytes }
    }

    /// Bytes.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Another descriptor, for a process that maps the memory. It has to be closed after mapping:
    /// an open descriptor keeps the memory.
    ///
    /// # Errors
    /// When this process has no descriptor left.
    pub fn share(&self) -> io::Result<OwnedFd> {
        self.handle.try_clone()
    }
}

/// Bytes of GPU memory at the host. When dropped, their pages are scrubbed.
#[derive(Debug)]
pub struct Away {
    pub(super) pages: Pages,
    pub(super) bytes: u64,
}

impl Away {
    /// Number of bytes.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Memory that was moved back.
#[derive(Debug)]
pub struct Back {
    /// The memory.
    pub memory: Resident,
    /// The host copy: equal to the memory until the next write to it.
    pub copy: Away,
    /// Link time of the copy.
    pub took: Nanos,
}

/// Memory that was not moved out: it is unchanged.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Stayed {
    /// The memory.
    pub memory: Resident,
    /// Reason.
    pub error: MoverError,
}

/// Bytes that were not moved in: they are still at the host.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Kept {
    /// The bytes.
    pub copy: Away,
    /// Reason.
    pub error: MoverError,
}
