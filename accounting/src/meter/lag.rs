//! Whose idle time it was, where it is not known how much older the engine's counters are than their time stamps.
//!
//! Counters that were read some milliseconds before the moment that they name are of another mix of residencies than it says,
//! which makes tenants that take turns look alike, or the other way round. So each lag that is possible has its own
//! [`IdleShares`], and the one that foretells the idle time best is believed. Around one that stands out, finer steps are tried.
//!
//! SOURCE: measured on an H200: the device latches each 100 ms, and the time stamps come each 100 ms, in no step with each other:
//! 7.5, 10, 64, 67 and 91 ms in five runs of a daemon. By the counters' own clock the lag stays the same to 60 us in 12 s. Turns
//! that repeat each 42 ms foretell as well with 42 ms more or less, but for their beginning; so no other part of the range is left out.

use super::idle::{Found, IdleShares, NOISE, Stay};
use crate::units::{Nanos, TenantId};
use std::collections::BTreeMap;

/// From one lag that is tried to the next, and the longest: from one latch to the next, and a little.
const STEP: Nanos = Nanos::from_ms(2);
const LAG_MAX: Nanos = Nanos::from_ms(104);
/// Standard deviation of the share of idle time for being off by half a step: one of two tenants that pauses for a sixth of its turn, and
/// an interval that begins and ends in it.
const STEP_NOISE: f64 = 0.003;

/// The same around one that stands out, on either side of it.
const FINE_STEP: Nanos = Nanos::from_us(500);
const FINE_STEPS: u64 = 4;

/// Standard deviation of the share of idle time under a lag that was measured. SOURCE: measured on an H200: kernels' own time
/// stamps and switches explain all but 0.01 to 0.02 % of an interval; the rest is for idle fractions that change within one.
const MEASURED_NOISE: f64 = 0.001;

/// Weight of the past in how badly a lag foretold: some fifty intervals.
const PAST: f64 = 0.98;

/// One stands out if those that are not beside it are worse by so much: e to the power of half of it times as unlikely.
const CLEAR: f64 = 20.0;
/// Finer steps go on from the one at the end of their range if it is better than the middle by so much.
const BETTER: f64 = 6.0;
/// Launches say who pauses if they foretell better by so much. SOURCE: decision 042: with less, the first second of a recording was learnt worse.
const TELLING: f64 = 6.0;
/// What is told of one is what is learnt beside the launches of others, and not what his residency says, if that is so much more. SOURCE: a recording of four tenants on an H200, two of them with bursts: of one
/// with kernels of 2 ms it was believed for two seconds that he is idle for half of his time, and then for a fifth; he paid 27 ms too little.
const TAKEN_FOR: f64 = 0.02;
/// Beside it: estimates are much the same.
const BESIDE: Nanos = Nanos::from_ms(4);

/// What launches say of an interval is believed up to so many standard deviations of a pause: tenants may write what is counted.
const OFF_MAX: f64 = 2.0;
/// Residencies may take one's pauses for another's. So where launches are confirmed, the pause of one whose launches are counted is as long as that of whoever has the longest, but for
/// so much of his residency (that of one who launches kernels of 50 us and waits for them).
const PAUSE_MAX: f64 = 0.08;

/// A pause is one's own of which his launches tell such a part.
const OWN_MIN: f64 = 0.2;

/// Estimates under one lag.
#[derive(Clone, Debug)]
struct Lagged {
    lag: Nanos,
    shares: IdleShares,
    misfit: f64,
}

impl Lagged {
    const fn new(lag: Nanos, shares: IdleShares) -> Self {
        let misfit = 0.0;
        Self {
            lag,
            shares,
            misfit,
        }
    }
}

/// Idle fractions under the lag that fits.
#[derive(Clone, Debug)]
pub struct LaggedShares {
    /// None where the lag was measured.
    coarse: Vec<Lagged>,
    /// Around one that stands out, or that was measured; none before.
    fine: Vec<Lagged>,
    best: Best,
    /// Under the one that was measured, where launches are believed that were counted.
    by_launches: Option<Lagged>,
}

