//! The host's pool: memory for chunks that are not on the GPU. The only part of the memory manager
//! that touches memory.
//!
//! A file in memory of bounded size, in huge pages where the host has set some aside, divided into
//! slots of one chunk. A slot is zero when it is taken and zeroed when it is freed, so that nothing
//! in it outlives its owner. The slot of a chunk that was moved to the GPU may be kept as a *spare*
//! copy; the pool takes spares back, oldest first, when slots run out.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use turnstile_abi::CHUNK_BYTES;
use vm_memory::{FileOffset, MmapRegion, VolatileMemory, VolatileSlice};
use vmm_sys_util::fallocate::{FallocateMode, fallocate};

use turnstile_host::memory_file::memory_file;

/// Why there is no pool.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// The file could not be made.
    #[error("Cannot make a pool of {bytes} bytes for swapped GPU memory")]
    File {
        /// Its size.
        bytes: u64,
        /// Error of the kernel.
        source: io::Error,
    },
    /// The file could not be mapped.
    #[error("Cannot map the pool of {bytes} bytes for swapped GPU memory")]
    Map {
        /// Its size.
        bytes: u64,
        /// Error of the mapping.
        source: vm_memory::mmap::MmapRegionError,
    },
}

#[derive(Debug)]
struct Slots {
    free: Vec<u32>,
    /// Spares, oldest first. A spare that was claimed or taken back meanwhile has another
    /// generation.
    spares: VecDeque<(u32, u64)>,
    generations: Vec<u64>,
}

/// The pool. Its lock is an innermost one.
#[derive(Debug)]
pub struct HostPool {
    file: File,
    region: MmapRegion,
    huge: bool,
    slots: Mutex<Slots>,
}

/// A slot that is in use; it is zeroed and freed when dropped.
#[derive(Debug)]
pub struct Slot {
    pool: Arc<HostPool>,
    index: u32,
}

/// A slot that is kept as long as the pool can spare it. When dropped it is zeroed like any other.
#[derive(Debug)]
pub struct Spare {
    pool: Arc<HostPool>,
    index: u32,
    generation: u64,
}

impl HostPool {
    /// A pool of `bytes`, rounded down to chunks.
    ///
    /// # Errors
    /// When the host has no memory or descriptors for it.
    pub fn new(bytes: u64) -> Result<Self, PoolError> {
        let (Chunks { file, region, huge }, count) = chunk_memory("turnstile-pool", bytes)?;
        Ok(Self {
            file,
            region,
            huge,
            slots: Mutex::new(Slots {
                free: (0..count).rev().collect(),
                spares: VecDeque::new(),
                generations: vec![0; count as usize],
            }),
        })
    }

    /// Bytes that it can hold.
    pub fn bytes(&self) -> u64 {
        self.lock().generations.len() as u64 * CHUNK_BYTES
    }

    /// Bytes of slots that can be taken: free ones and spares.
    pub fn free_bytes(&self) -> u64 {
        let slots = self.lock();
        let live =
            |(index, generation): &&(u32, u64)| slots.generations[*index as usize] == *generation;
        (slots.free.len() + slots.spares.iter().filter(live).count()) as u64 * CHUNK_BYTES
    }

    fn lock(&self) -> MutexGuard<'_, Slots> {
        // No update below can be left half done by a panic.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a slot, or a spare if there is no other. It is zero.
    pub fn take(self: &Arc<Self>) -> Option<Slot> {
        let pool = self.clone();
        let mut slots = self.lock();
        if let Some(index) = slots.free.pop() {
            return Some(Slot { pool, index });
        }
        let index = slots.oldest_spare()?;
        drop(slots);
        let slot = Slot { pool, index };
        // A spare may be another owner's, so it is zeroed first. A slot for which this fails is
        // lost to the pool.
        if slot.pool.scrub(index).is_ok() {
            return Some(slot);
        }
        std::mem::forget(slot);
        None
    }

    fn slice(&self, index: u32) -> Option<VolatileSlice<'_>> {
        // CAST: the slot exists, so that its offset is within the mapping.
        let offset = index as usize * CHUNK_BYTES as usize;
        self.region.get_slice(offset, CHUNK_BYTES as usize).ok()
    }

    fn scrub(&self, index: u32) -> io::Result<()> {
        let offset = u64::from(index) * CHUNK_BYTES;
        if self.huge {
            // Huge pages were set aside for this file: a hole might not be filled again.
            let slice = self.slice(index).ok_or(io::ErrorKind::InvalidInput)?;
            slice.copy_from(&[0u8; CHUNK_BYTES as usize][..]);
            return Ok(());
        }
        fallocate(
            &self.file,
            FallocateMode::PunchHole,
            true,
            offset,
            CHUNK_BYTES,
        )
        .map_err(io::Error::from)
    }
}

impl Slots {
    fn oldest_spare(&mut self) -> Option<u32> {
        loop {
            let (index, generation) = self.spares.pop_front()?;
            if self.claim(index, generation) {
                return Some(index);
            }
        }
    }

    /// Makes a spare a slot in use; false if it is not a spare any more.
    fn claim(&mut self, index: u32, generation: u64) -> bool {
        let now = &mut self.generations[index as usize];
        let live = *now == generation;
        *now += u64::from(live);
        live
    }
}

