//! The GPU's clock in real time, and sleeping by it.

use std::thread;
use std::time::{Duration, Instant};

use turnstile_accounting::{Moment, Nanos};

use super::work::Stop;

/// Nanoseconds since the GPU was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(Instant);

/// The last part of every sleep is spent yielding instead, so that lengths are exact. TIMEOUT: the
/// default timer slack of Linux is 50 us.
const AWAKE: Nanos = Nanos(60_000);
/// Longest sleep between two checks of the stop condition.
const NAP: Nanos = Nanos(1_000_000);

impl Clock {
    pub(crate) fn new() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn now(&self) -> Moment {
        // CAST: 584 years.
        Moment(self.0.elapsed().as_nanos() as u64)
    }

    /// Sleeps until `at`; false if `enough` became true before.
    pub(crate) fn sleep_until(&self, at: Moment, enough: impl Fn() -> bool) -> bool {
        loop {
            let left = at.since(self.now());
            if left == Nanos::ZERO {
                return true;
            }
            if enough() {
                return false;
            }
            if left > AWAKE {
                let nap = left.saturating_sub(AWAKE).min(NAP);
                thread::sleep(Duration::from_nanos(nap.0));
            } else {
                thread::yield_now();
            }
        }
    }

    /// Sleeps until `at`; false if the work was ended before.
    pub(crate) fn sleep_unless_ended(&self, at: Moment, stop: &Stop) -> bool {
        self.sleep_until(at, || stop.is_ended())
    }
}
