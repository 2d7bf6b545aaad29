//! A tenant's GPU memory: addresses, allocations, bytes.
//!
//! ```text
//! GPU address --page table--> page of the tenant's file = of the aperture, or card chunk
//! ```
//!
//! Each tenant has its own memory file, which the VMM maps as the aperture. An aperture therefore
//! cannot expose another tenant's bytes. An address and its page of the file have the same number,
//! but for allocations in holes: those have addresses behind the others, and pages that were lent.
//! An access to an unmapped page faults.
//!
//! Where memory moves ([`self::swap`]), the bytes lie in the frames of the card's chunks, in any
//! order. A page keeps its address while its chunk is released and its bytes are in the host's
//! pool. The tenant's file stays empty then, and the aperture shows no data.

pub(crate) mod swap;

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use turnstile_abi::{CHUNK_BYTES, ErrorCode, GPU_VA_BASE};
use turnstile_accounting::TenantId;
use vm_memory::{
    AtomicInteger, Bytes, FileOffset, MmapRegion, VolatileMemory, VolatileMemoryError,
    VolatileSlice,
};
use vmm_sys_util::fallocate::{FallocateMode, fallocate};

use self::swap::{Swap, Swapped};
use super::memory::CardMemory;
use crate::rank;
use turnstile_gpu::Allocation;
use turnstile_gpu::layout::Layout;
use turnstile_host::memory_file::memory_file;
use turnstile_host::ranked::{Ranked, RankedGuard};
use turnstile_ptx::{DeviceMemory, MemoryFault};

/// Why a tenant's memory could not be made.
#[derive(Debug, thiserror::Error)]
pub(super) enum AddressSpaceError {
    /// No file for it.
    #[error("Cannot make a file of {bytes} bytes for GPU memory")]
    File { bytes: u64, source: io::Error },
    /// No memory for its table of pages.
    #[error("Cannot have a table of {pages} pages of GPU memory")]
    Table { pages: usize },
    /// No room to map it.
    #[error("Cannot map {bytes} bytes of GPU memory")]
    Map {
        bytes: u64,
        source: vm_memory::mmap::MmapRegionError,
    },
}

/// A GPU address behind which there is no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageFault {
    /// The address.
    pub(super) va: u64,
}

/// What is where.
#[derive(Debug)]
pub(super) struct Pages {
    pub(super) allocations: Layout,
    /// Of those, what is not on the card, and what the host has.
    pub(super) swapped: Swapped,
    /// Chunks of the card that the space has, where memory does not move.
    chunks: Vec<u32>,
}

/// The address space of one tenant. Lookups take no lock.
#[derive(Debug)]
// FIELDS: read by engines without a lock, beside what the layout's lock guards.
pub(super) struct AddressSpace {
    pub(super) tenant: TenantId,
    pub(super) card: CardMemory,
    file: File,
    /// The file, or all frames of the card.
    pub(super) region: Arc<MmapRegion>,
    /// For each page that of the file, or its chunk where memory moves, plus one; or zero.
    pub(super) pages: Box<[AtomicU32]>,
    /// Pages that may be allocated.
    limit: usize,
    /// Held while the card's lock is taken, and no other.
    layout: Ranked<Pages>,
    /// Pages allocated, resident or not.
    used: AtomicU64,
    /// Pages allocated and not resident.
    pub(super) absent: AtomicU64,
    /// Counts up whenever a command of the tenant begins, which may write anywhere.
    pub(super) ran: AtomicU64,
    pub(super) swap: Option<Swap>,
    /// There are chunks in limbo.
    pub(super) in_limbo: AtomicBool,
}

