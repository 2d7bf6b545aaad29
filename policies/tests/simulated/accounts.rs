//! Shares among accounts and within them, and beside tenants that pause just below the patience.

use crate::adversary::{policy, setup};
use crate::load::{Guest, Leave};
use crate::sim::Sim;
use turnstile_accounting::AccountId;
use turnstile_policies::{TenantParams, Weight};

const MS: u64 = 1_000_000;
const SECOND_NS: u64 = 1_000_000_000;

/// Percentages of the first guest after the first second: of the time, and of all service.
fn first(guests: &[Guest], stops: bool, seconds: u64) -> (f64, f64) {
    let mut policy = policy("dfq", stops);
    let mut sim = Sim::new(policy.as_mut(), guests, setup(stops));
    sim.run(policy.as_mut(), SECOND_NS);
    let before = sim.served_until_now();
    sim.run(policy.as_mut(), (1 + seconds) * SECOND_NS);
    let got = sim.served_until_now();
    let got: Vec<u64> = got
        .iter()
        .zip(before)
        .map(|(now, then)| now - then)
        .collect();
    let all: u64 = got.iter().sum();
    let percent = |of: u64| 100.0 * got[0] as f64 / of as f64;
    (percent(seconds * SECOND_NS), percent(all))
}

fn of(account: u32, guest: Guest) -> Guest {
    Guest {
        account: Some(account),
        ..guest
    }
}

/// A tenant that keeps four commands queued, one that keeps one, and one that pauses.
fn victims() -> [Guest; 3] {
    [(1_000, 4, 0), (1_000, 1, 0), (200, 1, 100)]
        .map(|(kernel, depth, pause)| of(0, Guest::program(kernel, depth, pause)))
}

#[test]
fn forty_tenants_of_one_account_get_what_one_of_another_gets() {
    for victim in victims() {
        for (stops, within) in [(false, 1.0), (true, 3.0)] {
            let mut guests = vec![of(1, Guest::program(1_000, 2, 0)); 40];
            guests.insert(0, victim.clone());
            let (_, served) = first(&guests, stops, 2);
            let off = served - 50.0;
            assert!(off.abs() <= within, "{stops}: {served:.2} % of {victim:?}");
        }
    }
}

#[test]
fn tenants_of_one_account_get_equal_parts_of_it() {
    for victim in victims() {
        for (kernel, seconds) in [(1_000, 2), (1_000_000, 60)] {
            let mut guests = vec![of(0, Guest::program(kernel, 4, 0)); 4];
            guests.insert(0, victim.clone());
            let (_, served) = first(&guests, false, seconds);
            assert!(
                (served - 20.0).abs() <= 1.0,
                "{served:.2} % beside {kernel}: {victim:?}"
            );
        }
    }
}

#[test]
fn a_tenant_that_leaves_and_returns_gains_nothing() {
    for (account, kernels_ms) in [(0, &[50, 200][..]), (1, &[10, 50, 200, 1_000])] {
        for victim in victims() {
            for (kernel_ms, leave) in kernels_ms.iter().flat_map(|kernel| {
                let same = [Leave::Return(0), Leave::Return(MS)];
                let new = [Leave::Rename(0), Leave::Rename(MS)];
                same.into_iter()
                    .chain(new)
                    .map(move |leave| (*kernel, leave))
            }) {
                let attacker = Guest {
                    leave,
                    ..of(account, Guest::program(kernel_ms * 1_000, 1, 0))
                };
                let guests = [victim.clone(), attacker];
                let seconds = (kernel_ms * 60 / 1_000).max(4);
                let (_, served) = first(&guests, false, seconds);
                assert!(
                    served >= 49.0 && (account == 1 || served <= 51.0),
                    "{served:.2} % beside {kernel_ms} ms, {leave:?}, account {account}: {victim:?}"
                );
            }
        }
    }
}

#[test]
fn a_new_weight_of_an_account_is_followed_within_two_periods() {
    for stops in [false, true] {
        let mut policy = policy("dfq", stops);
        let guests = [0, 1].map(|account| of(account, Guest::program(100, 2, 0)));
        let mut sim = Sim::new(policy.as_mut(), &guests, setup(stops));
        let mut now = 500 * MS;
        sim.run(policy.as_mut(), now);
        for (weight, percent) in [(300, 75.0), (50, 100.0 / 3.0), (100, 50.0)] {
            let weight = Weight::new(weight).unwrap();
            policy.set_account(AccountId(0), TenantParams { weight, cap: None });
            sim.run(policy.as_mut(), now + 2 * MS);
            let before = sim.served_until_now();
            now += 102 * MS;
            sim.run(policy.as_mut(), now);
            let got = sim.served_until_now();
            let (own, other) = (got[0] - before[0], got[1] - before[1]);
            let served = 100.0 * own as f64 / (own + other) as f64;
            assert!(
                (served - percent).abs() <= 1.5,
                "{served:.2} of {percent:.2} %"
            );
        }
    }
}

/// Just below the patience.
const PAUSE_US: u64 = 950;

#[test]
fn beside_pauses_just_below_the_patience_a_third_of_the_time_remains() {
    for kernel_us in [200, 1_000, 10_000] {
        for pausing_us in [95, 237, 475, 950, 1_900, 3_800] {
            let guests = [
                Guest::program(kernel_us, 4, 0),
                Guest::program(pausing_us, 1, PAUSE_US),
            ];
            let (wall, served) = first(&guests, false, 5);
            let case = format!("{kernel_us} us beside {pausing_us} us");
            assert!(wall >= 33.0, "{case}: {wall:.2} % of the time");
            let uses = pausing_us as f64 / (pausing_us + PAUSE_US) as f64;
            let entitled = 100.0 * (1.0 - uses).max(0.5);
            let off = served - entitled;
            assert!(off.abs() <= 1.5, "{case}: {served:.2} of {entitled:.2} %");
        }
    }
}

#[test]
fn beside_n_accounts_that_pause_its_part_of_the_time_remains() {
    for kernel_us in [200, 1_000, 10_000] {
        for pausing_us in [95, 950] {
            for n in [1, 2, 4, 10] {
                let mut guests = vec![Guest::program(pausing_us, 1, PAUSE_US); n];
                guests.insert(0, Guest::program(kernel_us, 4, 0));
                let (wall, _) = first(&guests, false, 3);
                let least = 100.0 / (2 * n + 1) as f64;
                assert!(
                    wall >= least,
                    "{kernel_us} us, {n} x {pausing_us} us: {wall:.2} %"
                );
            }
        }
    }
}
