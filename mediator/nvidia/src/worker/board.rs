//! Page of words that daemon and worker share, so that neither waits for the other.

use std::fs::File;
use std::io;

use turnstile_abi::CHANNELS_MAX;

use turnstile_host::memory_file::SharedWords;

/// Written by the daemon: the tenant is suspended, so time does not count against its commands.
const SUSPENDED: usize = 0;
/// Written by the daemon: some gate is open, so doorbells are polled.
const UNWATCHED: usize = 4;
/// Written by the daemon: GPU clock minus wall clock, in nanoseconds, modulo 2^64.
const CLOCK: usize = 8;
/// First of the channels' entries. The worker writes them; the daemon does once the worker is gone.
const CHANNELS: usize = 64;
const ENTRY_BYTES: usize = 16;
const GET: usize = 0;
const STATUS: usize = 4;
const LAST_ACTIVE: usize = 8;
const BYTES: usize = CHANNELS + CHANNELS_MAX as usize * ENTRY_BYTES;

/// State of a channel in its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Standing {
    /// Not open.
    None = 0,
    /// Open.
    Open = 1,
    /// Ended by an error that was reported.
    Faulted = 2,
}

/// The shared page. Each side checks what the other has written.
#[derive(Debug)]
pub(super) struct Board(SharedWords);

impl Board {
    /// A page of zeroes.
    pub(super) fn new() -> io::Result<Self> {
        SharedWords::new("turnstile-board", BYTES).map(Self)
    }

    /// The page of the other side, from its memory file.
    pub(super) fn of(file: File) -> io::Result<Self> {
        SharedWords::of(file, BYTES).map(Self)
    }

    /// The memory file of the page.
    pub(super) fn file(&self) -> &File {
        self.0.file()
    }

    fn entry(channel: u32) -> Option<usize> {
        (channel < CHANNELS_MAX).then_some(CHANNELS + channel as usize * ENTRY_BYTES)
    }

    pub(super) fn set_suspended(&self, suspended: bool) {
        self.0.store(SUSPENDED, u32::from(suspended));
    }

    pub(super) fn suspended(&self) -> bool {
        self.0.load::<u32>(SUSPENDED) != 0
    }

    pub(super) fn set_unwatched(&self, unwatched: bool) {
        self.0.store(UNWATCHED, u32::from(unwatched));
    }

    pub(super) fn unwatched(&self) -> bool {
        self.0.load::<u32>(UNWATCHED) != 0
    }

    pub(super) fn set_clock_ahead(&self, ahead_ns: u64) {
        self.0.store(CLOCK, ahead_ns);
    }

    pub(super) fn clock_ahead(&self) -> u64 {
        self.0.load(CLOCK)
    }

    /// Writes a channel's progress.
    pub(super) fn note(&self, channel: u32, get: u32, standing: Standing, last_active_ns: u64) {
        let Some(at) = Self::entry(channel) else {
            return;
        };
        self.0.store(at + GET, get);
        self.0.store(at + LAST_ACTIVE, last_active_ns);
        self.0.store(at + STATUS, standing as u32);
    }

    /// A channel's progress: commands finished, state, and time of its last activity.
    pub(super) fn read(&self, channel: u32) -> (u32, Standing, u64) {
        let Some(at) = Self::entry(channel) else {
            return (0, Standing::None, 0);
        };
        let standing = match self.0.load::<u32>(at + STATUS) {
            1 => Standing::Open,
            2 => Standing::Faulted,
            _ => Standing::None,
        };
        (
            self.0.load(at + GET),
            standing,
            self.0.load(at + LAST_ACTIVE),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_see_the_same_words() {
        let mine = Board::new().unwrap();
        let theirs = Board::of(mine.file().try_clone().unwrap()).unwrap();
        mine.set_suspended(true);
        mine.set_clock_ahead(5u64.wrapping_neg());
        assert_eq!(theirs.clock_ahead().wrapping_add(7), 2);
        theirs.note(CHANNELS_MAX - 1, 7, Standing::Faulted, 9);
        theirs.note(CHANNELS_MAX, 7, Standing::Open, 9);
        assert!(theirs.suspended() && !theirs.unwatched());
        assert_eq!(mine.read(CHANNELS_MAX - 1), (7, Standing::Faulted, 9));
        assert_eq!(mine.read(0), (0, Standing::None, 0));
        assert_eq!(mine.read(u32::MAX), (0, Standing::None, 0));
    }
}
