//! Chunks of a VM's movable memory: where each is, and where it is mapped. Pure.
//!
//! ```text
//!   Requested --memory came--> Held --imported--> Here <--restored-- Away
//!                            |                  |                  ^
//!                            +-----released-----+--- released -----+
//! ```
//!
//! A chunk is the memory of one object of the driver, by client and handle. In: what the program's
//! calls, the daemon's messages and the driver's answers change. Out: what to do next.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use turnstile_preload_wire::{CHUNKS_MAX, ChunkNumber};

use crate::abi::MapCall;

/// Client and handle of an object.
pub(super) type Key = (u32, u32);

/// Where a chunk's memory is.
#[derive(Debug)]
pub(super) enum State {
    /// Requested of the daemon.
    Requested,
    /// On the GPU, named by this descriptor; the driver has no object of it yet.
    Held(OwnedFd),
    /// On the GPU, with its object and its mappings.
    Here,
    /// At the host: the object's handle is free, and nothing is mapped.
    Away,
}

/// A mapping by UVM_MAP_EXTERNAL_ALLOCATION.
#[derive(Clone, Debug)]
pub(super) struct Mapping {
    /// The file of unified memory.
    pub(super) file: u32,
    /// The call, as the program made it.
    pub(super) call: MapCall,
}

/// Ranges of unified memory that are recorded, and mappings of one chunk. Memory beyond them does
/// not move.
const RANGES_MAX: usize = 1 << 16;
const MAPPINGS_MAX: usize = 16;

/// A chunk.
#[derive(Debug)]
pub(super) struct Chunk {
    pub(super) number: ChunkNumber,
    /// The object above its own.
    pub(super) parent: u32,
    /// The control file of its client.
    pub(super) file: u32,
    pub(super) bytes: u64,
    pub(super) state: State,
    pub(super) mappings: Vec<Mapping>,
}

/// What is to be done with memory that came.
#[derive(Debug)]
pub(super) enum Came {
    /// Nothing more: a call waits for it.
    Kept,
    /// It is to be mapped where it was.
    Returned(Key, OwnedFd),
    /// There is no such chunk, or it is here.
    Unknown,
}

/// What a call finds that has requested a chunk.
#[derive(Debug)]
pub(super) enum Found {
    /// Its memory, to be imported.
    Memory(OwnedFd),
    /// It is here: it was released, and came back.
    Here,
    /// It was released before it was imported, or has not come yet.
    Away,
    /// It was refused, or the daemon is gone.
    Gone,
}

/// The chunks of a VM.
#[derive(Debug, Default)]
pub(super) struct Table {
    last: ChunkNumber,
    chunks: BTreeMap<Key, Chunk>,
    numbers: BTreeMap<ChunkNumber, Key>,
    /// Bytes of each range of unified memory, by file and first address.
    ranges: BTreeMap<(u32, u64), u64>,
    away: usize,
    bytes: u64,
}

impl Table {
    /// Whether memory of the VM is at the host.
    pub(super) const fn is_away(&self) -> bool {
        self.away > 0
    }

    /// Bytes of all chunks, wherever they are.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether a chunk that was requested has no answer yet.
    pub(super) fn waits(&self, key: Key, number: ChunkNumber) -> bool {
        let chunk = self.chunks.get(&key);
        chunk.is_some_and(|chunk| chunk.number == number && matches!(chunk.state, State::Requested))
    }

    /// Adds a chunk that is requested. `None` if the object has one, or there are too many.
    pub(super) fn request(
        &mut self,
        key: Key,
        parent: u32,
        file: u32,
        bytes: u64,
    ) -> Option<ChunkNumber> {
        if self.chunks.contains_key(&key) || self.chunks.len() >= CHUNKS_MAX {
            return None;
        }
        self.last += 1;
        let number = self.last;
        let chunk = Chunk {
            number,
            parent,
            file,
            bytes,
            state: State::Requested,
            mappings: Vec::new(),
        };
        self.chunks.insert(key, chunk);
        self.numbers.insert(number, key);
        self.bytes += bytes;
        Some(number)
    }

    fn by_number(&mut self, number: ChunkNumber) -> Option<(Key, &mut Chunk)> {
        let key = *self.numbers.get(&number)?;
        Some((key, self.chunks.get_mut(&key)?))
    }

    pub(super) fn get(&self, key: Key) -> Option<&Chunk> {
        self.chunks.get(&key)
    }

    /// Memory of a chunk came from the daemon.
    pub(super) fn came(&mut self, number: ChunkNumber, memory: OwnedFd) -> Came {
        match self.by_number(number) {
            Some((_, chunk)) if matches!(chunk.state, State::Requested) => {
                chunk.state = State::Held(memory);
                Came::Kept
            }
            Some((key, chunk)) if matches!(chunk.state, State::Away) => Came::Returned(key, memory),
            _ => Came::Unknown,
        }
    }

