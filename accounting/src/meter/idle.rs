//! Whose idle time it was: the idle time of a whole engine, divided among those who were resident.
//!
//! A context-switch log says who was resident, and counters of the whole engine how long it executed; a resident tenant is
//! not always executing (it launches and waits). Each interval between two readings of the counters gives one equation:
//!
//! ```text
//!   idle time = sum over tenants of (idle fraction x residency + idle time at a handover x handovers) + noise
//! ```
//!
//! A handover is a residency that ends because the tenant is held: one with short kernels launches nothing more for a moment before
//! that. It has to be told apart from pauses within residency, because handovers come in step with turns, and would make
//! fractions of those who take turns look alike.
//!
//! Residencies mix differently in each, so the fractions follow. They are estimated by a Kalman filter with a random walk:
//! fractions change with what programs do. A tenant that was alone in an interval is known at once; the sum over all is
//! right in any case, which is what conservation needs.

use crate::units::{Nanos, TenantId};
use std::collections::BTreeMap;

/// Variance of the counters' share of idle time. SOURCE: measured on an H200: 99.846 to 99.859 % busy in five intervals of the
/// same loads; what the best fractions leave unexplained of tenants that take turns is 0.05 to 0.3 %.
const NOISE: f64 = 0.002 * 0.002;
/// Variance by which a fraction may change in an interval.
const WALK: f64 = 0.001 * 0.001;
/// Variance of a fraction that nothing is known of.
const UNKNOWN: f64 = 0.3 * 0.3;
/// An error so many standard deviations large means that somebody changed his ways,
const SURPRISE: f64 = 5.0;
/// by about so much.
const CHANGED: f64 = 0.1 * 0.1;
/// Variance of a fraction that is known well.
const WELL: f64 = 0.003 * 0.003;
/// Tenants estimated at a time; those who were not seen for longest go first.
const TENANTS_MAX: usize = 64;

/// What idle time at handovers is estimated in parts of: the longest that there is. SOURCE: measured on an H200: from taking a tenant
/// off the schedule until the engine goes over, 0.39 ms at most of 64.
const HANDOVER: Nanos = Nanos::from_us(450);
/// Variance of it where nothing is known, in such parts.
const UNKNOWN_HANDOVER: f64 = 0.3 * 0.3;
/// Part of an interval in which somebody has to be resident for it to say something: programs that start say nothing.
const RESIDENT_MIN: f64 = 0.5;

/// What of a tenant is estimated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// The fraction of its residency in which it is idle.
    Resident,
    /// Its idle time at a handover, in parts of [`HANDOVER`].
    Handover,
}

/// What tenants did in an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stay {
    /// How long it was resident.
    pub resident: Nanos,
    /// How many of its residencies ended because it is held.
    pub handovers: u32,
}

/// Fractions of residency in which tenants are idle.
#[derive(Clone, Debug, Default)]
pub struct IdleShares {
    /// In the order of the matrix's rows.
    tenants: Vec<(TenantId, Part)>,
    fractions: Vec<f64>,
    /// Row by row.
    covariance: Vec<Vec<f64>>,
    /// How many intervals ago each was resident.
    unseen: Vec<u32>,
    /// By how much the last interval's share of idle time was not as foretold.
    last_error: f64,
}

