//! Words that daemon and worker share, so that neither waits for the other.

use std::fs::File;
use std::io;
use std::sync::atomic::Ordering;

use turnstile_abi::CHANNELS_MAX;
use vm_memory::{Bytes, FileOffset, MmapRegion, VolatileMemory};

use crate::memory_file::memory_file;

/// Written by the daemon: the tenant is held back, so that time is not counted against its commands.
const SUSPENDED: usize = 0;
/// Written by the daemon: some gate is open.
const UNWATCHED: usize = 4;
/// Written by the daemon: how far the GPU's clock is ahead of the wall clock, in nanoseconds, modulo 2^64.
const CLOCK: usize = 8;
/// First of the channels' entries, which the worker writes (the daemon, once the worker is gone).
const CHANNELS: usize = 64;
const ENTRY_BYTES: usize = 16;
const GET: usize = 0;
const STATUS: usize = 4;
const LAST_ACTIVE: usize = 8;
const BYTES: usize = CHANNELS + CHANNELS_MAX as usize * ENTRY_BYTES;

/// What a channel's entry says of it.
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

/// The words. Whoever reads them takes them as an allegation of the other.
#[derive(Debug)]
pub(super) struct Board {
    file: File,
    region: MmapRegion,
}

impl Board {
    /// A board of zeroes.
    pub(super) fn new() -> io::Result<Self> {
        Self::of(memory_file("turnstile-board", BYTES as u64)?)
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

    // Loads and stores cannot fail: the offsets are within the board, and aligned to their size.
    fn load(&self, at: usize) -> u32 {
        let slice = self.region.as_volatile_slice();
        slice.load(at, Ordering::Acquire).unwrap_or(0)
    }

    fn store(&self, at: usize, value: u32) {
        let _ = self
            .region
            .as_volatile_slice()
            .store(value, at, Ordering::Release);
    }

    fn entry(channel: u32) -> Option<usize> {
        (channel < CHANNELS_MAX).then_some(CHANNELS + channel as usize * ENTRY_BYTES)
    }

    pub(super) fn set_suspended(&self, suspended: bool) {
        self.store(SUSPENDED, suspended.into());
    }

    pub(super) fn suspended(&self) -> bool {
        self.load(SUSPENDED) != 0
    }

    pub(super) fn set_unwatched(&self, unwatched: bool) {
        self.store(UNWATCHED, unwatched.into());
    }

    pub(super) fn unwatched(&self) -> bool {
        self.load(UNWATCHED) != 0
    }

    pub(super) fn set_clock_ahead(&self, ahead_ns: u64) {
        let slice = self.region.as_volatile_slice();
        let _ = slice.store(ahead_ns, CLOCK, Ordering::Release);
    }

    pub(super) fn clock_ahead(&self) -> u64 {
        let slice = self.region.as_volatile_slice();
        slice.load(CLOCK, Ordering::Acquire).unwrap_or(0)
    }

    /// Notes how far a channel is.
    pub(super) fn note(&self, channel: u32, get: u32, standing: Standing, last_active_ns: u64) {
        let Some(at) = Self::entry(channel) else {
            return;
        };
        self.store(at + GET, get);
        let slice = self.region.as_volatile_slice();
        let _ = slice.store(last_active_ns, at + LAST_ACTIVE, Ordering::Release);
        self.store(at + STATUS, standing as u32);
    }

    /// How far a channel is: commands finished, standing, when it was last active.
    pub(super) fn read(&self, channel: u32) -> (u32, Standing, u64) {
        let Some(at) = Self::entry(channel) else {
            return (0, Standing::None, 0);
        };
        let standing = match self.load(at + STATUS) {
            1 => Standing::Open,
            2 => Standing::Faulted,
            _ => Standing::None,
        };
        let slice = self.region.as_volatile_slice();
        let last = slice.load(at + LAST_ACTIVE, Ordering::Acquire).unwrap_or(0);
        (self.load(at + GET), standing, last)
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
