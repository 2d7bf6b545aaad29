//! What tenants launched between two latches of the counters, by what their channels said around these. Pure.
//!
//! Channels are read at latches where there are many tenants. Two are asked at handovers, and whoever is on the engine at latches (decision 043): launches between two readings are
//! spread evenly over the time for which the tenant was there.
//!
//! The host engine advances a channel's GP_GET as it takes entries, one for a launch (`progress.rs`). A tenant can write its words, so what is counted here is believed only as
//! far as [`turnstile_accounting::meter::LaggedShares`] does.

use std::collections::{BTreeMap, VecDeque};

use turnstile_accounting::meter::Launched;
use turnstile_accounting::{Moment, Nanos, TenantId};

use super::RECORD;
use super::launches::Launches;
use super::progress::{Entries, Words};
use super::residency::Residency;

/// Readings that are remembered: an interval is told of up to half a second later, and a tenant that takes turns is asked twice at each handover.
const READINGS: usize = 32;
/// A channel that moved at none of the last so many is read at every such reading only.
const STILL: usize = 8;
/// Between two readings the rate of launches changes by such a part of it, as a standard deviation. SOURCE: recordings of pairs on an H200.
const RATE_VARIES: f64 = 0.01;
/// Readings before the first one that is needed of which the rate may be.
const RATE_OF: usize = 4;
/// What was launched after the last reading is told by the rate before it if that covers so much.
const RATE_MIN: Nanos = Nanos::from_ms(1);
/// Who was read at a latch is for so long. SOURCE: latches are 100 ms apart.
const LATCHED: Nanos = Nanos::from_ms(1_000);
/// Readings that lie further apart say nothing of what is between, and nothing is said of later than that after the last one. (Who is alone is not asked.) SOURCE: a turn of two
/// tenants is shorter than a sixth of a second.
const APART: Nanos = Nanos::from_ms(300);
/// Ends of intervals that are the same one.
const SAME: Nanos = Nanos::from_ms(1);

/// What the channels of a tenant said at some moment.
#[derive(Debug)]
struct Reading {
    at: Moment,
    said: Vec<(Entries, u32)>,
}

#[derive(Debug, Default)]
struct Said {
    generation: u64,
    /// How often they were read at latches, and when last.
    read: usize,
    latched: Option<Moment>,
    readings: VecDeque<Reading>,
    /// The end of the last interval that was told, and what was launched until then since which reading.
    told: Option<(Moment, Moment, f64)>,
}

impl Said {
    fn of(generation: u64) -> Self {
        Self {
            generation,
            ..Self::default()
        }
    }

    /// Whether a channel moved at none of the latches that are remembered.
    fn is_still(&self, index: usize) -> bool {
        let late = self.readings.iter().rev().take(STILL);
        let mut gets = late.map(|latch| latch.said[index].0.get);
        let first = gets.next();
        self.read >= STILL && self.readings.len() >= STILL && gets.all(|get| Some(get) == first)
    }

    fn push(&mut self, at: Moment, said: Vec<(Entries, u32)>) {
        // Two threads ask, each by its own clock's reading.
        if self.readings.back().is_some_and(|last| last.at >= at) {
            return;
        }
        if self.readings.len() == READINGS {
            self.readings.pop_front();
        }
        self.readings.push_back(Reading { at, said });
    }
}

/// What the channels of all tenants said at latches.
#[derive(Debug, Default)]
pub(super) struct Latches {
    tenants: BTreeMap<TenantId, Said>,
}

impl Latches {
    /// Takes what the channels of a tenant say at a latch: those that moved lately, and all of them now and then.
    pub(super) fn read(&mut self, tenant: TenantId, words: &impl Words, at: Moment) {
        let known = self.known(tenant, words.generation());
        let mut traced = String::new();
        let all = known.read.is_multiple_of(STILL);
        let read = |index| {
            if !all && known.is_still(index) {
                return known.readings[known.readings.len() - 1].said[index];
            }
            let (entries, ring) = words.read(index);
            if log::log_enabled!(target: RECORD, log::Level::Trace) {
                traced.push_str(&format!(" {index} {} {}", entries.get, entries.put));
            }
            (entries, ring)
        };
        let said = (0..words.count()).map(read).collect();
        log::trace!(target: RECORD, "latch {} {}{traced}", tenant.0, at.0);
        (known.read, known.latched) = (known.read.wrapping_add(1), Some(at));
        known.push(at, said);
    }

