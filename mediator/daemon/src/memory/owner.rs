//! One tenant's chunks, and whether it may run.
//!
//! ```text
//!            hold             quiet (the GPU's word)
//!  Running ---------> Stopping ---------> Still <---> chunks move
//!     ^                                     |
//!     +------------- release ---------------+   only if all of it is on the card and nothing moves
//! ```
//!
//! Chunks change places in this file alone, and begin to move in [`Owner::begin_out`] and
//! [`Owner::begin_in`] alone, which require `Still`: a tenant that runs cannot lose a chunk.

use std::collections::{BTreeMap, BTreeSet};

use turnstile_accounting::{Moment, Nanos};

use super::entitlement::Entitlement;
use turnstile_gpu::{ChunkId, Direction};

/// Where a chunk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// On the card.
    Resident,
    /// At the host, or nowhere yet because nothing was written to it.
    Swapped,
    /// On its way to the host; it takes up room at both ends.
    MovingOut,
    /// On its way to the card; as above.
    MovingIn,
}

/// Whether a tenant may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Run {
    /// It may, as far as memory goes.
    Running,
    /// It is to stop, and a command of it may still execute.
    Stopping,
    /// It executes nothing.
    Still,
}

#[derive(Clone, Copy, Debug)]
struct Chunk {
    bytes: u64,
    place: Place,
    /// It cannot move.
    pinned: bool,
    moved_at: Moment,
    /// The value of `stay` at which the host got a copy. The copy is clean while `stay` is the
    /// same: the owner has not run since.
    copy_of: Option<u64>,
}

/// Bytes by place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bytes {
    /// On the card.
    pub resident: u64,
    /// Not on the card.
    pub swapped: u64,
    /// On the way out.
    pub out: u64,
    /// On the way in.
    pub into: u64,
    /// Of the resident ones, those that cannot move.
    pub pinned: u64,
    /// On the card as well, in no chunk, and never to move.
    pub fixed: u64,
}

impl Bytes {
    /// All bytes in chunks.
    pub const fn all(&self) -> u64 {
        self.resident + self.swapped + self.out + self.into
    }

    /// What they take up on the card.
    pub const fn on_card(&self) -> u64 {
        self.resident + self.out + self.into + self.fixed
    }

    /// What they take up at the host, at most: swapped chunks that were never written to take
    /// nothing.
    pub(crate) const fn at_host(&self) -> u64 {
        self.swapped + self.out + self.into
    }

    fn at(&mut self, place: Place) -> &mut u64 {
        match place {
            Place::Resident => &mut self.resident,
            Place::Swapped => &mut self.swapped,
            Place::MovingOut => &mut self.out,
            Place::MovingIn => &mut self.into,
        }
    }
}

/// A tenant as the memory manager knows it.
#[derive(Debug)]
// FIELDS: facts of a tenant's memory that change at different times.
pub(super) struct Owner {
    pub(super) entitlement: Entitlement,
    chunks: BTreeMap<ChunkId, Chunk>,
    /// Those that are resident and can move, coldest first.
    cold: BTreeSet<(Moment, ChunkId)>,
    swapped: BTreeSet<ChunkId>,
    bytes: Bytes,
    run: Run,
    /// Counts how often the tenant was released.
    stay: u64,
    pub(super) last_ran: Moment,
    /// Whether it has something to execute, by the latest `MemoryManager::wants`.
    pub(super) wants: bool,
    pub(super) wanted_at: Moment,
    /// Engine time by weight; see `turns.rs`.
    pub(super) clock: u128,
    pub(super) swapped_out_bytes: u64,
    pub(super) swapped_in_bytes: u64,
    pub(super) caused_bytes: u64,
}

