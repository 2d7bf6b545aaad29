//! The card's memory as chunks with an owner.

use std::sync::Arc;

use turnstile_abi::CHUNK_BYTES;
use turnstile_accounting::TenantId;
use vm_memory::{MmapRegion, VolatileMemory, VolatileSlice};

use crate::rank;
use turnstile_gpu::pool::{PoolError, chunk_memory};
use turnstile_host::ranked::{Ranked, RankedGuard};

/// Number of a chunk of the card.
pub(super) type Chunk = u32;

static ZEROS: [u8; CHUNK_BYTES as usize] = [0; CHUNK_BYTES as usize];

/// Chunks of the pool that are not promised: with all of it taken nothing could move.
const MOVING_ROOM: usize = 4;

/// The owner of each chunk. Where memory does not move, the bytes lie in the owners' own files (see
/// [`super::address_space`]), so a chunk that changes its owner carries no data over. Where memory
/// moves, they lie in the card's frames, which are zeroed before another tenant gets them.
#[derive(Debug)]
struct Table {
    owners: Vec<Option<TenantId>>,
    /// Free, with something in its frame.
    dirty: Vec<bool>,
    free: Vec<Chunk>,
    /// Chunks that may still be promised, on the card or in the host's pool.
    unpromised: usize,
}

/// The chunk table, shared by all address spaces of the card. Its lock is the innermost of all.
#[derive(Clone, Debug)]
pub(super) struct CardMemory {
    table: Arc<Ranked<Table>>,
    frames: Option<Arc<MmapRegion>>,
}

impl CardMemory {
    /// A card of `bytes` bytes, rounded down to chunks.
    pub(super) fn new(bytes: u64) -> Self {
        Self::make(bytes, 0, None)
    }

    /// The same with frames, as memory moves, and a pool of the host behind it.
    pub(super) fn with_frames(bytes: u64, pool_bytes: u64) -> Result<Self, PoolError> {
        let (frames, _) = chunk_memory("turnstile-card", bytes)?;
        Ok(Self::make(bytes, pool_bytes, Some(Arc::new(frames.region))))
    }

    fn make(bytes: u64, pool_bytes: u64, frames: Option<Arc<MmapRegion>>) -> Self {
        let chunks = u32::try_from(bytes / CHUNK_BYTES).unwrap_or(u32::MAX);
        let behind = usize::try_from(pool_bytes / CHUNK_BYTES).unwrap_or(usize::MAX);
        let table = Table {
            owners: vec![None; chunks as usize],
            dirty: vec![false; chunks as usize],
            free: (0..chunks).rev().collect(),
            unpromised: (chunks as usize).saturating_add(behind.saturating_sub(MOVING_ROOM)),
        };
        Self {
            table: Arc::new(Ranked::new(rank::CARD, table)),
            frames,
        }
    }

    /// The frames of all chunks, one after the other; none where memory does not move.
    pub(super) fn frames(&self) -> Option<&Arc<MmapRegion>> {
        self.frames.as_ref()
    }

    fn frame(&self, chunk: Chunk) -> Option<VolatileSlice<'_>> {
        // CAST: the chunk exists, so that its offset is within the mapping.
        let offset = chunk as usize * CHUNK_BYTES as usize;
        let frames = self.frames.as_ref()?;
        frames.get_slice(offset, CHUNK_BYTES as usize).ok()
    }

    /// Makes frames zero that have something in them, of chunks that were just taken.
    pub(super) fn clean(&self, chunks: &[Chunk]) {
        for chunk in chunks {
            let dirty = std::mem::take(&mut self.table().dirty[*chunk as usize]);
            if let Some(frame) = self.frame(*chunk).filter(|_| dirty) {
                frame.copy_from(&ZEROS[..]);
            }
        }
    }

    /// Releases a chunk with data left in its frame.
    pub(super) fn release_dirty(&self, owner: TenantId, chunk: Chunk) {
        self.table().dirty[chunk as usize] = true;
        self.release(owner, [chunk]);
    }

    /// Promises `count` chunks, wherever they will be; false if there are not as many.
    pub(super) fn promise(&self, count: usize) -> bool {
        let mut table = self.table();
        let left = table.unpromised.checked_sub(count);
        table.unpromised = left.unwrap_or(table.unpromised);
        left.is_some()
    }

    /// Chunks that were promised are needed no more.
    pub(super) fn unpromise(&self, count: usize) {
        self.table().unpromised += count;
    }

    /// Chunks that may still be promised.
    pub(super) fn unpromised(&self) -> usize {
        self.table().unpromised
    }

    fn table(&self) -> RankedGuard<'_, Table> {
        // No update below can be left half done by a panic.
        self.table.lock()
    }

    /// Takes `count` chunks for `owner`: all of them, or none.
    pub(super) fn take(&self, owner: TenantId, count: usize) -> Option<Vec<Chunk>> {
        let mut table = self.table();
        let left = table.free.len().checked_sub(count)?;
        let chunks = table.free.split_off(left);
        for chunk in &chunks {
            table.owners[*chunk as usize] = Some(owner);
        }
        Some(chunks)
    }

    /// Gives chunks back. Precondition: they are `owner`'s, and scrubbed.
    pub(super) fn release(&self, owner: TenantId, chunks: impl IntoIterator<Item = Chunk>) {
        let mut table = self.table();
        for chunk in chunks {
            assert_eq!(
                table.owners[chunk as usize].take(),
                Some(owner),
                "chunk {chunk} is freed by another owner"
            );
            table.free.push(chunk);
        }
    }

    /// Number of chunks without an owner.
    #[cfg(test)]
    pub(super) fn free_chunks(&self) -> usize {
        self.table().free.len()
    }

    /// Chunks that `owner` has.
    #[cfg(test)]
    pub(super) fn owned_chunks(&self, owner: TenantId) -> usize {
        let table = self.table();
        table.owners.iter().filter(|o| **o == Some(owner)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_has_one_owner_and_comes_back() {
        let card = CardMemory::new(8 * CHUNK_BYTES + 1);
        let (a, b) = (TenantId(1), TenantId(2));
        let of_a = card.take(a, 5).unwrap();
        assert_eq!(card.take(b, 4), None);
        let of_b = card.take(b, 3).unwrap();
        assert!(of_a.iter().all(|chunk| !of_b.contains(chunk)));
        assert_eq!(card.free_chunks(), 0);
        card.release(a, of_a);
        assert_eq!((card.owned_chunks(a), card.owned_chunks(b)), (0, 3));
        assert_eq!(card.free_chunks(), 5);
    }
}
