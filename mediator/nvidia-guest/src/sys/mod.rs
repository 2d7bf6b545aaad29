//! The crate's unsafe code: the driver's calls, and mappings of guest RAM.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::Arc;

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use crate::abi::{Parts, read_u64, write_u64};

/// Issues a call. The driver gets the addresses of the buffers; afterwards the guest's values are
/// in their places again.
///
/// # Errors
/// As ioctl(2).
pub(crate) fn call(fd: BorrowedFd<'_>, request: u32, parts: &mut Parts) -> io::Result<i32> {
    let mut saved = Vec::with_capacity(parts.links.len());
    for link in &parts.links {
        let child = link.child.and_then(|child| parts.buffers.get_mut(child));
        let address = child.map_or(0, |buffer| buffer.as_mut_ptr().expose_provenance() as u64);
        let parent = &mut parts.buffers[link.parent];
        saved.push(read_u64(parent, link.at));
        write_u64(parent, link.at, address);
    }
    let argument = parts
        .buffers
        .first_mut()
        .map_or(ptr::null_mut(), Vec::as_mut_ptr);
    // SAFETY: the argument has the length that the request names (`abi::parts`). Each address in it
    // is null, guest RAM that the caller has mapped, or that of a buffer of the length that the
    // release's table has. The driver reads and writes no more.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), request.into(), argument) };
    let error = io::Error::last_os_error();
    for (link, value) in parts.links.iter().zip(saved) {
        write_u64(&mut parts.buffers[link.parent], link.at, value);
    }
    if result < 0 { Err(error) } else { Ok(result) }
}

/// Another descriptor of the file behind a number, for the stand-in driver.
///
/// # Errors
/// EBADF if nothing is open there.
pub(crate) fn duplicate(number: i32) -> io::Result<OwnedFd> {
    if number < 0 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: the number is not negative, and is used for one call, which checks it.
    let file = unsafe { BorrowedFd::borrow_raw(number) };
    file.try_clone_to_owned()
}

/// A part of a file of guest RAM.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) file: Arc<File>,
    /// Byte of the file.
    pub(crate) offset: u64,
    /// Bytes.
    pub(crate) bytes: u64,
}

/// Parts of guest RAM, mapped one behind the other.
#[derive(Debug)]
pub(crate) struct Region {
    address: *mut c_void,
    bytes: usize,
}

// SAFETY: the address is not dereferenced; the mapping belongs to the process.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Maps pieces of files. Their offsets and lengths are whole pages within the file.
    ///
    /// # Errors
    /// As mmap(2).
    pub(crate) fn of(pieces: &[Piece], bytes: u64) -> io::Result<Self> {
        let bytes = usize::try_from(bytes).map_err(io::Error::other)?;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let address = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                bytes,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        let region = Self { address, bytes };
        let mut at = 0;
        for piece in pieces {
            // CAST: at most `bytes`, which fits.
            let length = piece.bytes as usize;
            if at + length > bytes {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            // SAFETY: the range is within the region, and nothing refers to the region's pages.
            unsafe {
                mmap(
                    address.byte_add(at),
                    length,
                    ProtFlags::READ | ProtFlags::WRITE,
                    MapFlags::SHARED | MapFlags::FIXED,
                    piece.file.as_fd(),
                    piece.offset,
                )
            }?;
            at += length;
        }
        Ok(region)
    }

    /// Its first address.
    pub(crate) fn address(&self) -> u64 {
        self.address.expose_provenance() as u64
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and nothing refers to it. The driver has its own
        // references to the pages.
        let _ = unsafe { munmap(self.address, self.bytes) };
    }
}

/// A copy of a mapping's first bytes.
///
/// # Errors
/// As mmap(2).
pub(crate) fn copy_of(fd: BorrowedFd<'_>, bytes: usize) -> io::Result<Vec<u8>> {
    let mut copy = vec![0; bytes];
    // SAFETY: a new mapping, read below and unmapped; the copy has its length. Words that change
    // meanwhile are read as bytes, whatever they are.
    unsafe {
        let address = mmap(
            ptr::null_mut(),
            bytes,
            ProtFlags::READ,
            MapFlags::SHARED,
            fd,
            0,
        )?;
        ptr::copy_nonoverlapping(address.cast::<u8>(), copy.as_mut_ptr(), bytes);
        munmap(address, bytes)?;
    }
    Ok(copy)
}