impl IdleShares {
    /// Takes an interval: its length, how long the engine executed nothing although somebody was resident, and how long each
    /// tenant was. Switches count as neither.
    /// Whether somebody did not do as he did before.
    pub fn observe(
        &mut self,
        length: Nanos,
        idle: Nanos,
        stays: &BTreeMap<TenantId, Stay>,
    ) -> bool {
        let resident: u64 = stays.values().map(|stay| stay.resident.0).sum();
        if length == Nanos::ZERO || (resident as f64) < RESIDENT_MIN * length.0 as f64 {
            self.last_error = 0.0;
            return false;
        }
        self.unseen.iter_mut().for_each(|unseen| *unseen += 1);
        for (tenant, stay) in stays.iter().take(TENANTS_MAX) {
            let row = self.row(*tenant, Part::Resident);
            self.unseen[row] = 0;
            if stay.handovers > 0 {
                let row = self.row(*tenant, Part::Handover);
                self.unseen[row] = 0;
            }
        }
        let whole = length.0 as f64;
        let share = |(tenant, part): &(TenantId, Part)| {
            let stay = stays.get(tenant).copied().unwrap_or_default();
            match part {
                Part::Resident => stay.resident.0 as f64 / whole,
                Part::Handover => f64::from(stay.handovers) * HANDOVER.0 as f64 / whole,
            }
        };
        let shares: Vec<f64> = self.tenants.iter().map(share).collect();
        let error = idle.0 as f64 / whole - dot(&shares, &self.fractions);
        self.last_error = error;
        for (row, unseen) in self.unseen.iter().enumerate() {
            if *unseen == 0 && self.tenants[row].1 == Part::Resident {
                self.covariance[row][row] += WALK;
            }
        }
        let variance = self.variance(&shares, NOISE);
        let surprised = error * error > SURPRISE * SURPRISE * variance;
        if surprised {
            for (row, share) in shares.iter().enumerate() {
                if *share > 0.0 && self.tenants[row].1 == Part::Resident {
                    self.covariance[row][row] += CHANGED;
                }
            }
        }
        self.update(&shares, error, NOISE);
        self.bound();
        surprised
    }

    /// By how much the last interval's share of idle time was not as foretold.
    pub const fn last_error(&self) -> f64 {
        self.last_error
    }

    /// Whether nothing is known of a tenant.
    pub fn is_new(&self, tenant: TenantId) -> bool {
        self.find(tenant, Part::Resident).is_none()
    }

    /// A fraction lies within 0 and 1: one that came out beyond is moved to the bound, and the others with it. That says nothing of
    /// how well they are known.
    fn bound(&mut self) {
        for row in 0..self.tenants.len() {
            let fraction = self.fractions[row];
            let beyond = fraction.clamp(0.0, 1.0) - fraction;
            if beyond != 0.0 {
                let variance = self.covariance[row][row] + NOISE;
                for other in 0..self.tenants.len() {
                    self.fractions[other] += self.covariance[other][row] / variance * beyond;
                }
                self.fractions[row] = fraction + beyond;
            }
        }
    }

    /// Fraction of its residency in which a tenant is idle, within 0 and 1; 0 if nothing is known.
    pub fn fraction(&self, tenant: TenantId) -> f64 {
        self.estimate(tenant, Part::Resident)
    }

    /// How long a tenant is idle at the end of a residency that ends because it is held.
    pub fn at_handover(&self, tenant: TenantId) -> Nanos {
        // CAST: a part of it.
        Nanos((HANDOVER.0 as f64 * self.estimate(tenant, Part::Handover)) as u64)
    }

    fn estimate(&self, tenant: TenantId, part: Part) -> f64 {
        self.find(tenant, part)
            .map_or(0.0, |row| self.fractions[row].clamp(0.0, 1.0))
    }

    /// Standard deviation of that fraction.
    pub fn uncertainty(&self, tenant: TenantId) -> f64 {
        let row = self.find(tenant, Part::Resident);
        row.map_or(UNKNOWN, |row| self.covariance[row][row].max(0.0))
            .sqrt()
            .min(1.0)
    }

    /// Whether all who were resident lately are known well, so that the counters need not be read each time.
    pub fn settled(&self) -> bool {
        (0..self.tenants.len())
            .filter(|row| self.unseen[*row] < 10 && self.tenants[*row].1 == Part::Resident)
            .all(|row| self.covariance[row][row] < WELL)
    }

    /// A tenant is gone.
    pub fn forget(&mut self, tenant: TenantId) {
        for part in [Part::Resident, Part::Handover] {
            if let Some(row) = self.find(tenant, part) {
                self.remove(row);
            }
        }
    }

    fn find(&self, tenant: TenantId, part: Part) -> Option<usize> {
        self.tenants
            .iter()
            .position(|known| *known == (tenant, part))
    }

