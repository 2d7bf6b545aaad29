//! Who has begun to work since the counters last told of him. Pure.
//!
//! Counters are some hundred milliseconds behind, so that one who was idle on the engine and begins would be charged as idle for that long. Where
//! somebody waits, the status register is looked at: looks that go with far less idle time than is believed, and not with that, say that he has begun
//! since (a sequential test of one against the other); all his residency counts as work until the counters have told of a time after that.

use std::collections::BTreeMap;

use turnstile_accounting::{Moment, TenantId};

/// How seldom as many looks in a row may fall into the pauses of one who launches and waits, or into his work.
pub(super) const MISTAKEN: f64 = 1e-6;

/// Who has begun is idle for no more than this part of what is believed.
const LESS_IDLE: f64 = 0.25;
/// Nobody is believed to be idle for more than this.
const IDLE_MAX: f64 = 0.999_9;

/// Those who have begun.
#[derive(Debug, Default)]
pub(super) struct Begun {
    /// Who was seen at work in the last looks, without one in between that saw him idle, or another; and how much likelier the looks are of one who is far
    /// less idle than is believed (a logarithm).
    at_work: Option<(TenantId, f64)>,
    /// Who has begun, and is known to work since then.
    since: BTreeMap<TenantId, Moment>,
}

/// What a look saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// Work, at once.
    Work,
    /// Work, after readings without.
    Between,
    /// None.
    Idle,
}

impl Look {
    /// So many readings, all of which were without work but, if it works, the last.
    pub(super) const fn of(works: bool, readings: u32) -> Self {
        match (works, readings) {
            (true, 0 | 1) => Self::Work,
            (true, _) => Self::Between,
            (false, _) => Self::Idle,
        }
    }
}

impl Begun {
    /// A tenant who is believed to be idle for such a fraction was looked at. Whether that changes who has begun.
    pub(super) fn seen(&mut self, tenant: TenantId, look: Look, at: Moment, idle: f64) -> bool {
        let before = self.at_work.take().filter(|(who, _)| *who == tenant);
        let idle = idle.clamp(0.0, IDLE_MAX);
        let likelier = match look {
            Look::Work => ((1.0 - LESS_IDLE * idle) / (1.0 - idle)).ln(),
            Look::Between => LESS_IDLE.ln(),
            Look::Idle => return self.since.remove(&tenant).is_some(),
        };
        let likelier = (before.map_or(0.0, |(_, likelier)| likelier) + likelier).max(0.0);
        self.at_work = Some((tenant, likelier));
        let begins = !self.has(tenant) && likelier > -MISTAKEN.ln();
        if begins {
            self.since.insert(tenant, at);
            self.at_work = None;
        }
        begins
    }

    /// The counters tell of a time that begins here: who had begun before, and is known from it now.
    pub(super) fn counted(&mut self, from: Moment) -> Vec<TenantId> {
        let known = self.since.extract_if(.., |_, since| *since <= from);
        known.map(|(tenant, _)| tenant).collect()
    }

    /// Whether all of a tenant's residency is to count as work.
    pub(super) fn has(&self, tenant: TenantId) -> bool {
        self.since.contains_key(&tenant)
    }

    /// A tenant is gone.
    pub(super) fn forget(&mut self, tenant: TenantId) {
        self.since.remove(&tenant);
        self.at_work = self.at_work.filter(|(who, _)| *who != tenant);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: TenantId = TenantId(1);
    const B: TenantId = TenantId(2);

    /// Looks each 3 ms from the first on, until A has begun.
    fn looks(begun: &mut Begun, idle: f64) -> u64 {
        (1..1_000)
            .find(|look| begun.seen(A, Look::Work, Moment(look * 3_000_000), idle))
            .unwrap_or(1_000)
    }

    #[test]
    fn who_was_idle_has_begun_after_looks_that_contradict_it() {
        let looks = |idle| looks(&mut Begun::default(), idle);
        assert_eq!(looks(1.0), 2);
        assert_eq!(looks(0.97), 5);
        assert_eq!(looks(0.5), 25);
        assert!(looks(0.12) > 100, "launches and waits");
        assert_eq!(looks(0.0), 1_000);
    }

    /// Of a thousand looks at one who launches and waits, and is idle for 14 %: the first that says that he has begun, where he is believed to be idle for so
    /// much.
    fn launcher(believed: f64) -> Option<u64> {
        let mut begun = Begun::default();
        (0..1_000).find(|look| {
            // Evenly, and in no step with anything.
            let idle = (look * 618_034) % 1_000_000 < 140_000;
            let look_is = if idle { Look::Between } else { Look::Work };
            begun.seen(A, look_is, Moment(look * 3_000_000), believed)
        })
    }

    #[test]
    fn who_launches_and_waits_has_begun_if_he_was_idle_and_not_if_that_is_how_he_is() {
        assert!(launcher(0.9).is_some_and(|looks| looks < 15));
        assert!(launcher(0.5).is_some_and(|looks| looks < 80));
        assert_eq!(launcher(0.2), None);
        assert_eq!(launcher(0.14), None);
    }

    #[test]
    fn looks_in_a_row_count_alone() {
        let mut begun = Begun::default();
        for look in 0..100 {
            // Three at work, and one that is not, or of another.
            let (who, look_is) = [
                (A, Look::Work),
                (A, Look::Work),
                (A, Look::Work),
                (B, Look::Work),
                (A, Look::Work),
                (A, Look::Idle),
            ][look % 6];
            assert!(!begun.seen(who, look_is, Moment(look as u64), 0.97));
        }
    }

    #[test]
    fn it_ends_when_he_is_seen_idle_or_the_counters_have_told_of_him() {
        let mut begun = Begun::default();
        let at = 3_000_000 * looks(&mut begun, 0.97);
        assert!(begun.has(A) && !begun.has(B));
        assert!(begun.counted(Moment(at - 1)).is_empty() && begun.has(A));
        assert_eq!(begun.counted(Moment(at)), [A]);
        assert!(!begun.has(A));
        looks(&mut begun, 0.97);
        assert!(begun.seen(A, Look::Idle, Moment(at), 0.97) && !begun.has(A));
        looks(&mut begun, 0.97);
        begun.forget(A);
        assert!(!begun.has(A));
    }
}
