//! Words that daemon, usher and the usher's kernel share, so that none waits for another.

use std::fs::File;
use std::io;

use turnstile_host::memory_file::SharedWords;

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
pub(super) struct Board(SharedWords);

impl Board {
    /// A board of zeroes.
    pub(super) fn new() -> io::Result<Self> {
        SharedWords::new("turnstile-usher", BYTES).map(Self)
    }

    /// The other's board.
    pub(super) fn of(file: File) -> io::Result<Self> {
        SharedWords::of(file, BYTES).map(Self)
    }

    /// The memory file behind it.
    pub(super) fn file(&self) -> &File {
        self.0.file()
    }

    pub(super) fn load(&self, word: u64) -> u64 {
        // CAST: within a page.
        self.0.load(word as usize)
    }

    pub(super) fn store(&self, word: u64, value: u64) {
        // CAST: within a page.
        self.0.store(word as usize, value);
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