    /// Takes what the channels of a tenant said when it was asked: of those that did not move lately, what they said before. Where they are read at latches, that says more.
    pub(super) fn heard(
        &mut self,
        tenant: TenantId,
        generation: u64,
        said: impl Iterator<Item = (Entries, u32)>,
        at: Moment,
    ) {
        let known = self.known(tenant, generation);
        if let Some(latched) = known.latched {
            if at.since(latched) <= LATCHED {
                return;
            }
            // What was not asked since is as it was before that.
            *known = Said::of(generation);
        }
        known.push(at, said.collect());
    }

    /// What the channels of a tenant said, if they are those of before.
    fn known(&mut self, tenant: TenantId, generation: u64) -> &mut Said {
        let known = self.tenants.entry(tenant).or_default();
        if known.generation != generation {
            *known = Said::of(generation);
        }
        known
    }

    /// What tenants launched in an interval, as far as it is known.
    pub(super) fn all_launched(
        &mut self,
        (from, to): (Moment, Moment),
        residency: &Residency,
        launches: &Launches,
    ) -> BTreeMap<TenantId, Launched> {
        let at_ends = [from, to].map(|end| residency.resident_at(end));
        let there = residency.resident_within(from, to).into_keys().flatten();
        let launched = |tenant| {
            let resident = |from, to| residency.resident_of(tenant, from, to);
            let expected = |resident| launches.expected(tenant, resident);
            let [began, ended] = at_ends.map(|at_end| at_end == Some(tenant));
            let told = self.launched(tenant, (from, to), (began, ended), resident, expected);
            Some((tenant, told?))
        };
        there.filter_map(launched).collect()
    }

    /// What a tenant launched in an interval, by what its channels said before and after its ends. `resident` says how long it was there, `expected` how often it may have launched in such a
    /// time, where one took the whole ring in between.
    fn launched(
        &mut self,
        tenant: TenantId,
        (from, to): (Moment, Moment),
        at_ends: (bool, bool),
        resident: impl Fn(Moment, Moment) -> Nanos,
        expected: impl Fn(Nanos) -> f64,
    ) -> Option<Launched> {
        let known = self.tenants.get_mut(&tenant)?;
        let told = known
            .told
            .filter(|(at, ..)| at.0.abs_diff(from.0) <= SAME.0);
        let first = told.map_or(from, |(_, since, _)| since);
        let course = Course::of(&known.readings, first, &resident, &expected);
        let end = course.until(to, &resident)?;
        let told = told.and_then(|(_, since, more)| Some(course.total_at(since)? + more));
        let begin = match told {
            Some(begin) => begin,
            None => {
                let begin = course.until(from, &resident)?;
                begin.total + begin.more
            }
        };
        known.told = Some((to, end.since, end.more));
        Some(Launched {
            count: (end.total + end.more - begin).max(0.0),
            at_ends,
            off: end.off,
        })
    }

    /// What a tenant launched from the end of the last interval that was told, which was then, to the last reading or so far; and until when that is. The rest as in
    /// [`Self::launched`].
    pub(super) fn launched_since(
        &self,
        tenant: TenantId,
        (from, most): (Moment, Moment),
        resident: impl Fn(Moment, Moment) -> Nanos,
        expected: impl Fn(Nanos) -> f64,
    ) -> Option<(f64, Moment)> {
        let known = self.tenants.get(&tenant)?;
        let same = |(at, ..): &(Moment, _, _)| at.0.abs_diff(from.0) <= SAME.0;
        let (_, since, more) = known.told.filter(same)?;
        let course = Course::of(&known.readings, since, &resident, &expected);
        let to = course.0.last()?.0.min(most);
        let until = course.until(to, &resident)?;
        let count = until.total + until.more - course.total_at(since)? - more;
        (to > from).then_some((count, to))
    }

