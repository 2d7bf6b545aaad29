//! The GPU's clock, estimated without reading its register each time.
//!
//! The register costs a trip over the bus. Between two readings the host's clock extrapolates it, a
//! little slower, so that the estimate is never ahead of the device. A record that the device logs
//! after an estimate was made has a later time than that.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use turnstile_accounting::{Moment, Nanos};

/// Part of the elapsed time by which the host's clock is slowed down: more than the clocks of two
/// computers differ.
const SLACK: u64 = 1024;
/// Age at which the register is read again: by then the estimate is 20 us behind.
const STALE: Nanos = Nanos::from_ms(20);

#[derive(Debug)]
struct State {
    /// Value of the register; the device's clock reached it before `read`.
    at: Moment,
    read: Instant,
    reported: Moment,
    /// Added to times of the device: what its clock showed before it began anew, in nanoseconds.
    shift_ns: u64,
    /// When that was; zero at first.
    anew: Moment,
}

/// The estimate of the clock.
#[derive(Debug)]
pub(super) struct Clock(Mutex<State>);

impl Clock {
    /// An estimate with a register value that was just read.
    pub(super) fn new(at: Moment) -> Self {
        Self(Mutex::new(State {
            at,
            read: Instant::now(),
            reported: at,
            shift_ns: 0,
            anew: Moment(0),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The estimate now; never decreases.
    pub(super) fn now(&self) -> Moment {
        let mut state = self.lock();
        let now = state.extrapolate(Instant::now());
        state.reported = state.reported.max(now);
        state.reported
    }

    /// Whether the register has to be read again.
    pub(super) fn is_stale(&self) -> bool {
        let state = self.lock();
        // CAST: 584 years.
        state.read.elapsed().as_nanos() as u64 > STALE.0
    }

    /// A time of the device on this clock. What it recorded before it began anew is still so then.
    pub(super) fn shifted(&self, at: Moment) -> Moment {
        let state = self.lock();
        Moment(at.0.saturating_add(state.shift_ns)).max(state.anew)
    }

    /// What is added to times of the device.
    pub(super) fn shift_ns(&self) -> u64 {
        self.lock().shift_ns
    }

    /// The device's clock began anew, or goes on, and shows `at`. This clock goes on.
    pub(super) fn begin_anew(&self, at: Moment) {
        let mut state = self.lock();
        let now = state.extrapolate(Instant::now()).max(state.reported);
        state.shift_ns = now.0.saturating_sub(at.0);
        state.anew = now;
        state.at = Moment(at.0 + state.shift_ns);
        state.read = Instant::now();
    }

    /// Takes a value of the register, and the instant before it was read.
    pub(super) fn set(&self, begin: Instant, at: Moment) {
        let mut state = self.lock();
        let at = Moment(at.0.saturating_add(state.shift_ns));
        let read = Instant::now();
        let known = state.extrapolate(read);
        // CAST: 584 years.
        let latest = Moment(at.0 + read.saturating_duration_since(begin).as_nanos() as u64);
        // A slow reading may be earlier than the known time, which is then kept. If the known time
        // is later than the reading permits, it was wrong.
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
        let before = clock.now();
        clock.begin_anew(Moment(7));
        assert!(clock.now() >= before);
        assert!(clock.shifted(Moment(7)) >= before);
        clock.set(Instant::now(), Moment(1_000_007));
        assert!(clock.now() >= clock.shifted(Moment(1_000_007)));
    }
}