    /// What a call finds that requested this chunk. Memory that it takes counts as here: the caller
    /// imports it at once, or removes the chunk.
    pub(super) fn find(&mut self, key: Key, number: ChunkNumber) -> Found {
        let Some(chunk) = self.chunks.get_mut(&key) else {
            return Found::Gone;
        };
        if chunk.number != number {
            return Found::Gone;
        }
        match std::mem::replace(&mut chunk.state, State::Here) {
            State::Held(memory) => Found::Memory(memory),
            State::Here => Found::Here,
            other => {
                chunk.state = other;
                Found::Away
            }
        }
    }

    /// Whether there is such a chunk.
    pub(super) fn knows(&self, number: ChunkNumber) -> bool {
        self.numbers.contains_key(&number)
    }

    /// The chunk that is to be released, if it can be. Memory without an object leaves at once.
    pub(super) fn leaving(&mut self, number: ChunkNumber) -> Option<(Key, bool)> {
        let (key, chunk) = self.by_number(number)?;
        match chunk.state {
            State::Here => Some((key, true)),
            State::Held(_) => Some((key, false)),
            State::Requested | State::Away => None,
        }
    }

    /// A chunk has left the GPU.
    pub(super) fn left(&mut self, key: Key) {
        if let Some(chunk) = self.chunks.get_mut(&key)
            && !matches!(chunk.state, State::Away)
        {
            chunk.state = State::Away;
            self.away += 1;
        }
    }

    /// A chunk is mapped where it was.
    pub(super) fn returned(&mut self, key: Key) {
        if let Some(chunk) = self.chunks.get_mut(&key)
            && matches!(chunk.state, State::Away)
        {
            chunk.state = State::Here;
            self.away -= 1;
        }
    }

    /// Removes a chunk; returns its number if it had one.
    pub(super) fn remove(&mut self, key: Key) -> Option<ChunkNumber> {
        let chunk = self.chunks.remove(&key)?;
        self.numbers.remove(&chunk.number);
        self.away -= usize::from(matches!(chunk.state, State::Away));
        self.bytes -= chunk.bytes;
        Some(chunk.number)
    }

    /// Removes a chunk that the daemon refused.
    pub(super) fn denied(&mut self, number: ChunkNumber) {
        if let Some(key) = self.numbers.get(&number).copied() {
            self.remove(key);
        }
    }

    /// The daemon is gone: chunks that are here move no more. Returns whether memory is lost.
    pub(super) fn orphaned(&mut self) -> bool {
        let lost = self.is_away();
        self.chunks.clear();
        self.numbers.clear();
        (self.away, self.bytes) = (0, 0);
        lost
    }

    /// A range of unified memory was made.
    pub(super) fn range_made(&mut self, file: u32, base: u64, bytes: u64) {
        if self.ranges.len() < RANGES_MAX {
            self.ranges.insert((file, base), bytes);
        }
    }

    /// Whether a mapping is in a range that is recorded: its end would be seen.
    fn is_in_range(&self, Mapping { file, call }: &Mapping) -> bool {
        let mut before = self.ranges.range((*file, 0)..=(*file, call.base));
        let end = call.base.checked_add(call.bytes);
        before.next_back().is_some_and(|((_, base), bytes)| {
            end.is_some_and(|end| end <= base.saturating_add(*bytes))
        })
    }

    /// A range of unified memory is gone, with the mappings in it.
    pub(super) fn range_gone(&mut self, file: u32, base: u64) {
        if let Some(bytes) = self.ranges.remove(&(file, base)) {
            self.unmapped(file, base, bytes);
        }
    }

    /// Addresses have no mapping any more. A mapping that is not whole within them is cut by the
    /// driver as well: its chunk is returned, which cannot move then.
    pub(super) fn unmapped(&mut self, file: u32, base: u64, bytes: u64) -> Vec<Key> {
        let end = base.saturating_add(bytes);
        let mut cut = Vec::new();
        for (key, chunk) in &mut self.chunks {
            let mut is_cut = false;
            chunk.mappings.retain(|one| {
                let (from, to) = (one.call.base, one.call.base.saturating_add(one.call.bytes));
                let apart = one.file != file || to <= base || end <= from;
                is_cut |= !apart && (from < base || to > end);
                apart
            });
            if is_cut {
                cut.push(*key);
            }
        }
        cut
    }

    /// Memory was mapped. Returns chunks that cannot move then: a mapping of theirs was cut, or
    /// this one cannot be recorded.
    pub(super) fn mapped(&mut self, mapping: Mapping) -> Vec<Key> {
        let key = (mapping.call.client, mapping.call.memory);
        let mut pinned = self.unmapped(mapping.file, mapping.call.base, mapping.call.bytes);
        let in_range = self.is_in_range(&mapping);
        if let Some(chunk) = self.chunks.get_mut(&key) {
            if in_range && chunk.mappings.len() < MAPPINGS_MAX {
                chunk.mappings.push(mapping);
            } else {
                pinned.push(key);
            }
        }
        pinned
    }

    /// A file is closed.
    pub(super) fn closed(&mut self, file: u32) {
        self.ranges.retain(|(owner, _), _| *owner != file);
        for chunk in self.chunks.values_mut() {
            chunk.mappings.retain(|mapping| mapping.file != file);
        }
    }

