//! A bound on what an activity may cost: a part of the time that passes.

use crate::units::{Moment, Nanos};

/// Time that an activity may use: a hundredth of the time that passes, saved up to a bound.
#[derive(Clone, Copy, Debug)]
pub struct Allowance {
    saved: Nanos,
    max: Nanos,
    at: Moment,
}

/// An allowance earns one nanosecond for each `PART` nanoseconds that pass.
const PART: u64 = 100;

impl Allowance {
    /// An allowance of at most `max`, of which `saved` is available at `now`.
    pub const fn new(saved: Nanos, max: Nanos, now: Moment) -> Self {
        Self {
            saved,
            max,
            at: now,
        }
    }

    /// What is available at `now`.
    pub fn left(&self, now: Moment) -> Nanos {
        let earned = Nanos(now.since(self.at).0 / PART);
        (self.saved + earned).min(self.max)
    }

    fn set(&mut self, now: Moment, saved: Nanos) {
        // The remainder, too short to earn a nanosecond, counts from `at` on.
        let rest = Nanos(now.since(self.at).0 % PART);
        let full = saved >= self.max;
        self.saved = saved.min(self.max);
        self.at = Moment(now.0 - if full { 0 } else { rest.0 });
    }

    /// Spends `length`, or all that is left if that is less.
    pub fn spend(&mut self, now: Moment, length: Nanos) {
        self.set(now, self.left(now).saturating_sub(length));
    }

    /// Earns `length` beside what time earns.
    pub fn earn(&mut self, now: Moment, length: Nanos) {
        self.set(now, self.left(now) + length);
    }

    /// When `length` will be available, if nothing is spent before.
    pub fn reaches(&self, now: Moment, length: Nanos) -> Moment {
        now + Nanos(length.saturating_sub(self.left(now)).0 * PART)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_allowance_earns_a_hundredth_and_saves_up_to_its_bound() {
        let mut allowance = Allowance::new(Nanos(10), Nanos(50), Moment(0));
        assert_eq!(allowance.left(Moment(1_000)), Nanos(20));
        assert_eq!(allowance.reaches(Moment(1_000), Nanos(30)), Moment(2_000));
        assert_eq!(allowance.reaches(Moment(1_000), Nanos(20)), Moment(1_000));
        allowance.spend(Moment(1_000), Nanos(15));
        assert_eq!(allowance.left(Moment(1_000)), Nanos(5));
        allowance.earn(Moment(1_000), Nanos(7));
        assert_eq!(allowance.left(Moment(1_000)), Nanos(12));
        assert_eq!(allowance.left(Moment(1_000_000)), Nanos(50));
        allowance.spend(Moment(1_000_000), Nanos(60));
        assert_eq!(allowance.left(Moment(1_000_000)), Nanos::ZERO);
        allowance.earn(Moment(1_000_000), Nanos(70));
        assert_eq!(allowance.left(Moment(1_000_000)), Nanos(50));
    }

    proptest! {
        /// An allowance earns the same, however often it is read.
        #[test]
        fn nothing_is_lost_between_two_readings(steps in prop::collection::vec(1u64..1_000, 1..100)) {
            let mut allowance = Allowance::new(Nanos::ZERO, Nanos(u64::MAX), Moment(0));
            let mut now = Moment(0);
            for step in steps {
                now = now + Nanos(step);
                allowance.spend(now, Nanos::ZERO);
            }
            prop_assert_eq!(allowance.left(now), Nanos(now.0 / PART));
        }
    }
}
