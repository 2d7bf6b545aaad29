//! Addresses of allocations in a tenant's GPU address space: pages of [`CHUNK_BYTES`] from
//! [`GPU_VA_BASE`] on, first fit.

use std::collections::BTreeMap;
use std::ops::Range;

use turnstile_abi::{CHUNK_BYTES, ErrorCode, GPU_VA_BASE};

use super::Allocation;

/// Allocations by first page.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Number of pages by first page.
    taken: BTreeMap<usize, usize>,
    pages: usize,
    allocations_max: usize,
}

impl Layout {
    /// An empty space.
    pub fn new(pages: usize, allocations_max: usize) -> Self {
        Self {
            taken: BTreeMap::new(),
            pages,
            allocations_max,
        }
    }

    /// The pages for an allocation of `bytes`.
    pub fn find(&self, bytes: u64) -> Result<Range<usize>, ErrorCode> {
        let count =
            usize::try_from(bytes.div_ceil(CHUNK_BYTES)).map_err(|_| ErrorCode::OutOfGpuMemory)?;
        if count == 0 {
            return Err(ErrorCode::BadArgument);
        }
        if self.taken.len() >= self.allocations_max {
            return Err(ErrorCode::HostLimit);
        }
        let first = self.first_fit(count).ok_or(ErrorCode::OutOfGpuMemory)?;
        Ok(first..first + count)
    }

    /// The first gap of `count` pages.
    fn first_fit(&self, count: usize) -> Option<usize> {
        let mut begin = 0;
        for (first, taken) in &self.taken {
            if first - begin >= count {
                return Some(begin);
            }
            begin = first + taken;
        }
        (self.pages - begin >= count).then_some(begin)
    }

    /// Takes pages that [`Self::find`] has found.
    pub fn insert(&mut self, pages: &Range<usize>) -> Allocation {
        self.taken.insert(pages.start, pages.len());
        let aperture_offset = pages.start as u64 * CHUNK_BYTES;
        Allocation {
            va: GPU_VA_BASE + aperture_offset,
            aperture_offset,
            bytes: pages.len() as u64 * CHUNK_BYTES,
        }
    }

    /// The pages of the allocation that begins at `va`.
    pub fn allocation(&self, va: u64) -> Result<Range<usize>, ErrorCode> {
        let first = first_page(va).ok_or(ErrorCode::NoSuchAllocation)?;
        let count = self.taken.get(&first).ok_or(ErrorCode::NoSuchAllocation)?;
        Ok(first..first + count)
    }

    /// Removes an allocation; returns its pages.
    pub fn remove(&mut self, va: u64) -> Result<Range<usize>, ErrorCode> {
        let pages = self.allocation(va)?;
        self.taken.remove(&pages.start);
        Ok(pages)
    }

    /// Whether a page is allocated.
    pub fn contains(&self, page: usize) -> bool {
        let before = self.taken.range(..=page).next_back();
        before.is_some_and(|(first, count)| page < first + count)
    }

    /// Number of pages that are allocated.
    pub fn pages_taken(&self) -> usize {
        self.taken.values().sum()
    }

    /// The first address of a range where nothing is allocated, if there is one.
    pub fn hole(&self, va: u64, bytes: u64) -> Option<u64> {
        let mut at = va;
        let last = va.saturating_add(bytes.saturating_sub(1));
        loop {
            let page = at
                .checked_sub(GPU_VA_BASE)
                .and_then(|at| usize::try_from(at / CHUNK_BYTES).ok());
            if page.is_none_or(|page| !self.contains(page)) {
                return Some(at);
            }
            at = match (at | (CHUNK_BYTES - 1)).checked_add(1) {
                Some(next) if next <= last => next,
                _ => return None,
            };
        }
    }
}

/// The page that begins at this address.
fn first_page(va: u64) -> Option<usize> {
    let offset = va.checked_sub(GPU_VA_BASE)?;
    let page = offset
        .is_multiple_of(CHUNK_BYTES)
        .then_some(offset / CHUNK_BYTES)?;
    usize::try_from(page).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_found_at_their_first_address() {
        let mut layout = Layout::new(8, 8);
        for bytes in [CHUNK_BYTES, 2 * CHUNK_BYTES, 1] {
            let pages = layout.find(bytes).unwrap();
            layout.insert(&pages);
        }
        layout.remove(GPU_VA_BASE + CHUNK_BYTES).unwrap();
        assert_eq!(layout.pages_taken(), 2);
        assert_eq!(layout.hole(GPU_VA_BASE, CHUNK_BYTES), None);
        let end = GPU_VA_BASE + CHUNK_BYTES;
        assert_eq!(layout.hole(GPU_VA_BASE + 5, CHUNK_BYTES), Some(end));
        assert_eq!(layout.hole(0x1000, 1), Some(0x1000));
        assert_eq!(layout.hole(u64::MAX, 9), Some(u64::MAX));
        assert_eq!(layout.find(3 * CHUNK_BYTES).unwrap(), 4..7);
        assert_eq!(layout.find(2 * CHUNK_BYTES).unwrap(), 1..3);
    }
}
