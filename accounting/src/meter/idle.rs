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
//! Of who launches again and again it may be known as well how often he did. A launch takes as long as the one before it, whereas pauses come and go:
//! from one interval to the next, what a tenant that has three quarters of them pauses more or less is all that one with a twelfth pauses. So one whose
//! launches are counted may be idle for all his residency but for what they take:
//!
//! ```text
//!   residency - time per launch x launches
//! ```
//!
//! Launches are counted by what tenants may write, so this is believed only while it foretells better ([`super::LaggedShares`]).
//!
//! Residencies mix differently in each, so the fractions follow. They are estimated by an extended Kalman filter with a random walk:
//! fractions change with what programs do. A tenant that was alone in an interval is known at once; the sum over all is
//! right in any case, which is what conservation needs.

mod estimate;
mod sums;

pub use estimate::{Launched, Stay};

use crate::units::{Nanos, TenantId};
use estimate::{Beginning, Estimate, Known, Usual, handover_ns, usual_ns};
use std::collections::BTreeMap;

/// Standard deviation of the counters' share of idle time where it is known when they were read. SOURCE: measured on an H200, by
/// the kernels' own time stamps: 0.05 to 0.1 % of it are not explained by the best fractions; more, where those vary.
pub(super) const NOISE: f64 = 0.001_5;
/// From one latch of the counters to the next.
const INTERVAL: Nanos = Nanos::from_ms(100);
/// What was learnt of one before his launches were counted is not true of him if it is off by more standard deviations than this.
const FAR: f64 = 3.0;
/// Variance of a fraction that nothing is known of.
const UNKNOWN: f64 = 0.3 * 0.3;
/// An error so many standard deviations large means that somebody changed his ways, if the next one is as well: a pause of some
/// milliseconds, which programs make now and then, is no change.
const SURPRISE: f64 = 5.0;
/// The next one is the same change if it is as large as this, of the one before. SOURCE: a recording of four on an H200: a pause of 2 ms and one of 0.6 ms in the next interval, taken for a change of
/// everybody's ways: charges are off by 0.27 instead of 0.20 % (root of the mean square of nine recordings).
const ALIKE: f64 = 0.5;
/// One of so much of the interval is a change at once.
const PAUSE_MAX: f64 = 0.05;
/// Where launches say who works: the first error of so much (in ns) after so many intervals without a surprise is a pause as well, however long.
/// SOURCE: pauses of 3 and 9 ms put into recordings of pairs on an H200, replayed: charges are off by 0.4 instead of 0.7 % (root of the mean square).
const HICCUP: (f64, u32) = (3_000_000.0, 5);
/// Tenants estimated at a time; those who were not seen for longest go first.
const TENANTS_MAX: usize = 32;
/// Of each it may be estimated how long he is idle, how long a launch takes, and for how much longer he was idle in all.
const ROWS_MAX: usize = 3 * TENANTS_MAX;
/// Whose is what is left of a launch. (Programs that are no tenant's have it as well; of them idle time is estimated.)
const NOBODY: TenantId = TenantId(u32::MAX);

/// Standard deviation of the counters' share of idle time where launches say how long tenants worked.
/// SOURCE: 27 recordings of four tenants on an H200, replayed: the same within a tenth with half or twice of either.
const LAUNCHES_NOISE: f64 = 0.000_2;
/// Standard deviation, in ns, of what a launch takes from one to the next, whatever its length. SOURCE: nine recordings of four tenants on an H200: what intervals are off by that begin and end
/// in kernels of 50 us, 1,100 to 1,700 of them, is 90 us, in no step with the intervals before; of 500 launches of 200 us 95 us, of which 82 are what is left of a launch at either end.
const LAUNCH_VARIES: f64 = 2_300.0;
/// Standard deviation, in ns, of when words were read. SOURCE: the same.
const LEFT: f64 = 5_000.0;
/// A launch takes so much of the residency in which there is one, as far as nothing is known, and its standard deviation.
const LAUNCH: (f64, f64) = (0.9, 0.1);
/// No launch takes longer than residencies in which there is one, but for so much; and none so little of them if the last interval was not foretold at all.
const LAUNCH_MAX: f64 = 1.1;
const LAUNCH_MIN: f64 = 0.5;
/// Whose stay is not known exactly may have been there for so many standard deviations more.
const DOUBTED: f64 = 3.0;
/// An error counts for no more than so many variances: one interval does not outweigh all others.
const MISFIT_MAX: f64 = 12.0;