/// How long a tenant was idle in an interval, as far as is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Idled {
    /// Who.
    pub tenant: TenantId,
    /// For how long, in ns.
    pub idle_ns: f64,
    /// So much of it was a pause, as launches say.
    pub paused_ns: f64,
}

/// Which is believed.
#[derive(Clone, Copy, Debug)]
enum Best {
    Coarse(usize),
    Fine(usize),
}

/// All that are possible, with these estimates.
fn every(shares: &IdleShares) -> Vec<Lagged> {
    let lagged = |step| Lagged::new(Nanos(step * STEP.0), shares.and_noise(STEP_NOISE));
    (0..=LAG_MAX.0 / STEP.0).map(lagged).collect()
}

impl Default for LaggedShares {
    fn default() -> Self {
        Self {
            coarse: every(&IdleShares::default()),
            fine: Vec::new(),
            best: Best::Coarse(0),
            by_launches: None,
        }
    }
}

/// The one that foretold best.
fn least(lags: &[Lagged]) -> Option<usize> {
    let misfit = |index: &usize| lags[*index].misfit;
    (0..lags.len()).min_by(|a, b| misfit(a).total_cmp(&misfit(b)))
}

fn beside(a: Nanos, b: Nanos) -> bool {
    a.0.abs_diff(b.0) <= BESIDE.0
}

impl LaggedShares {
    /// The lag was measured: it is believed, and nothing else is tried. (Others were, up to 2 ms away, while it was known to 1.2 ms; pauses that come and go
    /// then look like another lag, 4 ms off in one recording, which took 2.4 % off a tenant.) What has been learnt under the one nearest to it, of all that were tried, was learnt of
    /// the right mix of residencies, whichever was believed; it is kept, as uncertain as it is.
    pub fn measured(&mut self, lag: Nanos) {
        let distance = |tried: &&Lagged| tried.lag.0.abs_diff(lag.0);
        let nearest = self.fine.iter().chain(&self.coarse).min_by_key(distance);
        let learnt = nearest.map_or_else(IdleShares::default, |nearest| nearest.shares.clone());
        self.coarse.clear();
        let learnt = learnt.and_noise(MEASURED_NOISE);
        self.by_launches = Some(match self.by_launches.take() {
            Some(by_launches) => Lagged { lag, ..by_launches },
            None => Lagged::new(lag, learnt.and_launches()),
        });
        self.fine = vec![Lagged::new(lag, learnt)];
        self.best = Best::Fine(0);
    }

    /// Takes an interval of this length, and how long the engine executed nothing in it. `of` says, of the interval as much earlier as it is
    /// told, how long nobody was there to execute, and what tenants did.
    pub fn observe(
        &mut self,
        length: Nanos,
        idle: Nanos,
        of: impl Fn(Nanos) -> (Nanos, BTreeMap<TenantId, Stay>),
    ) {
        let patient = self.by_launches_by(TELLING);
        for lagged in self.all() {
            let (nobody, stays) = of(lagged.lag);
            lagged.shares.be_patient(patient);
            lagged.shares.observe(length, idle, nobody, &stays);
            lagged.misfit = PAST * lagged.misfit + lagged.shares.misfit();
        }
        let best = least(&self.coarse).unwrap_or(0);
        if self.outdone(best) {
            self.fine.clear();
        }
        if self.fine.is_empty() && self.stands_out(best) {
            let Lagged { lag, shares, .. } = self.coarse[best].clone();
            self.refine(lag, &shares);
        }
        self.follow();
        self.best = least(&self.fine).map_or(Best::Coarse(best), Best::Fine);
    }

    fn all(&mut self) -> impl Iterator<Item = &mut Lagged> {
        let by_residency = self.coarse.iter_mut().chain(&mut self.fine);
        by_residency.chain(&mut self.by_launches)
    }

    fn stands_out(&self, best: usize) -> bool {
        let Some(best) = self.coarse.get(best) else {
            return false;
        };
        let far = self
            .coarse
            .iter()
            .filter(|other| !beside(other.lag, best.lag));
        let next = far.map(|other| other.misfit).fold(f64::INFINITY, f64::min);
        next - best.misfit > CLEAR
    }