impl Slot {
    /// Its bytes.
    pub fn bytes(&self) -> Option<VolatileSlice<'_>> {
        self.pool.slice(self.index)
    }

    /// Keeps the content, as long as the pool does not need the room.
    pub fn spare(self) -> Spare {
        let (pool, index) = (self.pool.clone(), self.index);
        std::mem::forget(self);
        let mut slots = pool.lock();
        slots.generations[index as usize] += 1;
        let generation = slots.generations[index as usize];
        slots.spares.push_back((index, generation));
        drop(slots);
        Spare {
            pool,
            index,
            generation,
        }
    }
}

impl Spare {
    /// Its slot with the content, unless the pool has taken it back.
    pub fn claim(self) -> Option<Slot> {
        self.take()
    }

    fn take(&self) -> Option<Slot> {
        let mut slots = self.pool.lock();
        let live = slots.claim(self.index, self.generation);
        if live {
            let me = (self.index, self.generation);
            slots.spares.retain(|spare| *spare != me);
        }
        drop(slots);
        live.then(|| Slot {
            pool: self.pool.clone(),
            index: self.index,
        })
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        // It cannot be claimed any more: zeroed now, whether the room is needed or not.
        drop(self.take());
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // A slot that cannot be zeroed is not used again.
        if self.pool.scrub(self.index).is_ok() {
            self.pool.lock().free.push(self.index);
        }
    }
}

/// Memory for chunks.
#[derive(Debug)]
pub struct Chunks {
    file: File,
    /// Its mapping.
    pub region: MmapRegion,
    huge: bool,
}

/// Memory of `bytes`, rounded down to chunks, in huge pages where the host has set some aside.
/// Returns it with the number of chunks.
pub fn chunk_memory(name: &str, bytes: u64) -> Result<(Chunks, u32), PoolError> {
    let count = u32::try_from(bytes / CHUNK_BYTES).unwrap_or(u32::MAX);
    // A file that is mapped has a page at least.
    let bytes = (u64::from(count) * CHUNK_BYTES).max(CHUNK_BYTES);
    let no_file = |source| PoolError::File { bytes, source };
    let (file, huge) = match huge_file(name, bytes) {
        Ok(file) => (file, true),
        Err(_) => (memory_file(name, bytes).map_err(no_file)?, false),
    };
    let mapped = file.try_clone().map_err(no_file)?;
    let size = usize::try_from(bytes).map_err(|_| no_file(io::ErrorKind::OutOfMemory.into()))?;
    let region = MmapRegion::from_file(FileOffset::new(mapped, 0), size)
        .map_err(|source| PoolError::Map { bytes, source })?;
    Ok((Chunks { file, region, huge }, count))
}

/// A file in huge pages, all of them allocated now: a process that touches a missing page later
/// would be killed.
fn huge_file(name: &str, bytes: u64) -> io::Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    let fd: OwnedFd = memfd_create(name, flags)?;
    ftruncate(&fd, bytes)?;
    let file = File::from(fd);
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use vm_memory::Bytes;

    fn word(slot: &Slot) -> u64 {
        slot.bytes().unwrap().read_obj(8).unwrap()
    }

    #[test]
    fn reused_slot_is_zeroed_and_pool_size_is_bounded() {
        let pool = Arc::new(HostPool::new(2 * CHUNK_BYTES + 1).unwrap());
        let (one, two) = (pool.take().unwrap(), pool.take().unwrap());
        assert!(pool.take().is_none());
        one.bytes().unwrap().write_obj(7u64, 8).unwrap();
        assert_eq!((word(&one), word(&two)), (7, 0));
        drop(one);
        assert_eq!(pool.free_bytes(), CHUNK_BYTES);
        assert_eq!(word(&pool.take().unwrap()), 0);
    }

    #[test]
    fn spares_are_kept_until_room_is_needed() {
        let pool = Arc::new(HostPool::new(2 * CHUNK_BYTES).unwrap());
        let [old, new] = [1u64, 2].map(|value| {
            let slot = pool.take().unwrap();
            slot.bytes().unwrap().write_obj(value, 8).unwrap();
            slot.spare()
        });
        assert_eq!(pool.free_bytes(), 2 * CHUNK_BYTES);
        let taken = pool.take().unwrap();
        assert_eq!(word(&taken), 0, "what was another's is scrubbed");
        assert!(old.claim().is_none());
        let new = new.claim().unwrap();
        assert_eq!(word(&new), 2);
        assert!(pool.take().is_none());
        drop((taken, new));
        assert_eq!(pool.free_bytes(), 2 * CHUNK_BYTES);
    }

    #[test]
    fn a_spare_that_is_dropped_leaves_nothing_behind() {
        let pool = Arc::new(HostPool::new(CHUNK_BYTES).unwrap());
        for _ in 0..3 {
            let slot = pool.take().unwrap();
            slot.bytes().unwrap().write_obj(9u64, 8).unwrap();
            let spare = slot.spare();
            assert_eq!(pool.slice(0).unwrap().read_obj::<u64>(8).unwrap(), 9);
            drop(spare);
            assert_eq!(pool.slice(0).unwrap().read_obj::<u64>(8).unwrap(), 0);
        }
        assert_eq!(pool.free_bytes(), CHUNK_BYTES);
    }
}
