//! When tenants stopped that were seen without work. Pure.
//!
//! The status register is looked at each 3 ms: one that is seen without work stopped at some time since he was last seen at work. The middle
//! is told; with ten bursts a second it would be wrong by 3 ms in a second. The counters say some 200 ms later how much
//! idle time there was ([`IdleShares::misplaced`]); what was told wrongly is made good when the tenant is next seen without work.
//!
//! [`IdleShares::misplaced`]: turnstile_accounting::meter::IdleShares::misplaced

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use turnstile_accounting::{Moment, Nanos, TenantId};

use super::progress::Located;

/// Stops that are remembered: three seconds of the most.
const STOPS: usize = 1024;

/// No more is made good.
const OWED_MAX_NS: i64 = 10_000_000;

/// Somebody was seen without work.
#[derive(Clone, Copy, Debug)]
struct Stop {
    tenant: TenantId,
    /// Since then, by what is known at once.
    at: Moment,
    /// He stopped somewhere within this length around it.
    within: Nanos,
    /// It was told as so much later, to make good.
    later_ns: i64,
    /// By what the tenant's channels said.
    by_words: bool,
}

impl Stop {
    /// Variance of when it was, in ns^2.
    fn variance(&self) -> f64 {
        let within = self.within.0 as f64;
        within * within / 12.0
    }
}

/// Those of one tenant in an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Stopped {
    /// Variance of how long he had work, in ns^2.
    pub(super) variance: f64,
    /// He was told to have work for so much longer than is known of this interval.
    pub(super) later_ns: i64,
}

/// Stops of all tenants.
#[derive(Debug, Default)]
pub(super) struct Stops {
    stops: VecDeque<Stop>,
    /// Who was last seen at work, and when.
    at_work: Option<(TenantId, Moment)>,
    /// He was charged for so much less than he had work; negative: more.
    owed_ns: BTreeMap<TenantId, i64>,
}

impl Stops {
    /// He was seen at work.
    pub(super) fn works(&mut self, tenant: TenantId, at: Moment) {
        self.at_work = Some((tenant, at));
    }

    /// When he was last seen at work, if nobody else was since.
    pub(super) fn worked_at(&self, tenant: TenantId) -> Option<Moment> {
        self.at_work
            .filter(|(who, _)| *who == tenant)
            .map(|(_, at)| at)
    }

    /// He was seen without work at `at`, resident since `since`: when he is to be told to have stopped. He did at `located` if that is known better than by looks: by his channels' words,
    /// or not by them.
    pub(super) fn idle(
        &mut self,
        tenant: TenantId,
        since: Moment,
        at: Moment,
        located: Option<Located>,
        by_words: bool,
    ) -> Moment {
        let seen = self.worked_at(tenant);
        let from = seen.map_or(since, |seen| seen.max(since)).min(at);
        let located = located.filter(|located| (from..=at).contains(&located.at));
        let by_words = by_words && located.is_some();
        let Located { at: middle, within } = located.unwrap_or(Located::between(from, at));
        let owed = self.owed_ns.entry(tenant).or_default();
        // CAST: looks are milliseconds apart; who is longer on the engine is clamped.
        let half_ns = i64::try_from(within.0 / 2).unwrap_or(i64::MAX);
        let later_ns = (*owed).clamp(-half_ns, half_ns);
        *owed -= later_ns;
        self.remember(Stop {
            tenant,
            at: middle,
            within,
            later_ns,
            by_words,
        });
        Moment(middle.0.saturating_add_signed(later_ns))
    }

    /// He began, or had stopped, then: what is charged is off by that as well.
    pub(super) fn moved(&mut self, tenant: TenantId, located: Located) {
        self.remember(Stop {
            tenant,
            at: located.at,
            within: located.within,
            later_ns: 0,
            by_words: true,
        });
    }

    fn remember(&mut self, stop: Stop) {
        if self.stops.len() == STOPS {
            self.stops.pop_front();
        }
        self.stops.push_back(stop);
    }

    fn between(&self, from: Moment, to: Moment) -> impl Iterator<Item = &Stop> {
        let stops = self.stops.iter().rev();
        stops
            .skip_while(move |stop| stop.at > to)
            .take_while(move |stop| stop.at > from)
    }

