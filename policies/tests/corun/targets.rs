//! Latency targets: shorter slices of other tenants, and no more engine time.

use turnstile_corun::rows::owed;
use turnstile_corun::{Outcome, SEC, alone, program};

/// Runs these programs; `targets` lists those with a target.
fn run(names: &[&'static str], targets: &[usize]) -> Outcome {
    let tenant = |(index, name): (usize, &&'static str)| {
        let program = program(name);
        if targets.contains(&index) {
            program.target()
        } else {
            program
        }
    };
    let programs: Vec<_> = names.iter().enumerate().map(tenant).collect();
    owed(&programs, 60 * SEC)
}

#[test]
fn a_target_brings_the_latency_near_that_alone() {
    let alone = alone("infer").p99_ms;
    for neighbour in ["train", "memory", "2ms-deep"] {
        let (without, with) = (
            run(&[neighbour, "infer"], &[]),
            run(&[neighbour, "infer"], &[1]),
        );
        let (before, after) = (without.p99_ms[1] / alone, with.p99_ms[1] / alone);
        let cost = without.progress[0] - with.progress[0];
        println!(
            "infer beside {neighbour}: p99 {before:.2} to {after:.2} of alone, cost {cost:.2}"
        );
        assert!(after <= 1.1 && before > after, "{neighbour} {with:?}");
        assert!(
            cost <= 0.07 && with.progress[0] >= 0.45,
            "{neighbour} {with:?}"
        );
    }
}

#[test]
fn two_targets_beside_a_training_are_met() {
    let outcome = run(&["train", "infer", "infer"], &[1, 2]);
    let alone = alone("infer").p99_ms;
    println!(
        "two targets: p99 {:.1?} of {alone:.1}, {:.2?}",
        outcome.p99_ms, outcome.progress
    );
    assert!(
        outcome.p99_ms[1..].iter().all(|p99| *p99 <= 1.1 * alone),
        "{outcome:?}"
    );
    assert!(outcome.progress[0] >= 0.8, "{outcome:?}");
}

/// A flood of launches gains nothing by a target: the other tenant keeps its part.
#[test]
fn a_flood_with_a_target_takes_nothing_from_its_neighbour() {
    let floods = [
        ("train", "50us"),
        ("train", "2ms-deep"),
        ("decode", "2ms-deep"),
        ("50us", "2ms-deep"),
        ("train", "tickle"),
        ("train", "tickle-3ms"),
        ("2ms-deep", "tiny-deep"),
    ];
    for (victim, flood) in floods {
        let outcome = run(&[victim, flood], &[1]);
        println!(
            "{victim} beside {flood} with a target: {:.2?}",
            outcome.progress
        );
        assert!(outcome.progress[0] >= 0.47, "{victim} {flood} {outcome:?}");
    }
    let sparse = run(
        &[
            "train",
            "tickle-3ms",
            "tickle-3ms",
            "tickle-3ms",
            "tickle-3ms",
        ],
        &[1, 2, 3, 4],
    );
    println!(
        "train beside four sparse ones with targets: {:.2?}",
        sparse.progress
    );
    assert!(sparse.progress[0] >= 0.6, "{sparse:?}");
}
