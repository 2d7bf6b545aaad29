//! What tenants launched between two latches of the counters, by what their channels said then. Pure.
//!
//! The host engine advances a channel's GP_GET as it takes entries, one for a launch (`progress.rs`). A tenant can write its words, so what is counted here is believed only as
//! far as [`turnstile_accounting::meter::LaggedShares`] does.

use std::collections::{BTreeMap, VecDeque};

use turnstile_accounting::meter::Launched;
use turnstile_accounting::{Moment, Nanos, TenantId};

use super::progress::{Entries, Words};
use super::watch::RECORD;

/// Latches that are remembered: an interval is told of up to two of them later.
const LATCHES: usize = 8;
/// Words that were read so long before or after an end of an interval are its own. SOURCE: measured on an H200: they are read 0.1 to 0.2 ms after the latch, and the counters' age is
/// known to 0.1 ms.
const NEAR: Nanos = Nanos::from_ms(2);

/// The channels of a tenant at one latch.
#[derive(Debug)]
struct Latch {
    at: Moment,
    said: Vec<(Entries, u32)>,
}

#[derive(Debug, Default)]
struct Said {
    generation: u64,
    /// How often they were read.
    read: usize,
    latches: VecDeque<Latch>,
}

impl Said {
    /// Whether a channel moved at none of the latches that are remembered.
    fn is_still(&self, index: usize) -> bool {
        let mut gets = self.latches.iter().map(|latch| latch.said[index].0.get);
        let first = gets.next();
        self.latches.len() == LATCHES && gets.all(|get| Some(get) == first)
    }
}

/// What the channels of all tenants said at latches.
#[derive(Debug, Default)]
pub(super) struct Latches {
    tenants: BTreeMap<TenantId, Said>,
}

/// When and for how long a tenant was there in an interval.
#[derive(Clone, Copy, Debug)]
pub(super) struct Presence {
    pub(super) resident: Nanos,
    /// Whether it was when the interval began, and when it ended.
    pub(super) at_ends: (bool, bool),
}

impl Latches {
    /// Takes what the channels of a tenant say at a latch: those that moved lately, and all of them now and then.
    pub(super) fn read(&mut self, tenant: TenantId, words: &impl Words, at: Moment) {
        let generation = words.generation();
        let known = self.tenants.entry(tenant).or_default();
        if known.generation != generation {
            *known = Said {
                generation,
                ..Said::default()
            };
        }
        let mut traced = String::new();
        let all = known.read.is_multiple_of(LATCHES);
        let read = |index| {
            if !all && known.is_still(index) {
                return known.latches[LATCHES - 1].said[index];
            }
            let (entries, ring) = words.read(index);
            if log::log_enabled!(target: RECORD, log::Level::Trace) {
                traced.push_str(&format!(" {index} {} {}", entries.get, entries.put));
            }
            (entries, ring)
        };
        let said = (0..words.count()).map(read).collect();
        log::trace!(target: RECORD, "latch {} {}{traced}", tenant.0, at.0);
        known.read = known.read.wrapping_add(1);
        if known.latches.len() == LATCHES {
            known.latches.pop_front();
        }
        known.latches.push_back(Latch { at, said });
    }

    /// What a tenant launched in an interval, at whose ends its channels were read. `expected` says how often it may have, where one took the whole ring in between.
    pub(super) fn launched(
        &self,
        tenant: TenantId,
        (from, to): (Moment, Moment),
        presence: Presence,
        expected: f64,
    ) -> Option<Launched> {
        let latches = &self.tenants.get(&tenant)?.latches;
        let near = |at: Moment| {
            latches
                .iter()
                .find(|latch| latch.at.0.abs_diff(at.0) <= NEAR.0)
        };
        let (begin, end) = (near(from)?, near(to)?);
        let each = begin.said.iter().zip(&end.said);
        let moved = each.filter(|((before, _), (after, _))| before.get != after.get);
        let moved: Vec<(u32, u32)> = moved
            .map(|((before, ring), (after, _))| (after.since(*before, *ring), *ring))
            .collect();
        let taken = moved
            .iter()
            .map(|(taken, _)| f64::from(*taken))
            .sum::<f64>();
        let rounds = match moved[..] {
            [(_, ring)] => {
                let ring = f64::from(ring.max(1));
                ((expected - taken) / ring).round().max(0.0) * ring
            }
            _ => 0.0,
        };
        let count = taken + rounds;
        // What was launched between an end and when they were read.
        let rate = count / presence.resident.0.max(1) as f64;
        let between = |end: Moment, latch: &Latch, there: bool| match there {
            true => rate * (end.0 as f64 - latch.at.0 as f64),
            false => 0.0,
        };
        let (began, ended) = presence.at_ends;
        let count = count + between(to, end, ended) - between(from, begin, began);
        Some(Launched {
            count: count.max(0.0),
            at_ends: presence.at_ends,
        })
    }

