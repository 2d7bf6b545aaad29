//! CASE, algorithm 1: tasks out of traces of allocations and launches.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use turnstile_policies::place::tasks::{as_printed, by_objects};

use crate::result::{Failure, Parameters, Quantity, Report};
use crate::seeds::{Seeds, over_seeds};

/// Whether a chain of shared objects joins each two launches of a task, and none of two tasks.
fn is_closure(launches: &[Vec<u32>], tasks: &[Vec<usize>]) -> bool {
    let joined = |one: usize, other: usize| {
        let mut reached = vec![one];
        let mut next = 0;
        while let Some(from) = reached.get(next).copied() {
            for to in 0..launches.len() {
                let shares = launches[from]
                    .iter()
                    .any(|object| launches[to].contains(object));
                if shares && !reached.contains(&to) {
                    reached.push(to);
                }
            }
            next += 1;
        }
        reached.contains(&other)
    };
    let task_of = |launch| tasks.iter().position(|task| task.contains(&launch));
    (0..launches.len()).all(|one| {
        (0..launches.len()).all(|other| joined(one, other) == (task_of(one) == task_of(other)))
    })
}

/// The experiment.
///
/// # Errors
/// None.
pub fn report(seeds: &Seeds) -> Result<Report, Failure> {
    let chain = [vec![1], vec![1, 2], vec![2]];
    let of_seeds = over_seeds(seeds, |seed| {
        let mut random = SmallRng::seed_from_u64(seed);
        let launches: Vec<Vec<u32>> = (0..random.random_range(1..=12))
            .map(|_| {
                let objects = random.random_range(1..=3);
                (0..objects).map(|_| random.random_range(0..16)).collect()
            })
            .collect();
        let repaired = is_closure(&launches, &by_objects(&launches));
        let printed = is_closure(&launches, &as_printed(&launches));
        Ok::<_, Failure>((f64::from(repaired), f64::from(printed)))
    })?;
    Ok(Report {
        title: "Launches that share memory objects".to_owned(),
        parameters: Parameters {
            paper: "the algorithm",
            fitted: "",
            chosen: "traces of 1 to 12 launches with 1 to 3 of 16 objects",
        },
        quantities: vec![
            Quantity::holds(
                "chain of three, union and find: one task",
                by_objects(&chain) == [[0, 1, 2]],
            ),
            Quantity::holds(
                "chain of three, as printed: the last one is cut off",
                as_printed(&chain) == [vec![0, 1], vec![2]],
            ),
            Quantity::over(
                "random traces, union and find: tasks are the closure",
                "",
                of_seeds.iter().map(|of| of.0).collect(),
            )
            .exactly(1.0),
            Quantity::over(
                "random traces, as printed: tasks are the closure",
                "",
                of_seeds.iter().map(|of| of.1).collect(),
            ),
        ],
        notes: vec![
            "As printed, each launch is compared with the first of a task alone.".to_owned(),
        ],
        ..Report::default()
    })
}
