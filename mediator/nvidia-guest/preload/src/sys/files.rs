//! `open`, `close`, `dup`, `ioctl`, `mmap`, `poll` and their variants. Calls that do not concern a
//! node are passed to the kernel unchanged.
//!
//! Integers and addresses of a variable argument list are passed as others are on the driver's
//! machines (x86-64 and AArch64).

use std::ffi::{c_char, c_int, c_long, c_ulong, c_void};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::ptr;

use super::{fail, returned, state};
use crate::mapping::Mapped;

/// # Safety
/// As open(2).
unsafe fn open_at(folder: c_int, path: *const c_char, flags: c_int, mode: c_int) -> c_int {
    // SAFETY: the caller's own path.
    let Some(node) = (unsafe { state::node(path) }) else {
        // SAFETY: the caller's own call.
        return unsafe { libc::syscall(libc::SYS_openat, folder, path, flags, mode) } as c_int;
    };
    returned(state::with(|guest| {
        let event = guest
            .open(node, flags & libc::O_CLOEXEC != 0)?
            .into_raw_fd();
        state::mark(event, true);
        Ok(event)
    }))
}

/// Defines functions of the C library's names. Each has the contract of the manual's page.
macro_rules! interposed {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty $body:block)*) => {$(
        /// # Safety
        /// As the C library's.
        // SAFETY: this name is meant to come before the C library's, and keeps its contract.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[cfg_attr(test, allow(dead_code))]
        unsafe extern "C" fn $name($($argument: $type),*) -> $result $body
    )*};
}

interposed! {
    open(path: *const c_char, flags: c_int, mode: c_int) -> c_int {
        // SAFETY: the caller's own call.
        unsafe { open_at(libc::AT_FDCWD, path, flags, mode) }
    }
    open64(path: *const c_char, flags: c_int, mode: c_int) -> c_int {
        // SAFETY: as above.
        unsafe { open_at(libc::AT_FDCWD, path, flags | libc::O_LARGEFILE, mode) }
    }
    __open_2(path: *const c_char, flags: c_int) -> c_int {
        // SAFETY: as above.
        unsafe { open_at(libc::AT_FDCWD, path, flags, 0) }
    }
    __open64_2(path: *const c_char, flags: c_int) -> c_int {
        // SAFETY: as above.
        unsafe { open_at(libc::AT_FDCWD, path, flags | libc::O_LARGEFILE, 0) }
    }
    openat(folder: c_int, path: *const c_char, flags: c_int, mode: c_int) -> c_int {
        // SAFETY: as above.
        unsafe { open_at(folder, path, flags, mode) }
    }
    openat64(folder: c_int, path: *const c_char, flags: c_int, mode: c_int) -> c_int {
        // SAFETY: as above.
        unsafe { open_at(folder, path, flags | libc::O_LARGEFILE, mode) }
    }

    close(descriptor: c_int) -> c_int {
        if state::is_own(descriptor) {
            return fail(libc::EBADF);
        }
        if state::is_ours(descriptor) {
            state::mark(descriptor, false);
            let _ = state::with(|guest| {
                guest.closed(descriptor);
                Ok(())
            });
        }
        // SAFETY: the caller's own call.
        unsafe { libc::syscall(libc::SYS_close, descriptor) as c_int }
    }
    dup(descriptor: c_int) -> c_int {
        // SAFETY: the caller's own call.
        duplicated(descriptor, unsafe { libc::syscall(libc::SYS_dup, descriptor) })
    }
    dup2(descriptor: c_int, to: c_int) -> c_int {
        if descriptor == to {
            // SAFETY: as above.
            let flags = unsafe { libc::syscall(libc::SYS_fcntl, descriptor, libc::F_GETFD) };
            return if flags < 0 { -1 } else { to };
        }
        replaced(to);
        // SAFETY: as above.
        duplicated(descriptor, unsafe { libc::syscall(libc::SYS_dup3, descriptor, to, 0) })
    }
    dup3(descriptor: c_int, to: c_int, flags: c_int) -> c_int {
        replaced(to);
        // SAFETY: as above.
        duplicated(descriptor, unsafe { libc::syscall(libc::SYS_dup3, descriptor, to, flags) })
    }
    fcntl(descriptor: c_int, command: c_int, argument: c_long) -> c_int {
        // SAFETY: as above.
        let result = unsafe { libc::syscall(libc::SYS_fcntl, descriptor, command, argument) };
        if command == libc::F_DUPFD || command == libc::F_DUPFD_CLOEXEC {
            return duplicated(descriptor, result);
        }
        result as c_int
    }
    fcntl64(descriptor: c_int, command: c_int, argument: c_long) -> c_int {
        // SAFETY: as above.
        unsafe { fcntl(descriptor, command, argument) }
    }

    ioctl(descriptor: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
        if !state::is_ours(descriptor) {
            // SAFETY: the caller's own call.
            return unsafe { libc::syscall(libc::SYS_ioctl, descriptor, request, argument) } as c_int;
        }
        let address = argument.expose_provenance() as u64;
        // CAST: the kernel uses 32 bits of a request.
        returned(state::with(|guest| guest.call(descriptor, request as u32, address)))
    }

    mmap(address: *mut c_void, bytes: usize, protection: c_int, flags: c_int, descriptor: c_int, offset: i64) -> *mut c_void {
        if flags & libc::MAP_ANONYMOUS == 0 && state::is_ours(descriptor) {
            return map(address, bytes, protection, flags, descriptor, offset);
        }
        // SAFETY: the caller's own call.
        unsafe { raw_map(address, bytes, protection, flags, descriptor, offset) }
    }
    mmap64(address: *mut c_void, bytes: usize, protection: c_int, flags: c_int, descriptor: c_int, offset: i64) -> *mut c_void {
        // SAFETY: as above.
        unsafe { mmap(address, bytes, protection, flags, descriptor, offset) }
    }

    poll(list: *mut libc::pollfd, count: libc::nfds_t, timeout_ms: c_int) -> c_int {
        let time = libc::timespec {
            tv_sec: (timeout_ms / 1000).into(),
            tv_nsec: (timeout_ms % 1000 * 1_000_000).into(),
        };
        let time = if timeout_ms < 0 { ptr::null() } else { &raw const time };
        // SAFETY: the caller's own call, with its timeout in another form.
        unsafe { ppoll(list, count, time, ptr::null()) }
    }
    ppoll(list: *mut libc::pollfd, count: libc::nfds_t, timeout: *const libc::timespec, mask: *const libc::sigset_t) -> c_int {
        // The kernel writes the time that is left.
        // SAFETY: null or a structure of the caller's.
        let mut left = unsafe { timeout.as_ref() }.copied();
        let time = left.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
        /// Bytes of the kernel's set of signals.
        const SET_BYTES: usize = 8;
        // SAFETY: the caller's own call.
        let ready = unsafe { libc::syscall(libc::SYS_ppoll, list, count, time, mask, SET_BYTES) };
        if ready > 0 {
            for at in 0..count as usize {
                // SAFETY: the caller's list has this many entries, which the kernel has written.
                drain(unsafe { &mut *list.add(at) });
            }
        }
        ready as c_int
    }
}

