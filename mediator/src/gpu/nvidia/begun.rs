//! Who has begun to work since the counters last told of him. Pure.
//!
//! Counters are some hundred milliseconds behind, so that one who was idle on the engine and begins would be charged as idle for that long. Where
//! somebody waits, the status register is looked at: whoever is seen at work more often in a row than one who is idle as often as is believed
//! can be has begun since, and all his residency counts as work until the counters have told of a time after that.

use std::collections::BTreeMap;

use turnstile_accounting::{Moment, TenantId};

/// How seldom as many looks in a row may fall into the pauses of one who launches and waits, or into his work.
pub(super) const MISTAKEN: f64 = 1e-6;

/// Those who have begun.
#[derive(Debug, Default)]
pub(super) struct Begun {
    /// Who was seen at work in so many looks, without one in between that saw him idle, or another.
    at_work: Option<(TenantId, u32)>,
    /// Who has begun, and is known to work since then.
    since: BTreeMap<TenantId, Moment>,
}

impl Begun {
    /// A tenant was seen at work, or without, in a look that would see one who is as idle as is believed of him without work so often. Whether that
    /// changes who has begun.
    pub(super) fn seen(&mut self, tenant: TenantId, works: bool, at: Moment, idle: f64) -> bool {
        let before = self.at_work.take().filter(|(who, _)| *who == tenant);
        if !works {
            return self.since.remove(&tenant).is_some();
        }
        let looks = before.map_or(0, |(_, looks)| looks).saturating_add(1);
        self.at_work = Some((tenant, looks));
        let begins = !self.has(tenant) && (1.0 - idle).powf(looks.into()) < MISTAKEN;
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
            .find(|look| begun.seen(A, true, Moment(look * 3_000_000), idle))
            .unwrap_or(1_000)
    }

    #[test]
    fn who_was_idle_has_begun_after_looks_that_contradict_it() {
        assert_eq!(looks(&mut Begun::default(), 1.0), 1);
        assert_eq!(looks(&mut Begun::default(), 0.97), 4);
        assert_eq!(looks(&mut Begun::default(), 0.5), 20);
        assert_eq!(
            looks(&mut Begun::default(), 0.12),
            109,
            "launches and waits"
        );
        assert_eq!(looks(&mut Begun::default(), 0.0), 1_000);
    }

    #[test]
    fn looks_in_a_row_count_alone() {
        let mut begun = Begun::default();
        for look in 0..100 {
            // Three at work, and one that is not, or of another.
            let (who, works) = [
                (A, true),
                (A, true),
                (A, true),
                (B, true),
                (A, true),
                (A, false),
            ][look % 6];
            assert!(!begun.seen(who, works, Moment(look as u64), 0.97));
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
        assert!(begun.seen(A, false, Moment(at), 0.97) && !begun.has(A));
        looks(&mut begun, 0.97);
        begun.forget(A);
        assert!(!begun.has(A));
    }
}
