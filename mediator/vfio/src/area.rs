//! The host area: memory of the mediator's in which the device shows its log and its channels.

use std::io;
use std::sync::atomic::Ordering;

use turnstile_abi::physical::{PAGES, area, switch_state};
use turnstile_accounting::{EngineId, EngineState, Moment, SwitchEvent, TenantId};
use vm_memory::{Bytes, FileOffset, MmapRegion, VolatileMemory};

use turnstile_gpu::ChannelActivity;
use turnstile_host::memory_file::memory_file;

/// Records that the device may be writing while they are read.
const GUARD: u64 = 8;

/// The area.
#[derive(Debug)]
pub(super) struct HostArea {
    region: MmapRegion<()>,
}

impl HostArea {
    pub(super) fn new() -> io::Result<Self> {
        let file = memory_file("turnstile-host-area", area::BYTES)?;
        // CAST: some MiB.
        let region = MmapRegion::from_file(FileOffset::new(file, 0), area::BYTES as usize);
        let region = region.map_err(io::Error::other)?;
        Ok(Self { region })
    }

    /// The memory, for the IOMMU.
    pub(super) fn region(&self) -> &MmapRegion<()> {
        &self.region
    }

    /// A word at a constant offset within the area.
    fn word(&self, offset: u64) -> u64 {
        let word = self
            .region
            .as_volatile_slice()
            .load::<u64>(offset as usize, Ordering::Acquire);
        u64::from_le(word.unwrap_or(0))
    }

    /// What the channel of a page has to do, if it is the context's; its number is the page.
    pub(super) fn channel(&self, page: u32, context: u32) -> Option<ChannelActivity> {
        let at = area::CHANNELS + u64::from(page.min(PAGES - 1)) * area::CHANNEL_BYTES;
        let word = self.word(at);
        // CAST: two halves.
        let (owner, pending) = (word as u32, (word >> 32) as u32);
        let progress = self.word(at + 16);
        (owner == context).then(|| ChannelActivity {
            channel: page,
            pending,
            // CAST: two halves.
            finished: Some(progress as u32),
            stalls: (progress >> 32) as u32,
            last_active: Moment(self.word(at + 8)),
        })
    }

    /// Moves records from `get` on to the end of `events`; `get` is the first not read. Records that were overwritten show
    /// as gaps in the engines' numbers.
    pub(super) fn read_log(&self, get: &mut u64, events: &mut Vec<SwitchEvent>) {
        let put = self.word(area::LOG_PUT);
        // The device has begun anew.
        if put < *get {
            *get = 0;
        }
        *get = (*get).max(put.saturating_sub(area::LOG_ENTRIES - GUARD));
        let first = events.len();
        let from = *get;
        while *get < put {
            let at = area::LOG + *get % area::LOG_ENTRIES * area::RECORD_BYTES;
            let words = [0, 8, 16, 24].map(|offset| self.word(at + offset));
            *get += 1;
            events.push(record(words));
        }
        // What the device may have written over meanwhile is not to be believed.
        let oldest = self
            .word(area::LOG_PUT)
            .saturating_sub(area::LOG_ENTRIES - GUARD);
        let torn = usize::try_from(oldest.saturating_sub(from)).unwrap_or(usize::MAX);
        let end = first.saturating_add(torn).min(events.len());
        events.drain(first..end);
    }

    /// Leaves a context's windows: gpa, address, bytes.
    pub(super) fn leave_windows(&self, windows: &[[u64; 3]]) {
        for (index, window) in (0..).zip(windows) {
            for (part, word) in (0..).zip(window) {
                let at = area::WINDOWS + index * area::WINDOW_BYTES + part * 8;
                self.leave(at, &word.to_le_bytes());
            }
        }
    }

    /// Leaves text for a command.
    pub(super) fn leave_text(&self, text: &str) {
        self.leave(area::TEXT, text.as_bytes());
    }

    fn leave(&self, at: u64, bytes: &[u8]) {
        // What does not fit is cut off, and the device finds less than it was told.
        let _ = self.region.as_volatile_slice().write(bytes, at as usize);
    }

    /// The device's text, of so many bytes.
    pub(super) fn reply(&self, bytes: u32) -> String {
        let mut text = vec![0; u64::from(bytes).min(area::REPLY_BYTES) as usize];
        let slice = self.region.as_volatile_slice();
        let _ = slice.read(&mut text, area::REPLY as usize);
        String::from_utf8_lossy(&text).into_owned()
    }
}

fn record([at, seq, state, context]: [u64; 4]) -> SwitchEvent {
    // CAST: halves, and an engine beyond those there are is nobody's to the meter.
    let (engine, state) = (state as u8, (state >> 32) as u32);
    let tenant = TenantId(context as u32);
    SwitchEvent {
        at: Moment(at),
        engine: EngineId(engine),
        seq,
        state: match state {
            switch_state::RUNNING => EngineState::Running(tenant),
            switch_state::SWITCHING => EngineState::Switching,
            switch_state::FAULT => EngineState::Fault(tenant),
            _ => EngineState::Idle,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_that_overflows_keeps_the_newest() {
        let area = HostArea::new().unwrap();
        let write = |n: u64| {
            let at = area::LOG + n % area::LOG_ENTRIES * area::RECORD_BYTES;
            for (part, word) in (0..).zip([n * 10, n, 1 << 32, 7]) {
                area.leave(at + part * 8, &u64::to_le_bytes(word));
            }
            area.leave(area::LOG_PUT, &(n + 1).to_le_bytes());
        };
        let (mut get, mut events) = (0, Vec::new());
        (0..3).for_each(write);
        area.read_log(&mut get, &mut events);
        let seen: Vec<_> = events.iter().map(|event| (event.at.0, event.seq)).collect();
        assert_eq!(seen, [(0, 0), (10, 1), (20, 2)]);
        assert_eq!(events[0].state, EngineState::Running(TenantId(7)));
        events.clear();
        (3..area::LOG_ENTRIES + 100).for_each(write);
        area.read_log(&mut get, &mut events);
        assert_eq!(events.last().unwrap().seq, area::LOG_ENTRIES + 99);
        assert_eq!(events[0].seq, 100 + GUARD);
        assert!(events.is_sorted_by_key(|event| event.seq));
        area.leave(area::LOG_PUT, &0u64.to_le_bytes());
        write(0);
        events.clear();
        area.read_log(&mut get, &mut events);
        assert_eq!(events.len(), 1);
    }
}
