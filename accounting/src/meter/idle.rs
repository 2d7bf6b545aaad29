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
//! fractions of those who take turns look alike. How long it is follows from the fraction.
//!
//! Residencies mix differently in each, so the fractions follow. They are estimated by an extended Kalman filter with a random walk:
//! fractions change with what programs do. A tenant that was alone in an interval is known at once; the sum over all is
//! right in any case, which is what conservation needs.

use crate::units::{Nanos, TenantId};
use std::collections::BTreeMap;

/// Standard deviation of the counters' share of idle time where it is known when they were read. SOURCE: measured on an H200, by
/// the kernels' own time stamps: 0.05 to 0.1 % of it are not explained by the best fractions; more, where those vary.
pub(super) const NOISE: f64 = 0.001_5;
/// Standard deviation by which a fraction may change in [`INTERVAL`]: for one that is idle, in parts of it. SOURCE: measured: from one
/// interval to the next, the pauses of one who launches and waits are 1 to 3 % longer or shorter; kernels that do not end have none.
const WALK: (f64, f64) = (0.000_3, 0.02);
const INTERVAL: Nanos = Nanos::from_ms(100);
/// Variance of a fraction that nothing is known of.
const UNKNOWN: f64 = 0.3 * 0.3;
/// An error so many standard deviations large means that somebody changed his ways, if the next one is as well: a pause of some
/// milliseconds, which programs make now and then, is no change.
const SURPRISE: f64 = 5.0;
/// Standard deviation of such a pause: for one that is idle, in parts of it. Whoever waits more often is more likely to have waited for longer.
const PAUSED: (f64, f64) = (0.002, 0.5);
/// One of so much of the interval is a change at once.
const PAUSE_MAX: f64 = 0.05;
/// Standard deviation of a change: for one that is idle, in parts of it. Whoever is idle more is more likely to be it.
const CHANGED: (f64, f64) = (0.02, 0.5);
/// Tenants estimated at a time; those who were not seen for longest go first.
const TENANTS_MAX: usize = 32;

/// An error counts for no more than so many variances: one interval does not outweigh all others.
const MISFIT_MAX: f64 = 12.0;

/// Idle time at a handover, at most, and for a fraction of idle time: from being taken off the schedule a tenant launches nothing, and
/// runs what it has. Whoever launches and waits has pauses of about the same length, so that short kernels, of which little
/// is left, go with large fractions. SOURCE: measured on an H200, 80 handovers each: 268 us for kernels of 50 us (12 % idle), 171 for 200 us
/// (4 %), 21 for 2 ms (0.5 %), none for those that do not end.
const HANDOVER_MAX: Nanos = Nanos::from_us(270);
const HANDOVER: Nanos = Nanos::from_ms(6);
/// Part of an interval in which somebody has to be resident for it to say something: programs that start say nothing.
const RESIDENT_MIN: f64 = 0.5;

/// What tenants did in an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stay {
    /// How long it was resident.
    pub resident: Nanos,
    /// How many of its residencies ended because it is held.
    pub handovers: u32,
    /// Standard deviation of how long it had work there, where it was seen without and it is not known since when.
    pub doubt: Nanos,
}

/// How long one who is idle for this fraction of his residency is idle at the end of one that ends because he is held, in ns.
fn handover_ns(fraction: f64) -> f64 {
    (HANDOVER.0 as f64 * fraction).min(HANDOVER_MAX.0 as f64)
}

/// How long one who is idle for this fraction of his residency is idle in a stay, in ns.
fn usual_ns(fraction: f64, stay: &Stay) -> f64 {
    fraction * stay.resident.0 as f64 + handover_ns(fraction) * f64::from(stay.handovers)
}

/// A tenant whose fraction is estimated.
#[derive(Clone, Copy, Debug)]
struct Known {
    tenant: TenantId,
    fraction: f64,
    /// How many intervals ago it was resident.
    unseen: u32,
}

