//! Pages that the daemon shares with a VMM: doorbells and the status page.

use std::fs::File;
use std::io;
use std::sync::atomic::Ordering;

use turnstile_abi::{PAGE_BYTES, regs::status};
use turnstile_vmm::gate::SharedPages;
use vm_memory::mmap::MmapRegionError;
use vm_memory::{Bytes, FileOffset, MmapRegion, VolatileMemory};

use turnstile_host::memory_file::memory_file;

/// Why a shared page could not be made.
#[derive(Debug, thiserror::Error)]
pub enum PagesError {
    /// The kernel gave no memory file.
    #[error("Making a memory file of {bytes} bytes failed (descriptor or memory limit?)")]
    Create {
        /// Bytes of the file.
        bytes: u64,
        /// The kernel's answer.
        source: io::Error,
    },
    /// It could not be mapped.
    #[error("Mapping a memory file of {bytes} bytes failed")]
    Map {
        /// Bytes of the file.
        bytes: u64,
        /// The reason.
        source: MmapRegionError,
    },
}

fn create(name: &str, bytes: u64) -> Result<File, PagesError> {
    memory_file(name, bytes).map_err(|source| PagesError::Create { bytes, source })
}

fn map(file: &File, bytes: u64) -> Result<MmapRegion, PagesError> {
    let duplicate = file
        .try_clone()
        .map_err(|source| PagesError::Create { bytes, source })?;
    // CAST: the callers' sizes are a few MiB
    MmapRegion::from_file(FileOffset::new(duplicate, 0), bytes as usize)
        .map_err(|source| PagesError::Map { bytes, source })
}

/// Makes the doorbell pages of one VM: written by the guest through open gates, read by the device.
///
/// # Errors
/// When the kernel refuses.
pub(crate) fn doorbell_pages(channels: u32) -> Result<SharedPages, PagesError> {
    let bytes = u64::from(channels) * PAGE_BYTES;
    SharedPages::new(channels).map_err(|source| PagesError::Create { bytes, source })
}

/// Content of a status page ([`turnstile_abi::regs::status`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatusView {
    /// State of each engine as this VM may see it.
    pub engines: [u32; status::ENGINES as usize],
    /// Compute time charged.
    pub compute_ns: u64,
    /// Copy time charged.
    pub copy_ns: u64,
    /// Weight.
    pub weight: u32,
    /// Whether the VM may run.
    pub admitted: bool,
    /// Time held.
    pub held_ns: u64,
    /// When this was written.
    pub updated_at_ns: u64,
}

/// The status page of one VM: written by the daemon, read by the guest without an exit.
#[derive(Debug)]
pub struct StatusPage {
    file: File,
    region: MmapRegion,
}

impl StatusPage {
    /// Makes the page, all zero.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn new() -> Result<Self, PagesError> {
        let file = create("turnstile-status", PAGE_BYTES)?;
        let region = map(&file, PAGE_BYTES)?;
        Ok(Self { file, region })
    }

    /// The memory file, for the VMM.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Writes the page; the time last, so that a guest that sees a new time sees the rest too.
    pub fn write(&self, view: &StatusView) {
        let page = self.region.as_volatile_slice();
        // The stores cannot fail: constant offsets within one page, aligned to their size.
        let word = |at: u64, value: u32| {
            let _ = page.store(value, at as usize, Ordering::Relaxed);
        };
        let long = |at: u64, value: u64| {
            let _ = page.store(value, at as usize, Ordering::Relaxed);
        };
        for (i, state) in view.engines.iter().enumerate() {
            word(status::ENGINE_STATE + 4 * i as u64, *state);
        }
        long(status::COMPUTE_NS, view.compute_ns);
        long(status::COPY_NS, view.copy_ns);
        word(status::WEIGHT, view.weight);
        word(status::ADMITTED, view.admitted.into());
        long(status::HELD_NS, view.held_ns);
        let _ = page.store(
            view.updated_at_ns,
            status::UPDATED_AT_NS as usize,
            Ordering::Release,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnstile_gpu::Doorbells;

    #[test]
    fn a_guest_write_is_what_the_device_reads() {
        let pages = doorbell_pages(4).unwrap();
        let guest = map(pages.file(), 4 * PAGE_BYTES).unwrap();
        guest
            .as_volatile_slice()
            .store(7u32, 2 * 4096, Ordering::Release)
            .unwrap();
        assert_eq!((pages.put(1), pages.put(2), pages.put(3)), (0, 7, 0));
        pages.clear(2);
        assert_eq!(pages.put(2), 0);
        assert_eq!(pages.put(4), 0, "a channel without a page reads as zero");
        pages.clear(4);
    }

    #[test]
    fn the_status_page_has_the_contract_s_layout() {
        let page = StatusPage::new().unwrap();
        page.write(&StatusView {
            engines: [1, 2, 0],
            compute_ns: 10,
            copy_ns: 11,
            weight: 300,
            admitted: true,
            held_ns: 12,
            updated_at_ns: 13,
        });
        let guest = map(page.file(), PAGE_BYTES).unwrap();
        let word = |at: u64| {
            guest
                .as_volatile_slice()
                .read_obj::<u32>(at as usize)
                .unwrap()
        };
        let long = |at: u64| {
            guest
                .as_volatile_slice()
                .read_obj::<u64>(at as usize)
                .unwrap()
        };
        assert_eq!((word(0), word(4), word(8)), (1, 2, 0));
        assert_eq!((long(status::COMPUTE_NS), long(status::COPY_NS)), (10, 11));
        assert_eq!((word(status::WEIGHT), word(status::ADMITTED)), (300, 1));
        assert_eq!(
            (long(status::HELD_NS), long(status::UPDATED_AT_NS)),
            (12, 13)
        );
    }
}