    /// Whether finer steps are around one that foretells worse than this one by far.
    fn outdone(&self, best: usize) -> bool {
        let Some(middle) = self.fine.get(self.fine.len() / 2) else {
            return false;
        };
        let distance = |other: &&Lagged| other.lag.0.abs_diff(middle.lag.0);
        let there = self.coarse.iter().min_by_key(distance);
        there.is_some_and(|there| there.misfit - self.coarse[best].misfit > CLEAR)
    }

    /// Finer steps around this lag.
    fn refine(&mut self, lag: Nanos, shares: &IdleShares) {
        let first = lag.saturating_sub(Nanos(FINE_STEPS * FINE_STEP.0));
        let steps = 0..=2 * FINE_STEPS;
        let shares = shares.and_noise(NOISE);
        let lagged = |step| Lagged::new(first + Nanos(step * FINE_STEP.0), shares.clone());
        self.fine = steps.map(lagged).collect();
    }

    /// Finer steps go with the lag: the counters' clock and the GPU's timer are not the same either.
    fn follow(&mut self) {
        let Some(best) = least(&self.fine) else {
            return;
        };
        let last = self.fine.len() - 1;
        let at_end = best == last || (best == 0 && self.fine[0].lag > Nanos::ZERO);
        if at_end && self.fine[last / 2].misfit - self.fine[best].misfit > BETTER {
            let Lagged { lag, shares, .. } = self.fine[best].clone();
            self.refine(lag, &shares);
        }
    }

    /// The time stamps begin anew: the lag is another.
    pub fn restart(&mut self) {
        self.coarse = every(self.shares());
        self.fine.clear();
        self.by_launches = None;
        self.best = Best::Coarse(0);
    }

    fn believed(&self) -> &Lagged {
        match self.best {
            Best::Coarse(index) => &self.coarse[index],
            Best::Fine(index) => &self.fine[index],
        }
    }

    /// The lag that is believed.
    pub fn lag(&self) -> Nanos {
        self.believed().lag
    }

    /// Estimates under it.
    pub fn shares(&self) -> &IdleShares {
        &self.believed().shares
    }

    /// Fraction of its residency in which a tenant is idle; where launches foretell better by far, what is learnt beside those of others, if it is far less: what one is taken for while programs
    /// start wears off slowly without.
    pub fn fraction(&self, tenant: TenantId) -> f64 {
        let own = self.shares().fraction(tenant);
        let by_launches = self
            .by_launches
            .as_ref()
            .filter(|_| self.by_launches_by(CLEAR));
        let shares = by_launches.map(|by_launches| &by_launches.shares);
        let beside = shares.filter(|shares| shares.is_by_residency(tenant));
        let beside = beside.map(|shares| shares.fraction(tenant));
        beside
            .filter(|beside| own > beside + TAKEN_FOR)
            .unwrap_or(own)
    }

    /// Whether launches said something of the last interval, and foretell better than residencies.
    pub fn by_launches(&self) -> bool {
        self.by_launches_by(0.0)
    }

    /// The same, and better by so much.
    fn by_launches_by(&self, least: f64) -> bool {
        self.by_launches.as_ref().is_some_and(|by_launches| {
            let better = self.believed().misfit - by_launches.misfit;
            by_launches.shares.launched() && better > least
        })
    }

    /// How long a launch of a tenant takes, in ns, if launches foretell better than residencies; none where they are not counted.
    pub fn launch_ns(&self, tenant: TenantId) -> Option<f64> {
        let by_launches = self.by_launches.as_ref().filter(|_| self.by_launches())?;
        by_launches.shares.launch_ns(tenant)
    }

    /// How long each tenant was idle in the last interval, as far as is known now: by what they launched where that foretells better than how long they were there, and
    /// no further from that than a pause may be. If it is `confirmed` that they launched so often, that is the longest that anybody has, and what is learnt of earlier intervals is told with
    /// this one, once. None if the interval said nothing.
    pub fn tell(&mut self, confirmed: bool) -> Vec<Idled> {
        let mut found = self.found(confirmed);
        if confirmed
            && self.by_launches()
            && let Some(by_launches) = &mut self.by_launches
        {
            for idled in &mut found {
                idled.idle_ns += by_launches.shares.tell_earlier_ns(idled.tenant);
            }
        }
        found
    }

