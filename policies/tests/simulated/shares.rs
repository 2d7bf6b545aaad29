//! Shares against the fluid ideal, in every window of one second after the first.

use crate::load::{Guest, Load};
use crate::sim::{Outcome, Setup, compare};
use turnstile_policies::{DECISION_PERIOD_NS, Tuning, policy_by_name};

const END_NS: u64 = 6_000_000_000;

pub(crate) const PERIOD_NS: u64 = DECISION_PERIOD_NS.0;

pub(crate) fn run(policy: &str, guests: &[Guest], period_ns: u64, seed: u64) -> Outcome {
    let mut policy = policy_by_name(policy)
        .unwrap()
        .policy(&Tuning::default())
        .unwrap();
    let setup = Setup {
        period_ns,
        reaction_ns: 50_000,
        stops: false,
        switch_ns: 2_000,
        seed,
    };
    compare(policy.as_mut(), guests, setup, END_NS / 1_000_000_000)
}

/// Two tenants that saturate, one with bursts (13 % of the GPU), one that idles.
fn four(
    weights: (u32, u32),
    depths: (usize, usize),
    commands_us: [(u64, u64); 2],
    seed: u64,
) -> [Guest; 4] {
    [
        Guest::saturating(weights.0, depths.0, commands_us[0]),
        Guest::saturating(weights.1, depths.1, commands_us[1]),
        Guest::bursty(seed, 20_000, 5, (50, 1_000), END_NS),
        Guest::idle(),
    ]
}

/// The worst error over command lengths (short against long in both orders, mixed, all long),
/// depths and seeds.
fn worst(weights: (u32, u32), period_ns: u64, seeds: u64) -> f64 {
    worst_of(weights, period_ns, seeds, Outcome::worst)
}

fn worst_of(weights: (u32, u32), period_ns: u64, seeds: u64, error: fn(&Outcome) -> f64) -> f64 {
    let lengths = [
        [(50, 50), (2_000, 2_000)],
        [(1_900, 2_000), (50, 60)],
        [(50, 2_000), (50, 2_000)],
        [(900, 1_100), (1_900, 1_950)],
        [(2_000, 2_000), (2_000, 2_000)],
    ];
    let mut worst = 0.0_f64;
    for seed in 0..seeds {
        for commands_us in lengths {
            for depths in [(1, 1), (2, 2), (1, 2), (2, 1)] {
                let outcome = run(
                    "dfq",
                    &four(weights, depths, commands_us, seed),
                    period_ns,
                    seed,
                );
                worst = worst.max(error(&outcome));
            }
        }
    }
    worst
}

#[test]
fn equal_weights_are_within_half_a_point() {
    let worst = worst((100, 100), PERIOD_NS, 2);
    assert!(worst <= 0.5, "{worst:.3} points");
}

#[test]
fn three_to_one_is_within_half_a_point() {
    let worst = worst((300, 100), PERIOD_NS, 1).max(worst((100, 300), PERIOD_NS, 1));
    assert!(worst <= 0.5, "{worst:.3} points");
}

#[test]
fn nine_to_one_is_within_half_a_point() {
    let worst = worst((900, 100), PERIOD_NS, 1).max(worst((100, 900), PERIOD_NS, 1));
    assert!(worst <= 0.5, "{worst:.3} points");
}

/// Without a policy longer commands get more: the error that policies correct.
#[test]
fn unscheduled_shares_are_far_off() {
    let guests = four((100, 100), (2, 2), [(50, 50), (2_000, 2_000)], 1);
    assert!(run("none", &guests, PERIOD_NS, 1).worst() > 30.0);
}

/// Law 2: a tenant that idled for three seconds gets its share from then on, and no more.
#[test]
fn a_tenant_that_returns_gets_its_share_at_once() {
    let work = vec![(3_000_000_000, 500_000); 10_000];
    let guests = [
        Guest::saturating(100, 2, (500, 2_000)),
        Guest::open(100, 2, work),
    ];
    let outcome = run("dfq", &guests, PERIOD_NS, 1);
    assert!(outcome.worst() <= 0.5, "{:?}", outcome.errors);
    assert!(outcome.totals[1] > 1_400_000_000, "it did return");
}

/// `cpu.max` semantics: the quota on average, with or without other tenants that want the engine.
#[test]
fn a_cap_holds_alone_and_in_company() {
    let capped = Guest {
        cap: Some((20_000_000, 100_000_000)),
        ..Guest::saturating(100, 2, (100, 1_000))
    };
    let alone = run("dfq", core::slice::from_ref(&capped), PERIOD_NS, 1).totals[0];
    let busy = Guest::saturating(100, 2, (100, 1_000));
    let company = run("dfq", &[capped, busy], PERIOD_NS, 1).totals;
    for used in [alone, company[0]] {
        assert!(used.abs_diff(END_NS / 5) < 25_000_000, "{used} ns");
    }
    assert!(company[1] > END_NS / 100 * 79, "{} ns", company[1]);
}

#[test]
#[ignore = "a table for tuning: cargo test -p turnstile-policies -- --ignored --nocapture survey"]
fn survey() {
    println!(
        "worst window of 6 s, 10 seeds, 20 loads, in points: error of shares, error of service"
    );
    for weights in [(100, 100), (300, 100), (100, 300), (900, 100), (100, 900)] {
        for period_us in [500, 1_000, 2_000, 4_000] {
            let shares = worst_of(weights, period_us * 1_000, 10, Outcome::worst);
            let service = worst_of(weights, period_us * 1_000, 10, Outcome::worst_service);
            println!("{weights:>3?} {period_us:>5} us: {shares:.3} {service:.3}");
        }
    }
}

/// Waiting for one's own results is not idling: a closed-loop tenant that thinks between commands
/// gets nearly what it could use, beside one that saturates.
#[test]
fn a_thinking_tenant_is_not_starved() {
    let thinking = Guest {
        load: Load::Closed {
            depth: 1,
            command_ns: (900_000, 1_100_000),
            think_ns: 100_000,
        },
        ..Guest::saturating(100, 1, (900, 1_100))
    };
    let totals = run(
        "dfq",
        &[thinking, Guest::saturating(100, 2, (100, 500))],
        PERIOD_NS,
        1,
    )
    .totals;
    let unscheduled = END_NS / 2;
    assert!(totals[0] > unscheduled / 10 * 8, "{totals:?}");
}
