//! Moves pages off the card and back under a live address space.
//!
//! ```text
//!   allocate --card full--> Blank ------------------+
//!      |                                            | move in
//!      v          move out (copy, or host has it)   v
//!   on the card ----------------------> Slot ----> on the card, the slot a spare copy
//! ```
//!
//! All accesses to a page's bytes in this module hold the layout's lock, for one chunk's copy at
//! most. A thread that frees a page in transfer waits for that chunk. No command of the tenant runs
//! meanwhile: [`crate::core`] ensures it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use turnstile_abi::{CHUNK_BYTES, ErrorCode, GPU_VA_BASE};
use turnstile_accounting::TenantId;
use vm_memory::{Bytes, VolatileMemory, VolatileSlice};

use super::AddressSpace;
use crate::config::SoftConfig;
use crate::memory::CardMemory;
use turnstile_gpu::pool::{HostPool, PoolError, Slot, Spare};
use turnstile_gpu::{ChunkId, Direction, MemoryEvent, MoveFailure};

/// What there is of a page that is not on the card.
#[derive(Debug)]
pub(crate) enum Away {
    /// Zeros: no data was written to it.
    Blank,
    /// Its bytes.
    Slot(Slot),
}

/// Copies by page, with the tenant's count of commands at the time of the copy. A copy is valid
/// while that count is unchanged.
pub(crate) type Copies = BTreeMap<usize, (Spare, u64)>;

/// Absent pages and their copies on the host; empty where memory does not move.
#[derive(Debug, Default)]
pub(crate) struct Swapped {
    /// Pages of an allocation by the number of its first chunk, and that number by its first page.
    by_number: BTreeMap<ChunkId, Range<usize>>,
    numbers: BTreeMap<usize, ChunkId>,
    /// Pages that are allocated, but not on the card.
    away: BTreeMap<usize, Away>,
    /// What the host still has of pages that are on the card.
    copies: Copies,
    /// Chunks that were freed while a command executed, which may be about to touch their frames.
    pub(crate) limbo: Vec<u32>,
}

/// What a space needs for its memory to move.
#[derive(Clone, Debug)]
pub(crate) struct Swap {
    pub(crate) pool: Arc<HostPool>,
    pub(crate) log: Arc<MemoryLog>,
}

impl Swap {
    /// The card of a GPU of this configuration, and what its memory needs to move, if it does.
    pub(crate) fn new(config: &SoftConfig) -> Result<(CardMemory, Option<Self>), PoolError> {
        let Some(bytes) = config.pool_bytes() else {
            return Ok((CardMemory::new(config.memory_bytes), None));
        };
        let card = CardMemory::with_frames(config.memory_bytes, bytes)?;
        let swap = Self {
            pool: Arc::new(HostPool::new(bytes)?),
            log: Arc::default(),
        };
        Ok((card, Some(swap)))
    }
}

/// Memory events that have not been read yet. Its lock is an innermost one.
#[derive(Debug, Default)]
pub(crate) struct MemoryLog(Mutex<Logged>);

#[derive(Debug, Default)]
struct Logged {
    events: Vec<MemoryEvent>,
    next: u64,
}

impl MemoryLog {
    fn lock(&self) -> MutexGuard<'_, Logged> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push(&self, event: MemoryEvent) {
        self.lock().events.push(event);
    }

    pub(crate) fn drain(&self, events: &mut Vec<MemoryEvent>) {
        events.append(&mut self.lock().events);
    }
}

impl AddressSpace {
    /// Allocated pages that are not on the card. The tenant may run only when there are none.
    pub(crate) fn absent(&self) -> u64 {
        self.absent.load(Ordering::Acquire)
    }

    /// A command of the tenant begins, which may write anywhere.
    pub(crate) fn runs(&self) {
        self.ran.fetch_add(1, Ordering::AcqRel);
    }

    /// Reports an allocation for which there was no room.
    pub(crate) fn refused(&self, bytes: u64) {
        if let Some(swap) = &self.swap {
            let owner = self.tenant;
            swap.log.push(MemoryEvent::Refused { owner, bytes });
        }
    }

    /// Numbers the chunks of a new allocation and reports them.
    pub(crate) fn number(&self, swapped: &mut Swapped, pages: &Range<usize>, resident: bool) {
        let Some(swap) = &self.swap else { return };
        let count = pages.len();
        if !resident {
            let blank = pages.clone().map(|page| (page, Away::Blank));
            swapped.away.extend(blank);
            self.absent.fetch_add(count as u64, Ordering::AcqRel);
        }
        let mut logged = swap.log.lock();
        let first = ChunkId(logged.next);
        logged.next += count as u64;
        logged.events.push(MemoryEvent::Allocated {
            owner: self.tenant,
            first,
            count: count as u64,
            chunk_bytes: CHUNK_BYTES,
            resident,
        });
        swapped.by_number.insert(first, pages.clone());
        swapped.numbers.insert(pages.start, first);
    }

