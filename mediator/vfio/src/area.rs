//! Memory of the mediator to which the device writes. The host area has its log and its channels'
//! state; the demand area, which follows, has demand.

use std::io;
use std::sync::atomic::Ordering;

use turnstile_abi::physical::{PAGES, area, demand, switch_state};
use turnstile_accounting::{EngineId, EngineState, Moment, SwitchEvent, TenantId};
use vm_memory::{Bytes, FileOffset, MmapRegion, VolatileMemory};

use turnstile_gpu::ChannelActivity;
use turnstile_host::memory_file::memory_file;

/// Number of records that the device may be writing while they are read.
const GUARD: u64 = 8;
/// Offset of the demand area.
pub(super) const DEMAND: u64 = area::BYTES;
/// Bytes of both areas.
pub(super) const BYTES: u64 = DEMAND + demand::BYTES;

/// A log of the device: record *n* is in entry *n mod* `entries`.
struct Log {
    put: u64,
    first: u64,
    entries: u64,
    record_bytes: u64,
}

const SWITCHES: Log = Log {
    put: area::LOG_PUT,
    first: area::LOG,
    entries: area::LOG_ENTRIES,
    record_bytes: area::RECORD_BYTES,
};

const CHANGES: Log = Log {
    put: DEMAND + demand::LOG_PUT,
    first: DEMAND + demand::LOG,
    entries: demand::LOG_ENTRIES,
    record_bytes: demand::RECORD_BYTES,
};

/// Both areas.
#[derive(Debug)]
pub(super) struct HostArea {
    region: MmapRegion<()>,
}

impl HostArea {
    pub(super) fn new() -> io::Result<Self> {
        let file = memory_file("turnstile-host-area", BYTES)?;
        // CAST: some MiB.
        let region = MmapRegion::from_file(FileOffset::new(file, 0), BYTES as usize);
        let region = region.map_err(io::Error::other)?;
        Ok(Self { region })
    }

    /// Removes what a device wrote before it was reset.
    pub(super) fn clear(&self) {
        self.leave(area::LOG_PUT, &[0; 8]);
        self.leave(CHANGES.put, &[0; 8]);
        let zeros = [0; 8];
        for page in 0..PAGES {
            let page = u64::from(page);
            self.leave(area::CHANNELS + page * area::CHANNEL_BYTES, &zeros);
            let demand = demand::CONTEXTS + page * demand::CONTEXT_BYTES;
            self.leave(DEMAND + demand, &zeros);
        }
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

    /// Activity of the channel of a page, if it belongs to the context; its number is the page.
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

    /// Appends switch records from `get` on to `events`; `get` is the first unread one. Overwritten
    /// records show as gaps in the engines' numbers.
    pub(super) fn read_log(&self, get: &mut u64, events: &mut Vec<SwitchEvent>) {
        self.read(&SWITCHES, get, events, record);
    }

    /// Appends records of demand from `get` on to `records`. Returns whether some were lost.
    pub(super) fn read_demand(&self, get: &mut u64, records: &mut Vec<[u64; 2]>) -> bool {
        self.read(&CHANGES, get, records, |words| words)
    }

    /// The word of the context with this first page; 0 if it is another's.
    pub(super) fn demand(&self, page: u32, context: u32) -> u64 {
        let at = demand::CONTEXTS + u64::from(page.min(PAGES - 1)) * demand::CONTEXT_BYTES;
        let word = self.word(DEMAND + at);
        // CAST: the context is in the low half.
        if word as u32 == context { word } else { 0 }
    }

    fn read<const WORDS: usize, T>(
        &self,
        log: &Log,
        get: &mut u64,
        records: &mut Vec<T>,
        record: impl Fn([u64; WORDS]) -> T,
    ) -> bool {
        let put = self.word(log.put);
        let began_anew = put < *get;
        let next = if began_anew { 0 } else { *get };
        let first = records.len();
        let from = next.max(put.saturating_sub(log.entries - GUARD));
        for number in from..put {
            let at = log.first + number % log.entries * log.record_bytes;
            let word = |index| self.word(at + 8 * index as u64);
            records.push(record(std::array::from_fn(word)));
        }
        *get = put;
        // The device may have overwritten the oldest of these meanwhile.
        let oldest = self.word(log.put).saturating_sub(log.entries - GUARD);
        let torn = usize::try_from(oldest.saturating_sub(from)).unwrap_or(usize::MAX);
        let end = first.saturating_add(torn).min(records.len());
        records.drain(first..end);
        began_anew || from > next || end > first
    }

    /// Writes a context's windows for a command: gpa, address, bytes.
    pub(super) fn leave_windows(&self, windows: &[[u64; 3]]) {
        for (index, window) in (0..).zip(windows) {
            for (part, word) in (0..).zip(window) {
                let at = area::WINDOWS + index * area::WINDOW_BYTES + part * 8;
                self.leave(at, &word.to_le_bytes());
            }
        }
    }

    /// Writes the text for a command.
    pub(super) fn leave_text(&self, text: &str) {
        self.leave(area::TEXT, text.as_bytes());
    }

    fn leave(&self, at: u64, bytes: &[u8]) {
        // Bytes beyond the area are cut off, and the device finds fewer than its command names.
        let _ = self.region.as_volatile_slice().write(bytes, at as usize);
    }

    #[cfg(test)]
    pub(super) fn leave_demand(&self, at: u64, word: u64) {
        self.leave(DEMAND + at, &word.to_le_bytes());
    }

    /// The device's text of `bytes` bytes.
    pub(super) fn reply(&self, bytes: u32) -> String {
        let mut text = vec![0; u64::from(bytes).min(area::REPLY_BYTES) as usize];
        let slice = self.region.as_volatile_slice();
        let _ = slice.read(&mut text, area::REPLY as usize);
        String::from_utf8_lossy(&text).into_owned()
    }
}

fn record([at, seq, state, context]: [u64; 4]) -> SwitchEvent {
    // CAST: halves. The meter charges no tenant for an engine that does not exist.
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