impl AddressSpace {
    /// An empty space of `bytes`, rounded down to chunks.
    pub(super) fn new(
        tenant: TenantId,
        card: CardMemory,
        bytes: u64,
        allocations_max: usize,
        swap: Option<Swap>,
    ) -> Result<Self, AddressSpaceError> {
        let pages = bytes / CHUNK_BYTES;
        // A file that is mapped is at least one page of the host.
        let bytes = (pages * CHUNK_BYTES).max(CHUNK_BYTES);
        let no_file = |source| AddressSpaceError::File { bytes, source };
        let no_map = |source| AddressSpaceError::Map { bytes, source };
        let file = memory_file("turnstile-gpu", bytes).map_err(no_file)?;
        let mapped = file.try_clone().map_err(no_file)?;
        let size =
            usize::try_from(bytes).map_err(|_| no_file(io::ErrorKind::OutOfMemory.into()))?;
        let region = match card.frames() {
            Some(frames) => frames.clone(),
            None => {
                let own = MmapRegion::from_file(FileOffset::new(mapped, 0), size);
                Arc::new(own.map_err(no_map)?)
            }
        };
        // CAST: usize is 64 bits here.
        let allocations = Layout::with_far(pages as usize, allocations_max);
        let mut table = Vec::new();
        let count = allocations.pages();
        let reserved = table.try_reserve_exact(count);
        reserved.map_err(|_| AddressSpaceError::Table { pages: count })?;
        table.resize_with(count, AtomicU32::default);
        Ok(Self {
            tenant,
            card,
            file,
            region,
            pages: table.into(),
            limit: pages as usize,
            layout: Ranked::new(
                rank::LAYOUT,
                Pages {
                    allocations,
                    swapped: Swapped::default(),
                    chunks: Vec::new(),
                },
            ),
            used: AtomicU64::new(0),
            absent: AtomicU64::new(0),
            ran: AtomicU64::new(0),
            swap,
            in_limbo: AtomicBool::new(false),
        })
    }

    /// Another descriptor of the file behind the aperture.
    pub(super) fn aperture(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Bytes that may still be allocated: by the tenant's limit, and by what the card (and the pool
    /// behind it) has left.
    pub(super) fn free_bytes(&self) -> u64 {
        let limit = self.limit as u64 - self.used.load(Ordering::Relaxed);
        limit.min(self.card.unpromised() as u64) * CHUNK_BYTES
    }

    /// Bytes that are allocated.
    pub(super) fn held_bytes(&self) -> u64 {
        self.used.load(Ordering::Relaxed) * CHUNK_BYTES
    }

    pub(super) fn layout(&self) -> RankedGuard<'_, Pages> {
        self.layout.lock()
    }

    /// Allocates zeroed memory.
    pub(super) fn allocate(&self, bytes: u64) -> Result<Allocation, ErrorCode> {
        let mut layout = self.layout();
        let pages = layout.allocations.find(bytes)?;
        let count = pages.len();
        // CAST: pages of a space were counted by a usize.
        let used = self.used.load(Ordering::Relaxed) as usize;
        if used + count > self.limit || !self.card.promise(count) {
            self.refused(bytes);
            return Err(ErrorCode::OutOfGpuMemory);
        }
        let chunks = self.card.take(self.tenant, count);
        let frames = match (&self.swap, &chunks) {
            (Some(_), _) => chunks.clone(),
            (None, None) => None,
            // CAST: a card numbers its chunks by u32.
            (None, Some(_)) if layout.allocations.is_far(&pages) => {
                let lent = layout.allocations.lend(count);
                Some(lent.into_iter().map(|page| page as u32).collect())
            }
            (None, Some(_)) => Some(pages.clone().map(|page| page as u32).collect()),
        };
        // A VM can write where it has allocated nothing: its VMM maps the whole file.
        let scrubbed =
            self.swap.is_some() || self.scrub(frames.as_deref().unwrap_or_default()).is_ok();
        self.card.clean(chunks.as_deref().unwrap_or_default());
        if !scrubbed || (chunks.is_none() && self.swap.is_none()) {
            self.card.release(self.tenant, chunks.into_iter().flatten());
            self.card.unpromise(count);
            let lent = frames.into_iter().flatten().map(|page| page as usize);
            layout.allocations.give_back(lent);
            return Err(ErrorCode::OutOfGpuMemory);
        }
        let resident = chunks.is_some();
        for (page, frame) in self.pages[pages.clone()]
            .iter()
            .zip(frames.into_iter().flatten())
        {
            page.store(frame + 1, Ordering::Release);
        }
        if self.swap.is_none() {
            layout.chunks.extend(chunks.into_iter().flatten());
        }
        self.number(&mut layout.swapped, &pages, resident);
        self.used.fetch_add(count as u64, Ordering::Relaxed);
        Ok(layout.allocations.insert(&pages))
    }

    /// Addresses of the allocation that begins at `va`.
    pub(super) fn allocation(&self, va: u64) -> Result<Range<u64>, ErrorCode> {
        let pages = self.layout().allocations.allocation(va)?;
        Ok(va..va + pages.len() as u64 * CHUNK_BYTES)
    }

