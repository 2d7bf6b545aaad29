//! Stream-ordered memory: blocks that were freed in a stream and can be reused. Pure; the caller
//! handles streams.

use std::collections::BTreeMap;

/// Bytes of a pool that are kept in spite of its release threshold: a program that frees and
/// allocates in a loop without waiting must not pay for it.
const KEEP_BYTES: u64 = 64 << 20;

/// A block that was freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    /// Stream in which it was freed.
    pub(crate) stream: usize,
    /// Event that was recorded then.
    pub(crate) event: usize,
}

/// One pool.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    /// Its memory is the driver's own: it can be exported, or is not of the tenant's GPU.
    pub(crate) is_foreign: bool,
    /// Unused bytes that are kept.
    pub(crate) threshold_bytes: u64,
    pub(crate) used_bytes: u64,
    pub(crate) used_high_bytes: u64,
    pub(crate) reserved_high_bytes: u64,
    cached_bytes: u64,
    /// Oldest first.
    cached: Vec<Block>,
}

impl Pool {
    /// An empty pool.
    pub(crate) fn new(is_foreign: bool) -> Self {
        Self {
            is_foreign,
            ..Self::default()
        }
    }

    /// Bytes that are used or kept.
    pub(crate) const fn reserved_bytes(&self) -> u64 {
        self.used_bytes + self.cached_bytes
    }

    /// Adds to the used bytes.
    fn gave(&mut self, bytes: u64) {
        self.used_bytes += bytes;
        self.used_high_bytes = self.used_high_bytes.max(self.used_bytes);
        self.reserved_high_bytes = self.reserved_high_bytes.max(self.reserved_bytes());
    }

    fn pull(&mut self, at: usize) -> Block {
        let block = self.cached.remove(at);
        self.cached_bytes -= block.bytes;
        block
    }
}

/// All pools, by the driver's handle.
#[derive(Debug, Default)]
pub(crate) struct Ordered {
    pools: BTreeMap<usize, Pool>,
    /// Address -> pool and bytes of live allocations.
    live: BTreeMap<u64, (usize, u64)>,
}

impl Ordered {
    pub(crate) fn pool(&mut self, pool: usize) -> &mut Pool {
        self.pools.entry(pool).or_default()
    }

    /// Reuses a freed block for `bytes` in a stream, if one is not much larger. Blocks of the same
    /// stream come first, then those with an event that `is_done`.
    pub(crate) fn take(
        &mut self,
        pool: usize,
        bytes: u64,
        stream: usize,
        mut is_done: impl FnMut(usize) -> bool,
    ) -> Option<Block> {
        let entry = self.pool(pool);
        let most = bytes + bytes / 8;
        let fits = |block: &Block| (bytes..=most).contains(&block.bytes);
        let same = |block: &Block| fits(block) && block.stream == stream;
        let own = entry.cached.iter().position(same);
        let at = own.or_else(|| {
            let mut found = entry.cached.iter();
            found.position(|block| fits(block) && is_done(block.event))
        })?;
        let block = entry.pull(at);
        entry.gave(block.bytes);
        self.live.insert(block.address, (pool, block.bytes));
        Some(block)
    }

    /// Adds memory that was made for a pool, and is in use.
    pub(crate) fn made(&mut self, pool: usize, address: u64, bytes: u64) {
        self.pool(pool).gave(bytes);
        self.live.insert(address, (pool, bytes));
    }

    /// Whether a live allocation begins at `address`.
    pub(crate) fn is_live(&self, address: u64) -> bool {
        self.live.contains_key(&address)
    }

    /// Frees a live allocation in a stream; returns its pool. Precondition: [`Self::is_live`].
    pub(crate) fn give(&mut self, address: u64, stream: usize, event: usize) -> usize {
        let Some((number, bytes)) = self.live.remove(&address) else {
            return 0;
        };
        let pool = self.pool(number);
        pool.used_bytes -= bytes;
        pool.cached_bytes += bytes;
        pool.cached.push(Block {
            address,
            bytes,
            stream,
            event,
        });
        number
    }

    /// Removes an allocation that a call has freed after waiting.
    pub(crate) fn forget(&mut self, address: u64) {
        if let Some((pool, bytes)) = self.live.remove(&address) {
            self.pool(pool).used_bytes -= bytes;
        }
    }

    /// Removes blocks of a pool that are done, oldest first, while more than `keep` bytes are
    /// reserved.
    pub(crate) fn trim(
        &mut self,
        pool: usize,
        keep: u64,
        mut is_done: impl FnMut(usize) -> bool,
    ) -> Vec<Block> {
        let pool = self.pool(pool);
        let (mut at, mut out) = (0, Vec::new());
        while pool.reserved_bytes() > keep && at < pool.cached.len() {
            if is_done(pool.cached[at].event) {
                out.push(pool.pull(at));
            } else {
                at += 1;
            }
        }
        out
    }