/// Fractions of residency in which tenants are idle.
#[derive(Clone, Debug)]
pub struct IdleShares {
    /// Variance of the counters' share of idle time.
    noise: f64,
    /// Variance of a fraction that nothing is known of.
    unknown: f64,
    /// In the order of the matrix's rows.
    known: Vec<Known>,
    /// Row by row.
    covariance: Vec<Vec<f64>>,
    /// How well the last interval was foretold.
    misfit: f64,
    /// Intervals since the last one that was a surprise, and how many of them may lie before another for that to be a change.
    since_surprise: u32,
    again_within: u32,
    /// Variance of the last interval's share of idle time for not knowing when tenants stopped.
    doubt: f64,
    /// What of its error goes with that.
    misplaced: f64,
    /// How long each tenant was idle in it, as far as is known now; in ns.
    found: Vec<(TenantId, f64)>,
}

impl Default for IdleShares {
    fn default() -> Self {
        Self::with_noise(NOISE)
    }
}

impl IdleShares {
    /// Nobody is known; the counters' share of idle time has this standard deviation.
    pub const fn with_noise(deviation: f64) -> Self {
        Self {
            noise: deviation * deviation,
            unknown: UNKNOWN,
            known: Vec::new(),
            covariance: Vec::new(),
            misfit: 0.0,
            since_surprise: u32::MAX,
            again_within: 1,
            doubt: 0.0,
            misplaced: 0.0,
            found: Vec::new(),
        }
    }

    /// Fractions are as small as this, as far as nothing is known of them.
    pub fn and_small(self, deviation: f64) -> Self {
        let unknown = deviation * deviation;
        Self { unknown, ..self }
    }

    /// Two surprises with less than so many intervals between them are a change. (Those in which one is alone may come seldom, and others say nothing
    /// of him.)
    pub fn and_again_within(self, intervals: u32) -> Self {
        Self {
            again_within: intervals + 1,
            ..self
        }
    }

    /// The same, with another deviation.
    pub fn and_noise(&self, deviation: f64) -> Self {
        Self {
            noise: deviation * deviation,
            ..self.clone()
        }
    }

    /// Takes an interval: its length, how long the engine executed nothing, for how long nobody was there to execute, as far as is known, and
    /// how long each tenant was. Switches count as neither.
    pub fn observe(
        &mut self,
        length: Nanos,
        idle: Nanos,
        nobody: Nanos,
        stays: &BTreeMap<TenantId, Stay>,
    ) {
        (self.misfit, self.misplaced) = (0.0, 0.0);
        self.found.clear();
        let resident: u64 = stays.values().map(|stay| stay.resident.0).sum();
        if length == Nanos::ZERO || (resident as f64) < RESIDENT_MIN * length.0 as f64 {
            return;
        }
        self.appear(stays);
        let whole = length.0 as f64;
        let doubts = stays.values().map(|stay| stay.doubt.0 as f64 / whole);
        self.doubt = doubts.map(|doubt| doubt * doubt).sum();
        let mut foretold = 0.0;
        let mut shares = Vec::with_capacity(self.known.len());
        for known in &self.known {
            let stay = stays.get(&known.tenant).copied().unwrap_or_default();
            let (resident, handovers) = (stay.resident.0 as f64, f64::from(stay.handovers));
            foretold += usual_ns(known.fraction, &stay) / whole;
            let grows = if handover_ns(known.fraction) < HANDOVER_MAX.0 as f64 {
                HANDOVER.0 as f64
            } else {
                0.0
            };
            // By how much it grows with the fraction.
            shares.push((resident + grows * handovers) / whole);
        }
        // More than all of it, where one had work for longer than was told.
        let within = idle.0 as f64 - nobody.0 as f64;
        let error = within / whole - foretold;
        self.spread(&shares, whole / INTERVAL.0 as f64, |fraction| {
            WALK.0 + WALK.1 * fraction
        });
        let variance = self.variance(&shares);
        self.misfit = (error * error / variance).min(MISFIT_MAX) + variance.ln();
        let surprise = error * error > SURPRISE * SURPRISE * variance;
        let again = self.since_surprise < self.again_within;
        self.since_surprise = if surprise {
            0
        } else {
            self.since_surprise.saturating_add(1)
        };
        let large = error.abs() > PAUSE_MAX;
        if surprise && !again && !large {
            self.find_idle(stays, error * whole);
            return;
        }
        if surprise {
            let least = if large { error.abs() } else { 0.0 };
            self.spread(&shares, 1.0, |fraction| {
                (CHANGED.0 + CHANGED.1 * fraction).max(least)
            });
        }
        self.misplaced = error * self.doubt / self.variance(&shares);
        self.update(&shares, error);
        self.bound();
        // Of an interval in which somebody stopped it says how wrongly that was told, and little else.
        if !large && self.doubt == 0.0 {
            self.find_idle(stays, 0.0);
        }
    }