    /// A tenant is gone.
    pub(super) fn forget(&mut self, tenant: TenantId) {
        self.tenants.remove(&tenant);
    }
}

/// What was launched until some moment.
#[derive(Clone, Copy, Debug)]
struct Until {
    /// Until the reading before it, which was then, and since.
    since: Moment,
    total: f64,
    more: f64,
    /// Standard deviation of that.
    off: f64,
}

/// Launches from reading to reading: when, and how many until then.
struct Course(Vec<(Moment, f64)>);

impl Course {
    /// From a little before `first`, so that the rate is known there.
    fn of(
        readings: &VecDeque<Reading>,
        first: Moment,
        resident: impl Fn(Moment, Moment) -> Nanos,
        expected: impl Fn(Nanos) -> f64,
    ) -> Self {
        let after = readings.partition_point(|reading| reading.at <= first);
        let mut course = Vec::new();
        let mut total = 0.0;
        let mut before: Option<&Reading> = None;
        let mut mover = None;
        for reading in readings.range(after.saturating_sub(1 + RATE_OF)..) {
            if let Some(before) = before {
                if reading.at.since(before.at) > APART {
                    course.clear();
                }
                let expected = || expected(resident(before.at, reading.at));
                total += launches(before, reading, &mut mover, expected);
            }
            course.push((reading.at, total));
            before = Some(reading);
        }
        Self(course)
    }

    fn total_at(&self, at: Moment) -> Option<f64> {
        let found = self.0.binary_search_by_key(&at, |(at, _)| *at);
        found.ok().map(|index| self.0[index].1)
    }

    fn until(&self, at: Moment, resident: impl Fn(Moment, Moment) -> Nanos) -> Option<Until> {
        let after = self.0.partition_point(|(then, _)| *then <= at);
        let (since, total) = *self.0.get(after.checked_sub(1)?)?;
        if at.since(since) > APART {
            return None;
        }
        let there = resident(since, at).0 as f64;
        let (rate, far) = match self.0.get(after) {
            Some((next, then)) => {
                let whole = resident(since, *next).0 as f64;
                let rate = if whole > 0.0 {
                    (then - total) / whole
                } else {
                    0.0
                };
                (rate, there.min(whole - there))
            }
            None if there == 0.0 => (0.0, 0.0),
            None => {
                let mut each = self.0.windows(2).rev().map(|pair| {
                    let whole = resident(pair[0].0, pair[1].0);
                    (pair[1].1 - pair[0].1, whole)
                });
                let (launched, whole) = each.find(|(_, whole)| *whole >= RATE_MIN)?;
                (launched / whole.0 as f64, there)
            }
        };
        Some(Until {
            since,
            total,
            more: rate * there,
            off: RATE_VARIES * rate * far.max(0.0),
        })
    }
}

