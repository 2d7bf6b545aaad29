//! How long to look away between two samples: polling without a pause costs a processor for the whole phase.

use crate::units::{Moment, Nanos};

/// The part of the time that the engines have been as they are for which they are not looked at.
const PART: u64 = 8;
/// Longest pause.
const LONGEST: Nanos = Nanos::from_us(200);
/// Below this a pause is not worth its system call.
const SHORTEST: Nanos = Nanos::from_us(10);

/// Adapts the pause to how long states last.
///
/// A state that has lasted for *t* is looked at again after *t*/8: its end is noticed late by an eighth of its length at most, as
/// is its beginning by an eighth of that of the one before. Late ends and late beginnings cancel on average, as they do for
/// samples without a pause (A1.2).
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    since: Moment,
}

impl Pace {
    /// Begins with a state that began now.
    pub fn new(at: Moment) -> Self {
        Self { since: at }
    }

    /// The pause after samples that were taken at `at`, of which some showed another state than before, or none did.
    pub fn pause(&mut self, at: Moment, changed: bool) -> Option<Nanos> {
        if changed {
            self.since = at;
        }
        let pause = Nanos(at.since(self.since).0 / PART).min(LONGEST);
        (pause >= SHORTEST).then_some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_grows_with_the_state_and_falls_with_a_change() {
        let mut pace = Pace::new(Moment(1_000));
        assert_eq!(pace.pause(Moment(1_000), false), None);
        assert_eq!(pace.pause(Moment(41_000), false), None);
        assert_eq!(pace.pause(Moment(801_000), false), Some(Nanos(100_000)));
        assert_eq!(pace.pause(Moment(90_001_000), false), Some(LONGEST));
        assert_eq!(pace.pause(Moment(90_002_000), true), None);
        assert_eq!(pace.pause(Moment(90_162_000), false), Some(Nanos(20_000)));
    }
}
