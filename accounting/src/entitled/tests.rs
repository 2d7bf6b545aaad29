use super::{Account, Claimant, Due, Entitlements, Quota};
use crate::units::{AccountId, Nanos, TenantId};
use proptest::prelude::*;

const MS: u64 = 1_000_000;
const WINDOW: Nanos = Nanos::from_ms(10);

/// A tenant that is the only one of its account.
fn alone(tenant: u32, weight: u32, used_ms: u64, wanted_ms: u64) -> Claimant {
    Claimant {
        tenant: TenantId(tenant),
        account: Account {
            id: AccountId(tenant),
            weight,
            quota: None,
        },
        weight,
        quota: None,
        used_ns: Nanos::from_ms(used_ms),
        wanted_ns: Nanos::from_ms(wanted_ms),
    }
}

/// A tenant of an account of weight 100.
fn member(account: u32, tenant: u32, weight: u32, used_ms: u64) -> Claimant {
    let mut claimant = alone(tenant, weight, used_ms, 100);
    claimant.account.id = AccountId(account);
    claimant.account.weight = 100;
    claimant
}

const fn quota(quota_ms: u64, period_ms: u64) -> Option<Quota> {
    Some(Quota {
        quota_ns: Nanos::from_ms(quota_ms),
        period_ns: Nanos::from_ms(period_ms),
    })
}

/// Entitled and waited milliseconds of each claimant in one window of 100 ms.
fn due(claimants: &[Claimant]) -> Vec<(u64, u64)> {
    let mut book = Entitlements::default();
    book.window(Nanos::from_ms(100), &mut claimants.to_vec());
    let due = claimants.iter().map(|claimant| book.of(claimant.tenant));
    due.map(|due| (due.entitled_ns.0 / MS, due.waited_ns.0 / MS))
        .collect()
}

#[test]
fn tenants_that_want_more_divide_by_weight() {
    let claimants = [alone(1, 100, 90, 100), alone(2, 300, 10, 100)];
    assert_eq!(due(&claimants), [(25, 10), (75, 90)]);
}

#[test]
fn tenant_that_wants_little_leaves_the_rest_and_waits_for_nothing() {
    let claimants = [alone(1, 300, 5, 5), alone(2, 100, 80, 100)];
    assert_eq!(due(&claimants), [(5, 0), (80, 20)]);
}

#[test]
fn starved_tenant_without_work_at_the_end_has_a_shortfall() {
    // The first tenant had work for less than the window: it is entitled to its demand, up to half.
    let claimants = [alone(1, 100, 5, 45), alone(2, 100, 85, 100)];
    assert_eq!(due(&claimants), [(45, 40), (45, 15)]);
    let claimants = [alone(1, 100, 0, 20), alone(2, 100, 80, 80)];
    assert_eq!(due(&claimants), [(20, 20), (60, 0)]);
}

#[test]
fn accounts_divide_first_and_their_tenants_after_them() {
    // Three tenants of account 1 have one half, at 1:1:2; the order of claimants does not matter.
    let claimants = [
        member(1, 4, 200, 20),
        member(2, 1, 700, 20),
        member(1, 2, 100, 20),
        member(1, 3, 100, 20),
    ];
    assert_eq!(due(&claimants), [(20, 80), (40, 80), (10, 80), (10, 80)]);
}

#[test]
fn quota_of_an_account_bounds_all_its_tenants_together() {
    let mut claimants = [
        member(1, 1, 100, 30),
        member(1, 2, 200, 30),
        member(2, 3, 1, 30),
    ];
    claimants[0].account.quota = quota(30, 100);
    claimants[1].account.quota = quota(30, 100);
    assert_eq!(due(&claimants), [(10, 70), (20, 70), (60, 70)]);
}

#[test]
fn weight_of_zero_is_entitled_to_nothing_and_claims_nothing_for_its_account() {
    let mut content = member(1, 2, 100, 10);
    content.wanted_ns = content.used_ns;
    let claimants = [member(1, 1, 0, 10), content, member(2, 3, 100, 60)];
    assert_eq!(due(&claimants), [(0, 90), (10, 0), (70, 40)]);
}

