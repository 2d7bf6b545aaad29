//! For how much longer tenants were idle in all than was told: what is learnt of a fraction, or of a launch, is true of the intervals before as well.
//!
//! What is found of an interval is what is known when it ends. If a launch takes a hundredth less than was believed then, so it did in those before. So the filter estimates as well for
//! how much longer each was idle, in all intervals since [`LEARNT`], than was found of them (as one smooths what one filtered, but for the sum alone); that is told of later ones, bit by
//! bit.

use super::{Estimate, IdleShares};
use crate::meter::Stay;
use crate::units::TenantId;
use std::collections::BTreeMap;

/// Intervals after which one is summed up: until then estimates come from nothing, and what one pays in a second in which he begins is not changed by what is learnt of him in the next.
pub(super) const LEARNT: u32 = 10;
/// So much of it is told of an interval at most, in ns: a thousandth of it, so that no window shows it.
const MOST_NS: f64 = 100_000.0;

/// One who was summed up in an interval.
pub(super) struct Summed {
    row: usize,
    sum: usize,
    foretold_ns: f64,
}

impl IdleShares {
    /// A row for the sum of one of whom enough is known, and who is seen.
    pub(super) fn sum_up(&mut self, tenant: TenantId, stays: &BTreeMap<TenantId, Stay>) {
        let mut known = self.known.iter();
        let is_learnt = known.any(|known| {
            let tells = known.tenant == tenant && self.tells(known, stays).is_some();
            tells && known.told >= LEARNT
        });
        match self.find(tenant, Estimate::Sum) {
            Some(sum) => self.known[sum].unseen = 0,
            None if is_learnt && self.by_launches => {
                self.estimate(tenant, Estimate::Sum, (0.0, 0.0));
            }
            None => (),
        }
    }

    /// Adds an interval to the sums, as it is foretold. (One who is alone is told as he was, whatever is estimated.)
    pub(super) fn add_up(&mut self, stays: &BTreeMap<TenantId, Stay>) -> Vec<Summed> {
        let mut summed = Vec::new();
        if stays.len() < 2 {
            return summed;
        }
        for row in 0..self.known.len() {
            let known = self.known[row];
            let Some(stay) = self.tells(&known, stays) else {
                continue;
            };
            self.known[row].told = known.told.saturating_add(1);
            let sum = self.find(known.tenant, Estimate::Sum);
            let Some(sum) = sum.filter(|_| known.told >= LEARNT) else {
                continue;
            };
            let grows = known.grows(stay);
            let more: Vec<f64> = self.covariance[row].iter().map(|own| grows * own).collect();
            for (other, more) in more.iter().enumerate() {
                self.covariance[sum][other] += more;
                self.covariance[other][sum] += more;
            }
            self.covariance[sum][sum] += grows * more[row];
            let foretold_ns = known.idle_ns(stay);
            summed.push(Summed {
                row,
                sum,
                foretold_ns,
            });
        }
        summed
    }

    /// What was learnt of the interval itself is found as such: it is no part of the sums.
    pub(super) fn take_off(&mut self, summed: &[Summed], stays: &BTreeMap<TenantId, Stay>) {
        for each in summed {
            let known = self.known[each.row];
            if let Some(stay) = self.tells(&known, stays) {
                self.known[each.sum].value -= known.idle_ns(stay) - each.foretold_ns;
            }
        }
    }

    /// For how much longer a tenant was idle in earlier intervals, in ns: what is to be told of the last one beside what was found of it. It is told, from now on.
    pub(in crate::meter) fn tell_earlier_ns(&mut self, tenant: TenantId) -> f64 {
        let Some(sum) = self.find(tenant, Estimate::Sum) else {
            return 0.0;
        };
        let sum = &mut self.known[sum].value;
        let told_ns = sum.clamp(-MOST_NS, MOST_NS);
        *sum -= told_ns;
        told_ns
    }
}