    fn row(&mut self, tenant: TenantId, part: Part) -> usize {
        if let Some(row) = self.find(tenant, part) {
            return row;
        }
        if self.tenants.len() >= 2 * TENANTS_MAX
            && let Some(oldest) = (0..self.tenants.len()).max_by_key(|row| self.unseen[*row])
        {
            self.remove(oldest);
        }
        self.tenants.push((tenant, part));
        self.fractions.push(0.0);
        self.unseen.push(0);
        self.covariance.iter_mut().for_each(|row| row.push(0.0));
        let mut row = vec![0.0; self.tenants.len()];
        row[self.tenants.len() - 1] = match part {
            Part::Resident => UNKNOWN,
            Part::Handover => UNKNOWN_HANDOVER,
        };
        self.covariance.push(row);
        self.tenants.len() - 1
    }

    fn remove(&mut self, row: usize) {
        self.tenants.remove(row);
        self.fractions.remove(row);
        self.unseen.remove(row);
        self.covariance.remove(row);
        for other in &mut self.covariance {
            other.remove(row);
        }
    }

    fn moved(&self, shares: &[f64]) -> Vec<f64> {
        self.covariance.iter().map(|row| dot(row, shares)).collect()
    }

    fn variance(&self, shares: &[f64], noise: f64) -> f64 {
        dot(shares, &self.moved(shares)) + noise
    }

