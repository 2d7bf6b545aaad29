//! GPU memory of other processes, moved to the host and back at the speed of the link.
//!
//! ```text
//!   daemon                                 mover process                          GPU
//!   Mover::out(memory)  -- handle, pages --> imports, maps, copies, unmaps, closes --> the memory is nobody's
//!   Mover::back(copy)   -- pages ----------> makes, maps, copies, exports, unmaps ---> other memory, the same bytes
//!      pages: of files that daemon and mover map, pinned by the mover in steps
//! ```
//!
//! What moves is named by the driver's handles, as descriptors: whose it is, and who has it mapped, is not known here.
//! Whoever calls [`Mover::out`] sees to it that nobody has the memory mapped: then nobody can write to it behind the copy,
//! and it returns to the GPU when the last descriptor is closed. A [`Resident`] is the daemon's descriptor, an [`Away`] the
//! bytes at the host; a move takes the one and gives the other, so that bytes are in exactly one place, and those of a move
//! that failed where they were.
//!
//! It is a process of its own because the vendor's library is: a context that breaks is gone for its process, and a crash of
//! that library must end neither the daemon nor what the host keeps. The pages' files are the daemon's, so that another mover
//! goes on with them. Out and in have a line each and run at the same time; making, scrubbing and pinning do not wait
//! for them. The mover executes nobody's code and is never suspended.

mod copier;
mod handle;
mod pages;
mod protocol;
mod serve;
#[cfg(test)]
mod tests;

#[cfg(test)]
pub(super) use handle::fake;
pub use handle::{
    Away, Back, EXTENT_BYTES_MAX, Kept, Mover, MoverConfig, MoverError, Resident, Stayed, parts,
    parts_from,
};
pub use serve::{ServeError, run};
