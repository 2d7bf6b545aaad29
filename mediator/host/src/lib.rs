//! Access to the host that processes of the mediator share.
//!
//! - [`memory_file`]: memory that another process maps.
//! - [`process`]: identity and ancestry of processes, from `/proc`.
//! - [`confine`]: capabilities, files and system calls that the daemon's threads give up.
//! - [`ranked`]: mutexes with an order that debug builds assert.
//! - [`room`]: whether the process can have memory that a request takes.
//! - [`run_folder`]: where the daemon's sockets are, for the daemon and its clients.
//!
//! No state, no threads.
#![deny(unsafe_code)]

pub mod confine;
pub mod memory_file;
pub mod process;
pub mod ranked;
pub mod room;
pub mod run_folder;