    fn update(&mut self, shares: &[f64], error: f64, noise: f64) {
        let moved = self.moved(shares);
        let variance = dot(shares, &moved) + noise;
        for (row, moved_row) in moved.iter().enumerate() {
            let gain = moved_row / variance;
            self.fractions[row] += gain * error;
            for (column, moved_column) in moved.iter().enumerate() {
                self.covariance[row][column] -= gain * moved_column;
            }
            self.covariance[row][row] = self.covariance[row][row].max(0.0);
        }
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: TenantId = TenantId(1);
    const B: TenantId = TenantId(2);
    const C: TenantId = TenantId(3);
    const INTERVAL: u64 = 100_000_000;

    const fn stay(resident_ns: u64) -> Stay {
        Stay {
            resident: Nanos(resident_ns),
            handovers: 0,
        }
    }

    /// Turns of `slices` (ms) within frames, seen in intervals of 100 ms; `fractions` are the truth. Returns the estimates
    /// after so many intervals.
    fn taught(
        slices: &[f64],
        fractions: &[f64],
        lumps: &[f64],
        intervals: usize,
        noise: f64,
    ) -> IdleShares {
        let frame: f64 = slices.iter().sum();
        let mut shares = IdleShares::default();
        for interval in 0..intervals {
            let (begin, end) = (interval as f64 * 100.0, (interval + 1) as f64 * 100.0);
            let mut stays = BTreeMap::new();
            let mut idle = 0.0;
            for (index, slice) in slices.iter().enumerate() {
                let before: f64 = slices[..index].iter().sum();
                let (mut had, mut handovers) = (0.0, 0);
                let mut at = (begin / frame).floor() * frame + before;
                while at < end {
                    had += (at + slice).min(end) - at.max(begin).min(at + slice).min(end);
                    if (begin..end).contains(&(at + slice)) {
                        handovers += 1;
                    }
                    at += frame;
                }
                idle += had * fractions[index] + f64::from(handovers) * lumps[index];
                let resident = Nanos((had * 1e6) as u64);
                let stay = Stay {
                    resident,
                    handovers,
                };
                stays.insert(TenantId(index as u32 + 1), stay);
            }
            // Noise that alternates in a way of its own, not in step with the frames.
            let sign = [1.0, -1.0, 0.5, -0.8, 0.3, -0.1, 0.9][interval % 7];
            let idle = (idle * 1e6 + sign * noise * INTERVAL as f64).max(0.0);
            shares.observe(Nanos(INTERVAL), Nanos(idle as u64), &stays);
        }
        shares
    }

    fn turns(slices: &[f64], fractions: &[f64], intervals: usize, noise: f64) -> Vec<f64> {
        let lumps = vec![0.0; slices.len()];
        let shares = taught(slices, fractions, &lumps, intervals, noise);
        (0..slices.len())
            .map(|index| shares.fraction(TenantId(index as u32 + 1)))
            .collect()
    }

    fn worst(found: &[f64], truth: &[f64]) -> f64 {
        found
            .iter()
            .zip(truth)
            .map(|(a, b)| (a - b).abs())
            .fold(0.0, f64::max)
    }

    #[test]
    fn one_who_was_alone_is_known_at_once() {
        let mut shares = IdleShares::default();
        let alone = BTreeMap::from([(A, stay(INTERVAL))]);
        shares.observe(Nanos(INTERVAL), Nanos(65_000_000), &alone);
        assert!((shares.fraction(A) - 0.65).abs() < 0.001);
        shares.observe(Nanos(INTERVAL), Nanos(100_000), &alone);
        assert!(shares.fraction(A) < 0.01, "and when it changes its ways");
    }

    #[test]
    fn fractions_of_tenants_that_take_turns_follow_from_how_the_turns_mix() {
        let half = 1000.0 / 48.0;
        for (slices, truth) in [
            (&[half, half][..], &[0.005, 0.05][..]),
            (&[half, half], &[0.15, 0.0]),
            (&[1.5 * half, 0.5 * half], &[0.005, 0.14]),
            (&[10.4, 10.4, 10.4, 10.466], &[0.005, 0.05, 0.14, 0.0]),
        ] {
            let found = turns(slices, truth, 50, 0.0005);
            assert!(
                worst(&found, truth) < 0.01,
                "{slices:?}: {found:?} for {truth:?}"
            );
        }
    }

    #[test]
    fn idle_time_at_handovers_does_not_make_fractions_alike() {
        let half = 1000.0 / 48.0;
        for (slices, truth, lumps) in [
            (&[half, half][..], &[0.005, 0.05][..], &[0.0, 0.3][..]),
            (&[1.5 * half, 0.5 * half], &[0.14, 0.0], &[0.33, 0.0]),
            (&[0.2 * half, 1.8 * half], &[0.05, 0.14], &[0.25, 0.33]),
        ] {
            let shares = taught(slices, truth, lumps, 40, 0.0005);
            // What counts is a whole turn, whichever of the two its idle time is taken for.
            for (index, slice) in slices.iter().enumerate() {
                let tenant = TenantId(index as u32 + 1);
                let at_handover = shares.at_handover(tenant).0 as f64 / 1e6;
                let found = shares.fraction(tenant) + at_handover / slice;
                let expected = truth[index] + lumps[index] / slice;
                assert!(
                    (found - expected).abs() < 0.01,
                    "{slices:?}, {tenant}: {found} for {expected}"
                );
            }
        }
    }

    #[test]
    fn where_the_mix_never_changes_the_sum_is_right() {
        let found = turns(&[50.0, 50.0], &[0.0, 0.2], 30, 0.0);
        assert!((found[0] + found[1] - 0.2).abs() < 0.002, "{found:?}");
    }

    #[test]
    fn a_wrong_start_does_not_leave_one_below_nothing_and_another_above() {
        let mut shares = IdleShares::default();
        let native = |a: u64, b: u64| BTreeMap::from([(A, stay(a)), (B, stay(b))]);
        // While programs start, counters and residency say anything.
        shares.observe(
            Nanos(INTERVAL),
            Nanos(INTERVAL),
            &native(1_000_000, 99_000_000),
        );
        for _ in 0..20 {
            shares.observe(
                Nanos(INTERVAL),
                Nanos(150_000),
                &native(83_000_000, 10_500_000),
            );
        }
        assert!(
            shares.fraction(A) < 0.01 && shares.fraction(B) < 0.05,
            "{shares:?}"
        );
    }

    #[test]
    fn one_that_is_gone_is_forgotten_and_others_stay() {
        let mut shares = IdleShares::default();
        let both = BTreeMap::from([(A, stay(INTERVAL / 2)), (B, stay(INTERVAL / 2))]);
        shares.observe(Nanos(INTERVAL), Nanos(INTERVAL / 2), &both);
        shares.forget(A);
        assert_eq!(shares.fraction(A), 0.0);
        assert!(shares.fraction(B) > 0.3);
        assert_eq!(shares.fraction(C), 0.0);
        for id in 0..200 {
            let one = BTreeMap::from([(TenantId(id), stay(INTERVAL))]);
            shares.observe(Nanos(INTERVAL), Nanos(id.into()), &one);
        }
        assert!(shares.tenants.len() <= 2 * TENANTS_MAX);
    }
}
