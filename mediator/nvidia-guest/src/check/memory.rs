//! GPU memory of a VM, and what refers to it. Pure.
//!
//! The driver frees memory with the last reference to it, and not with the handle that it was
//! allocated under: duplicates and mappings of unified memory keep it. So does the quota.
//! In: references that are made and given up. Out: the bytes that are left.

use std::collections::BTreeMap;

/// Names memory of a VM, whatever handles it has.
pub(super) type MemoryId = u64;

#[derive(Debug)]
struct Memory {
    bytes: u64,
    references: usize,
}

/// All GPU memory of a VM.
#[derive(Debug, Default)]
pub(super) struct Memories {
    last: MemoryId,
    all: BTreeMap<MemoryId, Memory>,
    bytes: u64,
}

impl Memories {
    /// Adds memory with one reference.
    pub(super) fn add(&mut self, bytes: u64) -> MemoryId {
        self.last += 1;
        let memory = Memory {
            bytes,
            references: 1,
        };
        self.all.insert(self.last, memory);
        self.bytes += bytes;
        self.last
    }

    /// Adds a reference. `None` if there is no such memory.
    pub(super) fn hold(&mut self, id: MemoryId) -> Option<MemoryId> {
        self.all.get_mut(&id)?.references += 1;
        Some(id)
    }

    /// Gives a reference up: without any the memory is gone.
    pub(super) fn release(&mut self, id: MemoryId) {
        let Some(memory) = self.all.get_mut(&id) else {
            return;
        };
        memory.references -= 1;
        if memory.references == 0 {
            self.bytes -= memory.bytes;
            self.all.remove(&id);
        }
    }

    /// All memory together.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Memory that unified memory maps for one GPU.
#[derive(Clone, Copy, Debug)]
struct Mapped {
    base: u64,
    end: u64,
    gpu: [u8; 16],
    memory: MemoryId,
}

/// Mappings of a file of unified memory. Each has a reference to its memory.
#[derive(Debug, Default)]
pub(super) struct Mappings {
    /// First address -> bytes of the ranges that are mapped into.
    ranges: BTreeMap<u64, u64>,
    mapped: Vec<Mapped>,
}

impl Mappings {
    /// How many there are, ranges among them.
    pub(super) fn count(&self) -> usize {
        self.ranges.len() + self.mapped.len()
    }

    /// A range was made.
    pub(super) fn add_range(&mut self, base: u64, bytes: u64) {
        self.ranges.insert(base, bytes);
    }

    /// A range is gone, with the mappings in it.
    pub(super) fn remove_range(&mut self, base: u64, memories: &mut Memories) {
        if let Some(bytes) = self.ranges.remove(&base) {
            self.unmap(base, bytes, None, memories);
        }
    }

    /// An object was mapped for a GPU: this memory, or something else.
    pub(super) fn map(
        &mut self,
        base: u64,
        bytes: u64,
        gpu: [u8; 16],
        memory: Option<MemoryId>,
        memories: &mut Memories,
    ) {
        // The new reference first: the memory may be what is mapped there.
        let held = memory.and_then(|memory| memories.hold(memory));
        self.unmap(base, bytes, Some(gpu), memories);
        if let Some(memory) = held {
            self.mapped.push(Mapped {
                base,
                end: base.saturating_add(bytes),
                gpu,
                memory,
            });
        }
    }

    /// Addresses have no mapping for a GPU any more, or for none. A mapping with a hole stays as it
    /// was: there are never more of them than were made.
    pub(super) fn unmap(
        &mut self,
        base: u64,
        bytes: u64,
        gpu: Option<[u8; 16]>,
        memories: &mut Memories,
    ) {
        let end = base.saturating_add(bytes);
        self.mapped.retain_mut(|one| {
            let apart = one.end <= base || end <= one.base;
            if apart || gpu.is_some_and(|gpu| gpu != one.gpu) {
                return true;
            }
            match (one.base < base, end < one.end) {
                (true, true) => {}
                (true, false) => one.end = base,
                (false, true) => one.base = end,
                (false, false) => {
                    memories.release(one.memory);
                    return false;
                }
            }
            true
        });
    }

    /// The file is closed.
    pub(super) fn close(self, memories: &mut Memories) {
        for one in self.mapped {
            memories.release(one.memory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GPUS: [[u8; 16]; 2] = [[1; 16], [2; 16]];

    proptest! {
        /// The model: for each GPU and address the memory that is mapped there.
        #[test]
        fn memory_stays_while_an_address_has_it(
            steps in prop::collection::vec((0_u8..4, 0_u64..8, 1_u64..8, 0_usize..2), 1..60)
        ) {
            let mut memories = Memories::default();
            let mut mappings = Mappings::default();
            let mut model = [[None; 16]; 2];
            let mut made = 0;
            for (kind, base, bytes, gpu) in steps {
                let places = base as usize..(base + bytes) as usize;
                match kind {
                    0 | 1 => {
                        let memory = memories.add(1);
                        mappings.map(base, bytes, GPUS[gpu], Some(memory), &mut memories);
                        memories.release(memory);
                        model[gpu][places].fill(Some(memory));
                        made += 1;
                    }
                    2 => {
                        mappings.unmap(base, bytes, Some(GPUS[gpu]), &mut memories);
                        model[gpu][places].fill(None);
                    }
                    _ => {
                        mappings.add_range(base, bytes);
                        mappings.remove_range(base, &mut memories);
                        model.iter_mut().for_each(|of| of[places.clone()].fill(None));
                    }
                }
                let mut there: Vec<MemoryId> = model.iter().flatten().flatten().copied().collect();
                there.sort_unstable();
                there.dedup();
                prop_assert!(memories.bytes() >= there.len() as u64);
                prop_assert!(memories.bytes() <= made && mappings.count() as u64 <= made);
            }
            mappings.unmap(0, 16, None, &mut memories);
            prop_assert_eq!((memories.bytes(), mappings.count()), (0, 0));
        }
    }

    #[test]
    fn what_is_mapped_over_or_cut_to_nothing_is_gone() {
        let mut memories = Memories::default();
        let mut mappings = Mappings::default();
        let map = |mappings: &mut Mappings, base, bytes, memories: &mut Memories| {
            let memory = memories.add(1);
            mappings.map(base, bytes, GPUS[0], Some(memory), memories);
            memories.release(memory);
        };
        map(&mut mappings, 0, 8, &mut memories);
        map(&mut mappings, 0, 8, &mut memories);
        assert_eq!(memories.bytes(), 1, "mapped over");
        mappings.unmap(0, 4, Some(GPUS[1]), &mut memories);
        mappings.unmap(0, 4, Some(GPUS[0]), &mut memories);
        assert_eq!(memories.bytes(), 1, "its second half is there");
        mappings.unmap(4, 4, Some(GPUS[0]), &mut memories);
        assert_eq!(memories.bytes(), 0);
        map(&mut mappings, 0, 8, &mut memories);
        mappings.close(&mut memories);
        assert_eq!(memories.bytes(), 0);
    }
}
