//! Access to the host that processes of the mediator share.
//!
//! - [`memory_file`]: memory that another process maps.
//! - [`process`]: identity and ancestry of processes, from `/proc`.
//! - [`confine`]: capabilities, files and system calls that the daemon's threads give up.
//!
//! No state, no threads.
#![deny(unsafe_code)]

pub mod confine;
pub mod memory_file;
pub mod process;