impl Owner {
    pub(super) fn new(entitlement: Entitlement, clock: u128) -> Self {
        Self {
            entitlement,
            chunks: BTreeMap::new(),
            cold: BTreeSet::new(),
            swapped: BTreeSet::new(),
            bytes: Bytes::default(),
            run: Run::Running,
            stay: 0,
            last_ran: Moment(0),
            wants: false,
            wanted_at: Moment(0),
            clock,
            swapped_out_bytes: 0,
            swapped_in_bytes: 0,
            caused_bytes: 0,
        }
    }

    pub(super) const fn bytes(&self) -> Bytes {
        self.bytes
    }

    pub(super) const fn run(&self) -> Run {
        self.run
    }

    pub(super) fn add(&mut self, now: Moment, id: ChunkId, bytes: u64, resident: bool) {
        let place = if resident {
            Place::Resident
        } else {
            Place::Swapped
        };
        let chunk = Chunk {
            bytes,
            place,
            pinned: false,
            moved_at: now,
            copy_of: None,
        };
        self.chunks.insert(id, chunk);
        *self.bytes.at(place) += bytes;
        self.index(id, chunk);
    }

    pub(super) fn forget(&mut self, id: ChunkId) {
        if let Some(chunk) = self.chunks.remove(&id) {
            self.unindex(id, chunk);
            *self.bytes.at(chunk.place) -= chunk.bytes;
            self.bytes.pinned -= u64::from(chunk.pinned) * chunk.bytes;
        }
    }

    fn index(&mut self, id: ChunkId, chunk: Chunk) {
        match chunk.place {
            Place::Resident if !chunk.pinned => {
                self.cold.insert((chunk.moved_at, id));
            }
            Place::Swapped => {
                self.swapped.insert(id);
            }
            _ => {}
        }
    }

    fn unindex(&mut self, id: ChunkId, chunk: Chunk) {
        self.cold.remove(&(chunk.moved_at, id));
        self.swapped.remove(&id);
    }

    fn put(&mut self, id: ChunkId, change: impl FnOnce(&mut Chunk)) {
        let Some(mut chunk) = self.chunks.get(&id).copied() else {
            return;
        };
        self.unindex(id, chunk);
        *self.bytes.at(chunk.place) -= chunk.bytes;
        change(&mut chunk);
        *self.bytes.at(chunk.place) += chunk.bytes;
        self.index(id, chunk);
        self.chunks.insert(id, chunk);
    }

    /// Pins or unpins a chunk that is on the card; false for one that is elsewhere.
    pub(super) fn pin(&mut self, id: ChunkId, pinned: bool) -> bool {
        let here = |chunk: &Chunk| chunk.place == Place::Resident && chunk.pinned != pinned;
        let Some(bytes) = self.chunks.get(&id).filter(|c| here(c)).map(|c| c.bytes) else {
            return false;
        };
        self.put(id, |chunk| chunk.pinned = pinned);
        if pinned {
            self.bytes.pinned += bytes;
        } else {
            self.bytes.pinned -= bytes;
        }
        true
    }

    /// All of it is on the card, and nothing moves.
    pub(super) const fn is_whole(&self) -> bool {
        self.bytes.swapped == 0 && self.is_settled()
    }

    const fn is_settled(&self) -> bool {
        self.bytes.out == 0 && self.bytes.into == 0
    }

    /// Has it stop; true if it was running.
    pub(super) fn hold(&mut self) -> bool {
        let runs = self.run == Run::Running;
        if runs {
            self.run = Run::Stopping;
        }
        runs
    }

    /// The GPU reports that nothing of it executes.
    pub(super) fn quiet(&mut self, now: Moment) {
        if self.run == Run::Stopping {
            self.run = Run::Still;
            self.last_ran = now;
        }
    }

    /// Permits it to run if its set is whole; true if it was held.
    pub(super) fn release(&mut self) -> bool {
        let can = self.run != Run::Running && self.is_whole();
        if can {
            self.run = Run::Running;
            self.stay += 1;
        }
        can
    }

    /// Sets the bytes that it has on the card beside its chunks.
    pub(super) const fn fix(&mut self, bytes: u64) {
        self.bytes.fixed = bytes;
    }