    /// Frees and scrubs the allocation that begins at `va`. Later accesses to it fault.
    pub(super) fn free(&self, va: u64) -> Result<(), ErrorCode> {
        let mut layout = self.layout();
        let pages = layout.allocations.remove(va)?;
        let count = pages.len();
        self.used.fetch_sub(count as u64, Ordering::Relaxed);
        if self.swap.is_some() {
            let own = &self.pages[pages.clone()];
            let chunks = own.iter().map(|page| page.swap(0, Ordering::AcqRel));
            let chunks = chunks.filter_map(|chunk| chunk.checked_sub(1));
            layout.swapped.limbo.extend(chunks);
            self.in_limbo.store(true, Ordering::Release);
        } else {
            self.drop_pages(&mut layout, pages.clone());
        }
        self.forget(&mut layout.swapped, &pages);
        self.card.unpromise(count);
        Ok(())
    }

    /// Unmaps, scrubs, and gives the chunks back. What cannot be scrubbed is never given back.
    /// Frames are scrubbed when they are taken, so that what is overwritten as a whole need not be.
    fn drop_pages(&self, layout: &mut Pages, range: Range<usize>) {
        let frames: Vec<u32> = self.pages[range]
            .iter()
            .filter_map(|page| page.swap(0, Ordering::AcqRel).checked_sub(1))
            .collect();
        if self.swap.is_some() {
            for chunk in &frames {
                self.card.release_dirty(self.tenant, *chunk);
            }
        } else if self.scrub(&frames).is_ok() {
            let kept = layout.chunks.len() - frames.len();
            self.card.release(self.tenant, layout.chunks.drain(kept..));
            let lent = frames.into_iter().map(|page| page as usize);
            layout.allocations.give_back(lent);
        }
    }

    /// Makes the bytes of these pages of the file zero and gives their memory back to the host.
    fn scrub(&self, pages: &[u32]) -> Result<(), vmm_sys_util::errno::Error> {
        for run in pages.chunk_by(|one, next| one + 1 == *next) {
            let first = run.first().map_or(0, |page| u64::from(*page));
            let (offset, bytes) = (first * CHUNK_BYTES, run.len() as u64 * CHUNK_BYTES);
            fallocate(&self.file, FallocateMode::PunchHole, true, offset, bytes)?;
        }
        Ok(())
    }

    /// The page of an address, allocated or not.
    fn page(&self, va: u64) -> Option<&AtomicU32> {
        let offset = va.checked_sub(GPU_VA_BASE)?;
        self.pages.get(usize::try_from(offset / CHUNK_BYTES).ok()?)
    }

    /// Offset in the file of `bytes` bytes from `va` on, all of them mapped.
    fn offset(&self, va: u64, bytes: usize) -> Result<usize, PageFault> {
        let mapped = |va| {
            self.page(va)
                .filter(|page| page.load(Ordering::Acquire) != 0)
                .ok_or(PageFault { va })
        };
        mapped(va)?;
        let last = va.saturating_add((bytes as u64).saturating_sub(1));
        let mut next = (va | (CHUNK_BYTES - 1)) + 1;
        while next <= last {
            mapped(next)?;
            next += CHUNK_BYTES;
        }
        let frame = self.page(va).map_or(0, |page| page.load(Ordering::Acquire));
        let frame = frame.checked_sub(1).ok_or(PageFault { va })?;
        // CAST: the page exists, so that the offset is within the region.
        Ok((u64::from(frame) * CHUNK_BYTES + va % CHUNK_BYTES) as usize)
    }

    /// Bytes from `va` on that are certainly contiguous.
    pub(super) fn reach(&self, va: u64) -> u64 {
        let end = GPU_VA_BASE + self.limit as u64 * CHUNK_BYTES;
        match self.swap {
            None if va < end => end - va,
            _ => CHUNK_BYTES - va % CHUNK_BYTES,
        }
    }

    /// Whether all of a range has memory.
    ///
    /// # Errors
    /// The first address without memory.
    pub(super) fn check(&self, va: u64, bytes: usize) -> Result<(), PageFault> {
        self.offset(va, bytes).map(|_| ())
    }

