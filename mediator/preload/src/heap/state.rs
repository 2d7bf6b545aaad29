//! State of the heap: chunks, allocations, mappings.
//!
//! In and out: numbers and addresses; nothing here calls the driver or the daemon. Only
//! [`super::Heap`] reads and changes it, under its lock.

use std::collections::BTreeMap;

use turnstile_preload_wire::{ChunkNumber, Pin};

use crate::abi::{Access, Prop};
use crate::slabs::Slabs;

/// Purpose of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// Divided into pieces, at addresses that were reserved for it.
    Slab,
    /// Part of a large allocation.
    Part,
    /// Made by the program, which owns the handle this many times.
    Held(u32),
}

/// Addresses to which a chunk is mapped.
#[derive(Clone, Debug)]
pub(super) struct Mapping {
    pub(super) address: u64,
    pub(super) access: Vec<Access>,
}

#[derive(Debug)]
pub(super) struct Chunk {
    pub(super) bytes: u64,
    pub(super) prop: Prop,
    /// None while it is missing.
    pub(super) handle: Option<u64>,
    /// Made in this process: the driver exports no other handles.
    pub(super) made_here: bool,
    /// The daemon knows it.
    pub(super) known_to_daemon: bool,
    /// Why it does not move, if it does not.
    pub(super) pin: Option<Pin>,
    pub(super) purpose: Use,
    pub(super) mappings: Vec<Mapping>,
}

/// An allocation that shares no chunk with another.
#[derive(Debug)]
pub(super) struct Whole {
    pub(super) bytes: u64,
    pub(super) numbers: Vec<ChunkNumber>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) last: ChunkNumber,
    pub(super) chunks: BTreeMap<ChunkNumber, Chunk>,
    /// Large allocations, by address.
    pub(super) whole: BTreeMap<u64, Whole>,
    pub(super) slabs: Slabs,
    /// The program's mappings, by address.
    pub(super) mapped: BTreeMap<u64, ChunkNumber>,
    pub(super) pinned_bytes: [u64; Pin::ALL.len()],
    /// Freed once no capture is in progress: a capture does not survive waiting for the GPU.
    pub(super) deferred: Vec<u64>,
}

impl State {
    pub(super) fn number(&mut self) -> ChunkNumber {
        self.last += 1;
        self.last
    }

    /// The allocation that contains an address: where it begins, and its bytes.
    pub(super) fn range(&self, address: u64) -> Option<(u64, u64)> {
        let within = |base: u64, bytes: u64| (address - base < bytes).then_some((base, bytes));
        let whole = || {
            let (base, whole) = self.whole.range(..=address).next_back()?;
            within(*base, whole.bytes)
        };
        let piece = || self.slabs.piece(address);
        let mapped = || {
            let (base, number) = self.mapped.range(..=address).next_back()?;
            within(*base, self.chunks.get(number)?.bytes)
        };
        whole().or_else(piece).or_else(mapped)
    }

    /// Whether an allocation begins at `address`.
    pub(super) fn owns(&self, address: u64) -> bool {
        let piece = || self.slabs.piece(address);
        self.whole.contains_key(&address) || piece().is_some_and(|(base, _)| base == address)
    }
}
