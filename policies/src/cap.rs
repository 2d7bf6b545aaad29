//! The state of a cap: how much of the quota is used.

use crate::params::Cap;
use turnstile_accounting::Nanos;

/// Usage against a cap.
///
/// At each end of a cap period one quota is forgiven, but nothing is saved up; what was used beyond
/// the quota, since queued commands cannot be stopped, is taken from the periods after.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quota {
    cap: Cap,
    used: Nanos,
    /// Time since the cap period began.
    elapsed: Nanos,
}

impl Quota {
    pub(crate) const fn new(cap: Cap) -> Self {
        Self {
            cap,
            used: Nanos::ZERO,
            elapsed: Nanos::ZERO,
        }
    }

    /// Time passed, in which `used` was used.
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
        Quota::new(Cap::new(Nanos(20), Nanos(100)).unwrap())
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
}