    /// Removes an allocation after its pages were dropped; the host's copies of them are scrubbed.
    pub(crate) fn forget(&self, swapped: &mut Swapped, pages: &Range<usize>) {
        let Some(swap) = &self.swap else { return };
        let mut absent = 0;
        for page in pages.clone() {
            absent += u64::from(swapped.away.remove(&page).is_some());
            swapped.copies.remove(&page);
        }
        self.absent.fetch_sub(absent, Ordering::AcqRel);
        if let Some(first) = swapped.numbers.remove(&pages.start) {
            swapped.by_number.remove(&first);
            let (owner, count) = (self.tenant, pages.len() as u64);
            swap.log.push(MemoryEvent::Freed {
                owner,
                first,
                count,
            });
        }
    }

    /// Releases the freed chunks. Precondition: no engine executes a command of the tenant that
    /// began before the free.
    pub(crate) fn settle_limbo(&self) {
        if self.in_limbo.swap(false, Ordering::AcqRel) {
            for chunk in std::mem::take(&mut self.layout().swapped.limbo) {
                self.card.release_dirty(self.tenant, chunk);
            }
        }
    }

    /// Moves a chunk; returns the bytes that were copied. Precondition: no engine executes a
    /// command of the tenant.
    pub(crate) fn move_chunk(
        &self,
        chunk: ChunkId,
        direction: Direction,
    ) -> Result<u64, MoveFailure> {
        let swap = self.swap.as_ref().ok_or(MoveFailure::Gone)?;
        let swapped = &mut self.layout().swapped;
        let page = swapped.page(chunk).ok_or(MoveFailure::Gone)?;
        match direction {
            Direction::Out => self.move_out(swap, swapped, page),
            Direction::In => self.move_in(swapped, page),
        }
    }

    fn move_out(
        &self,
        swap: &Swap,
        swapped: &mut Swapped,
        page: usize,
    ) -> Result<u64, MoveFailure> {
        if self.pages[page].load(Ordering::Acquire) == 0 {
            return Err(MoveFailure::There);
        }
        let ran = self.ran.load(Ordering::Acquire);
        let spare = swapped.copies.remove(&page);
        let kept = spare.and_then(|(spare, then)| Some((spare.claim()?, then)));
        let (slot, copied) = match kept {
            Some((slot, then)) if then == ran => (slot, 0),
            kept => {
                // A stale copy still belongs to its page: its slot is reused and overwritten as a
                // whole.
                let slot = kept.map(|(slot, _)| slot).or_else(|| swap.pool.take());
                let slot = slot.ok_or(MoveFailure::NoRoom)?;
                let to = slot.bytes().ok_or(MoveFailure::Copy)?;
                self.bytes_of(page)?.copy_to_volatile_slice(to);
                (slot, CHUNK_BYTES)
            }
        };
        swapped.away.insert(page, Away::Slot(slot));
        self.absent.fetch_add(1, Ordering::AcqRel);
        if let Some(chunk) = self.pages[page].swap(0, Ordering::AcqRel).checked_sub(1) {
            self.card.release_dirty(self.tenant, chunk);
        }
        Ok(copied)
    }

    fn move_in(&self, swapped: &mut Swapped, page: usize) -> Result<u64, MoveFailure> {
        let away = swapped.away.get(&page).ok_or(MoveFailure::There)?;
        let taken = self.card.take(self.tenant, 1);
        let chunk = taken.and_then(|chunks| chunks.first().copied());
        let chunk = chunk.ok_or(MoveFailure::NoRoom)?;
        let copied = match away {
            Away::Blank => {
                self.card.clean(&[chunk]);
                0
            }
            Away::Slot(slot) => {
                let (Some(from), Ok(to)) = (slot.bytes(), self.frame(chunk)) else {
                    self.card.release_dirty(self.tenant, chunk);
                    return Err(MoveFailure::Copy);
                };
                // The copy overwrites the whole frame, so its old data need not be zeroed.
                from.copy_to_volatile_slice(to);
                CHUNK_BYTES
            }
        };
        if let Some(Away::Slot(slot)) = swapped.away.remove(&page) {
            let ran = self.ran.load(Ordering::Acquire);
            swapped.copies.insert(page, (slot.spare(), ran));
        }
        self.pages[page].store(chunk + 1, Ordering::Release);
        self.absent.fetch_sub(1, Ordering::AcqRel);
        Ok(copied)
    }