    /// Estimates by launches, if they foretell better and say something of the last interval.
    fn telling(&self) -> Option<&IdleShares> {
        let by_launches = self.by_launches.as_ref().filter(|_| self.by_launches());
        let shares = by_launches.map(|by_launches| &by_launches.shares);
        shares.filter(|shares| shares.is_known())
    }

    /// By how much of the last interval those with a [`Stay::doubt`] had work for less time than was told, as far as can be known, if nothing is told of it; negative: for more.
    pub fn misplaced(&self) -> f64 {
        match self.telling() {
            Some(_) => 0.0,
            None => self.shares().misplaced(),
        }
    }

    fn found(&self, confirmed: bool) -> Vec<Idled> {
        let (by_residency, by_launches) = (self.shares(), self.telling());
        if by_launches.is_none() && !by_residency.is_known() {
            return Vec::new();
        }
        let by_residency = by_residency.found();
        let by_launches = by_launches.map_or(&[][..], IdleShares::found);
        let both = |found: &Found| {
            let mut others = by_launches.iter();
            let other = others.find(|other| other.tenant == found.tenant);
            (*found, other.copied().unwrap_or(*found))
        };
        let both: Vec<(Found, Found)> = by_residency.iter().map(both).collect();
        let longest = by_residency
            .iter()
            .map(|found| found.pause_ns / found.resident_ns);
        let longest = match confirmed {
            true => longest.fold(0.0, f64::max).min(PAUSE_MAX),
            false => 0.0,
        };
        let off = |(found, other): &(Found, Found), less_ns: f64, more_ns: f64| {
            let longest = if other.counted { longest } else { 0.0 };
            let pause_ns = found.pause_ns.max(longest * found.resident_ns);
            let most_ns = OFF_MAX * (pause_ns + found.doubt_ns);
            (other.idle_ns - found.idle_ns).clamp(-most_ns - less_ns, most_ns + more_ns)
        };
        let counted = || both.iter().filter(|(_, other)| other.counted);
        // Launches are counted from one handover to the next: of whoever paused they tell some of it here.
        let own_ns =
            counted().map(|(found, other)| other.idle_ns - found.idle_ns + found.paused_ns);
        let all_ns: f64 = both.iter().map(|(found, _)| found.paused_ns).sum();
        let is_others = own_ns.map(|own| own.max(0.0)).sum::<f64>() < OWN_MIN * all_ns;
        // A pause that was taken for his may be another's, of whom launches say nothing.
        let taken = |found: &Found| match is_others {
            true => found.paused_ns.max(0.0),
            false => 0.0,
        };
        let given_ns: f64 = counted().map(|each| -off(each, taken(&each.0), 0.0)).sum();
        let given_ns = if is_others { given_ns.max(0.0) } else { 0.0 };
        let idled = |each: &(Found, Found)| {
            let (found, other) = each;
            let (off_ns, sure_ns) = if other.counted {
                let off_ns = off(each, taken(found), 0.0);
                (off_ns, found.paused_ns + off_ns)
            } else {
                let off_ns = off(each, 0.0, given_ns);
                let sure_ns = if found.only {
                    found.paused_ns
                } else {
                    given_ns
                };
                (off_ns, other.paused_ns.min(sure_ns))
            };
            Idled {
                tenant: found.tenant,
                idle_ns: found.idle_ns + off_ns,
                // One that residency alone tells of may be anybody's: nothing is given then.
                paused_ns: sure_ns.max(0.0),
            }
        };
        both.iter().map(idled).collect()
    }

    /// Whether the lag was measured.
    pub const fn is_measured(&self) -> bool {
        self.coarse.is_empty()
    }

    /// What was learnt of a tenant, under any lag, is not true any more.
    pub fn unlearn(&mut self, tenant: TenantId) {
        for lagged in self.all() {
            lagged.shares.unlearn(tenant);
        }
    }

    /// A tenant is gone.
    pub fn forget(&mut self, tenant: TenantId) {
        for lagged in self.all() {
            lagged.shares.forget(tenant);
        }
    }
}

#[cfg(test)]
mod tests;