/// Part of an interval in which somebody has to be resident for it to say something: programs that start say nothing.
const RESIDENT_MIN: f64 = 0.5;

/// How long a tenant was idle in the last interval, as far as is known now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Found {
    pub(super) tenant: TenantId,
    pub(super) idle_ns: f64,
    /// For how long it was resident.
    pub(super) resident_ns: f64,
    /// Standard deviation of a pause.
    pub(super) pause_ns: f64,
    /// The same of how long it had work.
    pub(super) doubt_ns: f64,
    /// So much of it was a pause that says nothing of its fraction; negative: one that was missing.
    pub(super) paused_ns: f64,
    /// Its launches were counted.
    pub(super) counted: bool,
    /// Nobody else can have paused, as all others launched as often as they do otherwise.
    pub(super) only: bool,
}

/// Fractions of residency in which tenants are idle.
#[derive(Clone, Debug)]
pub struct IdleShares {
    /// Variance of the counters' share of idle time.
    noise: f64,
    /// Variance of a fraction that nothing is known of.
    unknown: f64,
    /// Whether launches are believed that were counted.
    by_launches: bool,
    /// In the order of the matrix's rows.
    known: Vec<Known>,
    /// Row by row.
    covariance: Vec<Vec<f64>>,
    /// How well the last interval was foretold.
    misfit: f64,
    /// Intervals since the last one that was a surprise, and how many of them may lie before another for that to be a change.
    since_surprise: u32,
    again_within: u32,
    /// Error of the last one that was.
    surprise: f64,
    /// Variance of the last interval's share of idle time for not knowing when tenants stopped.
    doubt: f64,
    /// The same for launches not taking as long as each other.
    varied: f64,
    /// Launches said something of it.
    launched: bool,
    /// Its error was larger than [`PAUSE_MAX`].
    astray: bool,
    /// Launches are believed, here or beside this estimate.
    patient: bool,
    /// What of its error goes with that.
    misplaced: f64,
    found: Vec<Found>,
    /// It is known how long everybody had work of whom that is to be known for it.
    is_known: bool,
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
            by_launches: false,
            known: Vec::new(),
            covariance: Vec::new(),
            misfit: 0.0,
            since_surprise: u32::MAX,
            again_within: 1,
            surprise: 0.0,
            doubt: 0.0,
            varied: 0.0,
            launched: false,
            astray: false,
            patient: false,
            misplaced: 0.0,
            found: Vec::new(),
            is_known: false,
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

    /// The same, where launches are believed that were counted.
    pub fn and_launches(&self) -> Self {
        Self {
            by_launches: true,
            ..self.clone()
        }
    }

    /// What lies at the ends of an interval, in ns: what is left of the launch that ran when it began is in it, as is known from the last one, and what is left of that at its end is
    /// not.
    fn cut(&mut self, whole: f64, stays: &BTreeMap<TenantId, Stay>, shares: &mut Vec<f64>) -> f64 {
        let mut left = [(0.0, LEFT * LEFT); 2];
        for known in &self.known {
            let stay = self.tells(known, stays);
            let Some(Launched { at_ends, off, .. }) = stay.and_then(|stay| stay.launched) else {
                continue;
            };
            for (left, there) in left.iter_mut().zip([at_ends.0, at_ends.1]) {
                let (mean, variance) = known.left(there, off);
                *left = (left.0 + mean, left.1 + variance);
            }
        }
        let before = match self.find(NOBODY, Estimate::Left) {
            Some(row) => row,
            None => {
                shares.push(0.0);
                self.estimate(NOBODY, Estimate::Left, left[0])
            }
        };
        shares[before] = -1.0 / whole;
        shares.push(1.0 / whole);
        let after = self.estimate(NOBODY, Estimate::Left, left[1]);
        self.known[after].value - self.known[before].value
    }

