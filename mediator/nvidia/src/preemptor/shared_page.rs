//! The shared page: words of the daemon, the preemptor and its kernel, by which none of them waits
//! for another.

use std::fs::File;
use std::io;

use turnstile_host::memory_file::SharedWords;

/// The occupancy that is requested. Written by the daemon.
pub(super) const REQUESTED: u64 = 0;
/// The current or last occupancy. Written by the kernel: an allegation, which is used for a
/// statistic alone.
pub(super) const RESIDENT: u64 = 256;
/// The last occupancy that is over. Written by the daemon, or by the preemptor when the daemon is
/// gone.
pub(super) const LEFT: u64 = 512;
/// Length of a page.
pub(super) const BYTES: usize = 4096;

/// The shared page.
#[derive(Debug)]
pub(super) struct SharedPage(SharedWords);

impl SharedPage {
    /// A page of zeroes.
    pub(super) fn new() -> io::Result<Self> {
        SharedWords::new("turnstile-preemptor", BYTES).map(Self)
    }

    /// The page that the other side made.
    pub(super) fn of(file: File) -> io::Result<Self> {
        SharedWords::of(file, BYTES).map(Self)
    }

    /// The memory file of the page.
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
        let mine = SharedPage::new().unwrap();
        let theirs = SharedPage::of(mine.file().try_clone().unwrap()).unwrap();
        mine.store(REQUESTED, 1);
        mine.store(LEFT, 2);
        theirs.store(RESIDENT, 3);
        let all = |page: &SharedPage| [REQUESTED, RESIDENT, LEFT].map(|word| page.load(word));
        assert_eq!((all(&mine), all(&theirs)), ([1, 3, 2], [1, 3, 2]));
    }
}
