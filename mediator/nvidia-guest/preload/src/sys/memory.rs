//! Raw memory and mappings, by system calls: the C library's functions are interposed.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

/// Own descriptors are above those that programs count on.
const HIGH: libc::c_long = 700;

/// Reads memory of the program, which passed its address to the driver.
pub(crate) fn read(address: u64, bytes: usize) -> Vec<u8> {
    let mut copy = vec![0; bytes];
    let from = ptr::with_exposed_provenance::<u8>(address as usize);
    // SAFETY: the driver would read this range; the program vouches for it by its call.
    unsafe { ptr::copy_nonoverlapping(from, copy.as_mut_ptr(), bytes) };
    copy
}

/// Writes memory of the program, which passed its address to the driver.
pub(crate) fn write(address: u64, bytes: &[u8]) {
    let to = ptr::with_exposed_provenance_mut::<u8>(address as usize);
    // SAFETY: the driver would write this range; the program vouches for it by its call.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
}

fn checked(result: libc::c_long) -> io::Result<u64> {
    // CAST: an address, or -1 with errno.
    if result == -1 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result as u64)
    }
}

fn map(
    address: u64,
    bytes: u64,
    protection: i32,
    flags: i32,
    file: BorrowedFd<'_>,
    offset: u64,
) -> io::Result<u64> {
    // SAFETY: the callers map anywhere, or over memory of the program with a copy of its content.
    checked(unsafe {
        libc::syscall(
            libc::SYS_mmap,
            address,
            bytes,
            protection,
            flags,
            file.as_raw_fd(),
            offset,
        )
    })
}

/// Maps guest RAM at an address of the program.
///
/// # Errors
/// As mmap(2).
pub(crate) fn lay(
    address: u64,
    bytes: u64,
    protection: i32,
    ram: BorrowedFd<'_>,
    offset: u64,
) -> io::Result<()> {
    map(
        address,
        bytes,
        protection,
        libc::MAP_SHARED | libc::MAP_FIXED,
        ram,
        offset,
    )
    .map(drop)
}

/// The same, as a private copy.
///
/// # Errors
/// As mmap(2).
pub(crate) fn lay_private(
    address: u64,
    bytes: u64,
    protection: i32,
    ram: BorrowedFd<'_>,
    offset: u64,
) -> io::Result<()> {
    map(
        address,
        bytes,
        protection,
        libc::MAP_PRIVATE | libc::MAP_FIXED,
        ram,
        offset,
    )
    .map(drop)
}

/// Copies memory of the program into guest RAM.
///
/// # Errors
/// As mmap(2); EFAULT if it is not readable.
pub(crate) fn copy_out(
    from: u64,
    bytes: u64,
    protection: i32,
    ram: BorrowedFd<'_>,
    offset: u64,
) -> io::Result<()> {
    if protection & libc::PROT_READ == 0 {
        return Err(io::Error::from_raw_os_error(libc::EFAULT));
    }
    let both = libc::PROT_READ | libc::PROT_WRITE;
    let copy = map(0, bytes, both, libc::MAP_SHARED, ram, offset)?;
    let source = ptr::with_exposed_provenance::<u8>(from as usize);
    let target = ptr::with_exposed_provenance_mut::<u8>(copy as usize);
    // SAFETY: the source is mapped and readable by `/proc/self/maps`, and the program must not
    // change it while it registers it. The target is the new mapping, of this length.
    unsafe {
        ptr::copy_nonoverlapping(source, target, bytes as usize);
        libc::syscall(libc::SYS_munmap, copy, bytes);
    }
    Ok(())
}

/// The same file with a high number, if there is one.
pub(crate) fn high(file: impl Into<OwnedFd>) -> OwnedFd {
    let file = file.into();
    // SAFETY: takes numbers alone; a new descriptor has no other owner.
    unsafe {
        let number = libc::syscall(
            libc::SYS_fcntl,
            file.as_raw_fd(),
            libc::F_DUPFD_CLOEXEC,
            HIGH,
        );
        // CAST: a descriptor.
        if number < 0 {
            file
        } else {
            OwnedFd::from_raw_fd(number as i32)
        }
    }
}
