//! The VM's memory as its VMM maps it for the device.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt;

use super::{DMA_MAPS_MAX, DmaMap, DmaUnmap, Errno};
use crate::wire::Region;

/// Mappings with memory behind them, as many as the daemon takes of one VM.
const MEMORY_MAX: usize = 128;
/// Most regions in a Hello. Further ones are sent one by one.
const HELLO_REGIONS_MAX: usize = 16;

/// A piece, and its file if the device can use it. Read-only pieces (ROMs) and those without a file
/// (BARs of other devices) are not memory of the device.
#[derive(Debug)]
struct Piece {
    bytes: u64,
    memory: Option<(File, u64)>,
}

/// All pieces, by address.
#[derive(Debug, Default)]
pub struct Maps {
    pieces: BTreeMap<u64, Piece>,
}

/// A piece with memory behind it.
#[derive(Debug)]
pub struct Memory<'a> {
    /// Its place.
    pub region: Region,
    /// Its file.
    pub file: &'a File,
}

impl Maps {
    /// Takes a mapping; returns it if there is memory behind it.
    ///
    /// # Errors
    /// If it overlaps another, or there are too many.
    pub fn add(&mut self, map: DmaMap) -> Result<Option<Memory<'_>>, Errno> {
        let end = map.address + map.bytes;
        let before = self.pieces.range(..end).next_back();
        if before.is_some_and(|(at, piece)| at + piece.bytes > map.address) {
            return Err(Errno::EXISTS);
        }
        let memory = match map.file {
            Some(file) if map.readable && map.writable => Some((file, map.offset)),
            _ => None,
        };
        let with_memory = self.pieces.values().filter(|p| p.memory.is_some()).count();
        if self.pieces.len() >= DMA_MAPS_MAX || memory.is_some() && with_memory >= MEMORY_MAX {
            return Err(Errno::NO_ROOM);
        }
        let piece = Piece {
            bytes: map.bytes,
            memory,
        };
        self.pieces.insert(map.address, piece);
        Ok(self.memory().find(|m| m.region.gpa == map.address))
    }

    /// The device does not use the memory at this address, until it is mapped anew.
    pub fn refused(&mut self, address: u64) {
        if let Some(piece) = self.pieces.get_mut(&address) {
            piece.memory = None;
        }
    }

    /// Removes the pieces in a range, which must not cut one; returns those that had memory.
    ///
    /// # Errors
    /// If the range cuts a piece.
    pub fn remove(&mut self, unmap: DmaUnmap) -> Result<Vec<Region>, Errno> {
        let (address, end) = match unmap {
            DmaUnmap::All => (0, u64::MAX),
            DmaUnmap::Range { address, bytes } => (address, address + bytes),
        };
        let starts: Vec<u64> = self.pieces.range(address..end).map(|(at, _)| *at).collect();
        let before = self.pieces.range(..address).next_back();
        let cut = before.is_some_and(|(at, piece)| at + piece.bytes > address)
            || starts
                .last()
                .is_some_and(|at| at + self.pieces[at].bytes > end);
        if cut {
            return Err(Errno::INVALID);
        }
        let gone = starts.iter().filter_map(|at| {
            let piece = self.pieces.remove(at)?;
            let (_, file_offset) = piece.memory?;
            Some(Region {
                gpa: *at,
                bytes: piece.bytes,
                file_offset,
            })
        });
        Ok(gone.collect())
    }

    /// All memory.
    pub fn memory(&self) -> impl Iterator<Item = Memory<'_>> {
        self.pieces.iter().filter_map(|(at, piece)| {
            let (file, file_offset) = piece.memory.as_ref()?;
            let region = Region {
                gpa: *at,
                bytes: piece.bytes,
                file_offset: *file_offset,
            };
            Some(Memory { region, file })
        })
    }

    /// The one file that all memory is in, if so and if a Hello takes it.
    pub(crate) fn one_file(&self) -> Option<&File> {
        let identity = |file: &File| file.metadata().ok().map(|m| (m.dev(), m.ino()));
        let first = self.memory().next()?.file;
        let known = identity(first)?;
        let same = self.memory().all(|m| identity(m.file) == Some(known));
        (same && self.memory().count() <= HELLO_REGIONS_MAX).then_some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::fd::sealed_memory;

    fn map(address: u64, bytes: u64, file: Option<File>) -> DmaMap {
        DmaMap {
            address,
            bytes,
            offset: 0x1000,
            readable: true,
            writable: true,
            file,
        }
    }

    #[test]
    fn pieces_do_not_overlap_and_are_not_cut() {
        let file = || Some(sealed_memory(c"test", 0x8000).unwrap());
        let mut maps = Maps::default();
        assert!(maps.add(map(0x2000, 0x2000, file())).unwrap().is_some());
        for (address, bytes) in [(0x1000, 0x2000), (0x3000, 0x1000), (0, 0x8000)] {
            assert_eq!(
                maps.add(map(address, bytes, None)).unwrap_err(),
                Errno::EXISTS
            );
        }
        assert!(maps.add(map(0x4000, 0x1000, None)).unwrap().is_none());
        let readonly = DmaMap {
            writable: false,
            ..map(0x5000, 0x1000, file())
        };
        assert!(maps.add(readonly).unwrap().is_none());
        let range = |address, bytes| DmaUnmap::Range { address, bytes };
        assert_eq!(maps.remove(range(0x3000, 0x1000)), Err(Errno::INVALID));
        assert_eq!(maps.remove(range(0x1000, 0x2000)), Err(Errno::INVALID));
        assert_eq!(maps.remove(range(0x4000, 0x2000)), Ok(Vec::new()));
        let gone = maps.remove(range(0, 0x10_0000)).unwrap();
        assert_eq!((gone.len(), gone[0].gpa), (1, 0x2000));
        assert_eq!(maps.memory().count(), 0);
        assert_eq!(maps.remove(DmaUnmap::All), Ok(Vec::new()));
    }

    #[test]
    fn one_file_is_recognized_and_pieces_are_bounded() {
        let file = sealed_memory(c"test", 0x8000).unwrap();
        let mut maps = Maps::default();
        assert!(maps.one_file().is_none());
        for at in 0..2 {
            let copy = Some(file.try_clone().unwrap());
            maps.add(map(at * 0x10_0000, 0x1000, copy)).unwrap();
        }
        assert!(maps.one_file().is_some());
        let other = Some(sealed_memory(c"test", 0x8000).unwrap());
        maps.add(map(0x50_0000, 0x1000, other)).unwrap();
        assert!(maps.one_file().is_none());
        for at in 3..MEMORY_MAX as u64 {
            let copy = Some(file.try_clone().unwrap());
            maps.add(map(at * 0x100_0000, 0x1000, copy)).unwrap();
        }
        let copy = Some(file.try_clone().unwrap());
        let refused = maps.add(map(!0xffff, 0x1000, copy));
        assert_eq!(refused.unwrap_err(), Errno::NO_ROOM);
        assert!(maps.add(map(!0xffff, 0x1000, None)).unwrap().is_none());
    }
}
