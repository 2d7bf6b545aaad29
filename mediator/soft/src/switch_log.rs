//! The context-switch log: a bounded buffer that keeps the newest.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Write;

use turnstile_accounting::{EngineId, EngineState, Moment, SwitchEvent};

use super::config::ENGINES;

/// Records that have not been read yet. Sequence numbers are per engine, so that a record dropped
/// for lack of room shows as a gap.
#[derive(Debug)]
pub(super) struct SwitchLog {
    records: VecDeque<SwitchEvent>,
    capacity: usize,
    next_seq: [u64; ENGINES],
    /// Has each record before a reader has it.
    trace: Option<File>,
}

impl SwitchLog {
    /// A log of at most `capacity` records, in which every engine is idle from `now` on.
    pub(super) fn new(capacity: usize, now: Moment) -> Self {
        let mut log = Self {
            records: VecDeque::new(),
            capacity: capacity.max(1),
            next_seq: [0; ENGINES],
            trace: None,
        };
        log.restart(now);
        log
    }

    /// Drops what was not read. Every engine is idle from `now` on.
    pub(super) fn restart(&mut self, now: Moment) -> [SwitchEvent; ENGINES] {
        self.records.clear();
        std::array::from_fn(|engine| self.push(now, engine, EngineState::Idle))
    }

    /// From `at` on `engine` is in `state`.
    pub(super) fn push(&mut self, at: Moment, engine: usize, state: EngineState) -> SwitchEvent {
        if self.records.len() == self.capacity {
            self.records.pop_front();
        }
        let seq = self.next_seq[engine];
        self.next_seq[engine] += 1;
        let event = SwitchEvent {
            at,
            // CAST: there are three engines.
            engine: EngineId(engine as u8),
            seq,
            state,
        };
        self.tell(&event);
        self.records.push_back(event);
        event
    }

    /// The records.
    pub(super) fn records(&self) -> impl Iterator<Item = &SwitchEvent> {
        self.records.iter()
    }

    /// From now on appends every record to `file`, beginning with the unread ones.
    pub(super) fn trace_to(&mut self, file: File) {
        self.trace = Some(file);
        for index in 0..self.records.len() {
            let event = self.records[index];
            self.tell(&event);
        }
    }

    /// Writes one line of JSON. A reader detects a truncated file by the sequence numbers.
    fn tell(&mut self, event: &SwitchEvent) {
        let Some(file) = &mut self.trace else { return };
        let written = serde_json::to_vec(event)
            .map_err(std::io::Error::from)
            .and_then(|mut line| {
                line.push(b'\n');
                // In one call: what a kill leaves is whole lines.
                file.write_all(&line)
            });
        if let Err(error) = written {
            log::error!("The trace of context switches ends here: {error}");
            self.trace = None;
        }
    }

    /// Moves all records to the end of `events`, oldest first.
    pub(super) fn drain(&mut self, events: &mut Vec<SwitchEvent>) {
        events.extend(self.records.drain(..));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnstile_accounting::TenantId;

    #[test]
    fn the_newest_are_kept_and_the_loss_shows() {
        let mut log = SwitchLog::new(4, Moment(0));
        for at in 1..10 {
            log.push(Moment(at), 0, EngineState::Running(TenantId(1)));
        }
        let mut events = Vec::new();
        log.drain(&mut events);
        let seen: Vec<_> = events.iter().map(|e| (e.engine.0, e.seq, e.at.0)).collect();
        assert_eq!(seen, [(0, 6, 6), (0, 7, 7), (0, 8, 8), (0, 9, 9)]);
        log.push(Moment(20), 1, EngineState::Idle);
        log.drain(&mut events);
        assert_eq!(events.last().unwrap().seq, 1);
    }

    #[test]
    fn a_trace_has_all_that_readers_are_given() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut log = SwitchLog::new(64, Moment(0));
        log.trace_to(file.reopen().unwrap());
        log.push(Moment(7), 0, EngineState::Running(TenantId(1)));
        log.push(Moment(9), 0, EngineState::Fault(TenantId(1)));
        let mut events = Vec::new();
        log.drain(&mut events);
        let text = std::fs::read_to_string(file.path()).unwrap();
        let traced: Vec<SwitchEvent> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(traced, events);
    }
}
