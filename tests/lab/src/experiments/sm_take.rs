//! Adriaens, section 5.6 and figure 5.8: wait, terminate or migrate.

use turnstile_policies::model::take::{Block, Known, Pair, Take, Thresholds, choose};

use crate::result::{Failure, Parameters, Quantity, Report};
use crate::seeds::Seeds;

/// Figure 5.8: times alone, when B requests the SM, and the migration, in thousands of cycles.
const PAIR: Pair = Pair {
    a_alone: 444.0,
    b_alone: 444.0,
    requested: 148.0,
    speed: 0.6,
};
const MIGRATION: f64 = 17.5;
/// Length of a block, in thousands of cycles.
const BLOCK: f64 = 148.0;
const TIME_OUT: f64 = 200.0;

/// Printed thresholds for three speeds, in the order of [`Thresholds`].
const PRINTED: [(f64, [f64; 3]); 3] = [
    (0.6, [1.80, 2.25, 0.80]),
    (0.7, [1.225, 5.444_444_444_444_444, 0.225]),
    (0.8, [16.0 / 15.0, 16.0, 1.0 / 15.0]),
];

/// The largest difference between thresholds and costs, over a grid of times.
fn largest_disagreement(pair: &Pair) -> f64 {
    let limits = Thresholds::new(pair.speed);
    let ratios = [
        (Take::Wait, Take::Migrate, limits.wait_migrate),
        (Take::Terminate, Take::Migrate, limits.terminate_migrate),
        (Take::Wait, Take::Terminate, limits.wait_terminate),
    ];
    let off = |(first, second, ratio): (Take, Take, f64)| {
        // At the threshold both cost the same.
        let block = match (first, second) {
            (Take::Wait, Take::Migrate) => (ratio * MIGRATION, 0.0),
            (Take::Terminate, _) => (0.0, ratio * MIGRATION),
            _ => (ratio * BLOCK, BLOCK),
        };
        let block = Block {
            remaining: block.0,
            executed: block.1,
            migration: MIGRATION,
        };
        (pair.cost(first, &block) - pair.cost(second, &block)).abs()
    };
    ratios.into_iter().map(off).fold(0.0, f64::max)
}

/// The experiment.
///
/// # Errors
/// None.
pub fn report(_: &Seeds) -> Result<Report, Failure> {
    let mut quantities = Vec::new();
    for (speed, printed) in PRINTED {
        let limits = Thresholds::new(speed);
        let own = [
            ("T_W / T_M", limits.wait_migrate),
            ("T_T / T_M", limits.terminate_migrate),
            ("T_W / T_T", limits.wait_terminate),
        ];
        for ((name, value), expected) in own.into_iter().zip(printed) {
            quantities
                .push(Quantity::of(format!("S = {speed}: {name}"), "", value).exactly(expected));
        }
    }
    let as_printed = Thresholds::printed(0.6).terminate_migrate;
    let printed = Quantity::of("S = 0.6: T_T / T_M as printed", "", as_printed);
    quantities.push(
        printed
            .paper(3.75)
            .exactly(3.75)
            .because("S / (S - 1)^2 mixes two definitions of a migration; the repair is 2.25"),
    );
    for step in 0..=7 {
        let pair = Pair {
            speed: 0.55 + 0.05 * f64::from(step),
            ..PAIR
        };
        let name = format!("S = {:.2}: cost at the thresholds, difference", pair.speed);
        quantities.push(Quantity::of(name, "kcycles", largest_disagreement(&pair)).exactly(0.0));
    }
    let mut best_at = Vec::new();
    for step in 0..=10 {
        let remaining = BLOCK * f64::from(step) / 10.0;
        let block = Block {
            remaining,
            executed: BLOCK - remaining,
            migration: MIGRATION,
        };
        let takes = [Take::Wait, Take::Terminate, Take::Migrate];
        let costs = takes.map(|take| (take, PAIR.cost(take, &block)));
        let best = costs
            .iter()
            .min_by(|a, b| a.1.total_cmp(&b.1))
            .map_or(Take::Wait, |c| c.0);
        best_at.push(best);
        for (take, cost) in costs {
            let name = format!("T_W {remaining:.1} kcycles: {take:?}");
            quantities.push(Quantity::of(name, "kcycles", cost).at(format!("{take:?}"), remaining));
        }
    }
    let order: Vec<Take> = best_at.iter().fold(Vec::new(), |mut order, take| {
        if order.last() != Some(take) {
            order.push(*take);
        }
        order
    });
    let expected = [Take::Wait, Take::Migrate, Take::Terminate];
    let earlier = Pair {
        b_alone: 100.0,
        ..PAIR
    };
    let case_2 = earlier.cost_if_b_ends_first() - (444.0 + 100.0 * (1.0 / 0.6 - 1.0));
    let waits = |waited| {
        let known = Known {
            remaining: Some(1.0),
            executed: BLOCK,
            has_written: true,
            migration: MIGRATION,
            waited,
        };
        choose(&known, &Thresholds::new(0.6), TIME_OUT) == Take::Wait
    };
    quantities.extend([
        Quantity::holds(
            "best in turn over T_W: wait, migrate, terminate",
            order == expected,
        ),
        Quantity::of("case 2: cost less E_A + E_B (1/S - 1)", "kcycles", case_2).exactly(0.0),
        Quantity::holds(
            "waits before the time-out, and not after",
            waits(0.0) && !waits(TIME_OUT),
        ),
    ]);
    for (name, printed) in [
        ("length of a block by its kernel: mean deviation", 10.0),
        ("length of a block by its kernel: largest difference", 594.0),
    ] {
        let missing = "blocks of a kernel are of one length here";
        quantities.push(Quantity::not_modelled(name, "us", missing).paper(printed));
    }
    Ok(Report {
        title: "Thresholds, and costs over the remaining time of a block".to_owned(),
        parameters: Parameters {
            paper: "E_A = E_B = 444, b = 148, T_M = 17.5 thousand cycles",
            fitted: "",
            chosen: "S = 0.6 for the figure, which the paper does not state; a time-out of 200",
        },
        quantities,
        notes: Vec::new(),
        axes: (
            "remaining time, thousands of cycles",
            "cost, thousands of cycles",
        ),
    })
}
