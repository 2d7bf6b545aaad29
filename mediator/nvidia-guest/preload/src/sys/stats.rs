//! `stat`, `access` and their variants: a node is a character device of the host's number.

use std::ffi::{c_char, c_int};
use std::io;
use std::mem::zeroed;

use super::{returned, state};

/// Fills in the status of a node.
///
/// # Safety
/// `status` is the caller's, to be written.
unsafe fn fill(status: *mut libc::stat, device_number: u64) -> c_int {
    // SAFETY: a structure of integers, of which zero bytes are a value.
    let mut node: libc::stat = unsafe { zeroed() };
    node.st_mode = libc::S_IFCHR | 0o666;
    node.st_nlink = 1;
    node.st_rdev = device_number;
    node.st_blksize = 4096;
    // SAFETY: by the caller's contract.
    unsafe { status.write(node) };
    0
}

/// # Safety
/// As fstatat(2).
unsafe fn stat_at(
    folder: c_int,
    path: *const c_char,
    status: *mut libc::stat,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller's own path.
    let Some(node) = (unsafe { state::node(path) }) else {
        // SAFETY: the caller's own call.
        return unsafe { libc::syscall(libc::SYS_newfstatat, folder, path, status, flags) }
            as c_int;
    };
    let number = state::with(|guest| guest.stat(node));
    // SAFETY: the caller's own structure.
    returned(number.map(|number| unsafe { fill(status, number) }))
}

/// # Safety
/// As fstat(2).
unsafe fn stat_of(descriptor: c_int, status: *mut libc::stat) -> c_int {
    if !state::is_ours(descriptor) {
        let (path, flags) = (c"".as_ptr(), libc::AT_EMPTY_PATH);
        // SAFETY: the caller's own call, in another form.
        return unsafe { libc::syscall(libc::SYS_newfstatat, descriptor, path, status, flags) }
            as c_int;
    }
    let number = state::with(|guest| {
        let number = guest.device_number(descriptor);
        number.ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
    });
    // SAFETY: the caller's own structure.
    returned(number.map(|number| unsafe { fill(status, number) }))
}

macro_rules! interposed {
    ($($name:ident($($argument:ident: $type:ty),*) $body:expr;)*) => {$(
        /// # Safety
        /// As the C library's.
        // SAFETY: this name is meant to come before the C library's, and keeps its contract.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[cfg_attr(test, allow(dead_code))]
        unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            // SAFETY: the caller's own call.
            unsafe { $body }
        }
    )*};
}

// On the driver's machines the structures with and without "64" are the same.
interposed! {
    stat(path: *const c_char, status: *mut libc::stat) stat_at(libc::AT_FDCWD, path, status, 0);
    stat64(path: *const c_char, status: *mut libc::stat) stat_at(libc::AT_FDCWD, path, status, 0);
    lstat(path: *const c_char, status: *mut libc::stat)
        stat_at(libc::AT_FDCWD, path, status, libc::AT_SYMLINK_NOFOLLOW);
    lstat64(path: *const c_char, status: *mut libc::stat)
        stat_at(libc::AT_FDCWD, path, status, libc::AT_SYMLINK_NOFOLLOW);
    fstatat(folder: c_int, path: *const c_char, status: *mut libc::stat, flags: c_int)
        stat_at(folder, path, status, flags);
    fstatat64(folder: c_int, path: *const c_char, status: *mut libc::stat, flags: c_int)
        stat_at(folder, path, status, flags);
    __xstat(_version: c_int, path: *const c_char, status: *mut libc::stat)
        stat_at(libc::AT_FDCWD, path, status, 0);
    __xstat64(_version: c_int, path: *const c_char, status: *mut libc::stat)
        stat_at(libc::AT_FDCWD, path, status, 0);
    __lxstat(_version: c_int, path: *const c_char, status: *mut libc::stat)
        stat_at(libc::AT_FDCWD, path, status, libc::AT_SYMLINK_NOFOLLOW);
    __lxstat64(_version: c_int, path: *const c_char, status: *mut libc::stat)
        stat_at(libc::AT_FDCWD, path, status, libc::AT_SYMLINK_NOFOLLOW);
    fstat(descriptor: c_int, status: *mut libc::stat) stat_of(descriptor, status);
    fstat64(descriptor: c_int, status: *mut libc::stat) stat_of(descriptor, status);
    __fxstat(_version: c_int, descriptor: c_int, status: *mut libc::stat) stat_of(descriptor, status);
    __fxstat64(_version: c_int, descriptor: c_int, status: *mut libc::stat) stat_of(descriptor, status);
    access(path: *const c_char, mode: c_int) access_at(path, mode);
}

/// # Safety
/// As access(2).
unsafe fn access_at(path: *const c_char, mode: c_int) -> c_int {
    // SAFETY: the caller's own path.
    let Some(node) = (unsafe { state::node(path) }) else {
        // SAFETY: the caller's own call.
        return unsafe { libc::syscall(libc::SYS_faccessat, libc::AT_FDCWD, path, mode) } as c_int;
    };
    returned(state::with(|guest| guest.stat(node)).map(|_| 0))
}