    /// What was left at the begin of an interval is over. (What is left at its end, if it was cut, is the second.)
    fn over(&mut self) {
        if let Some(row) = self.find(NOBODY, Estimate::Left) {
            self.remove(row);
        }
    }

    /// Variance of the counters' share of idle time that is not explained in the last interval.
    const fn noise(&self) -> f64 {
        if self.launched {
            LAUNCHES_NOISE * LAUNCHES_NOISE + self.varied
        } else {
            self.noise
        }
    }

    /// The same of what the launches of an interval of this length took.
    fn varied(whole: f64, stays: &BTreeMap<TenantId, Stay>) -> f64 {
        let launches = stays.values().filter_map(Stay::launches);
        let count: f64 = launches.map(|launched| launched.count).sum();
        count * (LAUNCH_VARIES / whole).powi(2)
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
        (self.misfit, self.misplaced, self.launched) = (0.0, 0.0, false);
        self.found.clear();
        self.is_known = false;
        let resident: u64 = stays.values().map(|stay| stay.resident.0).sum();
        if length == Nanos::ZERO || (resident as f64) < RESIDENT_MIN * length.0 as f64 {
            return self.over();
        }
        self.appear(stays);
        let whole = length.0 as f64;
        // Who launched so often executed for so long, whenever he stopped.
        let doubted = stays
            .values()
            .filter(|stay| !(self.by_launches && stay.launches().is_some()));
        let doubts = doubted.map(|stay| stay.doubt.0 as f64 / whole);
        self.doubt = doubts.map(|doubt| doubt * doubt).sum();
        self.launched = self.by_launches && stays.values().any(|stay| stay.launches().is_some());
        self.varied = Self::varied(whole, stays);
        let mut foretold = 0.0;
        let mut shares = Vec::with_capacity(self.known.len());
        for known in &self.known {
            let Some(stay) = self.tells(known, stays) else {
                shares.push(0.0);
                continue;
            };
            foretold += known.idle_ns(stay) / whole;
            shares.push(known.grows(stay) / whole);
        }
        if self.launched {
            foretold += self.cut(whole, stays, &mut shares) / whole;
        }
        // More than all of it, where one had work for longer than was told.
        let within = idle.0 as f64 - nobody.0 as f64;
        let error = within / whole - foretold;
        self.spread(&shares, whole / INTERVAL.0 as f64, Known::walk);
        let large = error.abs() > PAUSE_MAX;
        self.astray = large;
        // Of an interval in which somebody stopped it says how wrongly that was told, and little else.
        let tells = !large && self.doubt == 0.0;
        let summed = match self.launched && tells {
            true => self.add_up(stays),
            false => Vec::new(),
        };
        let variance = self.variance(&shares);
        self.misfit = (error * error / variance).min(MISFIT_MAX) + variance.ln();
        let surprise = error * error > SURPRISE * SURPRISE * variance;
        let alike = error.abs() >= ALIKE * self.surprise.abs();
        let again = self.since_surprise < self.again_within && alike;
        let is_hiccup = error * whole > HICCUP.0 && self.since_surprise >= HICCUP.1;
        (self.since_surprise, self.surprise) = if surprise {
            (0, error)
        } else {
            (self.since_surprise.saturating_add(1), self.surprise)
        };
        let only = surprise.then(|| self.only(stays, error * whole)).flatten();
        let is_pause =
            surprise && (!again && (!large || only.is_some()) || self.patient && is_hiccup);
        if is_pause || only.is_some() {
            self.find_idle(stays, error * whole, only);
            self.is_known = true;
        }
        if is_pause {
            return self.over();
        }
        if surprise {
            let least = if large { error.abs() } else { 0.0 };
            self.spread(&shares, 1.0, |known| {
                let may = only.is_none_or(|only| only == known.tenant);
                let stay = stays.get(&known.tenant).filter(|_| may);
                stay.map_or(0.0, |stay| known.change(stay, least))
            });
        } else {
            self.get_used(stays);
        }
        self.misplaced = error * self.doubt / self.variance(&shares);
        self.update(&shares, error);
        self.bound();
        self.take_off(&summed, stays);
        self.over();
        if !large {
            self.find_idle(stays, 0.0, None);
            self.is_known = tells;
        }
    }

