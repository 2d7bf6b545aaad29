//! Programs that work one after the other, and have nothing more to do.
//!
//! `TURNSTILE_ROUNDS=200 cargo test --release -p turnstile-mediator --lib one_after_the_other -- --nocapture` runs it two hundred times.

use rand::{Rng, SeedableRng, rngs::SmallRng};

use super::engine::NEVER;
use super::restless::{daemon_of, rounds_or};
use super::*;

const TENANTS: usize = 8;

/// What the last of them executed of the half second from when the one before stopped, in percent.
fn run(seed: u64) -> f64 {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut begins = 100 * MS;
    let mut load = |index| {
        let (from, length) = (begins, random.random_range(100..400) * MS);
        // The next begins just before, or a moment after.
        begins = from + length + random.random_range(0..40) * MS - 20 * MS;
        Load {
            warm: (from, from + length),
            start: if index + 1 == TENANTS { from } else { NEVER },
            ..Load::busy(100, 100)
        }
    };
    let loads: Vec<Load> = (0..TENANTS).map(&mut load).collect();
    let from = loads[TENANTS - 2].warm.1;
    let found = daemon_of(&loads, random).run((from + SECOND).div_ceil(SECOND));
    let executed = found.engine.executed(TENANTS - 1, from, from + SECOND / 2);
    executed as f64 / (SECOND / 2) as f64 * 100.0
}

/// Who is free to come and does not has nothing to do: that is seen once, and not forgotten when somebody is held who has yet to leave the engine, so that he could not come at that moment.
#[test]
fn who_works_when_all_have_stopped_who_worked_one_after_the_other_has_the_engine() {
    let mut least = f64::MAX;
    for seed in 0..u64::from(rounds_or(40)) {
        let percent = run(seed);
        println!("{seed}: {percent:.1} %");
        least = least.min(percent);
    }
    assert!(least >= 90.0, "{least} %");
}