    /// Who stopped within an interval.
    pub(super) fn within(&self, from: Moment, to: Moment) -> BTreeMap<TenantId, Stopped> {
        let mut found: BTreeMap<TenantId, Stopped> = BTreeMap::new();
        for stop in self.between(from, to) {
            let stopped = found.entry(stop.tenant).or_default();
            stopped.variance += stop.variance();
            stopped.later_ns += stop.later_ns;
        }
        found
    }

    /// Who stopped or began within an interval by what his channels said.
    pub(super) fn by_words(&self, from: Moment, to: Moment) -> BTreeSet<TenantId> {
        let told = self.between(from, to).filter(|stop| stop.by_words);
        told.map(|stop| stop.tenant).collect()
    }

    /// Those who stopped in this interval had work for so much less in all than is known at once; negative: more.
    pub(super) fn found(&mut self, from: Moment, to: Moment, less_ns: f64) {
        let stopped = self.within(from, to);
        let whole: f64 = stopped.values().map(|stopped| stopped.variance).sum();
        if whole <= 0.0 {
            return;
        }
        for (tenant, stopped) in stopped {
            let owed = self.owed_ns.entry(tenant).or_default();
            // CAST: saturates, and is clamped.
            let more_ns = (-less_ns * stopped.variance / whole) as i64;
            *owed = owed
                .saturating_add(more_ns)
                .clamp(-OWED_MAX_NS, OWED_MAX_NS);
        }
    }

    /// A tenant is gone.
    pub(super) fn forget(&mut self, tenant: TenantId) {
        self.owed_ns.remove(&tenant);
        self.stops.retain(|stop| stop.tenant != tenant);
        self.at_work = self.at_work.filter(|(who, _)| *who != tenant);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: TenantId = TenantId(1);
    const B: TenantId = TenantId(2);
    const MS: u64 = 1_000_000;

    const fn at(ms: u64) -> Moment {
        Moment(ms * MS)
    }

    #[test]
    fn one_stopped_between_the_last_look_at_which_he_worked_and_this_one() {
        let mut stops = Stops::default();
        stops.works(A, at(10));
        assert_eq!(stops.idle(A, at(2), at(14), None, true), at(12));
        assert_eq!(
            stops.idle(A, at(20), at(22), None, true),
            at(21),
            "resident since"
        );
        assert_eq!(
            stops.idle(B, at(30), at(34), None, true),
            at(32),
            "another worked"
        );
        assert_eq!(
            stops.idle(B, at(40), at(38), None, true),
            at(38),
            "it came since"
        );
        let found = stops.within(at(0), at(31));
        let variance = (16.0 + 4.0) / 12.0 * 1e12;
        assert!((found[&A].variance - variance).abs() < 1.0 && found.len() == 1);
        assert!(stops.within(at(12), at(20)).is_empty());
    }

    #[test]
    fn what_was_told_wrongly_is_made_good_at_the_next_stop_and_no_further_than_is_possible() {
        let mut stops = Stops::default();
        stops.works(A, at(10));
        stops.idle(A, at(0), at(14), None, true);
        // He had stopped right after he was seen at work, and a half.
        stops.found(at(0), at(20), 3.0 * MS as f64);
        stops.works(A, at(110));
        assert_eq!(stops.idle(A, at(100), at(114), None, true), at(110));
        assert_eq!(stops.within(at(100), at(120))[&A].later_ns, -2 * MS as i64);
        stops.works(A, at(210));
        assert_eq!(
            stops.idle(A, at(200), at(214), None, true),
            at(211),
            "the rest"
        );
        stops.works(A, at(310));
        assert_eq!(stops.idle(A, at(300), at(314), None, true), at(312), "even");
        // Where nobody stopped, nobody is owed.
        stops.found(at(20), at(90), MS as f64);
        assert_eq!(stops.owed_ns[&A], 0);
        stops.found(at(300), at(320), -1e18);
        assert_eq!(stops.owed_ns[&A], OWED_MAX_NS);
    }

    #[test]
    fn what_is_remembered_is_bounded_and_who_is_gone_is_forgotten() {
        let mut stops = Stops::default();
        for ms in 0..5_000 {
            stops.idle(A, at(ms), at(ms + 1), None, true);
        }
        assert_eq!(stops.stops.len(), STOPS);
        stops.forget(A);
        assert!(stops.stops.is_empty() && stops.owed_ns.is_empty());
    }
}
