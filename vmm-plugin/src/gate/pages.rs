//! Doorbell pages in a memory file that VMM and daemon share, and a page map for guests that are threads.

use super::{PageMap, PageMapError, PageWords};
use std::fs::File;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use turnstile_abi::{PAGE_BYTES, pci::DOORBELL_OFFSET};
use vm_memory::{Bytes, FileOffset, MmapRegion, VolatileMemory};

/// Doorbell pages, one per channel, mapped shared.
#[derive(Debug)]
pub struct SharedPages {
    region: Arc<MmapRegion<()>>,
    channels: u32,
}

impl SharedPages {
    /// Maps the pages of `channels` channels from a memory file that was found long enough.
    ///
    /// # Errors
    /// As mmap(2), or when the file is too short.
    pub fn from_file(file: File, channels: u32) -> io::Result<Self> {
        let bytes = u64::from(channels) * PAGE_BYTES;
        if file.metadata()?.len() < bytes {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "memory file is shorter than its doorbell pages",
            ));
        }
        let region = MmapRegion::from_file(FileOffset::new(file, 0), bytes as usize)
            .map_err(io::Error::other)?;
        let region = Arc::new(region);
        Ok(Self { region, channels })
    }

    /// Pages of this process alone, for tests.
    ///
    /// # Errors
    /// As mmap(2).
    pub fn anonymous(channels: u32) -> io::Result<Self> {
        let bytes = u64::from(channels) * PAGE_BYTES;
        let region = MmapRegion::new(bytes as usize).map_err(io::Error::other)?;
        let region = Arc::new(region);
        Ok(Self { region, channels })
    }

    /// Channels that have a page.
    pub fn channels(&self) -> u32 {
        self.channels
    }

    /// The mapping of the pages.
    pub(crate) fn region(&self) -> &Arc<MmapRegion<()>> {
        &self.region
    }

    fn offset(&self, channel: u32) -> Option<usize> {
        (channel < self.channels)
            .then(|| (u64::from(channel) * PAGE_BYTES + DOORBELL_OFFSET) as usize)
    }
}

impl PageWords for SharedPages {
    fn load(&self, channel: u32) -> u32 {
        self.offset(channel)
            .and_then(|at| {
                self.region
                    .as_volatile_slice()
                    .load(at, Ordering::Acquire)
                    .ok()
            })
            .unwrap_or(0)
    }

    fn store(&self, channel: u32, value: u32) {
        if let Some(at) = self.offset(channel) {
            // PANIC: none; the offset is aligned and within the region, so this cannot fail.
            let _ = self
                .region
                .as_volatile_slice()
                .store(value, at, Ordering::SeqCst);
        }
    }
}

impl PageWords for Arc<SharedPages> {
    fn load(&self, channel: u32) -> u32 {
        self.as_ref().load(channel)
    }

    fn store(&self, channel: u32, value: u32) {
        self.as_ref().store(channel, value);
    }
}

/// The page map of a guest that is a thread of this process: a flag per page, looked at by every doorbell write.
#[derive(Debug)]
pub struct ThreadMap {
    mapped: Vec<Mutex<bool>>,
}

impl ThreadMap {
    /// No page is mapped.
    pub fn new(channels: u32) -> Self {
        Self {
            mapped: (0..channels).map(|_| Mutex::new(false)).collect(),
        }
    }

    /// Runs `write` if the page of `channel` is mapped, and tells whether it was. Unmapping waits for it to end.
    pub fn write_direct(&self, channel: u32, write: impl FnOnce()) -> bool {
        let Some(flag) = self.mapped.get(channel as usize) else {
            return false;
        };
        let mapped = flag.lock().unwrap_or_else(PoisonError::into_inner);
        if *mapped {
            write();
        }
        *mapped
    }

    /// Whether the page of `channel` is mapped.
    pub fn is_mapped(&self, channel: u32) -> bool {
        self.write_direct(channel, || ())
    }

    fn put(&self, channel: u32, mapped: bool) {
        if let Some(flag) = self.mapped.get(channel as usize) {
            *flag.lock().unwrap_or_else(PoisonError::into_inner) = mapped;
        }
    }
}

impl PageMap for ThreadMap {
    fn map(&self, channel: u32) -> Result<(), PageMapError> {
        self.put(channel, true);
        Ok(())
    }

    fn unmap(&self, channel: u32) -> Result<(), PageMapError> {
        self.put(channel, false);
        Ok(())
    }
}