    /// How long each was idle, with a pause of `paused_ns` (negative: one that was missing) that says nothing of fractions.
    fn find_idle(&mut self, stays: &BTreeMap<TenantId, Stay>, paused_ns: f64) {
        let likely = |fraction: f64, stay: &Stay| {
            let deviation = (PAUSED.0 + PAUSED.1 * fraction) * stay.resident.0 as f64;
            deviation * deviation
        };
        let there = |known: &Known| Some((*known, *stays.get(&known.tenant)?));
        let there: Vec<(Known, Stay)> = self.known.iter().filter_map(there).collect();
        let all = there
            .iter()
            .map(|(known, stay)| likely(known.fraction, stay));
        let all = all.sum::<f64>().max(1.0);
        let found = |(known, stay): &(Known, Stay)| {
            let paused = paused_ns * likely(known.fraction, stay) / all;
            (known.tenant, usual_ns(known.fraction, stay) + paused)
        };
        self.found = there.iter().map(found).collect();
    }

    /// How long each tenant was idle in the last interval, as far as is known now, in ns; none if it said nothing.
    pub fn found(&self) -> &[(TenantId, f64)] {
        &self.found
    }

    /// Rows for those who were there.
    fn appear(&mut self, stays: &BTreeMap<TenantId, Stay>) {
        for known in &mut self.known {
            known.unseen += 1;
        }
        for tenant in stays.keys().take(TENANTS_MAX) {
            let row = self.row(*tenant);
            self.known[row].unseen = 0;
        }
    }

    /// Those who were there may have changed by such a standard deviation, so many times.
    fn spread(&mut self, shares: &[f64], times: f64, deviation: impl Fn(f64) -> f64) {
        for (row, share) in shares.iter().enumerate() {
            if *share > 0.0 {
                let deviation = deviation(self.known[row].fraction);
                self.covariance[row][row] += times * deviation * deviation;
            }
        }
    }

    /// How badly the last interval was foretold: twice the negative logarithm of its likelihood, but for a constant; zero if it said
    /// nothing.
    pub const fn misfit(&self) -> f64 {
        self.misfit
    }

    /// By how much of the last interval those with a [`Stay::doubt`] had work for less time than was told, as far as can be known; negative: for more.
    pub const fn misplaced(&self) -> f64 {
        self.misplaced
    }

    /// Whether nothing is known of a tenant.
    #[cfg(test)]
    pub(super) fn is_new(&self, tenant: TenantId) -> bool {
        self.find(tenant).is_none()
    }

    /// A fraction lies within 0 and 1: one that came out beyond is moved to the bound, and the others with it. That says nothing of
    /// how well they are known.
    fn bound(&mut self) {
        for row in 0..self.known.len() {
            let fraction = self.known[row].fraction;
            let beyond = fraction.clamp(0.0, 1.0) - fraction;
            if beyond != 0.0 {
                let variance = self.covariance[row][row] + self.noise;
                for other in 0..self.known.len() {
                    self.known[other].fraction += self.covariance[other][row] / variance * beyond;
                }
                self.known[row].fraction = fraction + beyond;
            }
        }
    }

