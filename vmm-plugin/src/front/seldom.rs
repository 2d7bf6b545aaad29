//! Rate limits for actions that a VMM or its guest can cause: log lines, creation and end of
//! tenants.

use std::fmt::Arguments;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Allows `at_once` actions at once, and one more per interval `each` after that.
#[derive(Debug)]
pub(super) struct Allowance {
    at_once: u32,
    each: Duration,
    /// Actions that count against `at_once`; each interval removes one.
    recent: u32,
    /// Time of the last removal.
    since: Option<Instant>,
}

impl Allowance {
    pub(super) const fn new(at_once: u32, each: Duration) -> Self {
        Self {
            at_once,
            each,
            recent: 0,
            since: None,
        }
    }

    /// Takes one, if there is one.
    pub(super) fn take(&mut self, now: Instant) -> bool {
        let since = self.since.get_or_insert(now);
        let each = self.each.as_millis();
        let elapsed = now.saturating_duration_since(*since).as_millis();
        let gone = elapsed / each;
        if gone > 0 {
            // CAST: at most as many as were taken; less than `each`.
            self.recent -= gone.min(self.recent.into()) as u32;
            *since = now - Duration::from_millis((elapsed % each) as u64);
        }
        let taken = self.recent < self.at_once;
        self.recent += u32::from(taken);
        taken
    }
}

/// Logs ten lines at once, and one per ten seconds after that.
#[derive(Debug)]
pub struct Seldom(Mutex<(Allowance, u64)>);

impl Default for Seldom {
    fn default() -> Self {
        let lines = Allowance::new(10, Duration::from_secs(10));
        Self(Mutex::new((lines, 0)))
    }
}

impl Seldom {
    /// Logs a line, if it is not one of too many.
    pub fn say(&self, level: log::Level, line: Arguments<'_>) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (allowance, unlogged) = &mut *state;
        if !allowance.take(Instant::now()) {
            *unlogged += 1;
            return;
        }
        match std::mem::take(unlogged) {
            0 => log::log!(level, "{line}"),
            unlogged => log::log!(level, "{line} ({unlogged} lines before this one left out)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_at_once_then_one_each_ten_seconds() {
        let mut lines = Allowance::new(10, Duration::from_secs(10));
        let begin = Instant::now();
        let mut at = |ms: u64| lines.take(begin + Duration::from_millis(ms));
        assert!((0..10).all(|_| at(0)));
        assert!((0..1000).all(|ms| !at(ms)));
        assert!(at(10_000));
        assert!(!at(10_001));
        assert!(at(20_500));
        assert!(!at(20_600));
        // The rest of an interval is kept.
        assert!(at(39_900) && at(40_000) && !at(49_000) && at(50_000));
        assert!((0..10).all(|_| at(900_000)));
        assert!(!at(900_001));
    }
}