    /// Chunks of a client that these words name.
    pub(super) fn named(&self, client: u32, words: &[u8]) -> Vec<Key> {
        let (words, _) = words.as_chunks::<4>();
        let handles = words.iter().map(|word| u32::from_ne_bytes(*word));
        let keys = handles.map(|handle| (client, handle));
        keys.filter(|key| self.chunks.contains_key(key)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn memory() -> OwnedFd {
        rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap()
    }

    fn mapping(memory: u32, base: u64, bytes: u64) -> Mapping {
        let call = MapCall {
            base,
            bytes,
            offset: 0,
            attributes: Vec::new(),
            control: 2,
            client: 1,
            memory,
        };
        Mapping { file: 1, call }
    }

    #[test]
    fn memory_that_is_released_before_it_is_imported_comes_back_to_the_mover() {
        let mut table = Table::default();
        let number = table.request((1, 2), 3, 4, 5).unwrap();
        assert!(table.waits((1, 2), number));
        assert!(table.leaving(number).is_none(), "nothing to release yet");
        assert!(matches!(table.came(number, memory()), Came::Kept));
        assert!(!table.waits((1, 2), number));
        assert_eq!(table.leaving(number), Some(((1, 2), false)));
        table.left((1, 2));
        assert!(matches!(table.find((1, 2), number), Found::Away));
        assert!(matches!(
            table.came(number, memory()),
            Came::Returned((1, 2), _)
        ));
        table.returned((1, 2));
        assert!(matches!(table.find((1, 2), number), Found::Here) && !table.is_away());
    }

    #[test]
    fn mapping_that_is_cut_pins_its_chunk_and_a_whole_one_goes() {
        let mut table = Table::default();
        for handle in [2, 3] {
            let number = table.request((1, handle), 0, 0, 5).unwrap();
            table.came(number, memory());
            table.find((1, handle), number);
        }
        table.range_made(1, 100, 200);
        assert!(table.mapped(mapping(2, 100, 50)).is_empty());
        assert_eq!(table.mapped(mapping(3, 120, 50)), [(1, 2)]);
        assert!(table.get((1, 2)).unwrap().mappings.is_empty());
        table.range_gone(1, 100);
        assert!(table.get((1, 3)).unwrap().mappings.is_empty());
    }

    #[test]
    fn mapping_that_cannot_be_recorded_pins_its_chunk() {
        let mut table = Table::default();
        let number = table.request((1, 2), 0, 0, 5).unwrap();
        table.came(number, memory());
        table.find((1, 2), number);
        assert_eq!(table.mapped(mapping(2, 100, 50)), [(1, 2)], "in no range");
        table.range_made(1, 0, 4096);
        for nth in 0..MAPPINGS_MAX as u64 {
            assert!(table.mapped(mapping(2, 10 * nth, 10)).is_empty());
        }
        assert_eq!(table.mapped(mapping(2, 4000, 10)), [(1, 2)], "one too many");
        assert_eq!(
            table.mapped(mapping(2, 4090, 10)),
            [(1, 2)],
            "beyond its range"
        );
        for base in 0..2 * RANGES_MAX as u64 {
            table.range_made(1, 4096 * (base + 1), 4096);
        }
        assert_eq!(table.ranges.len(), RANGES_MAX);
    }

    #[test]
    fn chunks_are_found_by_the_words_that_name_them() {
        let mut table = Table::default();
        table.request((7, 0x5c00_0010), 0, 0, 5).unwrap();
        let words: Vec<u8> = [1_u32, 0x5c00_0010, 9]
            .iter()
            .flat_map(|word| word.to_ne_bytes())
            .collect();
        assert_eq!(table.named(7, &words), [(7, 0x5c00_0010)]);
        assert!(table.named(8, &words).is_empty());
    }

    proptest! {
        /// Any order of events: memory is away only by `left`, and the count is what is there.
        #[test]
        fn count_of_what_is_away_is_kept(
            moves in prop::collection::vec((0_u32..4, 0_u8..7), 0..200),
        ) {
            let mut table = Table::default();
            for (handle, kind) in moves {
                let key = (1, handle);
                let number = table.get(key).map_or(0, |chunk| chunk.number);
                match kind {
                    0 => drop(table.request(key, 0, 0, 1)),
                    1 => {
                        if let Came::Returned(key, _) = table.came(number, memory()) {
                            table.returned(key);
                        }
                    }
                    2 => drop(table.find(key, number)),
                    3 | 4 => {
                        if let Some((key, _)) = table.leaving(number) {
                            table.left(key);
                        }
                    }
                    5 => drop(table.remove(key)),
                    _ => table.denied(number),
                }
                let away = table.chunks.values().filter(|chunk| matches!(chunk.state, State::Away));
                prop_assert_eq!(away.count(), table.away);
                prop_assert_eq!(table.numbers.len(), table.chunks.len());
                prop_assert_eq!(table.bytes() as usize, table.chunks.len());
            }
            let lost = table.is_away();
            prop_assert_eq!(table.orphaned(), lost);
            prop_assert!(!table.is_away() && table.bytes() == 0);
        }
    }
}
