//! Shares: what each tenant is entitled to, and how far what it received is from that.
//!
//! **Weighted max-min fairness.** Capacity is divided in proportion to the tenants' weights. A
//! tenant gets at most its demand, and what it leaves goes to the others. So a tenant that wants
//! less than its entitlement gets all it wants, and no other tenant gets less than its own.
//!
//! # Properties
//! - Sums are exact: parts add up to `min(capacity, sum of demands)` (largest remainder).
//! - No tenant gets more than it demands.
//! - A tenant that raises its demand never lowers its own part below the entitlement.

use crate::units::Nanos;
use serde::Serialize;

/// What one tenant may want of a capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Claim {
    /// Its weight against the others' weights; 0 gets nothing.
    pub weight: u32,
    /// The most that it can use, in the unit of the capacity; `None` for a tenant that always wants
    /// more.
    pub demand: Option<u128>,
}

/// Divides `total` in proportion to `parts`, in whole units that add up to `total`.
///
/// Largest remainder: each part is its quotient rounded down, and the units left over go to the
/// largest remainders, the earlier of two equal ones first. If all parts are 0, so is the result.
pub fn apportion(total: u64, parts: &[u64]) -> Vec<u64> {
    let weights: Vec<u128> = parts.iter().map(|&p| u128::from(p)).collect();
    // CAST: no part exceeds `total`, a u64.
    apportion_wide(u128::from(total), &weights)
        .into_iter()
        .map(|part| part as u64)
        .collect()
}

/// `apportion` on wide integers; `total` times any weight has to fit in a `u128`.
fn apportion_wide(total: u128, weights: &[u128]) -> Vec<u128> {
    let sum: u128 = weights.iter().sum();
    if sum == 0 {
        return vec![0; weights.len()];
    }
    let mut parts: Vec<u128> = weights.iter().map(|&w| total * w / sum).collect();
    // CAST: fewer units are left over than there are weights.
    let left = (total - parts.iter().sum::<u128>()) as usize;
    if left > 0 {
        let mut order: Vec<usize> = (0..weights.len()).collect();
        let remainder = |&i: &usize| core::cmp::Reverse(total * weights[i] % sum);
        // A stable sort keeps the order of equal remainders; selection is faster, but its order is
        // arbitrary.
        order.sort_by_key(remainder);
        for &index in &order[..left] {
            parts[index] += 1;
        }
    }
    parts
}

/// Weighted max-min fair division of `capacity` (< 2^90 units).
pub fn water_fill(capacity: u128, claims: &[Claim]) -> Vec<u128> {
    let mut order: Vec<usize> = (0..claims.len())
        .filter(|&i| claims[i].weight > 0)
        .collect();
    let mut parts = vec![0; claims.len()];
    // By fill level, demand / weight: the tenant that is satisfied at the lowest one comes first.
    let capped = |i: usize| claims[i].demand.map(|demand| demand.min(capacity));
    order.sort_by(|&a, &b| match (capped(a), capped(b)) {
        (Some(x), Some(y)) => {
            (x * u128::from(claims[b].weight)).cmp(&(y * u128::from(claims[a].weight)))
        }
        (x, y) => x.is_none().cmp(&y.is_none()),
    });
    let mut weight: u128 = order.iter().map(|&i| u128::from(claims[i].weight)).sum();
    let mut left = capacity;
    for (done, &i) in order.iter().enumerate() {
        let own = u128::from(claims[i].weight);
        match claims[i].demand {
            Some(demand) if demand.saturating_mul(weight) <= left * own => {
                parts[i] = demand;
                left -= demand;
                weight -= own;
            }
            _ => {
                let rest = &order[done..];
                let weights: Vec<u128> =
                    rest.iter().map(|&i| u128::from(claims[i].weight)).collect();
                for (&i, part) in rest.iter().zip(apportion_wide(left, &weights)) {
                    parts[i] = part;
                }
                break;
            }
        }
    }
    parts
}

/// Each tenant's part of the sum, for reports; all 0 if the sum is 0.
pub fn shares(used: &[Nanos]) -> Vec<f64> {
    let sum: u128 = used.iter().map(|n| u128::from(n.0)).sum();
    used.iter()
        .map(|n| {
            if sum == 0 {
                0.0
            } else {
                n.0 as f64 / sum as f64
            }
        })
        .collect()
}