    /// How often tenants launch, of whom it is known how long they had work.
    fn get_used(&mut self, stays: &BTreeMap<TenantId, Stay>) {
        for known in &mut self.known {
            let stay = stays.get(&known.tenant);
            if let Some(stay) = stay.filter(|stay| stay.doubt == Nanos::ZERO)
                && known.estimate == Estimate::Idle
            {
                known.usual.observe(stay);
            }
        }
    }

    /// The only one who can have paused for so long (negative: have left out so much of his pauses), if all others launched as often as they do otherwise. (Of one who is alone it is known
    /// anyhow.)
    fn only(&self, stays: &BTreeMap<TenantId, Stay>, paused_ns: f64) -> Option<TenantId> {
        let may = |(tenant, stay): &(&TenantId, &Stay)| {
            let row = self.find(**tenant, Estimate::Idle);
            row.is_none_or(|row| !self.known[row].usual.excludes(stay, paused_ns))
        };
        let mut those = stays.iter().filter(may).map(|(tenant, _)| *tenant);
        let first = those.next().filter(|_| stays.len() > 1);
        first.filter(|_| those.next().is_none())
    }

    /// How long each was idle, with a pause of `paused_ns` (negative: one that was missing) that says nothing of fractions; if it is known, whose it was.
    fn find_idle(
        &mut self,
        stays: &BTreeMap<TenantId, Stay>,
        paused_ns: f64,
        only: Option<TenantId>,
    ) {
        let there = |known: &Known| Some((*known, *self.tells(known, stays)?));
        let there: Vec<(Known, Stay)> = self.known.iter().filter_map(there).collect();
        let counted = |known: &Known| known.estimate == Estimate::Launch;
        // Whose launches are counted does not pause for long unnoticed.
        let unnoticed = paused_ns > HICCUP.0 && there.iter().any(|(known, _)| !counted(known));
        let likely = |(known, stay): &(Known, Stay)| match only {
            Some(only) => f64::from(u8::from(only == known.tenant)),
            None if unnoticed && counted(known) => 0.0,
            None => known.pause_ns(stay).powi(2),
        };
        let all = there.iter().map(likely).sum::<f64>().max(1.0);
        let found = |each: &(Known, Stay)| {
            let (known, stay) = each;
            let paused_ns = paused_ns * likely(each) / all;
            Found {
                tenant: known.tenant,
                idle_ns: known.idle_ns(stay) + paused_ns,
                resident_ns: stay.resident.0 as f64,
                pause_ns: known.pause_ns(stay),
                doubt_ns: stay.doubt.0 as f64,
                paused_ns,
                counted: counted(known),
                only: only == Some(known.tenant),
            }
        };
        self.found = there.iter().map(found).collect();
    }

    /// Whether launches are believed, here or beside this estimate: they say who pauses.
    pub(super) const fn be_patient(&mut self, patient: bool) {
        self.patient = patient;
    }

    /// Whether launches said something of the last interval.
    pub(super) const fn launched(&self) -> bool {
        self.launched
    }

    /// How long each tenant was idle in the last interval, as it was told when they had work; none if it said nothing.
    pub(super) fn found(&self) -> &[Found] {
        &self.found
    }

    /// Whether that is better than what was told, as it is known when they had work.
    pub(super) const fn is_known(&self) -> bool {
        self.is_known
    }

    /// Rows for those who were there.
    fn appear(&mut self, stays: &BTreeMap<TenantId, Stay>) {
        for known in &mut self.known {
            known.unseen += 1;
        }
        for (tenant, stay) in stays.iter().take(TENANTS_MAX) {
            let row = self.row(*tenant);
            self.known[row].unseen = 0;
            self.begin(row, stay);
            if let Some(launched) = stay.launches().filter(|_| self.by_launches) {
                self.launches(*tenant, stay, launched);
            }
            self.sum_up(*tenant, stays);
        }
    }

