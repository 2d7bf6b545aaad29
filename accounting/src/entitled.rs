//! What tenants would have received by their weights: the yardstick that operators see beside what was received.
//!
//! Each window, the time that all tenants used of an engine is divided anew by weighted max-min fairness among those who
//! wanted it: one that had work at the window's end wants any amount, another wants what it used. So entitlements add up to
//! what was used, and a tenant that wants little leaves the rest to the others. Over a second and more the two columns
//! agree if the policy is fair; within a period they do not, since engines run one tenant at a time.

use std::collections::BTreeMap;

use crate::share::{Claim, water_fill};
use crate::units::{Nanos, TenantId};

/// One tenant in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    /// Who.
    pub tenant: TenantId,
    /// Its weight; 0 is entitled to nothing.
    pub weight: u32,
    /// The most it may have of the window, if it is capped.
    pub cap_ns: Option<Nanos>,
    /// What it used.
    pub used_ns: Nanos,
    /// Whether it had work at the window's end.
    pub backlogged: bool,
}

/// What a tenant was due, and how long it waited, since it was added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Due {
    /// Time that it was entitled to.
    pub entitled_ns: Nanos,
    /// Time in which it had work and did not run.
    pub waited_ns: Nanos,
}

/// Running totals of [`Due`], of one engine. Memory grows with tenants, not time.
#[derive(Clone, Debug, Default)]
pub struct Entitlements {
    due: BTreeMap<TenantId, Due>,
    // Reused between windows.
    claims: Vec<Claim>,
}

impl Entitlements {
    /// A window of `window_ns` ended, in which these were present, each at most once.
    pub fn window(&mut self, window_ns: Nanos, wishes: &[Wish]) {
        let used: u128 = wishes.iter().map(|wish| u128::from(wish.used_ns.0)).sum();
        self.claims.clear();
        self.claims.extend(wishes.iter().map(|wish| Claim {
            weight: wish.weight,
            demand: match (wish.backlogged, wish.cap_ns) {
                (true, None) => None,
                (true, Some(cap)) => Some(u128::from(cap.max(wish.used_ns).0)),
                (false, _) => Some(u128::from(wish.used_ns.0)),
            },
        }));
        let parts = water_fill(used, &self.claims);
        for (wish, part) in wishes.iter().zip(parts) {
            let due = self.due.entry(wish.tenant).or_default();
            // CAST: no part exceeds what was used, a few u64 nanoseconds of one engine
            due.entitled_ns += Nanos(part as u64);
            if wish.backlogged {
                due.waited_ns += window_ns.saturating_sub(wish.used_ns);
            }
        }
    }

    /// A tenant's totals; nothing for one that was in no window.
    pub fn of(&self, tenant: TenantId) -> Due {
        self.due.get(&tenant).copied().unwrap_or_default()
    }

    /// Forgets a tenant that is gone.
    pub fn forget(&mut self, tenant: TenantId) {
        self.due.remove(&tenant);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn wish(tenant: u32, weight: u32, used_ms: u64, backlogged: bool) -> Wish {
        Wish {
            tenant: TenantId(tenant),
            weight,
            cap_ns: None,
            used_ns: Nanos::from_ms(used_ms),
            backlogged,
        }
    }

    fn due(wishes: &[Wish]) -> Vec<(u64, u64)> {
        let mut book = Entitlements::default();
        book.window(Nanos::from_ms(100), wishes);
        wishes
            .iter()
            .map(|wish| book.of(wish.tenant))
            .map(|due| (due.entitled_ns.0 / 1_000_000, due.waited_ns.0 / 1_000_000))
            .collect()
    }

    #[test]
    fn those_who_want_more_divide_by_weight() {
        let wishes = [wish(1, 100, 90, true), wish(2, 300, 10, true)];
        assert_eq!(due(&wishes), [(25, 10), (75, 90)]);
    }

    #[test]
    fn who_wants_little_leaves_the_rest_and_waits_for_nothing() {
        let wishes = [wish(1, 300, 5, false), wish(2, 100, 80, true)];
        assert_eq!(due(&wishes), [(5, 0), (80, 20)]);
    }

    #[test]
    fn a_cap_bounds_what_is_due() {
        let mut capped = wish(1, 300, 10, true);
        capped.cap_ns = Some(Nanos::from_ms(20));
        assert_eq!(due(&[capped, wish(2, 100, 90, true)]), [(20, 90), (80, 10)]);
    }

    #[test]
    fn the_forgotten_begin_anew() {
        let mut book = Entitlements::default();
        book.window(Nanos::from_ms(1), &[wish(1, 1, 1, true)]);
        book.forget(TenantId(1));
        assert_eq!(book.of(TenantId(1)), Due::default());
    }

    proptest! {
        #[test]
        fn entitlements_add_up_to_what_was_used(
            tenants in prop::collection::vec((1u32..=10_000, 0u64..=1_000_000_000, any::<bool>()), 1..12)
        ) {
            // One that wants no more than it used gets that; so somebody has to want the rest.
            let wishes: Vec<Wish> = tenants
                .iter()
                .zip(1..)
                .map(|(&(weight, used, backlogged), tenant)| Wish {
                    tenant: TenantId(tenant),
                    weight,
                    cap_ns: None,
                    used_ns: Nanos(used),
                    backlogged,
                })
                .collect();
            let mut book = Entitlements::default();
            book.window(Nanos(1 << 40), &wishes);
            let used: u64 = wishes.iter().map(|wish| wish.used_ns.0).sum();
            let entitled: u64 = wishes.iter().map(|wish| book.of(wish.tenant).entitled_ns.0).sum();
            prop_assert_eq!(entitled, used);
            for wish in wishes.iter().filter(|wish| !wish.backlogged) {
                prop_assert!(book.of(wish.tenant).entitled_ns <= wish.used_ns);
            }
        }
    }
}