    /// The bytes of a page that is on the card.
    fn bytes_of(&self, page: usize) -> Result<VolatileSlice<'_>, MoveFailure> {
        let chunk = self.pages[page].load(Ordering::Acquire).checked_sub(1);
        match self.swap {
            Some(_) => self.frame(chunk.ok_or(MoveFailure::Gone)?),
            None => self.nth(page),
        }
    }

    fn frame(&self, chunk: u32) -> Result<VolatileSlice<'_>, MoveFailure> {
        self.nth(chunk as usize)
    }

    fn nth(&self, place: usize) -> Result<VolatileSlice<'_>, MoveFailure> {
        // CAST: a chunk of the region.
        let (offset, bytes) = (place * CHUNK_BYTES as usize, CHUNK_BYTES as usize);
        let slice = self.region.get_slice(offset, bytes);
        slice.map_err(|_| MoveFailure::Copy)
    }

    /// Writes the initial bytes of a new allocation, on the card or off it. Precondition: no
    /// command has its address yet.
    pub(crate) fn write_first(&self, va: u64, image: &[u8]) -> Result<(), ErrorCode> {
        let no_room = |_| ErrorCode::OutOfGpuMemory;
        let away = &mut self.layout().swapped.away;
        let first = usize::try_from((va - GPU_VA_BASE) / CHUNK_BYTES)
            .map_err(|_| ErrorCode::NoSuchAllocation)?;
        for (page, piece) in (first..).zip(image.chunks(CHUNK_BYTES as usize)) {
            let (Some(swap), Some(away)) = (&self.swap, away.get_mut(&page)) else {
                let to = self.bytes_of(page).map_err(no_room)?;
                to.write_slice(piece, 0)
                    .map_err(|_| ErrorCode::OutOfGpuMemory)?;
                continue;
            };
            if matches!(away, Away::Blank) {
                let slot = swap.pool.take().ok_or(ErrorCode::OutOfGpuMemory)?;
                *away = Away::Slot(slot);
            }
            let Away::Slot(slot) = away else { continue };
            let to = slot.bytes().ok_or(ErrorCode::OutOfGpuMemory)?;
            to.write_slice(piece, 0)
                .map_err(|_| ErrorCode::OutOfGpuMemory)?;
        }
        Ok(())
    }
}

impl Swapped {
    /// The page of a chunk that has not been freed.
    fn page(&self, chunk: ChunkId) -> Option<usize> {
        let (first, pages) = self.by_number.range(..=chunk).next_back()?;
        let nth = usize::try_from(chunk.0 - first.0).ok()?;
        pages.clone().nth(nth)
    }
}

/// Chunks of one tenant that an engine moves in one batch, and the results.
#[derive(Debug)]
pub(crate) struct Moving {
    pub(crate) owner: TenantId,
    pub(crate) cause: TenantId,
    pub(crate) direction: Direction,
    pub(crate) chunks: Vec<ChunkId>,
    results: Mutex<Vec<Result<u64, MoveFailure>>>,
}

impl Moving {
    pub(crate) fn new(
        owner: TenantId,
        cause: TenantId,
        direction: Direction,
        chunks: Vec<ChunkId>,
    ) -> Self {
        Self {
            owner,
            cause,
            direction,
            chunks,
            results: Mutex::default(),
        }
    }

    fn results(&self) -> MutexGuard<'_, Vec<Result<u64, MoveFailure>>> {
        self.results.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves the chunks. Calls `after` with the bytes copied in total; stops when `after` returns
    /// false.
    pub(crate) fn run(&self, space: &AddressSpace, mut after: impl FnMut(u64) -> bool) {
        let mut copied = 0;
        for chunk in &self.chunks {
            let result = space.move_chunk(*chunk, self.direction);
            self.results().push(result);
            copied += result.unwrap_or(0);
            if !after(copied) {
                return;
            }
        }
    }

    /// Bytes that were copied.
    pub(crate) fn copied_bytes(&self) -> u64 {
        let results = self.results();
        results.iter().flatten().sum()
    }

