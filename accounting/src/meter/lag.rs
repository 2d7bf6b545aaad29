//! Whose idle time it was, where it is not known how much older the engine's counters are than their time stamps.
//!
//! Counters that were read some milliseconds before the moment that they name are of another mix of residencies than it says,
//! which makes tenants that take turns look alike, or the other way round. So each lag that is possible has its own
//! [`IdleShares`], and the one that foretells the idle time best is believed.

use super::idle::{IdleShares, Stay};
use crate::units::{Nanos, TenantId};
use std::collections::BTreeMap;

/// Lags that are tried. SOURCE: measured on an H200, by what explains the counters best: 18 ms in one session, 12 in another.
const LAGS_MS: [u64; 11] = [15, 0, 3, 6, 9, 12, 18, 21, 24, 27, 30];

/// Weight of the past in a lag's mean square error: some ten intervals.
const PAST: f64 = 0.9;

/// An interval that no lag foretells better is one in which somebody changed his ways: it says nothing of lags.
const CHANGED: f64 = 0.03;

/// Another lag is believed if its error is smaller by this factor.
const BETTER: f64 = 0.7;

/// Estimates under one lag.
#[derive(Clone, Debug)]
struct Lagged {
    lag: Nanos,
    shares: IdleShares,
    error: f64,
}

/// Idle fractions under the lag that fits.
#[derive(Clone, Debug)]
pub struct LaggedShares {
    lags: Vec<Lagged>,
    best: usize,
}

impl Default for LaggedShares {
    fn default() -> Self {
        let lagged = |lag: u64| Lagged {
            lag: Nanos::from_ms(lag),
            shares: IdleShares::default(),
            error: 0.0,
        };
        Self {
            lags: LAGS_MS.into_iter().map(lagged).collect(),
            best: 0,
        }
    }
}

impl LaggedShares {
    /// Takes an interval of this length. `of` says, of the interval as much earlier as it is told, how long the engine executed
    /// nothing although somebody was resident, and what tenants did. Whether somebody did not do as he did before.
    pub fn observe(
        &mut self,
        length: Nanos,
        of: impl Fn(Nanos) -> (Nanos, BTreeMap<TenantId, Stay>),
    ) -> bool {
        let mut surprised = false;
        for (index, lagged) in self.lags.iter_mut().enumerate() {
            let (idle, stays) = of(lagged.lag);
            let seen = lagged.shares.observe(length, idle, &stays);
            surprised |= seen && index == self.best;
        }
        let last = |lagged: &Lagged| lagged.shares.last_error().abs();
        if self.lags.iter().any(|lagged| last(lagged) < CHANGED) {
            for lagged in &mut self.lags {
                let error = last(lagged).min(CHANGED);
                lagged.error = PAST * lagged.error + (1.0 - PAST) * error * error;
            }
        }
        let error = |index: &usize| self.lags[*index].error;
        let order = |a: &usize, b: &usize| error(a).total_cmp(&error(b));
        if let Some(least) = (0..self.lags.len()).min_by(order)
            && error(&least) < BETTER * error(&self.best)
        {
            self.best = least;
        }
        surprised
    }

    /// The lag that is believed.
    pub fn lag(&self) -> Nanos {
        self.lags[self.best].lag
    }

    /// Estimates under it.
    pub fn shares(&self) -> &IdleShares {
        &self.lags[self.best].shares
    }

    /// A tenant is gone.
    pub fn forget(&mut self, tenant: TenantId) {
        for lagged in &mut self.lags {
            lagged.shares.forget(tenant);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: TenantId = TenantId(1);
    const B: TenantId = TenantId(2);
    const MS: u64 = 1_000_000;
    /// A's turn, and a whole frame.
    const TURN: u64 = 20_800_000;
    const FRAME: u64 = 41_600_000;

    /// How long A was resident until `at`.
    fn until(at: u64) -> u64 {
        at / FRAME * TURN + (at % FRAME).min(TURN)
    }

    fn stays(from: u64, to: u64) -> BTreeMap<TenantId, Stay> {
        let stay = |resident| Stay {
            resident: Nanos(resident),
            handovers: 0,
        };
        let own = until(to) - until(from);
        BTreeMap::from([(A, stay(own)), (B, stay(to - from - own))])
    }

    #[test]
    fn counters_that_are_older_than_they_say_are_found_out() {
        for lag in [0, 12, 18] {
            let mut shares = LaggedShares::default();
            for interval in 1..40 {
                let (from, to) = (interval * 100 * MS, (interval + 1) * 100 * MS);
                let of = |shift: Nanos| {
                    let truth = &stays(from - lag * MS, to - lag * MS)[&B];
                    // B is idle for an eighth.
                    let idle = Nanos(truth.resident.0 / 8);
                    (idle, stays(from - shift.0, to - shift.0))
                };
                shares.observe(Nanos(100 * MS), of);
            }
            assert_eq!(shares.lag(), Nanos::from_ms(lag));
            let found = (shares.shares().fraction(A), shares.shares().fraction(B));
            assert!(
                found.0 < 0.005 && (found.1 - 0.125).abs() < 0.005,
                "{lag} ms: {found:?}"
            );
        }
    }

    #[test]
    fn one_who_is_gone_is_forgotten_under_every_lag() {
        let mut shares = LaggedShares::default();
        let of = |_| (Nanos(50 * MS), stays(0, 100 * MS));
        shares.observe(Nanos(100 * MS), of);
        assert!(!shares.shares().is_new(A));
        shares.forget(A);
        assert!(shares.lags.iter().all(|lagged| lagged.shares.is_new(A)));
    }
}
