//! The driver and the daemon as the heap calls them.
//!
//! In: requests of the heap. Out: results of the driver, and answers of the daemon. The code in
//! `sys` implements the traits for a real driver, `tests` for a simulated one.

use std::os::fd::OwnedFd;

use turnstile_preload_wire::ToDaemon;

use super::Outcome;
use crate::abi::{Access, Prop};

/// The driver's memory functions.
pub(crate) trait Device {
    fn create(&self, bytes: u64, prop: &Prop) -> Outcome<u64>;
    fn release(&self, handle: u64) -> Outcome<()>;
    fn export(&self, handle: u64) -> Outcome<OwnedFd>;
    fn import(&self, fd: OwnedFd) -> Outcome<u64>;
    fn reserve(&self, bytes: u64) -> Outcome<u64>;
    fn unreserve(&self, address: u64, bytes: u64) -> Outcome<()>;
    fn map(&self, address: u64, bytes: u64, handle: u64) -> Outcome<()>;
    fn permit(&self, address: u64, bytes: u64, access: &[Access]) -> Outcome<()>;
    fn unmap(&self, address: u64, bytes: u64) -> Outcome<()>;
}

/// The connection to the daemon.
pub(crate) trait Line {
    fn is_up(&self) -> bool;
    /// Sends a message. False if there is no daemon.
    fn send(&self, message: ToDaemon, fd: Option<OwnedFd>) -> bool;
}

/// Answer of the daemon to a request.
#[derive(Debug)]
pub(crate) enum Answer {
    /// There is no daemon.
    NoDaemon,
    Granted,
    Denied,
    /// The chunk itself.
    Restored(OwnedFd),
    /// Free and total bytes.
    Memory(u64, u64),
}