    /// The bytes from `va` on, which are not more than [`Self::reach`].
    ///
    /// # Errors
    /// The first address without memory.
    pub(super) fn slice(&self, va: u64, bytes: usize) -> Result<VolatileSlice<'_>, PageFault> {
        let offset = self.offset(va, bytes)?;
        debug_assert!(bytes as u64 <= self.reach(va));
        self.region
            .get_slice(offset, bytes)
            .map_err(|_| PageFault { va })
    }

    /// An aligned word.
    ///
    /// # Errors
    /// The address has no memory, or is not aligned.
    fn atomic<T: AtomicInteger>(&self, va: u64) -> Result<&T, MemoryFault> {
        let offset = self.offset(va, 1)?;
        self.region.get_atomic_ref::<T>(offset).map_err(refused)
    }
}

impl From<PageFault> for MemoryFault {
    fn from(_: PageFault) -> Self {
        Self::Unmapped
    }
}

/// Converts a refused access of the mapping into the fault of the kernel.
fn refused(error: VolatileMemoryError) -> MemoryFault {
    match error {
        VolatileMemoryError::Misaligned { .. } => MemoryFault::Misaligned,
        _ => MemoryFault::Unmapped,
    }
}

/// What kernels see. Words are read and written in one access, in no order: the interpreter's
/// instructions run one after another, and what other engines see of them in between is as
/// undefined as on hardware.
impl DeviceMemory for AddressSpace {
    fn load(&self, va: u64, out: &mut [u8]) -> Result<(), MemoryFault> {
        let reach = self.reach(va);
        if out.len() as u64 > reach {
            // CAST: less than the length.
            let (here, there) = out.split_at_mut(reach as usize);
            self.slice(va, here.len())?
                .read_slice(here, 0)
                .map_err(refused)?;
            return self.load(va.wrapping_add(reach), there);
        }
        self.slice(va, out.len())?
            .read_slice(out, 0)
            .map_err(refused)
    }

    fn store(&self, va: u64, data: &[u8]) -> Result<(), MemoryFault> {
        let reach = self.reach(va);
        if data.len() as u64 > reach {
            self.check(va, data.len())?;
            // CAST: less than the length.
            let (here, there) = data.split_at(reach as usize);
            self.slice(va, here.len())?
                .write_slice(here, 0)
                .map_err(refused)?;
            return self.store(va.wrapping_add(reach), there);
        }
        self.slice(va, data.len())?
            .write_slice(data, 0)
            .map_err(refused)
    }

    fn update_u32(&self, va: u64, f: &dyn Fn(u32) -> u32) -> Result<u32, MemoryFault> {
        let word = self.atomic::<AtomicU32>(va)?;
        let change = |old| Some(f(u32::from_le(old)).to_le());
        let old = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, change);
        Ok(u32::from_le(old.unwrap_or_else(|old| old)))
    }

    fn update_u64(&self, va: u64, f: &dyn Fn(u64) -> u64) -> Result<u64, MemoryFault> {
        let word = self.atomic::<AtomicU64>(va)?;
        let change = |old| Some(f(u64::from_le(old)).to_le());
        let old = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, change);
        Ok(u64::from_le(old.unwrap_or_else(|old| old)))
    }

    fn load_u32(&self, va: u64) -> Result<u32, MemoryFault> {
        let word = self.atomic::<AtomicU32>(va)?;
        Ok(u32::from_le(word.load(Ordering::Relaxed)))
    }

    fn load_u64(&self, va: u64) -> Result<u64, MemoryFault> {
        let word = self.atomic::<AtomicU64>(va)?;
        Ok(u64::from_le(word.load(Ordering::Relaxed)))
    }

    fn store_u32(&self, va: u64, value: u32) -> Result<(), MemoryFault> {
        let word = self.atomic::<AtomicU32>(va)?;
        word.store(value.to_le(), Ordering::Relaxed);
        Ok(())
    }

    fn store_u64(&self, va: u64, value: u64) -> Result<(), MemoryFault> {
        let word = self.atomic::<AtomicU64>(va)?;
        word.store(value.to_le(), Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for AddressSpace {
    fn drop(&mut self) {
        let mut layout = self.layout.lock();
        self.drop_pages(&mut layout, 0..self.pages.len());
        drop(layout);
        self.settle_limbo();
        // CAST: pages of a space were counted by a usize.
        self.card
            .unpromise(self.used.load(Ordering::Relaxed) as usize);
    }
}

#[cfg(test)]
mod tests;