/// Totals over windows of 10 ms in which `serve` sets what each claimant used.
fn totals(
    windows: u64,
    claimants: &[Claimant],
    mut serve: impl FnMut(u64, &mut [Claimant]),
) -> Vec<f64> {
    let mut book = Entitlements::default();
    for window in 0..windows {
        let mut now = claimants.to_vec();
        serve(window, &mut now);
        book.window(WINDOW, &mut now);
    }
    let whole = (windows * WINDOW.0) as f64;
    let part = |claimant: &Claimant| 100.0 * book.of(claimant.tenant).entitled_ns.0 as f64 / whole;
    claimants.iter().map(part).collect()
}

#[test]
fn quota_holds_over_its_own_period_however_windows_are_served() {
    let mut claimants = [
        alone(1, 200, 0, 10),
        alone(2, 300, 0, 10),
        alone(3, 100, 0, 10),
    ];
    claimants[0].quota = quota(25, 100);
    // The quota first, in one piece; then the other tenants take turns of a window.
    let at_once = totals(1_000, &claimants, |window, now| {
        let used = match window % 10 {
            0 | 1 => [10, 0, 0],
            2 => [5, 5, 0],
            3 | 5 | 6 | 8 => [0, 10, 0],
            7 => [0, 8, 2],
            _ => [0, 5, 5],
        };
        for (claimant, used) in now.iter_mut().zip(used) {
            claimant.used_ns = Nanos::from_ms(used);
        }
    });
    let near = |parts: Vec<f64>| {
        let right = [25.0, 56.25, 18.75].iter();
        assert!(
            right
                .zip(&parts)
                .all(|(right, part)| (right - part).abs() < 1e-4),
            "{parts:?}"
        );
    };
    near(at_once);
    // Spread over all windows.
    let spread = totals(1_000, &claimants, |_, now| {
        for (claimant, used) in now.iter_mut().zip([2_500, 5_625, 1_875]) {
            claimant.used_ns = Nanos::from_us(used);
        }
    });
    near(spread);
}

#[test]
fn forgotten_tenant_begins_anew() {
    let mut book = Entitlements::default();
    book.window(Nanos::from_ms(1), &mut [alone(1, 1, 1, 1)]);
    assert_ne!(book.of(TenantId(1)), Due::default());
    book.forget(TenantId(1));
    assert_eq!(book.of(TenantId(1)), Due::default());
}

/// A tenant, and what it used and wanted in each window, as parts of 64.
#[derive(Clone, Debug)]
struct Random {
    account: u32,
    weight: u32,
    quota: Option<Quota>,
    windows: Vec<(u64, u64)>,
}

fn any_quota() -> impl Strategy<Value = Option<Quota>> {
    let quota = (1u64..=100, 1u64..=150).prop_map(|(part, period_ms)| {
        let period_ns = Nanos::from_ms(period_ms);
        Quota {
            quota_ns: Nanos(period_ns.0 * part / 100),
            period_ns,
        }
    });
    prop::option::of(quota)
}

fn any_tenants() -> impl Strategy<Value = (Vec<Random>, Vec<(u32, Option<Quota>)>)> {
    let windows = prop::collection::vec((0u64..=64, 0u64..=64), 40);
    let tenant = (0u32..3, 1u32..=1_000, any_quota(), windows);
    let tenant = tenant.prop_map(|(account, weight, quota, windows)| Random {
        account,
        weight,
        quota,
        windows,
    });
    let accounts = prop::collection::vec((1u32..=1_000, any_quota()), 3);
    (prop::collection::vec(tenant, 1..7), accounts)
}

/// The claimants of one window; together they used at most its length.
fn claimants(
    window: usize,
    tenants: &[Random],
    accounts: &[(u32, Option<Quota>)],
) -> Vec<Claimant> {
    let all: u64 = tenants.iter().map(|tenant| tenant.windows[window].0).sum();
    let claimant = |(tenant, number): (&Random, u32)| {
        let (used, wanted) = tenant.windows[window];
        let (weight, quota) = accounts[tenant.account as usize];
        Claimant {
            tenant: TenantId(number),
            account: Account {
                id: AccountId(tenant.account),
                weight,
                quota,
            },
            weight: tenant.weight,
            quota: tenant.quota,
            used_ns: Nanos(WINDOW.0 * used / all.max(64)),
            wanted_ns: Nanos(WINDOW.0 * wanted / 64),
        }
    };
    tenants.iter().zip(1..).map(claimant).collect()
}

