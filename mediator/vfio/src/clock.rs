//! The GPU's clock as the mediator knows it without asking each time.
//!
//! The device's clock is a register that costs a trip over the bus. Between two readings the host's clock goes on for it, and
//! a little slower, so that what is told is never ahead of the device: whatever the device logs after the mediator has
//! looked at the clock lies behind what it saw.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use turnstile_accounting::{Moment, Nanos};

/// By what part of the time passed the host's clock is slowed down: more than two clocks of computers differ.
const SLACK: u64 = 1024;
/// After so long the register is read again: by then the clock told is 20 us behind.
const STALE: Nanos = Nanos::from_ms(20);

#[derive(Debug)]
struct State {
    /// The register's value, which was reached before `read`.
    at: Moment,
    read: Instant,
    told: Moment,
}

/// The clock.
#[derive(Debug)]
pub(super) struct Clock(Mutex<State>);

impl Clock {
    /// A clock that was read just now.
    pub(super) fn new(at: Moment) -> Self {
        Self(Mutex::new(State {
            at,
            read: Instant::now(),
            told: at,
        }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The time; never falls.
    pub(super) fn now(&self) -> Moment {
        let mut state = self.lock();
        let now = state.extrapolate(Instant::now());
        state.told = state.told.max(now);
        state.told
    }

    /// Whether it is time to read the register.
    pub(super) fn is_stale(&self) -> bool {
        let state = self.lock();
        // CAST: 584 years.
        state.read.elapsed().as_nanos() as u64 > STALE.0
    }

    /// The register was read, asked for at `asked`, and said this.
    pub(super) fn set(&self, asked: Instant, at: Moment) {
        let mut state = self.lock();
        let read = Instant::now();
        let known = state.extrapolate(read);
        // CAST: 584 years.
        let latest = Moment(at.0 + read.saturating_duration_since(asked).as_nanos() as u64);
        // A reading that took long may say less than what was known; one that says that it was wrong is believed.
        state.at = if known <= latest { at.max(known) } else { at };
        state.read = read;
    }
}

impl State {
    fn extrapolate(&self, now: Instant) -> Moment {
        // CAST: 584 years.
        let passed = now.saturating_duration_since(self.read).as_nanos() as u64;
        Moment(self.at.0 + passed - passed.div_ceil(SLACK).min(passed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_never_falls_and_a_late_reading_does_not_set_it_back() {
        let clock = Clock::new(Moment(1_000_000));
        let first = clock.now();
        clock.set(Instant::now(), Moment(5));
        assert!(clock.now() >= first);
        clock.set(Instant::now(), Moment(9_000_000_000));
        assert!(clock.now() >= Moment(9_000_000_000));
        assert!(!clock.is_stale());
    }
}