    /// Once it is known how often a tenant launches, that says how idle he is at most. What was learnt before is of his start, and is forgotten, unless it is surer and not far from that.
    fn begin(&mut self, row: usize, stay: &Stay) {
        let Some((fraction, variance)) = self.known[row].beginning.observe(stay) else {
            return;
        };
        let own = self.covariance[row][row];
        let off = fraction - self.known[row].value;
        let far = off * off > FAR * FAR * (variance + own);
        if variance < self.unknown && (own > variance || far) {
            self.known[row].value = fraction;
            self.uncertain(row, variance);
        }
    }

    /// A tenant launched: how long one takes is estimated from now on, and no longer than it can.
    fn launches(&mut self, tenant: TenantId, stay: &Stay, launched: Launched) {
        let (began, ended) = launched.at_ends;
        let ends = f64::from(u8::from(began) + u8::from(ended));
        let resident_ns = stay.resident.0 as f64 + DOUBTED * stay.doubt.0 as f64;
        let most = resident_ns / (launched.count - ends);
        let (value, deviation) = (LAUNCH.0 * most, LAUNCH.1 * most);
        let Some(row) = self.find(tenant, Estimate::Launch) else {
            self.estimate(tenant, Estimate::Launch, (value, deviation * deviation));
            return;
        };
        let known = &mut self.known[row];
        known.unseen = 0;
        let little = known.value < LAUNCH_MIN * most && self.astray;
        if little || known.value > LAUNCH_MAX * most {
            known.value = value;
            self.uncertain(row, deviation * deviation);
        }
    }

