//! A range of addresses with pages that are exchanged one by one while a guest uses them.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use turnstile_abi::PAGE_BYTES;
use vm_memory::{FileOffset, MmapRegion};

const PAGE: usize = PAGE_BYTES as usize;

/// Addresses of `pages` pages, each of which maps a page of some file. The mapped pages change but
/// the range does not, so one memory slot covers it for good.
#[derive(Debug)]
pub(crate) struct Window {
    region: Arc<MmapRegion<()>>,
}

impl Window {
    /// A window onto the first `pages` pages of `file`, writable.
    ///
    /// # Errors
    /// As mmap(2).
    pub(crate) fn new(file: FileOffset, pages: u32) -> io::Result<Self> {
        MmapRegion::from_file(file, pages as usize * PAGE)
            .map(|region| Self {
                region: Arc::new(region),
            })
            .map_err(io::Error::other)
    }

    /// The range, for a memory slot over it. It has no other permitted use.
    pub(crate) fn region(&self) -> &Arc<MmapRegion<()>> {
        &self.region
    }

    /// Maps the page at `offset` of `file` as page `page` of the window. When this has returned, no
    /// access through the window reaches the previous page: the kernel has removed it from its own
    /// page tables, and, through its MMU notifiers, from those of every VM.
    ///
    /// # Errors
    /// As mmap(2); the mapped page is then unknown. `InvalidInput` for a page outside the window.
    pub(crate) fn show(
        &self,
        page: u32,
        file: &File,
        offset: u64,
        writable: bool,
    ) -> io::Result<()> {
        let at = page as usize * PAGE;
        if at >= self.region.size() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let protection = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
        // SAFETY: the page is within `region` (checked above; its size is a multiple of the page
        // size), a mapping that this value keeps. No reference in this process points into its
        // memory: `region` is only handed out for a memory slot, which names addresses and holds no
        // references. The replaced pages therefore belong to this value, and they are unmapped with
        // the whole range of `region`.
        let got = unsafe {
            libc::mmap(
                self.region.as_ptr().add(at).cast(),
                PAGE,
                protection,
                libc::MAP_SHARED | libc::MAP_FIXED,
                file.as_raw_fd(),
                offset as libc::off_t,
            )
        };
        if got == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::fd::sealed_memory;
    use vm_memory::{Bytes, VolatileMemory};

    #[test]
    fn pages_are_exchanged_one_by_one() {
        let of = |value: u8| {
            let file = sealed_memory(c"test", 3 * PAGE_BYTES).unwrap();
            let copy = FileOffset::new(file.try_clone().unwrap(), 0);
            let pages = MmapRegion::<()>::from_file(copy, 3 * PAGE).unwrap();
            pages
                .as_volatile_slice()
                .write_slice(&[value; 3 * PAGE], 0)
                .unwrap();
            file
        };
        let (one, two) = (of(1), of(2));
        let window = Window::new(FileOffset::new(one.try_clone().unwrap(), 0), 3).unwrap();
        let snapshot = || {
            [0, 1, 2].map(|page| {
                let slice = window.region().as_volatile_slice();
                slice.read_obj::<u8>(page * PAGE + 5).unwrap()
            })
        };
        assert_eq!(snapshot(), [1, 1, 1]);
        window.show(1, &two, PAGE_BYTES, false).unwrap();
        assert_eq!(snapshot(), [1, 2, 1]);
        window.show(1, &one, PAGE_BYTES, true).unwrap();
        window.show(2, &two, 2 * PAGE_BYTES, true).unwrap();
        assert_eq!(snapshot(), [1, 1, 2]);
        assert!(window.show(3, &two, 0, true).is_err());
    }
}