    /// As [`Self::trim`], with the pool's own threshold.
    pub(crate) fn trim_to_threshold(
        &mut self,
        pool: usize,
        is_done: impl FnMut(usize) -> bool,
    ) -> Vec<Block> {
        let entry = self.pool(pool);
        let kept = entry.threshold_bytes.max(KEEP_BYTES);
        if entry.cached_bytes <= kept {
            return Vec::new();
        }
        let keep = entry.used_bytes.saturating_add(kept);
        self.trim(pool, keep, is_done)
    }

    /// Removes the blocks of all pools that are done.
    pub(crate) fn trim_all(&mut self, mut is_done: impl FnMut(usize) -> bool) -> Vec<Block> {
        let pools: Vec<usize> = self.pools.keys().copied().collect();
        let trimmed = pools
            .into_iter()
            .map(|pool| self.trim(pool, 0, &mut is_done));
        trimmed.flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const POOL: usize = 1;

    #[test]
    fn a_stream_has_its_own_back_at_once_and_others_when_it_is_done() {
        let mut ordered = Ordered::default();
        ordered.made(POOL, 0x1000, 1024);
        ordered.give(0x1000, 7, 70);
        assert_eq!(ordered.take(POOL, 1024, 8, |_| false), None);
        assert_eq!(ordered.take(POOL, 512, 7, |_| true), None, "much larger");
        let block = ordered.take(POOL, 1000, 7, |_| false).unwrap();
        assert_eq!((block.address, block.event), (0x1000, 70));
        ordered.give(0x1000, 7, 71);
        assert_eq!(ordered.take(2, 1024, 7, |_| true), None, "another pool");
        assert!(ordered.take(POOL, 1024, 8, |event| event == 71).is_some());
    }

    #[test]
    fn pool_keeps_memory_up_to_its_threshold() {
        let mut ordered = Ordered::default();
        for number in 0..4 {
            ordered.made(POOL, number, KEEP_BYTES);
            ordered.give(number, 0, 0);
        }
        assert_eq!(ordered.trim_to_threshold(POOL, |_| false), []);
        assert_eq!(ordered.trim_to_threshold(POOL, |_| true).len(), 3);
        ordered.pool(POOL).threshold_bytes = u64::MAX;
        ordered.made(POOL, 9, KEEP_BYTES);
        ordered.give(9, 0, 0);
        assert_eq!(ordered.trim_to_threshold(POOL, |_| true), []);
        assert_eq!(ordered.trim(POOL, KEEP_BYTES, |_| true).len(), 1);
        assert_eq!(ordered.trim_all(|_| true).len(), 1);
        assert_eq!(ordered.pool(POOL).reserved_bytes(), 0);
        assert_eq!(ordered.pool(POOL).reserved_high_bytes, 4 * KEEP_BYTES);
    }

    proptest! {
        #[test]
        fn nothing_is_given_out_twice_and_sums_hold(
            steps in prop::collection::vec((0_u8..4, 1_u64..64, 0_usize..3, any::<prop::sample::Index>()), 1..200),
        ) {
            let mut ordered = Ordered::default();
            let mut live: BTreeMap<u64, u64> = BTreeMap::new();
            let mut released = Vec::new();
            let mut next = 0;
            for (step, size, stream, which) in steps {
                let size = size << 20;
                match step {
                    0 | 1 => {
                        let block = ordered.take(POOL, size, stream, |event| event % 2 == 0);
                        let (address, bytes) = block.map_or_else(
                            || {
                                next += 1;
                                ordered.made(POOL, next, size);
                                (next, size)
                            },
                            |block| (block.address, block.bytes),
                        );
                        prop_assert!(bytes >= size && !released.contains(&address));
                        prop_assert!(live.insert(address, bytes).is_none());
                    }
                    2 if !live.is_empty() => {
                        let address = *live.keys().nth(which.index(live.len())).unwrap();
                        live.remove(&address);
                        ordered.give(address, stream, which.index(10));
                    }
                    _ => released.extend(ordered.trim_to_threshold(POOL, |_| true).iter().map(|b| b.address)),
                }
                let pool = ordered.pool(POOL);
                prop_assert_eq!(pool.used_bytes, live.values().sum::<u64>());
                let cached: u64 = pool.cached.iter().map(|block| block.bytes).sum();
                prop_assert_eq!(pool.reserved_bytes(), pool.used_bytes + cached);
            }
        }
    }
}