    /// Of whom something is known.
    pub fn tenants(&self) -> impl Iterator<Item = TenantId> + '_ {
        self.known.iter().map(|known| known.tenant)
    }

    /// Fraction of its residency in which a tenant is idle, within 0 and 1; 0 if nothing is known.
    pub fn fraction(&self, tenant: TenantId) -> f64 {
        self.find(tenant)
            .map_or(0.0, |row| self.known[row].fraction.clamp(0.0, 1.0))
    }

    /// How long a tenant is idle in a stay, as far as is known, in ns.
    pub fn usual_ns(&self, tenant: TenantId, stay: &Stay) -> f64 {
        usual_ns(self.fraction(tenant), stay)
    }

    /// How long a tenant is idle at the end of a residency that ends because it is held.
    pub fn at_handover(&self, tenant: TenantId) -> Nanos {
        // CAST: at most HANDOVER_MAX.
        Nanos(handover_ns(self.fraction(tenant)) as u64)
    }

    /// Standard deviation of that fraction.
    pub fn uncertainty(&self, tenant: TenantId) -> f64 {
        self.find(tenant)
            .map_or(self.unknown, |row| self.covariance[row][row].max(0.0))
            .sqrt()
            .min(1.0)
    }

    /// What was learnt of a tenant is not true any more.
    pub fn unlearn(&mut self, tenant: TenantId) {
        let Some(row) = self.find(tenant) else {
            return;
        };
        self.known[row].fraction = 0.0;
        for other in 0..self.known.len() {
            self.covariance[row][other] = 0.0;
            self.covariance[other][row] = 0.0;
        }
        self.covariance[row][row] = self.unknown;
    }

    /// A tenant is gone.
    pub fn forget(&mut self, tenant: TenantId) {
        if let Some(row) = self.find(tenant) {
            self.remove(row);
        }
    }

    fn find(&self, tenant: TenantId) -> Option<usize> {
        self.known.iter().position(|known| known.tenant == tenant)
    }

    fn row(&mut self, tenant: TenantId) -> usize {
        if let Some(row) = self.find(tenant) {
            return row;
        }
        if self.known.len() >= TENANTS_MAX
            && let Some(oldest) = (0..self.known.len()).max_by_key(|row| self.known[*row].unseen)
        {
            self.remove(oldest);
        }
        self.known.push(Known {
            tenant,
            fraction: 0.0,
            unseen: 0,
        });
        self.covariance.iter_mut().for_each(|row| row.push(0.0));
        let mut row = vec![0.0; self.known.len()];
        row[self.known.len() - 1] = self.unknown;
        self.covariance.push(row);
        self.known.len() - 1
    }

    fn remove(&mut self, row: usize) {
        self.known.remove(row);
        self.covariance.remove(row);
        for other in &mut self.covariance {
            other.remove(row);
        }
    }

    fn moved(&self, shares: &[f64]) -> Vec<f64> {
        self.covariance.iter().map(|row| dot(row, shares)).collect()
    }

    fn variance(&self, shares: &[f64]) -> f64 {
        dot(shares, &self.moved(shares)) + self.noise + self.doubt
    }

    fn update(&mut self, shares: &[f64], error: f64) {
        let moved = self.moved(shares);
        let variance = dot(shares, &moved) + self.noise + self.doubt;
        for (row, moved_row) in moved.iter().enumerate() {
            let gain = moved_row / variance;
            self.known[row].fraction += gain * error;
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
    const INTERVAL: u64 = super::INTERVAL.0;

    const fn stay(resident_ns: u64) -> Stay {
        Stay {
            resident: Nanos(resident_ns),
            handovers: 0,
            doubt: Nanos::ZERO,
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
                    doubt: Nanos::ZERO,
                };
                stays.insert(TenantId(index as u32 + 1), stay);
            }
            // Noise that alternates in a way of its own, not in step with the frames.
            let sign = [1.0, -1.0, 0.5, -0.8, 0.3, -0.1, 0.9][interval % 7];
            let idle = (idle * 1e6 + sign * noise * INTERVAL as f64).max(0.0);
            shares.observe(Nanos(INTERVAL), Nanos(idle as u64), Nanos::ZERO, &stays);
        }
        shares
    }

    /// What counts is the idle part of a whole turn, whatever of it is taken for idle at handovers.
    fn of_turns(shares: &IdleShares, slices: &[f64]) -> Vec<f64> {
        let of = |(index, slice): (usize, &f64)| {
            let tenant = TenantId(index as u32 + 1);
            shares.fraction(tenant) + shares.at_handover(tenant).0 as f64 / 1e6 / slice
        };
        slices.iter().enumerate().map(of).collect()
    }

    fn turns(slices: &[f64], fractions: &[f64], intervals: usize, noise: f64) -> Vec<f64> {
        // The shorter a kernel, the more is idle at handovers.
        let lumps: Vec<f64> = fractions
            .iter()
            .map(|f| 270.0_f64.min(6_000.0 * f) / 1e3)
            .collect();
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
        shares.observe(Nanos(INTERVAL), Nanos(65_000_000), Nanos::ZERO, &alone);
        assert!((shares.fraction(A) - 0.65).abs() < 0.001);
        shares.observe(Nanos(INTERVAL), Nanos(100_000), Nanos::ZERO, &alone);
        assert!(
            shares.fraction(A) < 0.02,
            "and when it changes its ways: {shares:?}"
        );
        shares.observe(Nanos(INTERVAL), Nanos(100_000), Nanos::ZERO, &alone);
        shares.observe(Nanos(INTERVAL), Nanos(4_000_000), Nanos::ZERO, &alone);
        assert!(shares.fraction(A) < 0.02, "once may be a pause: {shares:?}");
        shares.observe(Nanos(INTERVAL), Nanos(4_000_000), Nanos::ZERO, &alone);
        assert!(shares.fraction(A) > 0.03, "twice is a change: {shares:?}");
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
            // Four are found more slowly: what one has too much the one beside it has too little.
            let bound = if slices.len() > 2 { 0.02 } else { 0.01 };
            assert!(
                worst(&found, truth) < bound,
                "{slices:?}: {found:?} for {truth:?}"
            );
        }
    }

    #[test]
    fn idle_time_at_handovers_does_not_make_fractions_alike() {
        let half = 1000.0 / 48.0;
        for (slices, truth, lumps) in [
            (&[half, half][..], &[0.005, 0.05][..], &[0.0, 0.2][..]),
            (&[1.5 * half, 0.5 * half], &[0.14, 0.0], &[0.33, 0.0]),
            (&[0.2 * half, 1.8 * half], &[0.05, 0.14], &[0.25, 0.33]),
        ] {
            let shares = taught(slices, truth, lumps, 40, 0.0005);
            let found = of_turns(&shares, slices);
            let whole = |index: usize| truth[index] + lumps[index] / slices[index];
            let expected: Vec<f64> = (0..slices.len()).map(whole).collect();
            assert!(
                worst(&found, &expected) < 0.01,
                "{slices:?}: {found:?} for {expected:?}"
            );
        }
    }

    #[test]
    fn where_the_mix_never_changes_the_sum_is_right() {
        let slices = [50.0, 50.0];
        let shares = taught(&slices, &[0.0, 0.2], &[0.0, 0.27], 30, 0.0);
        let found = of_turns(&shares, &slices);
        let sum = 0.2 + 0.27 / 50.0;
        assert!((found[0] + found[1] - sum).abs() < 0.002, "{found:?}");
    }

    #[test]
    fn a_wrong_start_does_not_leave_one_below_nothing_and_another_above() {
        let mut shares = IdleShares::default();
        let native = |a: u64, b: u64| BTreeMap::from([(A, stay(a)), (B, stay(b))]);
        // While programs start, counters and residency say anything.
        shares.observe(
            Nanos(INTERVAL),
            Nanos(INTERVAL),
            Nanos::ZERO,
            &native(1_000_000, 99_000_000),
        );
        for _ in 0..20 {
            shares.observe(
                Nanos(INTERVAL),
                Nanos(150_000),
                Nanos::ZERO,
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
        shares.observe(Nanos(INTERVAL), Nanos(INTERVAL / 2), Nanos::ZERO, &both);
        shares.forget(A);
        assert_eq!(shares.fraction(A), 0.0);
        assert!(shares.fraction(B) > 0.3);
        assert_eq!(shares.fraction(C), 0.0);
        for id in 0..200 {
            let one = BTreeMap::from([(TenantId(id), stay(INTERVAL))]);
            shares.observe(Nanos(INTERVAL), Nanos(id.into()), Nanos::ZERO, &one);
        }
        assert!(shares.known.len() <= TENANTS_MAX);
    }

    #[test]
    fn a_pause_is_known_as_his_who_waits_more_often_and_says_nothing_of_what_comes() {
        let mut shares = taught(&[41.7, 41.7], &[0.14, 0.0], &[0.0, 0.0], 40, 0.0);
        let both = BTreeMap::from([(A, stay(30_000_000)), (B, stay(70_000_000))]);
        let usual = 0.14 * 30_000_000.0;
        for paused in [3_000_000.0, 0.0] {
            let before = (shares.fraction(A), shares.fraction(B));
            let idle = Nanos((usual + paused) as u64);
            shares.observe(Nanos(INTERVAL), idle, Nanos::ZERO, &both);
            let found: BTreeMap<TenantId, f64> = shares.found().iter().copied().collect();
            assert!((found[&A] - usual - paused).abs() < 200_000.0, "{found:?}");
            assert!(found[&B].abs() < 100_000.0, "{found:?}");
            let after = (shares.fraction(A), shares.fraction(B));
            let moved = (after.0 - before.0).abs() + (after.1 - before.1).abs();
            assert!(moved < 0.005, "{before:?} {after:?}");
        }
        // Two of them in a row, and a large one, are changes.
        let idle = Nanos((usual + 20_000_000.0) as u64);
        shares.observe(Nanos(INTERVAL), idle, Nanos::ZERO, &both);
        assert!(shares.found().is_empty());
    }

    #[test]
    fn what_is_unlearnt_of_one_is_learnt_anew_and_others_keep_what_is_known_of_them() {
        let mut shares = IdleShares::default();
        for (tenant, idle) in [(A, 90), (B, 12)] {
            let alone = BTreeMap::from([(tenant, stay(INTERVAL))]);
            let idle = Nanos(INTERVAL / 100 * idle);
            shares.observe(Nanos(INTERVAL), idle, Nanos::ZERO, &alone);
        }
        let (a, b) = (shares.fraction(A), shares.fraction(B));
        assert!((a - 0.9).abs() < 0.01 && (b - 0.12).abs() < 0.01, "{a} {b}");
        shares.unlearn(A);
        shares.unlearn(C);
        assert_eq!((shares.fraction(A), shares.fraction(B)), (0.0, b));
        assert!(shares.uncertainty(A) > 0.2 && shares.uncertainty(B) < 0.01);
        let both = BTreeMap::from([(A, stay(INTERVAL / 2)), (B, stay(INTERVAL / 2))]);
        let idle = Nanos(INTERVAL / 100 * 11);
        shares.observe(Nanos(INTERVAL), idle, Nanos::ZERO, &both);
        let (a, b) = (shares.fraction(A), shares.fraction(B));
        assert!((a - 0.1).abs() < 0.01 && (b - 0.12).abs() < 0.01, "{a} {b}");
    }
}
