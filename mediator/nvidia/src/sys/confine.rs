//! Rights that a process gives up for good.

use std::io;

fn checked(result: libc::c_long) -> io::Result<()> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Forbids new rights to every program that this process runs, and permits filters without rights.
pub(crate) fn no_new_privileges() -> io::Result<()> {
    // SAFETY: takes numbers alone.
    checked(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }.into())
}

/// Changes the whole process to another user, with a group of the same number and no others.
pub(crate) fn become_user(id: u32) -> io::Result<()> {
    // SAFETY: no groups are read at the null address, since their number is zero.
    checked(unsafe { libc::setgroups(0, std::ptr::null()) }.into())?;
    // SAFETY: takes numbers alone.
    checked(unsafe { libc::setresgid(id, id, id) }.into())?;
    // SAFETY: as above.
    checked(unsafe { libc::setresuid(id, id, id) }.into())
}

/// Whether this process runs as the superuser.
pub(crate) fn is_superuser() -> bool {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::geteuid() == 0 }
}
