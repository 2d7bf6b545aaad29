//! Two who take turns, beside tenants that do nothing.

use rand::{SeedableRng, rngs::SmallRng};

use super::engine::NEVER;
use super::restless::{daemon_of, rounds_or};
use super::*;

/// Two who fill the engine, and so many others, of whom the first begins then.
fn loads(others: usize, begins: u64) -> Vec<Load> {
    let other = |other| Load {
        start: if other == 0 { begins } else { NEVER },
        ..Load::busy(100, 200)
    };
    let two = [Load::busy(100, 200), Load::busy(100, 2_000)];
    two.into_iter().chain((0..others).map(other)).collect()
}

fn daemon(others: usize, begins: u64, seed: u64) -> Daemon {
    daemon_of(&loads(others, begins), SmallRng::seed_from_u64(seed))
}

/// Each period is 130 us of processor time; they were 107 a second beside one who does nothing, and 15 without him.
#[test]
fn those_who_take_turns_are_no_dearer_for_many_who_do_nothing() {
    let periods = [0, 2, 6].map(|others| {
        let found = daemon(others, NEVER, 1).run(10);
        println!(
            "{others} others: {} periods, {} wakes, {} readings of the log in 10 s",
            found.periods, found.wakes, found.reads
        );
        found.periods
    });
    assert!(periods[0] <= 160 && periods[1] <= 400, "{periods:?}");
    assert_eq!(periods[1], periods[2]);
}

/// He is not held, so that he is served before it is known that he waits; from then on he has a third.
#[test]
fn who_begins_beside_two_who_take_turns_has_his_share_at_once() {
    for seed in 0..u64::from(rounds_or(8)) {
        let begins = 4_000 * MS + seed * 7_300_000;
        for hears in [true, false] {
            let mut daemon = daemon(2, begins, seed);
            daemon.hears = hears;
            let engine = daemon.run(7).engine;
            let percent = [50, 100, 200, 1_000].map(|ms| {
                let executed = engine.executed(2, begins, begins + ms * MS);
                executed as f64 / (ms * MS) as f64 * 100.0
            });
            println!("{seed}, heard {hears}: {percent:.1?} % of 50, 100, 200 ms, a second");
            assert!(percent[..3].iter().all(|part| *part >= 33.3), "{percent:?}");
            assert!((31.0..=34.0).contains(&percent[3]), "{percent:?}");
        }
    }
}
