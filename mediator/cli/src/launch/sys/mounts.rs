//! A mount namespace.

use std::io;

use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Gives the process mounts of its own; with `user`, through a user namespace of its own, in which
/// it has the right to.
///
/// # Errors
/// As unshare(2).
pub(in crate::launch) fn own_mounts(user: bool) -> io::Result<()> {
    let mut flags = UnshareFlags::NEWNS;
    flags.set(UnshareFlags::NEWUSER, user);
    // SAFETY: these namespaces leave the process's memory and descriptors as they are.
    Ok(unsafe { unshare_unsafe(flags) }?)
}
