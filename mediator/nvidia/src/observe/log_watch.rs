//! Finds a context-switch log that stands still while the engine does not. Pure.
//!
//! In: at each poll the channel group on the engine, and whether the log had a record. Out: until
//! when the log is known to be complete. A group that follows another one is a context switch, so
//! it has records; they come up to 50 ms later. Called by [`crate::sharing`] at each poll.

use turnstile_accounting::{Moment, Nanos};

use super::Group;

/// The log is silent after this time without a record of a change, and as many changes.
const SILENT_AFTER: Nanos = Nanos::from_ms(1_000);
const CHANGES: u32 = 8;

/// What was seen since the last record.
#[derive(Debug)]
pub(crate) struct LogWatch<G = Group> {
    group: Option<G>,
    at: Moment,
    changes: u32,
    /// The last poll before the first of these changes.
    before: Option<Moment>,
}

impl<G> Default for LogWatch<G> {
    fn default() -> Self {
        Self {
            group: None,
            at: Moment(0),
            changes: 0,
            before: None,
        }
    }
}

impl<G: PartialEq> LogWatch<G> {
    /// Takes a poll: the group on the engine, if one is, and whether the log had any record.
    pub(crate) fn take(&mut self, at: Moment, group: Option<G>, logged: bool) {
        if let Some(group) = group {
            let changed = self.group.as_ref().is_some_and(|before| *before != group);
            self.group = Some(group);
            if changed {
                self.changes = self.changes.saturating_add(1);
                self.before.get_or_insert(self.at);
            }
        }
        if logged {
            (self.changes, self.before) = (0, None);
        }
        self.at = at;
    }

    /// Until when the log can be complete; none if nothing contradicts it.
    pub(crate) const fn known_until(&self) -> Option<Moment> {
        self.before
    }

    /// Why the log is silent; none if it is not.
    pub(crate) fn silence(&self) -> Option<String> {
        let length = self.at.since(self.before?);
        let is_silent = length >= SILENT_AFTER && self.changes >= CHANGES;
        is_silent.then(|| {
            format!(
                "Its log of context switches has no record of the last {} changes",
                self.changes
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn poll(watch: &mut LogWatch<u32>, polls: std::ops::Range<u64>, groups: u64, logged: bool) {
        for poll in polls {
            // CAST: small.
            let group = Some((poll % groups) as u32);
            watch.take(Moment(poll * 20_000_000), group, logged);
        }
    }

    #[test]
    fn log_without_records_of_changes_is_known_until_the_first_and_silent_after_a_second() {
        let mut watch = LogWatch::default();
        poll(&mut watch, 1..100, 2, true);
        assert_eq!((watch.known_until(), watch.silence()), (None, None));
        poll(&mut watch, 100..149, 2, false);
        assert_eq!(watch.known_until(), Some(Moment(99 * 20_000_000)));
        assert_eq!(watch.silence(), None);
        poll(&mut watch, 149..150, 2, false);
        assert!(watch.silence().unwrap().contains("50 changes"));
        watch.take(Moment(151 * 20_000_000), None, true);
        assert_eq!((watch.known_until(), watch.silence()), (None, None));
    }

    #[test]
    fn tenant_that_is_alone_on_the_engine_needs_no_records() {
        let mut watch = LogWatch::default();
        poll(&mut watch, 0..10_000, 1, false);
        watch.take(Moment(201_000_000_000), None, false);
        watch.take(Moment(202_000_000_000), Some(0), false);
        assert_eq!((watch.known_until(), watch.silence()), (None, None));
    }
}
