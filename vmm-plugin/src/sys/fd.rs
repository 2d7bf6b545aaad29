//! Descriptors: sealed memory files, and eventfds as owned descriptors.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use vmm_sys_util::eventfd::EventFd;

/// A memory file of `bytes` zeroes that can be neither shrunk nor grown, so the pages of its
/// mappings cannot disappear.
///
/// # Errors
/// As memfd_create(2), ftruncate(2) and fcntl(2).
pub fn sealed_memory(name: &std::ffi::CStr, bytes: u64) -> io::Result<File> {
    // SAFETY: `name` is a C string that outlives the call.
    let fd =
        unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call before returned a new descriptor, which has no other owner.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(bytes)?;
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: `file` is an open descriptor; the call touches no memory of this process.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(file)
}

/// Whether `file` can never shrink, so the pages of its mappings cannot disappear. Only memory
/// files can have this seal.
pub(crate) fn cannot_shrink(file: &File) -> bool {
    // SAFETY: `file` is an open descriptor; the call touches no memory of this process.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    seals >= 0 && seals & libc::F_SEAL_SHRINK != 0
}

/// The eventfd behind an owned descriptor.
pub(crate) fn to_eventfd(fd: OwnedFd) -> EventFd {
    // SAFETY: `into_raw_fd` gives up the ownership that the EventFd takes. Soundness does not need
    // an eventfd: on another file, reads and writes of eight bytes fail or do what they do there.
    unsafe { EventFd::from_raw_fd(fd.into_raw_fd()) }
}

/// A second descriptor of the same eventfd.
///
/// # Errors
/// As dup(2).
pub(crate) fn duplicate(eventfd: &EventFd) -> io::Result<OwnedFd> {
    let copy = eventfd.try_clone()?;
    // SAFETY: `into_raw_fd` gives up the ownership that the OwnedFd takes.
    Ok(unsafe { OwnedFd::from_raw_fd(copy.into_raw_fd()) })
}

/// Makes reads and writes return at once, for all processes that have the file open.
///
/// # Errors
/// As fcntl(2).
pub(crate) fn set_nonblocking(file: &File) -> io::Result<()> {
    // SAFETY: `file` is an open descriptor; the calls touch no memory of this process.
    let done = unsafe {
        let flags = libc::fcntl(file.as_raw_fd(), libc::F_GETFL);
        flags >= 0 && libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) >= 0
    };
    if done {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
