//! Doorbell pages in a memory file that VMM and daemon share, and a page map for guests that are
//! threads.

use super::{GateControl, Page, PageMap, PageMapError, PageWords};
use crate::sys::fd::{cannot_shrink, sealed_memory};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use turnstile_abi::{PAGE_BYTES, pci::DOORBELL_OFFSET};
use vm_memory::{FileOffset, MmapRegion, VolatileMemory};

/// Pages of a memory file, one per channel, mapped shared: doorbell pages or parking pages.
#[derive(Debug)]
pub struct SharedPages {
    file: FileOffset,
    region: MmapRegion<()>,
    channels: u32,
}

impl SharedPages {
    /// Maps the pages of `channels` channels from a memory file.
    ///
    /// # Errors
    /// As mmap(2), or when the file is too short or not sealed against getting shorter.
    pub fn from_file(file: File, channels: u32) -> io::Result<Self> {
        Self::from_file_at(file, 0, channels)
    }

    /// Maps the pages of `channels` channels from `offset` on in a memory file, or in a device that
    /// VFIO has opened.
    ///
    /// # Errors
    /// As mmap(2), or when a memory file is too short or not sealed against getting shorter.
    pub fn from_file_at(file: File, offset: u64, channels: u32) -> io::Result<Self> {
        let bytes = u64::from(channels) * PAGE_BYTES;
        let refused = |why| io::Error::new(io::ErrorKind::InvalidInput, why);
        if !offset.is_multiple_of(PAGE_BYTES) {
            return Err(refused("doorbell pages begin within a page"));
        }
        // A device has no length and no seals; the kernel is responsible for its mappings.
        if !is_vfio_device(&file) {
            if !cannot_shrink(&file) {
                return Err(refused("memory file is not sealed against shrinking"));
            }
            let end = offset.checked_add(bytes);
            if end.is_none_or(|end| file.metadata().map_or(true, |known| known.len() < end)) {
                return Err(refused("memory file is shorter than its doorbell pages"));
            }
        }
        let file = FileOffset::new(file, offset);
        let region =
            MmapRegion::from_file(file.clone(), bytes as usize).map_err(io::Error::other)?;
        Ok(Self {
            file,
            region,
            channels,
        })
    }

    /// Pages of zeroes in a memory file of their own.
    ///
    /// # Errors
    /// As memfd_create(2) and mmap(2).
    pub fn new(channels: u32) -> io::Result<Self> {
        let file = sealed_memory(c"turnstile-pages", u64::from(channels) * PAGE_BYTES)?;
        Self::from_file(file, channels)
    }

    /// Channels that have a page.
    pub fn channels(&self) -> u32 {
        self.channels
    }

    /// The memory file.
    pub fn file(&self) -> &File {
        self.file.file()
    }

    /// Offset of channel 0's page in the file.
    pub fn offset(&self) -> u64 {
        self.file.start()
    }

    /// The pages as a part of their file, for a mapping of them.
    pub fn file_offset(&self) -> FileOffset {
        self.file.clone()
    }

    fn word(&self, channel: u32) -> Option<&AtomicU32> {
        let at = (u64::from(channel) * PAGE_BYTES + DOORBELL_OFFSET) as usize;
        self.region.get_atomic_ref(at).ok()
    }
}

/// Whether it is a device that VFIO has opened, according to the kernel.
fn is_vfio_device(file: &File) -> bool {
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    std::fs::read_link(link).is_ok_and(|kind| kind.as_os_str() == "anon_inode:[vfio-device]")
}

impl PageWords for SharedPages {
    fn load(&self, channel: u32) -> u32 {
        self.word(channel)
            .map_or(0, |word| word.load(Ordering::Acquire))
    }

    fn store(&self, channel: u32, value: u32) {
        if let Some(word) = self.word(channel) {
            word.store(value, Ordering::SeqCst);
        }
    }

    fn exchange(&self, channel: u32, from: u32, to: u32) -> Result<(), u32> {
        self.word(channel).map_or(Ok(()), |word| {
            word.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst)
                .map(|_| ())
        })
    }
}

impl PageWords for Arc<SharedPages> {
    fn load(&self, channel: u32) -> u32 {
        self.as_ref().load(channel)
    }

    fn store(&self, channel: u32, value: u32) {
        self.as_ref().store(channel, value);
    }

    fn exchange(&self, channel: u32, from: u32, to: u32) -> Result<(), u32> {
        self.as_ref().exchange(channel, from, to)
    }
}

/// The page map of a guest that is a thread of this process. The page table is replaced by a value
/// behind a lock: a doorbell write holds the lock while it reads the value and stores. A page
/// therefore cannot move between the two.
#[derive(Debug)]
pub struct ThreadMap {
    pages: Vec<Mutex<Page>>,
}

impl ThreadMap {
    /// All pages are sinks.
    pub fn new(channels: u32) -> Self {
        Self {
            pages: (0..channels).map(|_| Mutex::new(Page::Sink)).collect(),
        }
    }

    /// Runs `access` with the page of `channel`; a move of the page waits for it to end.
    pub fn access<T>(&self, channel: u32, access: impl FnOnce(Page) -> T) -> T {
        match self.pages.get(channel as usize) {
            Some(page) => access(*page.lock().unwrap_or_else(PoisonError::into_inner)),
            None => access(Page::Sink),
        }
    }
}

impl PageMap for ThreadMap {
    fn lay(&self, channel: u32, page: Page) -> Result<(), PageMapError> {
        if let Some(known) = self.pages.get(channel as usize) {
            *known.lock().unwrap_or_else(PoisonError::into_inner) = page;
        }
        Ok(())
    }
}

impl<W: PageWords> GateControl<ThreadMap, W> {
    /// Executes a guest's store to the doorbell. Returns false if it faults: nothing was stored.
    pub fn store(&self, channel: u32, value: u32) -> bool {
        self.page_map().access(channel, |page| match page {
            Page::Direct => {
                self.page_words().store(channel, value);
                true
            }
            Page::Parking => {
                self.parking_words().store(channel, value);
                true
            }
            Page::Sink => true,
            Page::Protected => false,
        })
    }

    /// A guest's store to the doorbell, which traps if it faults.
    pub fn ring(&self, channel: u32, value: u32) {
        if !self.store(channel, value) {
            self.trap(channel, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmm_sys_util::tempfile::TempFile;

    #[test]
    fn memory_file_that_can_shrink_is_refused() {
        let file = TempFile::new().unwrap().into_file();
        file.set_len(2 * PAGE_BYTES).unwrap();
        let error = SharedPages::from_file(file, 2).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        assert!(error.to_string().contains("not sealed"), "{error}");
    }

    #[test]
    fn memory_file_shorter_than_its_pages_is_refused() {
        let file = || sealed_memory(c"short", 2 * PAGE_BYTES).unwrap();
        let channels = |pages: io::Result<SharedPages>| pages.map(|pages| pages.channels()).ok();
        assert_eq!(channels(SharedPages::from_file(file(), 2)), Some(2));
        assert_eq!(channels(SharedPages::from_file(file(), 3)), None);
        // The offset counts.
        assert_eq!(
            channels(SharedPages::from_file_at(file(), PAGE_BYTES, 1)),
            Some(1)
        );
        assert_eq!(
            channels(SharedPages::from_file_at(file(), PAGE_BYTES, 2)),
            None
        );
        assert_eq!(
            channels(SharedPages::from_file_at(file(), 2 * PAGE_BYTES, 1)),
            None
        );
        assert_eq!(channels(SharedPages::from_file_at(file(), 1, 1)), None);
    }
}