    /// A tenant is gone.
    pub(super) fn forget(&mut self, tenant: TenantId) {
        self.tenants.remove(&tenant);
    }
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

    /// Of the interval of 100 ms at whose ends channels were so, read so long after them, and in which A was resident for 80 ms.
    fn launched(
        words: [(u64, &[u32]); 2],
        late_ms: f64,
        at_ends: (bool, bool),
        expected: f64,
    ) -> Option<Launched> {
        let mut latches = Latches::default();
        for (index, (generation, gets)) in words.into_iter().enumerate() {
            let at = index as f64 * 100.0 + 100.0 + late_ms * index as f64;
            latches.read(
                A,
                &Channels(generation, gets.to_vec()),
                Moment((at * MS as f64) as u64),
            );
        }
        let presence = Presence {
            resident: Nanos(80 * MS),
            at_ends,
        };
        latches.launched(A, (Moment(100 * MS), Moment(200 * MS)), presence, expected)
    }

    #[test]
    fn launches_are_counted_from_latch_to_latch() {
        let count = |before: &[u32], after: &[u32], expected| {
            let launched = launched([(1, before), (1, after)], 0.0, (false, false), expected);
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
        assert_eq!(count(&[5], &[5], 1_000.0), 0.0);
    }

    #[test]
    fn what_was_launched_before_words_were_read_is_not_the_intervals() {
        let words: [(u64, &[u32]); 2] = [(1, &[0]), (1, &[400])];
        let late = launched(words, 1.0, (false, true), 0.0).unwrap();
        assert!(
            (late.count - 395.0).abs() < 0.001 && late.at_ends == (false, true),
            "{late:?}"
        );
        let another = launched(words, 1.0, (true, false), 0.0).unwrap();
        assert!(
            (another.count - 400.0).abs() < 0.001,
            "it was not there: {another:?}"
        );
    }

    #[test]
    fn nothing_is_said_of_other_channels_and_of_other_times() {
        assert_eq!(
            launched([(1, &[0]), (2, &[400])], 0.0, (true, true), 0.0),
            None
        );
        assert_eq!(
            launched([(1, &[0]), (1, &[400])], 3.0, (true, true), 0.0),
            None
        );
        assert_eq!(
            Latches::default().launched(
                A,
                (Moment(0), Moment(1)),
                Presence {
                    resident: Nanos(1),
                    at_ends: (true, true)
                },
                0.0
            ),
            None
        );
    }

    #[test]
    fn a_channel_that_stands_still_is_read_now_and_then() {
        let mut latches = Latches::default();
        let mut known = Vec::new();
        for at in 0..3 * LATCHES {
            let (moves, begins) = (at as u32, u32::from(at > LATCHES));
            latches.read(A, &Channels(1, vec![moves, begins]), Moment(at as u64));
            let latch = latches.tenants[&A].latches.back();
            known.push(latch.map(|latch| (latch.said[0].0.get == moves, latch.said[1].0.get)));
        }
        assert!(
            known
                .iter()
                .all(|known| known.is_some_and(|(moves, _)| moves))
        );
        let begins = |at: usize| known[at].map(|(_, begins)| begins);
        assert_eq!(
            (begins(LATCHES + 1), begins(2 * LATCHES)),
            (Some(0), Some(1))
        );
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut latches = Latches::default();
        (0..1_000).for_each(|at| latches.read(A, &Channels(1, vec![at as u32; 8]), Moment(at)));
        assert_eq!(latches.tenants[&A].latches.len(), LATCHES);
        latches.forget(A);
        assert!(latches.tenants.is_empty());
    }
}
