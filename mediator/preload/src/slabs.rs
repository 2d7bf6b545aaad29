//! Small allocations, packed into chunks. Pure.

use std::collections::{BTreeMap, BTreeSet};

use turnstile_preload_wire::ChunkNumber;

/// Alignment of every address. SOURCE: CUDA C++ Programming Guide, 5.3.2: at least 256; textures
/// need 512.
pub(crate) const ALIGNMENT: u64 = 512;

/// `bytes` as whole units of [`ALIGNMENT`]; None if there is no such number.
pub(crate) fn rounded(bytes: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(ALIGNMENT)
}

#[derive(Clone, Copy, Debug)]
struct Slab {
    chunk: ChunkNumber,
    bytes: u64,
    used_bytes: u64,
}

/// Chunks that are divided into pieces.
///
/// Properties: pieces do not overlap, are within one slab and are aligned; free neighbours are one
/// piece.
#[derive(Debug, Default)]
pub(crate) struct Slabs {
    slabs: BTreeMap<u64, Slab>,
    used: BTreeMap<u64, u64>,
    free: BTreeMap<u64, u64>,
    by_size: BTreeSet<(u64, u64)>,
}

impl Slabs {
    /// Adds a chunk at `base`.
    pub(crate) fn add(&mut self, base: u64, bytes: u64, chunk: ChunkNumber) {
        let slab = Slab {
            chunk,
            bytes,
            used_bytes: 0,
        };
        self.slabs.insert(base, slab);
        self.put(base, bytes);
    }

    fn put(&mut self, at: u64, bytes: u64) {
        self.free.insert(at, bytes);
        self.by_size.insert((bytes, at));
    }

    fn pull(&mut self, at: u64) -> Option<u64> {
        let bytes = self.free.remove(&at)?;
        self.by_size.remove(&(bytes, at));
        Some(bytes)
    }

    fn slab_of(&mut self, at: u64) -> Option<(u64, &mut Slab)> {
        let (base, slab) = self.slabs.range_mut(..=at).next_back()?;
        (at - base < slab.bytes).then_some((*base, slab))
    }

    /// Takes the smallest free piece that is large enough. Precondition: `bytes` is [`rounded`].
    pub(crate) fn take(&mut self, bytes: u64) -> Option<u64> {
        let (_, at) = *self.by_size.range((bytes, 0)..).next()?;
        let had = self.pull(at)?;
        if had > bytes {
            self.put(at + bytes, had - bytes);
        }
        self.used.insert(at, bytes);
        if let Some((_, slab)) = self.slab_of(at) {
            slab.used_bytes += bytes;
        }
        Some(at)
    }

    /// The used piece that contains `at`: its address and bytes.
    pub(crate) fn piece(&self, at: u64) -> Option<(u64, u64)> {
        let (base, bytes) = self.used.range(..=at).next_back()?;
        (at - base < *bytes).then_some((*base, *bytes))
    }

    /// Frees the used piece that begins at `at`; false if there is none.
    pub(crate) fn give(&mut self, at: u64) -> bool {
        let Some(mut bytes) = self.used.remove(&at) else {
            return false;
        };
        let Some((base, slab)) = self.slab_of(at) else {
            return false;
        };
        slab.used_bytes -= bytes;
        let end = base + slab.bytes;
        let mut at = at;
        if at + bytes < end
            && let Some(next) = self.pull(at + bytes)
        {
            bytes += next;
        }
        let before = self.free.range(base..at).next_back();
        if let Some((start, had)) = before.map(|(start, had)| (*start, *had))
            && start + had == at
        {
            self.pull(start);
            at = start;
            bytes += had;
        }
        self.put(at, bytes);
        true
    }

    /// Removes slabs without used pieces, except for `keep` of them: memory that is freed and
    /// allocated in turns stays.
    pub(crate) fn drop_empty(&mut self, keep: usize) -> Vec<ChunkNumber> {
        let empty = self.slabs.iter().filter(|(_, slab)| slab.used_bytes == 0);
        let empty: Vec<u64> = empty.map(|(base, _)| *base).skip(keep).collect();
        let mut chunks = Vec::new();
        for base in empty {
            self.pull(base);
            chunks.extend(self.slabs.remove(&base).map(|slab| slab.chunk));
        }
        chunks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SLAB: u64 = 2 << 20;

    proptest! {
        #[test]
        fn pieces_never_overlap_and_all_are_returned(
            steps in prop::collection::vec((any::<bool>(), 1_u64..1 << 20, any::<prop::sample::Index>()), 1..300),
        ) {
            let mut slabs = Slabs::default();
            let mut held: BTreeMap<u64, u64> = BTreeMap::new();
            let mut chunk = 0;
            for (take, bytes, which) in steps {
                if take || held.is_empty() {
                    let bytes = rounded(bytes).unwrap();
                    let at = slabs.take(bytes).unwrap_or_else(|| {
                        chunk += 1;
                        // Two of three slabs are neighbours; no piece may cross their border.
                        slabs.add((2 + chunk + chunk / 3) * SLAB, SLAB, chunk);
                        slabs.take(bytes).unwrap()
                    });
                    prop_assert_eq!(at % ALIGNMENT, 0);
                    prop_assert_eq!(at / SLAB, (at + bytes - 1) / SLAB, "within one slab");
                    let before = held.range(..=at).next_back();
                    prop_assert!(before.is_none_or(|(other, bytes)| other + bytes <= at));
                    prop_assert!(held.range(at..).next().is_none_or(|(other, _)| at + bytes <= *other));
                    prop_assert_eq!(slabs.piece(at + bytes - 1), Some((at, bytes)));
                    held.insert(at, bytes);
                } else {
                    let at = *held.keys().nth(which.index(held.len())).unwrap();
                    held.remove(&at);
                    prop_assert!(slabs.give(at));
                    prop_assert!(!slabs.give(at), "once");
                    prop_assert_eq!(slabs.piece(at), None);
                }
            }
            for at in held.keys() {
                prop_assert!(slabs.give(*at));
            }
            prop_assert_eq!(slabs.drop_empty(0).len() as u64, chunk, "all of it is free again");
            prop_assert!(slabs.free.is_empty() && slabs.by_size.is_empty() && slabs.slabs.is_empty());
        }
    }

    #[test]
    fn the_smallest_that_fits_is_taken() {
        let mut slabs = Slabs::default();
        slabs.add(SLAB, SLAB, 1);
        let at: Vec<u64> = [1024, 512, 4096, 512]
            .map(|b| slabs.take(b).unwrap())
            .into();
        slabs.give(at[2]);
        slabs.give(at[0]);
        assert_eq!(slabs.take(512), Some(at[0]));
        assert_eq!(slabs.take(2048), Some(at[2]));
        assert_eq!(slabs.take(SLAB), None);
        assert_eq!(slabs.drop_empty(0), []);
    }
}
