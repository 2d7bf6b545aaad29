//! Memory that the driver writes while it is read here.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};

/// Pages that the driver may write at any time: only read by copies, never referenced.
#[derive(Debug)]
pub(crate) struct SharedPages {
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping is owned by this value alone, is not bound to a thread, and is only ever
// read.
unsafe impl Send for SharedPages {}
// SAFETY: as above; the driver writes the memory in any case, and each read is volatile.
unsafe impl Sync for SharedPages {}

impl SharedPages {
    /// Maps `length` bytes of `file` for reading.
    ///
    /// # Errors
    /// The host's.
    pub(crate) fn of_file(file: &File, length: usize) -> io::Result<Self> {
        // SAFETY: a new mapping, at an address that the kernel chooses, touches no memory of ours.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(base.cast())
            .map(|base| Self { base, length })
            .ok_or_else(|| io::Error::other("The kernel mapped address zero"))
    }

    /// Copies the bytes at `offset`, before any later read. None outside of the pages.
    pub(crate) fn read<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        let end = offset.checked_add(N)?;
        if end > self.length {
            return None;
        }
        let mut bytes = [0; N];
        let at = self.base.as_ptr().wrapping_add(offset);
        if N == 4 && (at as usize).is_multiple_of(4) {
            // One access, so that a counter is never read half written.
            // SAFETY: within the mapping by the check above, aligned by the condition; volatile
            // since it changes.
            let word = unsafe { at.cast::<u32>().read_volatile() };
            bytes.copy_from_slice(&word.to_ne_bytes());
        } else if N == 8 && (at as usize).is_multiple_of(8) {
            // SAFETY: as above.
            let word = unsafe { at.cast::<u64>().read_volatile() };
            bytes.copy_from_slice(&word.to_ne_bytes());
        } else if N.is_multiple_of(8) && (at as usize).is_multiple_of(8) {
            for (index, part) in bytes.chunks_exact_mut(8).enumerate() {
                // SAFETY: `offset + 8 * index + 8 <= end <= length`, and aligned as above.
                let word = unsafe { at.cast::<u64>().wrapping_add(index).read_volatile() };
                part.copy_from_slice(&word.to_ne_bytes());
            }
        } else {
            for (index, byte) in bytes.iter_mut().enumerate() {
                // SAFETY: `offset + index < end <= length`, within the mapping.
                *byte = unsafe { at.wrapping_add(index).read_volatile() };
            }
        }
        fence(Ordering::Acquire);
        Some(bytes)
    }
}

impl Drop for SharedPages {
    fn drop(&mut self) {
        // SAFETY: this value made the mapping, nothing refers into it, and it is not used again.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.length) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn reads_stay_within_the_pages() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 4096]).unwrap();
        let pages = SharedPages::of_file(&file, 4096).unwrap();
        assert_eq!(pages.read::<4>(4092), Some([7; 4]));
        assert_eq!(pages.read::<8>(8), Some([7; 8]));
        assert_eq!(pages.read::<40>(40), Some([7; 40]));
        assert_eq!(pages.read::<4>(4093), None);
        assert_eq!(pages.read::<4>(usize::MAX), None);
    }
}
