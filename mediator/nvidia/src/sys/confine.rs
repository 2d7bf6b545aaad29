//! What a process gives up for good.

use std::io;

fn checked(result: libc::c_long) -> io::Result<()> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// No program that this process runs, and no filter that it installs, needs or gets more rights than it has.
pub(crate) fn no_new_privileges() -> io::Result<()> {
    // SAFETY: takes numbers alone.
    checked(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }.into())
}

/// Makes the whole process that of another user, with a group of the same number and no others.
pub(crate) fn become_user(id: u32) -> io::Result<()> {
    // SAFETY: no groups are read at the null address, since their number is zero.
    checked(unsafe { libc::setgroups(0, std::ptr::null()) }.into())?;
    // SAFETY: takes numbers alone.
    checked(unsafe { libc::setresgid(id, id, id) }.into())?;
    // SAFETY: as above.
    checked(unsafe { libc::setresuid(id, id, id) }.into())
}

/// Whether this process is the superuser's.
pub(crate) fn is_superuser() -> bool {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::geteuid() == 0 }
}