    /// Result of each chunk; chunks that were not reached have failed.
    pub(crate) fn outcomes(&self) -> impl Iterator<Item = (ChunkId, Result<u64, MoveFailure>)> {
        let mut results = std::mem::take(&mut *self.results());
        results.resize(self.chunks.len(), Err(MoveFailure::Copy));
        self.chunks.iter().copied().zip(results)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: TenantId = TenantId(1);

    /// A space of `pages` pages on a card of `card` chunks, with a pool of `pool` chunks.
    fn space(pages: u64, card: u64, pool: u64) -> (AddressSpace, Arc<MemoryLog>) {
        let log = Arc::<MemoryLog>::default();
        let swap = Swap {
            pool: Arc::new(HostPool::new(pool * CHUNK_BYTES).unwrap()),
            log: log.clone(),
        };
        let card = CardMemory::with_frames(card * CHUNK_BYTES, pool * CHUNK_BYTES).unwrap();
        let bytes = pages * CHUNK_BYTES;
        (
            AddressSpace::new(A, card, bytes, 16, Some(swap)).unwrap(),
            log,
        )
    }

    fn write(space: &AddressSpace, va: u64, value: u64) {
        space.slice(va, 8).unwrap().write_obj(value, 0).unwrap();
    }

    fn read(space: &AddressSpace, va: u64) -> u64 {
        space.slice(va, 8).unwrap().read_obj(0).unwrap()
    }

    #[test]
    fn a_page_goes_and_comes_back_with_its_bytes() {
        let (space, log) = space(4, 2, 8);
        let va = space.allocate(2 * CHUNK_BYTES).unwrap().va;
        let second = va + CHUNK_BYTES;
        write(&space, va, 1);
        write(&space, second, 2);
        space.runs();
        assert_eq!(
            space.move_chunk(ChunkId(1), Direction::Out),
            Ok(CHUNK_BYTES)
        );
        assert_eq!(space.absent(), 1);
        assert!(space.slice(second, 8).is_err());
        assert_eq!(space.card.free_chunks(), 1);
        let out_again = space.move_chunk(ChunkId(1), Direction::Out);
        assert_eq!(out_again, Err(MoveFailure::There));
        // Its chunk is another's meanwhile: nothing shows there.
        let other = space.allocate(1).unwrap().va;
        assert_eq!(read(&space, other), 0);
        let in_vain = space.move_chunk(ChunkId(1), Direction::In);
        assert_eq!(in_vain, Err(MoveFailure::NoRoom));
        space.free(other).unwrap();
        assert_eq!(
            space.card.free_chunks(),
            0,
            "a kernel may still write there"
        );
        space.settle_limbo();
        assert_eq!(space.move_chunk(ChunkId(1), Direction::In), Ok(CHUNK_BYTES));
        assert_eq!((read(&space, second), space.absent()), (2, 0));
        let mut events = Vec::new();
        log.drain(&mut events);
        assert_eq!(events.len(), 3, "two allocated, one freed: {events:?}");
    }

    #[test]
    fn a_clean_page_is_dropped_without_copying_and_a_dirty_one_is_not() {
        let (space, _) = space(2, 2, 8);
        let va = space.allocate(1).unwrap().va;
        write(&space, va, 5);
        let (out, into) = (Direction::Out, Direction::In);
        space.runs();
        assert_eq!(space.move_chunk(ChunkId(0), out), Ok(CHUNK_BYTES));
        assert_eq!(space.move_chunk(ChunkId(0), into), Ok(CHUNK_BYTES));
        assert_eq!(space.move_chunk(ChunkId(0), out), Ok(0), "nobody ran");
        assert_eq!(space.move_chunk(ChunkId(0), into), Ok(CHUNK_BYTES));
        space.runs();
        write(&space, va, 6);
        assert_eq!(space.move_chunk(ChunkId(0), out), Ok(CHUNK_BYTES));
        assert_eq!(space.move_chunk(ChunkId(0), into), Ok(CHUNK_BYTES));
        assert_eq!(read(&space, va), 6);
    }

    #[test]
    fn more_than_the_card_has_is_allocated_blank_and_freed_wherever_it_is() {
        let (space, _) = space(8, 2, 8);
        let pool = space.swap.as_ref().unwrap().pool.clone();
        let first = space.allocate(2 * CHUNK_BYTES).unwrap();
        let more = space.allocate(3 * CHUNK_BYTES).unwrap();
        assert_eq!(space.absent(), 3);
        assert_eq!(
            space.allocate(2 * CHUNK_BYTES),
            Err(ErrorCode::OutOfGpuMemory),
            "the pool's last four chunks are for moving"
        );
        space.write_first(more.va, &[7; 5]).unwrap();
        write(&space, first.va, 3);
        assert!(space.move_chunk(ChunkId(0), Direction::Out).is_ok());
        assert_eq!(space.move_chunk(ChunkId(2), Direction::In), Ok(CHUNK_BYTES));
        assert_eq!(read(&space, more.va), 0x07_0707_0707);
        space.free(first.va).unwrap();
        let gone = space.move_chunk(ChunkId(0), Direction::In);
        assert_eq!(gone, Err(MoveFailure::Gone));
        space.free(more.va).unwrap();
        space.settle_limbo();
        assert_eq!(space.absent(), 0);
        assert_eq!(pool.free_bytes(), pool.bytes());
        assert_eq!(space.card.free_chunks(), 2);
        assert_eq!(space.free_bytes(), 6 * CHUNK_BYTES);
    }
}
