//! Preloaded into an unmodified CUDA program. Has two features, each if the launcher requests it:
//!
//! - *Movable memory* (`TURNSTILE_MEMORY` names the launcher's socket): the driver's allocation
//!   calls are interposed, so that allocations are in chunks that the daemon can have released, and
//!   restored at the same addresses ([`heap`]). A thread in the program carries out the daemon's
//!   requests, which are the messages of `turnstile-preload-wire`. Copies and fills wait while
//!   chunks are missing; launches pass, and are noted ([`gate`]).
//! - *Handles* (`TURNSTILE_HANDLES`), for hosts without system-call notification: `ioctl` is
//!   interposed, and reports what the driver hands out ([`handles`]).
//!
//! Static programs escape both, as do libraries that load the driver's library into a namespace of
//! their own (dlmopen).
#![deny(unsafe_code)]

mod abi;
mod gate;
mod handles;
mod heap;
mod ordered;
mod slabs;
mod sys;
