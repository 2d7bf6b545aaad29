//! Addresses of allocations in a tenant's GPU address space: pages of [`CHUNK_BYTES`] from
//! [`GPU_VA_BASE`] on, first fit.

use std::collections::BTreeMap;
use std::ops::Range;

use turnstile_abi::{CHUNK_BYTES, ErrorCode, GPU_VA_BASE, NOT_IN_APERTURE};

use super::Allocation;

/// Pages that belong together.
#[derive(Clone, Copy, Debug)]
struct Run {
    count: usize,
    /// Memory of allocations elsewhere; none begins here.
    lent: bool,
}

/// Allocations by first page. The first `pages` pages have the memory of the same number. Those
/// behind them have none of their own: an allocation there is backed by pages that were lent.
#[derive(Clone, Debug)]
pub struct Layout {
    taken: BTreeMap<usize, Run>,
    pages: usize,
    /// Pages behind the first ones.
    far: usize,
    allocations_max: usize,
    lent: usize,
}

impl Layout {
    /// An empty space.
    pub fn new(pages: usize, allocations_max: usize) -> Self {
        Self {
            taken: BTreeMap::new(),
            pages,
            far: 0,
            allocations_max,
            lent: 0,
        }
    }

    /// The same with so many pages behind it that an allocation finds addresses while there is
    /// room, whatever was freed before.
    pub fn with_far(pages: usize, allocations_max: usize) -> Self {
        // SOURCE: Robson, "Worst case fragmentation of first fit and best fit storage allocation
        // strategies", 1977: first fit needs at most about n log2(n) for n pages.
        let rounds = 1 + pages.checked_ilog2().unwrap_or(0) as usize;
        Self {
            far: pages.saturating_mul(rounds),
            ..Self::new(pages, allocations_max)
        }
    }

    /// All pages, those without memory of their own too.
    pub fn pages(&self) -> usize {
        self.pages + self.far
    }

    /// The pages for an allocation of `bytes`.
    pub fn find(&self, bytes: u64) -> Result<Range<usize>, ErrorCode> {
        let count =
            usize::try_from(bytes.div_ceil(CHUNK_BYTES)).map_err(|_| ErrorCode::OutOfGpuMemory)?;
        if count == 0 {
            return Err(ErrorCode::BadArgument);
        }
        if self.taken.len() - self.lent >= self.allocations_max {
            return Err(ErrorCode::HostLimit);
        }
        let near = self.first_fit(0..self.pages, count);
        let first = near.or_else(|| {
            let room = self.pages - self.near_taken() >= count;
            room.then(|| self.first_fit(self.pages..self.pages(), count))
                .flatten()
        });
        let first = first.ok_or(ErrorCode::OutOfGpuMemory)?;
        Ok(first..first + count)
    }

    /// The first gap of `count` pages.
    fn first_fit(&self, within: Range<usize>, count: usize) -> Option<usize> {
        let mut begin = within.start;
        for (first, run) in self.taken.range(within.clone()) {
            if first - begin >= count {
                return Some(begin);
            }
            begin = first + run.count;
        }
        (within.end.checked_sub(begin)? >= count).then_some(begin)
    }

    /// Pages with memory of their own that are taken or lent.
    fn near_taken(&self) -> usize {
        let near = self.taken.range(..self.pages);
        near.map(|(_, run)| run.count).sum()
    }

    /// Whether pages have no memory of their own.
    pub fn is_far(&self, pages: &Range<usize>) -> bool {
        pages.start >= self.pages
    }

    /// Lends `count` free pages, for an allocation at pages without memory. Fewer where fewer are
    /// free.
    pub fn lend(&mut self, count: usize) -> Vec<usize> {
        let mut lent = Vec::new();
        while lent.len() < count {
            let Some(page) = self.first_fit(0..self.pages, 1) else {
                break;
            };
            let run = Run {
                count: 1,
                lent: true,
            };
            self.taken.insert(page, run);
            lent.push(page);
        }
        self.lent += lent.len();
        lent
    }

    /// Takes pages back that [`Self::lend`] gave.
    pub fn give_back(&mut self, pages: impl IntoIterator<Item = usize>) {
        for page in pages {
            if self.taken.get(&page).is_some_and(|run| run.lent) {
                self.taken.remove(&page);
                self.lent -= 1;
            }
        }
    }

    /// Takes pages that [`Self::find`] has found.
    pub fn insert(&mut self, pages: &Range<usize>) -> Allocation {
        let run = Run {
            count: pages.len(),
            lent: false,
        };
        self.taken.insert(pages.start, run);
        let offset = pages.start as u64 * CHUNK_BYTES;
        Allocation {
            va: GPU_VA_BASE + offset,
            aperture_offset: if self.is_far(pages) {
                NOT_IN_APERTURE
            } else {
                offset
            },
            bytes: pages.len() as u64 * CHUNK_BYTES,
        }
    }

    /// The pages of the allocation that begins at `va`.
    pub fn allocation(&self, va: u64) -> Result<Range<usize>, ErrorCode> {
        let first = first_page(va).ok_or(ErrorCode::NoSuchAllocation)?;
        let run = self.taken.get(&first).filter(|run| !run.lent);
        let run = run.ok_or(ErrorCode::NoSuchAllocation)?;
        Ok(first..first + run.count)
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
        before.is_some_and(|(first, run)| !run.lent && page < first + run.count)
    }

    /// Number of pages that are allocated.
    pub fn pages_taken(&self) -> usize {
        let own = self.taken.values().filter(|run| !run.lent);
        own.map(|run| run.count).sum()
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

    #[test]
    fn room_in_holes_is_found_behind_the_last_page_and_lent() {
        let mut layout = Layout::with_far(8, 8);
        let pages: Vec<_> = (0..8)
            .map(|_| {
                let pages = layout.find(1).unwrap();
                layout.insert(&pages);
                pages.start
            })
            .collect();
        assert_eq!(
            layout.find(1),
            Err(ErrorCode::HostLimit),
            "eight allocations"
        );
        for page in pages.iter().step_by(2) {
            layout
                .remove(GPU_VA_BASE + *page as u64 * CHUNK_BYTES)
                .unwrap();
        }
        let far = layout.find(4 * CHUNK_BYTES).unwrap();
        assert_eq!(far, 8..12);
        assert_eq!(layout.find(5 * CHUNK_BYTES), Err(ErrorCode::OutOfGpuMemory));
        let lent = layout.lend(4);
        assert_eq!(lent, [0, 2, 4, 6]);
        let allocation = layout.insert(&far);
        assert_eq!(allocation.aperture_offset, NOT_IN_APERTURE);
        assert_eq!(layout.find(1), Err(ErrorCode::OutOfGpuMemory));
        assert_eq!(layout.pages_taken(), 8);
        // Lent pages are no allocations, and have no memory at their own addresses.
        assert_eq!(layout.remove(GPU_VA_BASE), Err(ErrorCode::NoSuchAllocation));
        assert_eq!(layout.hole(GPU_VA_BASE, 1), Some(GPU_VA_BASE));
        layout.remove(allocation.va).unwrap();
        layout.give_back(lent);
        assert_eq!(layout.find(1), Ok(0..1));
    }
}