/// The largest difference between a received and an ideal share, in percentage points; for reports.
///
/// Both are shares of their own sum, so that overhead that the ideal does not have (switching) does
/// not count as unfairness. Precondition: both slices list the same tenants in the same order.
pub fn max_share_error_points(received: &[Nanos], ideal: &[Nanos]) -> f64 {
    assert_eq!(
        received.len(),
        ideal.len(),
        "received and ideal service of different tenants"
    );
    let pairs = shares(received).into_iter().zip(shares(ideal));
    pairs
        .map(|(got, due)| (got - due).abs() * 100.0)
        .fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn claim(weight: u32, demand: Option<u128>) -> Claim {
        Claim { weight, demand }
    }

    #[test]
    fn left_over_units_go_to_the_largest_remainders() {
        assert_eq!(apportion(10, &[1, 1, 1]), [4, 3, 3]);
        assert_eq!(apportion(7, &[5, 3, 0]), [4, 3, 0]);
        assert_eq!(apportion(7, &[0, 0]), [0, 0]);
    }

    #[test]
    fn what_the_modest_leave_goes_to_the_others_by_weight() {
        let claims = [
            claim(100, Some(10)),
            claim(300, None),
            claim(100, None),
            claim(100, Some(0)),
        ];
        assert_eq!(water_fill(1_000, &claims), [10, 743, 247, 0]);
    }

    #[test]
    fn no_more_than_the_demand_is_given_out() {
        assert_eq!(
            water_fill(1_000, &[claim(1, Some(10)), claim(9, Some(20))]),
            [10, 20]
        );
    }

    #[test]
    fn a_share_error_is_in_points() {
        let error = max_share_error_points(&[Nanos(52), Nanos(48)], &[Nanos(500), Nanos(500)]);
        assert!((error - 2.0).abs() < 1e-9);
    }

    fn claims() -> impl Strategy<Value = Vec<Claim>> {
        let demand = prop::option::of(0u128..1 << 40);
        prop::collection::vec(
            (1u32..=10_000, demand).prop_map(|(w, d)| claim(w, d)),
            1..12,
        )
    }

    proptest! {
        #[test]
        fn apportioned_parts_add_up(total: u64, parts in prop::collection::vec(any::<u64>(), 1..20)) {
            prop_assume!(parts.iter().any(|&p| p > 0));
            let sum: u128 = parts.iter().map(|&p| u128::from(p)).sum();
            let given = apportion(total, &parts);
            prop_assert_eq!(given.iter().map(|&p| u128::from(p)).sum::<u128>(), u128::from(total));
            for (&part, &got) in parts.iter().zip(&given) {
                let exact = u128::from(total) * u128::from(part) / sum;
                prop_assert!(u128::from(got) == exact || u128::from(got) == exact + 1);
            }
        }

        #[test]
        fn parts_add_up_and_demands_bound_them(capacity in 0u128..1 << 42, claims in claims()) {
            let parts = water_fill(capacity, &claims);
            let wanted = claims.iter().map(|c| c.demand.unwrap_or(capacity)).sum::<u128>();
            prop_assert_eq!(parts.iter().sum::<u128>(), capacity.min(wanted));
            for (claim, &part) in claims.iter().zip(&parts) {
                prop_assert!(claim.demand.is_none_or(|d| part <= d));
            }
        }

        /// Max-min: a tenant with unmet demand is on the highest fill level, to one unit.
        #[test]
        fn the_unsatisfied_are_on_the_highest_level(capacity in 0u128..1 << 42, claims in claims()) {
            let parts = water_fill(capacity, &claims);
            for (hungry, &got) in claims.iter().zip(&parts).filter(|(c, p)| c.demand.is_none_or(|d| **p < d)) {
                for (other, &part) in claims.iter().zip(&parts) {
                    let (own, their) = (u128::from(hungry.weight), u128::from(other.weight));
                    prop_assert!(part.saturating_sub(1) * own <= (got + 1) * their);
                }
            }
        }
    }
}
