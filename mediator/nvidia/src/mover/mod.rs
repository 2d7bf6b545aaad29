//! Moves GPU memory of other processes to the host and back at the speed of the link.
//!
//! ```text
//!   daemon                                  mover process                         GPU
//!   Mover::out(memory) -- handle, pages --> import, map, copy, unmap, close ---> memory is free
//!   Mover::back(copy)  -- pages ----------> make, map, copy, export, unmap ----> the same bytes
//!      pages: of files that daemon and mover map, pinned by the mover in steps
//! ```
//!
//! Memory is named by the driver's handles, as descriptors; this module does not know its owner or
//! its mappings. The caller of [`Mover::out`] ensures that no process has the memory mapped. No
//! write can then happen behind the copy, and the memory is free when the last descriptor is
//! closed. A [`Resident`] is the daemon's descriptor, an [`Away`] the bytes at the host. A move
//! consumes one and returns the other, so bytes are in exactly one place; after a failed move,
//! where they were.
//!
//! The mover is a process of its own because it loads the vendor's library. A broken context is
//! lost for its process, and a crash of the library must end neither the daemon nor the host's
//! bytes. The files of the pages belong to the daemon, so that another mover can continue with
//! them. Moves out and in have a connection each and run at the same time; creating, scrubbing and
//! pinning do not wait for them. The mover executes no tenant's code and is never suspended.

mod config;
mod copier;
#[cfg(test)]
pub(super) mod fake;
mod handle;
mod memory;
mod pages;
mod parts;
mod process;
mod protocol;
mod serve;
#[cfg(test)]
mod tests;

pub use config::MoverConfig;
pub use handle::Mover;
pub use memory::{Away, Back, Kept, MoverError, Resident, Stayed};
pub use parts::{EXTENT_BYTES_MAX, parts, parts_from};
pub use serve::{ServeError, run};
