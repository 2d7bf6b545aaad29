//! How much of a quota is left in each of its periods.

use std::collections::BTreeMap;

use super::Quota;
use crate::units::Nanos;

/// A quota and the state of its current period. While the quota is used, periods follow each other
/// without a gap; a quota that is unused begins its period at its next use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowance {
    quota: Quota,
    /// Left of the quota in this period.
    left_ns: u64,
    /// Left of this period.
    rest_ns: u64,
    /// What its owner was entitled to in the window that ends.
    part_ns: u128,
}

/// A window, cut where the periods of a quota end.
struct Cut {
    /// In the current period, or all of the window.
    first_ns: u64,
    /// Number of whole periods after it.
    periods: u64,
    /// In the last period, which continues after the window.
    last_ns: u64,
}

impl Allowance {
    const fn new(quota: Quota) -> Self {
        Self {
            quota,
            left_ns: quota.quota_ns.0,
            rest_ns: quota.period_ns.0,
            part_ns: 0,
        }
    }

    fn cut(&self, length: Nanos) -> Cut {
        let first_ns = length.0.min(self.rest_ns);
        let after_ns = length.0 - first_ns;
        Cut {
            first_ns,
            periods: after_ns / self.quota.period_ns.0,
            last_ns: after_ns % self.quota.period_ns.0,
        }
    }

    /// The most that its owner is entitled to in the window, in nanoseconds.
    fn within(&self, length: Nanos) -> u128 {
        let quota_ns = self.quota.quota_ns.0;
        let Cut {
            first_ns,
            periods,
            last_ns,
        } = self.cut(length);
        u128::from(first_ns.min(self.left_ns))
            + u128::from(periods) * u128::from(quota_ns)
            + u128::from(last_ns.min(quota_ns))
    }

    /// The window passed. The owner's part of it counts in the current period first, then in those
    /// after it. Returns whether the period that continues has used some of the quota.
    fn pass(&mut self, length: Nanos) -> bool {
        let quota_ns = self.quota.quota_ns.0;
        let part_ns = std::mem::take(&mut self.part_ns);
        let cut = self.cut(length);
        let first_ns = part_ns.min(u128::from(cut.first_ns.min(self.left_ns)));
        // CAST: at most `left_ns`
        self.left_ns -= first_ns as u64;
        self.rest_ns -= cut.first_ns;
        if self.rest_ns == 0 {
            let between_ns = u128::from(cut.periods) * u128::from(quota_ns);
            // CAST: no part exceeds a window, a u64
            let last_ns = (part_ns - first_ns).saturating_sub(between_ns) as u64;
            self.left_ns = quota_ns.saturating_sub(last_ns);
            self.rest_ns = self.quota.period_ns.0 - cut.last_ns;
        }
        self.left_ns < quota_ns
    }
}

/// The allowances of the tenants or accounts that have a quota.
#[derive(Clone, Debug)]
pub(super) struct Allowances<K>(BTreeMap<K, Allowance>);

impl<K> Default for Allowances<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Copy + Ord> Allowances<K> {
    /// A window begins in which this quota is set; a quota that changes begins unused.
    pub(super) fn set(&mut self, key: K, quota: Option<Quota>) {
        match quota {
            Some(quota) if self.0.get(&key).is_some_and(|known| known.quota == quota) => {}
            Some(quota) => {
                self.0.insert(key, Allowance::new(quota));
            }
            None => {
                self.0.remove(&key);
            }
        }
    }

    /// `demand_ns`, or what the quota permits in the window if that is less.
    pub(super) fn bound(&self, key: K, length: Nanos, demand_ns: u128) -> u128 {
        let allowance = self.0.get(&key);
        allowance.map_or(demand_ns, |allowance| {
            demand_ns.min(allowance.within(length))
        })
    }

    /// Adds `part_ns` to what the owner was entitled to in the window that ends.
    pub(super) fn take(&mut self, key: K, part_ns: u128) {
        if let Some(allowance) = self.0.get_mut(&key) {
            allowance.part_ns += part_ns;
        }
    }

    /// The window ends. A quota is kept until its period ends, even if its owner left: leaving and
    /// returning gains nothing.
    pub(super) fn pass(&mut self, length: Nanos) {
        self.0.retain(|_, allowance| allowance.pass(length));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: u64 = 100;

    /// A window of `length` in which the owner was entitled to `part`.
    fn pass(allowance: &mut Allowance, length: u64, part: u128) -> bool {
        allowance.part_ns = part;
        allowance.pass(Nanos(length))
    }

    fn allowance() -> Allowance {
        Allowance::new(Quota {
            quota_ns: Nanos(25),
            period_ns: Nanos(PERIOD),
        })
    }

    #[test]
    fn window_within_period_is_bounded_by_what_is_left() {
        let mut allowance = allowance();
        assert_eq!(allowance.within(Nanos(10)), 10);
        assert!(pass(&mut allowance, 10, 10));
        assert!(pass(&mut allowance, 10, 8));
        assert_eq!(allowance.within(Nanos(10)), 7);
        assert!(pass(&mut allowance, 10, 7));
        assert_eq!(allowance.within(Nanos(70)), 0);
        assert!(!pass(&mut allowance, 70, 0), "a new period, unused");
        assert_eq!(allowance.within(Nanos(70)), 25);
    }

    #[test]
    fn window_over_several_periods_has_the_quota_of_each() {
        let mut allowance = allowance();
        pass(&mut allowance, 90, 20);
        // 5 of the first period, two whole quotas, and 15 of the last period.
        assert_eq!(allowance.within(Nanos(10 + 2 * PERIOD + 15)), 5 + 50 + 15);
        assert!(pass(&mut allowance, 10 + 2 * PERIOD + 15, 5 + 50 + 12));
        assert_eq!(allowance.within(Nanos(PERIOD - 15)), 25 - 12);
        assert_eq!(allowance.within(Nanos(PERIOD - 15 + 1)), 25 - 12 + 1);
    }

    #[test]
    fn quota_counts_until_its_period_ends_also_for_a_tenant_that_left() {
        let quota = allowance().quota;
        let mut all = Allowances::default();
        let bound = |all: &Allowances<u32>| all.bound(1, Nanos(50), 50);
        all.set(1, Some(quota));
        all.take(1, 25);
        all.pass(Nanos(40));
        all.pass(Nanos(40));
        all.set(1, Some(quota));
        assert_eq!(
            bound(&all),
            25,
            "20 of the old period and 30 of the new one"
        );
        all.pass(Nanos(10));
        assert_eq!(all.bound(1, Nanos(10), 50), 0);
        all.pass(Nanos(10));
        assert!(all.0.is_empty());
        all.set(1, None);
        assert_eq!(bound(&all), 50);
    }

    #[test]
    fn changed_quota_begins_unused() {
        let mut quota = allowance().quota;
        let mut all = Allowances::default();
        all.set(1, Some(quota));
        all.take(1, 25);
        all.pass(Nanos(30));
        assert_eq!(all.bound(1, Nanos(30), 30), 0);
        quota.quota_ns = Nanos(20);
        all.set(1, Some(quota));
        assert_eq!(all.bound(1, Nanos(30), 30), 20);
    }
}
