//! Four busy tenants: what each executed follows from how four residencies and three kinds of launches mix in intervals of 100 ms.
//!
//! `TURNSTILE_ROUNDS=48 cargo test --release -p turnstile-mediator --lib four_busy -- --nocapture` runs each cell 48 times, and prints a line of each cell.

use rand::{Rng, SeedableRng, rngs::SmallRng};

use super::restless::{FROM, KERNELS_US, found_of, load_of, rms, rounds_or, sum_up};

/// By their place in [`KERNELS_US`].
const CELLS: [[usize; 4]; 4] = [[0, 1, 2, 3], [0, 1, 2, 4], [1, 1, 1, 1], [0, 0, 1, 1]];
const WEIGHTS: [[u32; 4]; 3] = [[1, 1, 1, 1], [3, 1, 1, 1], [9, 1, 1, 1]];
/// Charges are compared until then.
const TO: u64 = FROM + 29_000;

/// How wrongly each is charged, in percent, and the worst second, in points.
fn run(kinds: [usize; 4], weights: [u32; 4], seed: u64) -> ([f64; 4], f64) {
    let mut random = SmallRng::seed_from_u64(seed);
    let loads = [0, 1, 2, 3].map(|tenant| {
        let kernel = KERNELS_US[kinds[tenant]];
        load_of(weights[tenant], kernel, false, &mut random)
    });
    let found = found_of(&loads, random, TO.div_ceil(1_000));
    let charged = |tenant| found.charged_within_percent_ms(tenant, FROM, TO);
    ([0, 1, 2, 3].map(charged), found.worst_ms(FROM, TO))
}

/// Frames that keep their place between latches for ever are off by 0.39 % here: each interval is one of ten mixes, and the same launch lies across its end each time.
#[test]
fn four_busy_tenants_pay_for_what_they_executed() {
    let rounds = rounds_or(6);
    let mut seeds = SmallRng::seed_from_u64(1);
    let mut all = Vec::new();
    for kinds in CELLS {
        for weights in WEIGHTS {
            let runs: Vec<_> = (0..rounds)
                .map(|_| run(kinds, weights, seeds.random()))
                .collect();
            let own =
                [0, 1, 2, 3].map(|tenant| rms(runs.iter().map(|(charged, _)| charged[tenant])));
            let points = runs.iter().map(|(_, points)| points).sum::<f64>() / f64::from(rounds);
            let us = kinds.map(|kind| KERNELS_US[kind].0);
            println!(
                "{us:?} us {weights:?}: charged {own:.2?} % wrongly, worst second {points:.2} points in the mean"
            );
            all.extend(runs.iter().flat_map(|(charged, _)| *charged));
        }
    }
    let rms = sum_up(&all);
    // SOURCE: this engine, 48 rounds: 0.16, the first six 0.13; by residencies and unconfirmed launches 0.26.
    assert!(rms <= 0.23, "{rms}");
}