fn demand(claimant: &Claimant) -> u64 {
    claimant.used_ns.max(claimant.wanted_ns).0
}

/// The most that a quota permits in `windows` windows: one quota in each period that they touch.
fn allowed(quota: Option<Quota>, windows: usize) -> u64 {
    quota.map_or(u64::MAX, |quota| {
        let periods = (windows as u64 * WINDOW.0).div_ceil(quota.period_ns.0);
        periods * quota.quota_ns.0
    })
}

proptest! {
    #[test]
    fn laws_of_entitlement((tenants, accounts) in any_tenants()) {
        let mut book = Entitlements::default();
        let mut totals = vec![0; tenants.len()];
        let capped = accounts.iter().any(|(_, quota)| quota.is_some())
            || tenants.iter().any(|tenant| tenant.quota.is_some());
        for window in 0..40 {
            let now = claimants(window, &tenants, &accounts);
            book.window(WINDOW, &mut now.clone());
            let sums: Vec<u64> = now.iter().map(|c| book.of(c.tenant).entitled_ns.0).collect();
            let parts: Vec<u64> = sums.iter().zip(&totals).map(|(now, was)| now - was).collect();
            totals = sums;

            let used: u64 = now.iter().map(|c| c.used_ns.0).sum();
            let demands: u64 = now.iter().map(demand).sum();
            let entitled: u64 = parts.iter().sum();
            prop_assert!(entitled <= used);
            prop_assert!(capped || entitled == used.min(demands));
            for (claimant, part) in now.iter().zip(&parts) {
                prop_assert!(*part <= demand(claimant), "above its demand");
            }
            for (tenant, total) in tenants.iter().zip(&totals) {
                prop_assert!(*total <= allowed(tenant.quota, window + 1), "above its quota");
            }
            for (account, (_, quota)) in accounts.iter().enumerate() {
                let members = tenants.iter().zip(&totals).filter(|(t, _)| t.account as usize == account);
                let total: u64 = members.map(|(_, total)| total).sum();
                prop_assert!(total <= allowed(*quota, window + 1), "account above its quota");
            }
            if capped {
                continue;
            }
            // Fairness on both levels: a claimant with unmet demand has at least the part of any
            // other, in proportion to their weights.
            for (a, of_a) in now.iter().zip(&parts) {
                let same = |b: &Claimant| a.account.id == b.account.id;
                for (b, of_b) in now.iter().zip(&parts).filter(|(b, _)| same(b)) {
                    let lacks = *of_a < demand(a);
                    prop_assert!(!lacks || level(*of_a + 1, a.weight) >= level(of_b.saturating_sub(1), b.weight));
                }
                let sum = |id| -> (u64, u64) {
                    let members = now.iter().zip(&parts).filter(|(c, _)| c.account.id == id);
                    members.fold((0, 0), |(parts, demands), (c, part)| (parts + part, demands + demand(c)))
                };
                let (of_mine, demand) = sum(a.account.id);
                for b in &now {
                    let (of_other, _) = sum(b.account.id);
                    let (mine, other) = (a.account.weight, b.account.weight);
                    prop_assert!(of_mine >= demand
                        || level(of_mine + 1, mine) >= level(of_other.saturating_sub(1), other));
                }
            }
        }
    }

    #[test]
    fn starved_tenant_lacks_its_part_of_what_others_used(
        weight in 1u32..=1_000,
        other in 1u32..=1_000,
        wanted in 1u64..=10,
    ) {
        let mut book = Entitlements::default();
        let starved = alone(1, weight, 0, wanted);
        book.window(WINDOW, &mut [starved, alone(2, other, 10, 10)]);
        let part = WINDOW.0 * u64::from(weight) / u64::from(weight + other);
        let entitled = book.of(TenantId(1)).entitled_ns.0;
        prop_assert!(entitled.abs_diff(part.min(wanted * MS)) <= 1);
        prop_assert_eq!(book.of(TenantId(1)).waited_ns, starved.wanted_ns);
    }
}

/// A part over a weight, for comparison; exact to a nanosecond.
fn level(part: u64, weight: u32) -> f64 {
    part as f64 / f64::from(weight)
}
