//! Memory that the device uses: huge pages, because these do not move and many are contiguous.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;

use vm_memory::{Bytes, MmapRegion, VolatileMemory};

use crate::GuestError;

/// SOURCE: x86-64: a page of the second level.
const HUGE_BYTES: u64 = 2 << 20;
const PAGE_BYTES: u64 = 4096;
/// SOURCE: Linux Documentation/admin-guide/mm/pagemap.rst: bits 0..54 are the frame, bit 63 is set
/// if the page is present.
const FRAME: u64 = (1 << 55) - 1;
const PRESENT: u64 = 1 << 63;
const POOL: &str = "/proc/sys/vm/nr_hugepages";
const PAGEMAP: &str = "/proc/self/pagemap";
/// Most huge pages that are taken in search of contiguous ones: 128 MiB.
const TRIED_MAX: usize = 64;
const TOO_FEW: &str =
    "too few huge pages (hugepages=16 on the kernel's command line, or more memory)";

/// A range of memory that is contiguous for the device.
#[derive(Debug)]
pub struct Dma {
    /// Huge pages, contiguous for the device: in memory, or as an IOMMU maps them.
    pages: Vec<MmapRegion<()>>,
    address: u64,
}

impl Dma {
    /// Takes at least `bytes` bytes.
    ///
    /// # Errors
    /// When the kernel has no huge pages for it, or none next to each other.
    pub fn take(bytes: u64) -> Result<Self, GuestError> {
        let wanted = bytes.div_ceil(HUGE_BYTES).max(1) as usize;
        grow_pool(2 * wanted as u64);
        let pagemap = File::open(PAGEMAP).map_err(pagemap_failed)?;
        // The kernel hands pages out in any order: pages are taken until enough are contiguous, and
        // the others are returned.
        let mut pages = Vec::new();
        let mut frames = Vec::new();
        while pages.len() < TRIED_MAX.max(wanted) {
            let Some(page) = map_huge() else { break };
            frames.push((frame(&page, &pagemap)?, pages.len()));
            pages.push(Some(page));
            let run = longest_run(&mut frames);
            if let Some(run) = run.get(..wanted) {
                return Ok(Self {
                    address: run[0].0,
                    pages: run.iter().filter_map(|(_, at)| pages[*at].take()).collect(),
                });
            }
        }
        Err(GuestError::Memory(if pages.len() < wanted {
            TOO_FEW
        } else {
            "the huge pages that the kernel gave are not next to each other; more of them at boot help (hugepages=16)"
        }))
    }

    /// Takes at least `bytes` bytes, for an IOMMU to map at `address`. Uses huge pages here too,
    /// because an emulated IOMMU sends a message for every page.
    ///
    /// # Errors
    /// When the kernel has no huge pages for it.
    pub(crate) fn anywhere(address: u64, bytes: u64) -> Result<Self, GuestError> {
        let wanted = bytes.div_ceil(HUGE_BYTES).max(1);
        grow_pool(wanted);
        let pages: Vec<_> = (0..wanted).map_while(|_| map_huge()).collect();
        // CAST: a few.
        if pages.len() < wanted as usize {
            return Err(GuestError::Memory(TOO_FEW));
        }
        Ok(Self { pages, address })
    }

    /// Each page, and where it is for the device.
    pub(crate) fn pages(&self) -> impl Iterator<Item = (u64, &MmapRegion<()>)> {
        (self.address..)
            .step_by(HUGE_BYTES as usize)
            .zip(&self.pages)
    }

    /// Where it is for the device.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Bytes.
    pub fn bytes(&self) -> u64 {
        self.pages.len() as u64 * HUGE_BYTES
    }

    /// The mapping that contains the device's `address`, the offset in it, and the bytes that
    /// follow there.
    pub(crate) fn at(&self, address: u64) -> Option<(&MmapRegion<()>, usize, usize)> {
        let from = address.checked_sub(self.address)?;
        // CAST: within a mapping
        let page = self.pages.get((from / HUGE_BYTES) as usize)?;
        let within = (from % HUGE_BYTES) as usize;
        Some((page, within, HUGE_BYTES as usize - within))
    }
}

/// Requests at least `pages` huge pages from the kernel, which may refuse. The result shows when
/// they are mapped.
fn grow_pool(pages: u64) {
    let now = fs::read_to_string(POOL)
        .ok()
        .and_then(|text| text.trim().parse::<u64>().ok());
    if now.is_some_and(|now| now < pages) {
        let _ = fs::write(POOL, pages.to_string());
    }
}

fn map_huge() -> Option<MmapRegion<()>> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB | libc::MAP_POPULATE;
    let page = MmapRegion::build(None, HUGE_BYTES as usize, protection, flags).ok()?;
    // Written, so that it is the program's own.
    page.as_volatile_slice().write_obj(0u64, 0).ok()?;
    Some(page)
}

fn pagemap_failed(source: io::Error) -> GuestError {
    GuestError::File {
        path: PAGEMAP.into(),
        source,
    }
}

/// Physical address of a huge page.
fn frame(page: &MmapRegion<()>, pagemap: &File) -> Result<u64, GuestError> {
    let mut entry = [0; 8];
    let at = page.as_ptr() as u64 / PAGE_BYTES * 8;
    pagemap
        .read_exact_at(&mut entry, at)
        .map_err(pagemap_failed)?;
    let entry = u64::from_le_bytes(entry);
    // Without privilege the frame reads as zero.
    if entry & PRESENT == 0 || entry & FRAME == 0 {
        return Err(GuestError::Memory(
            "the kernel does not tell where it is; this needs root",
        ));
    }
    Ok((entry & FRAME) * PAGE_BYTES)
}

/// The longest run of pages that follow each other for the device.
fn longest_run(frames: &mut [(u64, usize)]) -> &[(u64, usize)] {
    frames.sort_unstable();
    let follow = |one: &(u64, usize), next: &(u64, usize)| one.0 + HUGE_BYTES == next.0;
    let runs = frames.chunk_by(follow);
    runs.max_by_key(|run| run.len()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_run_is_found_whatever_the_order() {
        let run = |numbers: &[u64]| {
            let frames = numbers.iter().enumerate();
            let mut frames: Vec<_> = frames.map(|(at, n)| (n * HUGE_BYTES, at)).collect();
            let run = longest_run(&mut frames).iter();
            run.map(|(_, at)| *at).collect::<Vec<_>>()
        };
        assert_eq!(run(&[7]), [0]);
        assert_eq!(run(&[7, 8, 2, 4, 3, 10]), [2, 4, 3]);
        assert_eq!(run(&[9, 8, 7]), [2, 1, 0]);
        assert!(run(&[]).is_empty());
    }
}