/// Launched from one reading to the next. The ring of the only channel that moved lately may have gone round, to where it was even: `mover` is how long it is.
fn launches(
    before: &Reading,
    after: &Reading,
    mover: &mut Option<u32>,
    expected: impl Fn() -> f64,
) -> f64 {
    let each = before.said.iter().zip(&after.said);
    let moved = each.filter(|((before, _), (after, _))| before.get != after.get);
    let moved: Vec<(u32, u32)> = moved
        .map(|((before, ring), (after, _))| (after.since(*before, *ring), *ring))
        .collect();
    let taken = moved
        .iter()
        .map(|(taken, _)| f64::from(*taken))
        .sum::<f64>();
    *mover = match moved[..] {
        [] => *mover,
        [(_, ring)] => Some(ring),
        _ => None,
    };
    let rounds = mover.map_or(0.0, |ring| {
        let ring = f64::from(ring.max(1));
        ((expected() - taken) / ring).round().max(0.0) * ring
    });
    taken + rounds
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: TenantId = TenantId(1);
    const MS: u64 = 1_000_000;
    const RING: u32 = 1024;

    struct Channels(u64, Vec<u32>);

    impl Words for Channels {
        fn generation(&self) -> u64 {
            self.0
        }

        fn count(&self) -> usize {
            self.1.len()
        }

        fn read(&self, index: usize) -> (Entries, u32) {
            let get = self.1[index];
            (Entries { get, put: get }, RING)
        }
    }

    /// Of the interval from 100 to 200 ms, where channels said this at these times (in ms) and A was resident `there`.
    fn launched(
        latches: &mut Latches,
        readings: &[(f64, &[u32])],
        there: (f64, f64),
        expected: f64,
    ) -> Option<Launched> {
        for (at, gets) in readings {
            let at = Moment((at * MS as f64) as u64);
            latches.read(A, &Channels(1, gets.to_vec()), at);
        }
        let ms = |moment: Moment| moment.0 as f64 / MS as f64;
        let resident = |from, to| {
            let part = ms(to).min(there.1) - ms(from).max(there.0);
            Nanos((part.max(0.0) * MS as f64) as u64)
        };
        let ends = (Moment(100 * MS), Moment(200 * MS));
        let at_ends = (there.0 <= 100.0, there.1 > 200.0);
        latches.launched(A, ends, at_ends, resident, |_| expected)
    }

    fn count(readings: &[(f64, &[u32])], there: (f64, f64)) -> f64 {
        let launched = launched(&mut Latches::default(), readings, there, 0.0);
        launched.unwrap().count
    }

    #[test]
    fn launches_are_counted_from_end_to_end() {
        let count = |before: &[u32], after: &[u32], expected| {
            let readings = [(100.0, before), (200.0, after)];
            let launched = launched(&mut Latches::default(), &readings, (0.0, 300.0), expected);
            launched.unwrap().count
        };
        assert_eq!(count(&[5, 7], &[45, 7], 0.0), 40.0);
        assert_eq!(count(&[5, 7], &[45, 17], 0.0), 50.0);
        assert_eq!(
            count(&[1_000], &[16], 0.0),
            40.0,
            "from the ring's end to its begin"
        );
        assert_eq!(count(&[5], &[45], 1_100.0), 1_064.0, "once around it");
        assert_eq!(count(&[5], &[45], 400.0), 40.0, "not as often as that");
        assert_eq!(
            count(&[5], &[5], 1_000.0),
            0.0,
            "no channel is known to move"
        );
    }

    #[test]
    fn who_went_round_the_ring_to_where_he_was_has_launched() {
        let count = |first: &[u32], expected| {
            let readings = [(50.0, first), (100.0, &[7, 5]), (200.0, &[7, 5])];
            let there = (0.0, 300.0);
            launched(&mut Latches::default(), &readings, there, expected).map(|found| found.count)
        };
        assert_eq!(count(&[7, 1_000], 1_020.0), Some(1_024.0));
        assert_eq!(count(&[7, 1_000], 500.0), Some(0.0), "he rests");
        assert_eq!(count(&[7, 5], 1_020.0), Some(0.0), "neither moved before");
        assert_eq!(count(&[0, 1_000], 1_020.0), Some(0.0), "either may have");
    }

    #[test]
    fn between_readings_launches_are_where_the_tenant_was() {
        let late = [(100.0, &[0][..]), (201.0, &[404])];
        assert!((count(&late, (0.0, 300.0)) - 400.0).abs() < 0.001);
        assert!(
            (count(&late, (0.0, 190.0)) - 404.0).abs() < 0.001,
            "it was not there any more"
        );
        // Asked at handovers only: 10 a millisecond before 150 ms, 7.8 after it (once around the ring).
        let asked = [(50.0, &[0][..]), (150.0, &[1_000]), (250.0, &[756])];
        let readings = launched(&mut Latches::default(), &asked, (0.0, 300.0), 0.0).unwrap();
        assert!(
            (readings.count - (500.0 + 390.0)).abs() < 0.001,
            "{readings:?}"
        );
    }

    #[test]
    fn what_was_told_wrongly_of_an_end_is_told_of_the_next_interval() {
        let mut latches = Latches::default();
        let first = [(50.0, &[0][..]), (150.0, &[500])];
        let first = launched(&mut latches, &first, (0.0, 400.0), 0.0).unwrap();
        assert!(
            (first.count - 500.0).abs() < 0.001 && first.off > 1.0,
            "{first:?}"
        );
        latches.read(A, &Channels(1, vec![900]), Moment(250 * MS));
        latches.read(A, &Channels(1, vec![276]), Moment(350 * MS));
        let ends = (Moment(200 * MS), Moment(300 * MS));
        let second = latches.launched(A, ends, (true, true), |from, to| to.since(from), |_| 0.0);
        // 400 from 250 to 350 ms, so 1,100 until 300, of which 250 and 500 were told.
        let second = second.unwrap();
        assert!((second.count - 350.0).abs() < 0.001, "{second:?}");
        let since = |from: u64, most: u64| {
            let ends = (Moment(from * MS), Moment(most * MS));
            latches.launched_since(A, ends, |from, to| to.since(from), |_| 0.0)
        };
        assert_eq!(since(300, 400), Some((200.0, Moment(350 * MS))));
        assert_eq!(since(300, 330), Some((120.0, Moment(330 * MS))));
        assert_eq!(since(300, 300), None, "nothing is known of later");
        assert_eq!(since(200, 400), None, "no end that was told last");
    }

    #[test]
    fn readings_far_apart_say_nothing() {
        let ends = (Moment(900 * MS), Moment(1_000 * MS));
        let whole = |from: Moment, to: Moment| to.since(from);
        let mut latches = Latches::default();
        latches.read(A, &Channels(1, vec![0]), Moment(400 * MS));
        latches.read(A, &Channels(1, vec![500]), Moment(500 * MS));
        assert_eq!(
            latches.launched(A, ends, (true, true), whole, |_| 0.0),
            None,
            "it is not known how it went on"
        );
        latches.read(A, &Channels(1, vec![900]), Moment(1_100 * MS));
        assert_eq!(
            latches.launched(A, ends, (true, true), whole, |_| 0.0),
            None,
            "nor by what was said afterwards"
        );
        let ends = (Moment(1_150 * MS), Moment(1_250 * MS));
        latches.read(A, &Channels(1, vec![1_000]), Moment(1_300 * MS));
        let launched = latches.launched(A, ends, (true, true), whole, |_| 0.0);
        assert_eq!(launched.map(|launched| launched.count), Some(50.0));
    }

    #[test]
    fn nothing_is_said_of_other_channels_and_of_other_times() {
        let mut latches = Latches::default();
        assert_eq!(launched(&mut latches, &[], (0.0, 300.0), 0.0), None);
        let late = [(110.0, &[0][..]), (200.0, &[400])];
        assert_eq!(launched(&mut latches, &late, (0.0, 300.0), 0.0), None);
        let mut latches = Latches::default();
        let before = [(40.0, &[0][..]), (90.0, &[100])];
        assert!(launched(&mut latches, &before, (0.0, 300.0), 0.0).is_some());
        latches.read(A, &Channels(2, vec![900]), Moment(95 * MS));
        assert_eq!(launched(&mut latches, &[], (0.0, 300.0), 0.0), None);
    }

    #[test]
    fn a_channel_that_stands_still_is_read_now_and_then() {
        let mut latches = Latches::default();
        let mut known = Vec::new();
        for at in 0..3 * STILL {
            let (moves, begins) = (at as u32, u32::from(at > STILL));
            latches.read(A, &Channels(1, vec![moves, begins]), Moment(at as u64));
            let latch = latches.tenants[&A].readings.back();
            known.push(latch.map(|latch| (latch.said[0].0.get == moves, latch.said[1].0.get)));
        }
        assert!(
            known
                .iter()
                .all(|known| known.is_some_and(|(moves, _)| moves))
        );
        let begins = |at: usize| known[at].map(|(_, begins)| begins);
        assert_eq!((begins(STILL + 1), begins(2 * STILL)), (Some(0), Some(1)));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut latches = Latches::default();
        (0..1_000).for_each(|at| latches.read(A, &Channels(1, vec![at as u32; 8]), Moment(at)));
        assert_eq!(latches.tenants[&A].readings.len(), READINGS);
        latches.forget(A);
        assert!(latches.tenants.is_empty());
    }
}