    /// The chunk that would be taken from it, and its bytes; `None` if the rest is pinned or its
    /// reserve.
    pub(super) fn coldest(&self) -> Option<(ChunkId, u64)> {
        let (_, id) = *self.cold.first()?;
        let bytes = self.chunks.get(&id)?.bytes;
        let left = self.bytes.resident.checked_sub(bytes)?;
        (left >= self.entitlement.min_bytes).then_some((id, bytes))
    }

    /// Begins to move the coldest chunk out, if it has at most `most` bytes.
    pub(super) fn begin_out(&mut self, most: u64) -> Option<(ChunkId, u64)> {
        if self.run != Run::Still {
            return None;
        }
        let (id, bytes) = self.coldest().filter(|(_, bytes)| *bytes <= most)?;
        self.put(id, |chunk| chunk.place = Place::MovingOut);
        Some((id, bytes))
    }

    /// Begins to move a swapped chunk in, if it has at most `most` bytes.
    pub(super) fn begin_in(&mut self, most: u64) -> Option<(ChunkId, u64)> {
        if self.run != Run::Still {
            return None;
        }
        let id = *self.swapped.first()?;
        let bytes = self.chunks.get(&id)?.bytes;
        if bytes > most {
            return None;
        }
        self.put(id, |chunk| chunk.place = Place::MovingIn);
        Some((id, bytes))
    }

    /// Whether the host has the content of a chunk.
    fn is_clean(&self, chunk: &Chunk) -> bool {
        self.run == Run::Still && chunk.copy_of == Some(self.stay)
    }

    /// Bytes that would be copied if `most` bytes of the coldest chunks were moved out.
    pub(super) fn dirty_bytes(&self, most: u64) -> u64 {
        let (mut left, mut dirty) = (most, 0);
        for (_, id) in &self.cold {
            let Some(chunk) = self.chunks.get(id).filter(|c| c.bytes <= left) else {
                break;
            };
            left -= chunk.bytes;
            dirty += chunk.bytes * u64::from(!self.is_clean(chunk));
        }
        dirty
    }

    /// A move of a chunk has ended, at its destination or back at its origin.
    pub(super) fn arrived(
        &mut self,
        now: Moment,
        id: ChunkId,
        direction: Direction,
        moved: bool,
        copied: bool,
    ) {
        let stay = self.stay;
        self.put(id, |chunk| {
            chunk.place = match (direction, moved) {
                (Direction::Out, true) | (Direction::In, false) => Place::Swapped,
                (Direction::In, true) | (Direction::Out, false) => Place::Resident,
            };
            if moved {
                chunk.moved_at = now;
                chunk.copy_of = (direction == Direction::In && copied).then_some(stay);
            }
        });
    }

    /// Advances its clock by engine time.
    pub(super) fn charge(&mut self, used: Nanos) {
        self.clock += weighed(used, self.entitlement.weight.get());
    }

    /// Sums and indices agree with the chunks.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let mut bytes = Bytes {
            fixed: self.bytes.fixed,
            ..Bytes::default()
        };
        for (id, chunk) in &self.chunks {
            *bytes.at(chunk.place) += chunk.bytes;
            bytes.pinned += u64::from(chunk.pinned) * chunk.bytes;
            let cold = chunk.place == Place::Resident && !chunk.pinned;
            assert_eq!(self.cold.contains(&(chunk.moved_at, *id)), cold);
            let swapped = chunk.place == Place::Swapped;
            assert_eq!(self.swapped.contains(id), swapped);
        }
        assert_eq!(bytes, self.bytes);
        assert!(self.cold.len() + self.swapped.len() <= self.chunks.len());
        assert!(self.run == Run::Still || self.is_settled(), "{self:?}");
    }
}

/// Engine time by weight, in 2^-20 ns for the default weight.
pub(super) fn weighed(used: Nanos, weight: u32) -> u128 {
    ((u128::from(used.0) * 100) << 20) / u128::from(weight.max(1))
}