    /// The stay of which an estimate tells; none if the tenant was not there, or another one does.
    fn tells<'a>(&self, known: &Known, stays: &'a BTreeMap<TenantId, Stay>) -> Option<&'a Stay> {
        let stay = stays.get(&known.tenant)?;
        let launches = self.by_launches && stay.launches().is_some();
        let tells = match known.estimate {
            Estimate::Idle => !launches,
            Estimate::Launch => launches,
            Estimate::Left | Estimate::Sum => false,
        };
        tells.then_some(stay)
    }

    /// Those who were there may have changed by such a standard deviation, so many times.
    fn spread(&mut self, shares: &[f64], times: f64, deviation: impl Fn(&Known) -> f64) {
        for (row, share) in shares.iter().enumerate() {
            if *share != 0.0 {
                let deviation = deviation(&self.known[row]);
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
        self.find(tenant, Estimate::Idle).is_none()
    }

    /// A fraction lies within 0 and 1: one that came out beyond is moved to the bound, and the others with it. That says nothing of
    /// how well they are known.
    fn bound(&mut self) {
        for row in 0..self.known.len() {
            let Known {
                estimate, value, ..
            } = self.known[row];
            let most = match estimate {
                Estimate::Idle => 1.0,
                Estimate::Launch | Estimate::Left => f64::INFINITY,
                Estimate::Sum => continue,
            };
            let beyond = value.clamp(0.0, most) - value;
            if beyond != 0.0 {
                let variance = self.covariance[row][row] + self.noise();
                for other in 0..self.known.len() {
                    self.known[other].value += self.covariance[other][row] / variance * beyond;
                }
                self.known[row].value = value + beyond;
            }
        }
    }

    /// Of whom something is known.
    pub fn tenants(&self) -> impl Iterator<Item = TenantId> + '_ {
        let idle = self
            .known
            .iter()
            .filter(|known| known.estimate == Estimate::Idle);
        idle.map(|known| known.tenant)
    }

    /// Fraction of its residency in which a tenant is idle, within 0 and 1; 0 if nothing is known.
    pub fn fraction(&self, tenant: TenantId) -> f64 {
        self.find(tenant, Estimate::Idle)
            .map_or(0.0, |row| self.known[row].value.clamp(0.0, 1.0))
    }

    /// Whether more intervals told of the fraction of a tenant than of his launches.
    pub(super) fn is_by_residency(&self, tenant: TenantId) -> bool {
        let told = |estimate| {
            self.find(tenant, estimate)
                .map_or(0, |row| self.known[row].told)
        };
        told(Estimate::Idle) > told(Estimate::Launch)
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

    /// How long a launch of a tenant takes, in ns; none if they are not counted.
    pub(super) fn launch_ns(&self, tenant: TenantId) -> Option<f64> {
        let row = self.find(tenant, Estimate::Launch)?;
        Some(self.known[row].value)
    }

    /// Standard deviation of that fraction.
    pub fn uncertainty(&self, tenant: TenantId) -> f64 {
        self.find(tenant, Estimate::Idle)
            .map_or(self.unknown, |row| self.covariance[row][row].max(0.0))
            .sqrt()
            .min(1.0)
    }

    /// What was learnt of a tenant is not true any more.
    pub fn unlearn(&mut self, tenant: TenantId) {
        for estimate in [Estimate::Launch, Estimate::Sum] {
            if let Some(row) = self.find(tenant, estimate) {
                self.remove(row);
            }
        }
        if let Some(row) = self.find(tenant, Estimate::Idle) {
            (self.known[row].value, self.known[row].told) = (0.0, 0);
            self.known[row].usual = Usual::default();
            self.known[row].beginning = Beginning::default();
            self.uncertain(row, self.unknown);
        }
    }

    /// A tenant is gone.
    pub fn forget(&mut self, tenant: TenantId) {
        for estimate in [Estimate::Idle, Estimate::Launch, Estimate::Sum] {
            if let Some(row) = self.find(tenant, estimate) {
                self.remove(row);
            }
        }
    }

    fn find(&self, tenant: TenantId, estimate: Estimate) -> Option<usize> {
        let mut known = self.known.iter();
        known.position(|known| known.tenant == tenant && known.estimate == estimate)
    }

    /// That of a tenant's idle time.
    fn row(&mut self, tenant: TenantId) -> usize {
        if let Some(row) = self.find(tenant, Estimate::Idle) {
            return row;
        }
        self.estimate(tenant, Estimate::Idle, (0.0, self.unknown))
    }

    /// A row for something that is about so much, with this variance.
    fn estimate(
        &mut self,
        tenant: TenantId,
        estimate: Estimate,
        (value, variance): (f64, f64),
    ) -> usize {
        if estimate != Estimate::Left
            && self.known.len() >= ROWS_MAX
            && let Some(oldest) = (0..self.known.len()).max_by_key(|row| self.known[*row].unseen)
        {
            self.remove(oldest);
        }
        self.known.push(Known {
            tenant,
            estimate,
            value,
            unseen: 0,
            told: 0,
            usual: Usual::default(),
            beginning: Beginning::default(),
        });
        self.covariance.iter_mut().for_each(|row| row.push(0.0));
        let last = self.known.len() - 1;
        let mut row = vec![0.0; last + 1];
        row[last] = variance;
        self.covariance.push(row);
        last
    }

    fn remove(&mut self, row: usize) {
        self.known.remove(row);
        self.covariance.remove(row);
        for other in &mut self.covariance {
            other.remove(row);
        }
    }

    /// Of a row nothing is known but with this variance.
    fn uncertain(&mut self, row: usize, variance: f64) {
        for other in 0..self.known.len() {
            self.covariance[row][other] = 0.0;
            self.covariance[other][row] = 0.0;
        }
        self.covariance[row][row] = variance;
    }

    fn moved(&self, shares: &[f64]) -> Vec<f64> {
        self.covariance.iter().map(|row| dot(row, shares)).collect()
    }

    fn variance(&self, shares: &[f64]) -> f64 {
        dot(shares, &self.moved(shares)) + self.noise() + self.doubt
    }

    fn update(&mut self, shares: &[f64], error: f64) {
        let moved = self.moved(shares);
        let variance = dot(shares, &moved) + self.noise() + self.doubt;
        for (row, moved_row) in moved.iter().enumerate() {
            let gain = moved_row / variance;
            self.known[row].value += gain * error;
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
mod tests;