/// The driver reports an event once: so does the eventfd.
fn drain(entry: &mut libc::pollfd) {
    if entry.revents & libc::POLLIN == 0 || !state::is_ours(entry.fd) {
        return;
    }
    let mut count = [0_u8; 8];
    // SAFETY: eight bytes, as an eventfd writes them; it does not block.
    unsafe { libc::syscall(libc::SYS_read, entry.fd, count.as_mut_ptr(), count.len()) };
    entry.revents = entry.events & (libc::POLLIN | libc::POLLPRI | libc::POLLRDNORM);
}

fn duplicated(from: c_int, to: c_long) -> c_int {
    // CAST: a descriptor or -1.
    let to = to as c_int;
    if to >= 0 && state::is_ours(from) {
        let _ = state::with(|guest| {
            guest.duplicated(from, to);
            Ok(())
        });
        state::mark(to, true);
    }
    to
}

/// A descriptor is closed because another takes its number.
fn replaced(to: c_int) {
    if state::is_ours(to) {
        state::mark(to, false);
        let _ = state::with(|guest| {
            guest.closed(to);
            Ok(())
        });
    }
}

/// # Safety
/// As mmap(2).
unsafe fn raw_map(
    address: *mut c_void,
    bytes: usize,
    protection: c_int,
    flags: c_int,
    descriptor: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the caller's own call.
    let mapped = unsafe {
        libc::syscall(
            libc::SYS_mmap,
            address,
            bytes,
            protection,
            flags,
            descriptor,
            offset,
        )
    };
    // CAST: an address, or MAP_FAILED.
    ptr::with_exposed_provenance_mut(mapped as usize)
}

fn map(
    address: *mut c_void,
    bytes: usize,
    protection: c_int,
    flags: c_int,
    descriptor: c_int,
    offset: i64,
) -> *mut c_void {
    let wanted = address.expose_provenance() as u64;
    let result = state::with(|guest| {
        // CAST: the bits of an offset.
        let mapped = guest.map(descriptor, wanted, bytes as u64, protection, offset as u64)?;
        Ok((mapped, guest.memory().file().as_raw_fd()))
    });
    let (mapped, ram) = match result {
        Ok(mapped) => mapped,
        Err(error) => {
            fail(error.raw_os_error().unwrap_or(libc::EIO));
            return libc::MAP_FAILED;
        }
    };
    match mapped {
        Mapped::There => address,
        // SAFETY: the caller's own call, with guest RAM in the place of the driver's memory.
        Mapped::Ram(place) => unsafe {
            raw_map(address, bytes, protection, flags, ram, place as i64)
        },
        // SAFETY: as above, with the device process's window of the same kind.
        Mapped::Window(window) => unsafe {
            raw_map(address, bytes, protection, flags, window.as_raw_fd(), 0)
        },
        Mapped::Page(page) => {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags & libc::MAP_FIXED;
            let both = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: as above, with memory of the program's own.
            let copy = unsafe { raw_map(address, bytes, both, flags, -1, 0) };
            if copy != libc::MAP_FAILED {
                let length = page.len().min(bytes);
                // SAFETY: the new mapping has `bytes` bytes.
                unsafe { ptr::copy_nonoverlapping(page.as_ptr(), copy.cast(), length) };
            }
            copy
        }
    }
}
