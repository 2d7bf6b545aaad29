//! Space of the guest RAM's file. Pure.

use std::collections::BTreeMap;

use turnstile_nvidia_guest::abi::numbers::PAGE_BYTES;
use turnstile_nvidia_guest::proto::Extent;

/// Pieces of this size and more begin at a multiple of it, as large pages do.
const LARGE_BYTES: u64 = 2 << 20;

/// The file's space: pieces that were handed out, and where the rest begins.
#[derive(Debug)]
pub(crate) struct Space {
    bytes: u64,
    end: u64,
    /// Free pieces before `end`: offset -> bytes.
    free: BTreeMap<u64, u64>,
    /// Pieces in use: offset -> bytes.
    used: BTreeMap<u64, u64>,
}

impl Space {
    pub(crate) const fn new(bytes: u64) -> Self {
        Self {
            bytes,
            end: 0,
            free: BTreeMap::new(),
            used: BTreeMap::new(),
        }
    }

    /// A piece of whole pages; `None` if there is no room.
    pub(crate) fn take(&mut self, bytes: u64) -> Option<Extent> {
        let align = if bytes >= LARGE_BYTES {
            LARGE_BYTES
        } else {
            PAGE_BYTES
        };
        let bytes = bytes.checked_next_multiple_of(align)?.max(PAGE_BYTES);
        let fits = |(begin, length): (&u64, &u64)| {
            let offset = begin.next_multiple_of(align);
            (offset + bytes <= begin + length).then_some((*begin, *length, offset))
        };
        let offset = match self.free.iter().find_map(fits) {
            Some((begin, length, offset)) => {
                self.free.remove(&begin);
                let (end, taken) = (begin + length, offset + bytes);
                self.free
                    .extend([(begin, offset - begin), (taken, end - taken)]);
                self.free.retain(|_, bytes| *bytes != 0);
                offset
            }
            None => {
                let offset = self.end.next_multiple_of(align);
                let end = offset.checked_add(bytes).filter(|end| *end <= self.bytes)?;
                if offset > self.end {
                    self.free.insert(self.end, offset - self.end);
                }
                self.end = end;
                offset
            }
        };
        self.used.insert(offset, bytes);
        Some(Extent { offset, bytes })
    }

    /// Frees all pieces that overlap none of the extents, and returns them.
    pub(crate) fn collect(&mut self, live: &[Extent]) -> Vec<Extent> {
        let overlaps = |offset: u64, bytes: u64| {
            live.iter()
                .any(|live| live.offset < offset + bytes && offset < live.offset + live.bytes)
        };
        let dead = self
            .used
            .iter()
            .filter(|(offset, bytes)| !overlaps(**offset, **bytes));
        let dead: Vec<Extent> = dead
            .map(|(offset, bytes)| Extent {
                offset: *offset,
                bytes: *bytes,
            })
            .collect();
        for piece in &dead {
            self.used.remove(&piece.offset);
            self.free.insert(piece.offset, piece.bytes);
        }
        // Neighbours become one.
        let pieces = std::mem::take(&mut self.free);
        for (offset, bytes) in pieces {
            match self.free.last_entry() {
                Some(mut last) if last.key() + last.get() == offset => *last.get_mut() += bytes,
                _ => {
                    self.free.insert(offset, bytes);
                }
            }
        }
        dead
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_do_not_overlap_and_are_used_again() {
        let mut space = Space::new(64 << 20);
        let small = space.take(100).unwrap();
        let large = space.take(3 << 20).unwrap();
        assert_eq!(
            (small.bytes, large.offset, large.bytes),
            (4096, 2 << 20, 4 << 20)
        );
        let next = space.take(4096).unwrap();
        assert!(next.offset >= 4096 && next.offset < 2 << 20);
        let dead = space.collect(&[small, next]);
        assert_eq!(dead, [large]);
        assert_eq!(space.take(4 << 20).unwrap(), large);
        assert!(space.take(64 << 20).is_none());
    }

    #[test]
    fn full_space_has_room_once_nothing_is_live() {
        let mut space = Space::new(8 << 20);
        while space.take(2 << 20).is_some() {}
        assert_eq!(space.collect(&[]).len(), 4);
        assert_eq!(space.take(8 << 20).unwrap().offset, 0);
    }
}
