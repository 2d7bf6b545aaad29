//! Preloaded into an unmodified CUDA program that has no NVIDIA node. The C library's calls on such
//! nodes go to the device process. `TURNSTILE_GUEST_DEVICE` names its socket.
//!
//! - `open`: an eventfd stands for the node, and gets its events ([`guest`]).
//! - `ioctl`: buffers are collected by the release's table, and copied back ([`guest`]).
//! - *Memory* that the driver would map is guest RAM: pages of a file that both processes map. What
//!   the program registers is moved there ([`ram`]). Doorbell windows are the device's own pages.
//!
//! Limits: programs that make system calls without the C library escape it, as do libraries in a
//! namespace of their own (dlmopen). Registered memory must not be written while it is moved; a
//! file in memory that other processes have too is registered where it is. A forked child has a
//! copy of the memory, and opens the nodes anew.
#![deny(unsafe_code)]

mod guest;
mod mapping;
mod maps;
mod memory;
mod ram;
mod sys;
