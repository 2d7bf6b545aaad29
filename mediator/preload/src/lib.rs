//! Preloaded into an unmodified CUDA program. Two things, each if the launcher asks for it:
//!
//! - *Memory that moves* (`TURNSTILE_MEMORY` names the launcher's socket): the driver's allocation calls are taken over, so that
//!   what they allocate lies in chunks which the daemon can have taken away and given back at the same addresses ([`heap`]). A
//!   thread in the program obeys the daemon; the messages are those of `turnstile-preload-wire`. Copies and fills wait while
//!   memory is away; launches pass, and are noticed ([`gate`]).
//! - *Handles* (`TURNSTILE_HANDLES`), for hosts without system-call notification: `ioctl` is stood before, and reports what
//!   the driver hands out ([`handles`]).
//!
//! Static programs, and libraries that load the driver's into a namespace of their own (dlmopen), escape both.
#![deny(unsafe_code)]

mod abi;
mod gate;
mod handles;
mod heap;
mod ordered;
mod slabs;
mod sys;
