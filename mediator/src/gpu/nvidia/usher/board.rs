//! Words that daemon, usher and the usher's kernel share, so that none waits for another.

use std::fs::File;
use std::io;
use std::sync::atomic::Ordering;

use vm_memory::{Bytes, FileOffset, MmapRegion, VolatileMemory};

use crate::memory_file::memory_file;

/// Which visit is asked for. Written by the daemon.
pub(super) const ASKED: u64 = 0;
/// Which visit is there, or was last. Written by the kernel: an allegation, and no more than a figure rests on it.
pub(super) const HERE: u64 = 256;
/// Which visit is over. Written by the daemon, and by the usher when the daemon is gone.
pub(super) const LEFT: u64 = 512;
/// A page.
pub(super) const BYTES: usize = 4096;

/// The words.
#[derive(Debug)]
pub(super) struct Board {
    file: File,
    region: MmapRegion,
}

impl Board {
    /// A board of zeroes.
    pub(super) fn new() -> io::Result<Self> {
        Self::of(memory_file("turnstile-usher", BYTES as u64)?)
    }

    /// The other's board.
    pub(super) fn of(file: File) -> io::Result<Self> {
        let offset = FileOffset::new(file.try_clone()?, 0);
        let region = MmapRegion::from_file(offset, BYTES).map_err(io::Error::other)?;
        Ok(Self { file, region })
    }

    /// The memory file behind it.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    // Loads and stores cannot fail: the words are within the board, and aligned.
    pub(super) fn load(&self, word: u64) -> u64 {
        let slice = self.region.as_volatile_slice();
        // CAST: within a page.
        slice.load(word as usize, Ordering::Acquire).unwrap_or(0)
    }

    pub(super) fn store(&self, word: u64, value: u64) {
        let slice = self.region.as_volatile_slice();
        // CAST: within a page.
        let _ = slice.store(value, word as usize, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_see_the_same_words() {
        let mine = Board::new().unwrap();
        let theirs = Board::of(mine.file().try_clone().unwrap()).unwrap();
        mine.store(ASKED, 1);
        mine.store(LEFT, 2);
        theirs.store(HERE, 3);
        let all = |board: &Board| [ASKED, HERE, LEFT].map(|word| board.load(word));
        assert_eq!((all(&mine), all(&theirs)), ([1, 3, 2], [1, 3, 2]));
    }
}
