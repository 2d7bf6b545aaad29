//! Many busy tenants: shares over a time in which each gets some hundred milliseconds.

use crate::load::Guest;
use crate::shares::PERIOD_NS;
use crate::sim::{Setup, compare};
use turnstile_policies::{Tuning, policy_by_name};

const TENANTS: usize = 256;
const SECONDS: u64 = 30;

/// Used and entitled time of the tenant that is furthest from its entitlement, as a part of what is
/// permitted: 5 % of the entitlement or one period, whichever is larger. `weights` are repeated.
fn furthest(weights: &[u32], depth: usize, stops: bool) -> (u64, u64, f64) {
    let mut policy = policy_by_name("dfq")
        .unwrap()
        .policy(&Tuning::default())
        .unwrap();
    let setup = Setup {
        period_ns: PERIOD_NS,
        reaction_ns: 50_000,
        stops,
        switch_ns: 2_000,
        seed: 1,
    };
    let weights: Vec<u32> = weights.iter().copied().cycle().take(TENANTS).collect();
    let guest = |weight: &u32| Guest::saturating(*weight, depth, (1_000, 1_000));
    let guests: Vec<Guest> = weights.iter().map(guest).collect();
    let outcome = compare(policy.as_mut(), &guests, setup, SECONDS);
    let used: u64 = outcome.totals.iter().sum();
    assert!(used > SECONDS * 990_000_000, "the engine was idle: {used}");
    let all: u64 = weights.iter().map(|weight| u64::from(*weight)).sum();
    let distance = |(weight, used_ns): (&u32, &u64)| {
        let entitled = used / all * u64::from(*weight);
        let permitted = (entitled / 20).max(PERIOD_NS);
        let part = used_ns.abs_diff(entitled) as f64 / permitted as f64;
        (*used_ns, entitled, part)
    };
    let all = weights.iter().zip(&outcome.totals).map(distance);
    all.max_by(|a, b| a.2.total_cmp(&b.2)).unwrap()
}

#[test]
fn shares_of_256_busy_tenants_are_within_5_percent_over_30_seconds() {
    for weights in [&[100][..], &[100, 300], &[50, 100, 200, 400]] {
        for (depth, stops) in [(1, false), (4, true)] {
            let (used, entitled, part) = furthest(weights, depth, stops);
            println!("{weights:?} depth {depth} stops {stops}: {used} of {entitled} ns");
            assert!(
                part <= 1.0,
                "{weights:?}, depth {depth}, stops {stops}: used {used} of {entitled} ns"
            );
        }
    }
}
