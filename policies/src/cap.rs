//! The state of a cap: how much of the quota is used.

use crate::params::Cap;
use turnstile_accounting::{Moment, Nanos};

/// Usage against a cap.
///
/// At each end of a cap period one quota is subtracted from the usage, but nothing is saved up.
/// Usage beyond the quota, as queued commands cannot be stopped, counts in the periods after.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quota {
    cap: Cap,
    used: Nanos,
    /// Time since the cap period began.
    elapsed: Nanos,
    /// The time up to which the state is current.
    at: Moment,
}

impl Quota {
    /// An unused quota; its first period begins at `at`.
    pub(crate) const fn starting(cap: Cap, at: Moment) -> Self {
        Self {
            cap,
            used: Nanos::ZERO,
            elapsed: Nanos::ZERO,
            at,
        }
    }

    /// Its cap.
    pub(crate) const fn cap(&self) -> Cap {
        self.cap
    }

    /// Adds `used` to the usage.
    pub(crate) fn charge(&mut self, used: Nanos) {
        self.used = Nanos(self.used.0.saturating_add(used.0));
    }

    /// Advances to `now`.
    pub(crate) fn advance_to(&mut self, now: Moment) {
        self.pass(now.since(self.at), Nanos::ZERO);
        self.at = self.at.max(now);
    }

    /// What is left of the quota in this period.
    pub(crate) fn left(&self) -> Nanos {
        self.cap.quota_ns().saturating_sub(self.used)
    }

    /// When the quota has time left again, if nothing more is used.
    pub(crate) fn renews_at(&self) -> Moment {
        let over = self.used.saturating_sub(self.cap.quota_ns());
        let periods = (over.0 / self.cap.quota_ns().0).saturating_add(1);
        let until = periods.saturating_mul(self.cap.period_ns().0);
        Moment(
            self.at
                .0
                .saturating_add(until.saturating_sub(self.elapsed.0)),
        )
    }

    /// Advances by `length`, in which `used` was used.
    pub(crate) fn pass(&mut self, length: Nanos, used: Nanos) {
        self.used += used;
        self.elapsed += length;
        let periods = self.elapsed.0 / self.cap.period_ns().0;
        self.elapsed.0 %= self.cap.period_ns().0;
        self.used = self
            .used
            .saturating_sub(Nanos(self.cap.quota_ns().0.saturating_mul(periods)));
    }

    pub(crate) fn exhausted(&self) -> bool {
        self.used >= self.cap.quota_ns()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota() -> Quota {
        Quota::starting(Cap::new(Nanos(20), Nanos(100)).unwrap(), Moment(0))
    }

    #[test]
    fn overuse_is_carried_and_unused_quota_is_not() {
        let mut quota = quota();
        quota.pass(Nanos(50), Nanos(50));
        assert!(quota.exhausted());
        quota.pass(Nanos(50), Nanos(0));
        assert!(quota.exhausted(), "30 of 50 left");
        quota.pass(Nanos(100), Nanos(0));
        assert!(!quota.exhausted());
        quota.pass(Nanos(1_000), Nanos(0));
        quota.pass(Nanos(10), Nanos(20));
        assert!(quota.exhausted(), "ten idle periods bought nothing");
    }

    #[test]
    fn a_quota_is_exhausted_at_its_last_nanosecond() {
        let mut quota = quota();
        quota.charge(Nanos(19));
        assert!(!quota.exhausted());
        assert_eq!(quota.left(), Nanos(1));
        quota.charge(Nanos(1));
        assert!(quota.exhausted());
        assert_eq!(quota.left(), Nanos(0));
        quota.charge(Nanos(5));
        assert_eq!(quota.left(), Nanos(0));
        assert_eq!(quota.cap(), Cap::new(Nanos(20), Nanos(100)).unwrap());
    }

    #[test]
    fn a_quota_is_renewed_at_each_end_of_a_period() {
        let mut quota = Quota::starting(Cap::new(Nanos(20), Nanos(100)).unwrap(), Moment(1_000));
        quota.charge(Nanos(20));
        assert_eq!(quota.renews_at(), Moment(1_100));
        quota.advance_to(Moment(1_040));
        assert_eq!(quota.renews_at(), Moment(1_100));
        quota.charge(Nanos(19));
        assert_eq!(quota.renews_at(), Moment(1_100), "39 less 20");
        quota.charge(Nanos(1));
        assert_eq!(quota.renews_at(), Moment(1_200), "40 less 20");
        quota.advance_to(Moment(1_030));
        quota.advance_to(Moment(1_099));
        assert_eq!(quota.left(), Nanos(0));
        quota.advance_to(Moment(1_200));
        assert_eq!(quota.left(), Nanos(20));
        assert!(!quota.exhausted());
    }

    #[test]
    fn no_length_overflows() {
        let largest = Nanos(u64::MAX);
        let mut quota = Quota::starting(Cap::new(Nanos(1), largest).unwrap(), Moment(5));
        quota.charge(Nanos(9));
        assert_eq!(quota.renews_at(), Moment(u64::MAX));
    }
}
