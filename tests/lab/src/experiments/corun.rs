//! The rule `owed` on the model of an engine that slices by itself: its rows and attacks.
//!
//! In: nothing; the model has its own seed. Out: what each program does of what it does alone,
//! against its part, natively and under the rule. The model is fitted to measured pairs; nothing
//! here ran on a GPU. The policies' tests have accounts, quotas, targets and failing sources.

use turnstile_corun::rows::{
    ATTACKS, Row, VICTIMS, attacked, least, owed, pairs, parts, programs, weighted,
};
use turnstile_corun::{Outcome, SEC, native};

use crate::result::{Failure, Parameters, Quantity, Report};
use crate::seeds::{Seeds, over_seeds};

/// Of its part, each program's progress over 30 s, and over its worst 2 s.
const PROGRESS: f64 = 0.9;
const WORST_2S: f64 = 0.85;
/// A victim is entitled to a half: its progress, and that of its worst 2 s.
const VICTIM: f64 = 0.45;
const VICTIM_2S: f64 = 0.40;
/// A sum may fall short of native's by this much, and the mean of all sums over native's.
const BELOW_NATIVE: f64 = 0.03;
const MEAN: f64 = 0.98;
/// Polls a second.
const POLLS: f64 = 101.0;

/// Two programs under the rule.
struct Measured {
    /// Least progress over part, and that of the worst 2 s.
    progress: f64,
    worst_2s: f64,
    outcome: Outcome,
}

impl Measured {
    fn of(row: Row) -> Self {
        let programs = programs(row);
        let (parts, outcome) = (parts(&programs), owed(&programs, 30 * SEC));
        Self {
            progress: least(&outcome.progress, &parts),
            worst_2s: least(&outcome.worst_2s, &parts),
            outcome,
        }
    }
}

/// Runs `one` for each of `all`, on all cores.
fn each<T: Copy + Sync, R: Send>(
    all: &[T],
    one: impl Fn(T) -> R + Sync,
) -> Result<Vec<R>, Failure> {
    over_seeds(all.len() as u64, |index| Ok(one(all[index as usize])))
}

fn lowest(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(f64::MAX, f64::min)
}

fn of_part(what: &str, rows: &[Measured]) -> [Quantity; 2] {
    let progress = lowest(rows.iter().map(|row| row.progress));
    let worst_2s = lowest(rows.iter().map(|row| row.worst_2s));
    [
        Quantity::of(format!("{what}: least progress over part"), "", progress)
            .between(PROGRESS, f64::INFINITY),
        Quantity::of(format!("{what}: worst 2 s over part"), "", worst_2s)
            .between(WORST_2S, f64::INFINITY),
    ]
}

fn attacks(victims: &[&'static str], count: usize) -> Result<[Quantity; 2], Failure> {
    let beside = |victim: &&'static str| ATTACKS.map(|attack| (*victim, attack));
    let rows: Vec<_> = victims.iter().flat_map(beside).collect();
    let outcomes = each(&rows, |(victim, attack)| attacked(victim, attack, count))?;
    let progress = lowest(outcomes.iter().map(|of| of.progress[0]));
    let worst_2s = lowest(outcomes.iter().map(|of| of.worst_2s[0]));
    let what = format!("{} attacks by {count} tenants of an account", rows.len());
    Ok([
        Quantity::of(format!("{what}: least progress of a victim"), "", progress)
            .between(VICTIM, f64::INFINITY),
        Quantity::of(format!("{what}: worst 2 s of a victim"), "", worst_2s)
            .between(VICTIM_2S, f64::INFINITY),
    ])
}

/// The experiment.
///
/// # Errors
/// None.
pub fn report(_: &Seeds) -> Result<Report, Failure> {
    let even = each(&pairs(), Measured::of)?;
    let natives = each(&pairs(), |row| native(&programs(row)))?;
    let sums = even.iter().zip(&natives);
    let sums: Vec<(f64, f64)> = sums
        .map(|(ours, native)| (ours.outcome.sum(), native.sum()))
        .collect();
    let mean = sums.iter().map(|(ours, native)| ours / native).sum::<f64>() / sums.len() as f64;
    let below = |(ours, native): &&(f64, f64)| *ours < native - BELOW_NATIVE;
    let below = sums.iter().filter(below).count();
    let others = each(&weighted(), Measured::of)?;
    let all = even.iter().chain(&others);
    let polls = all.map(|row| row.outcome.polls_per_s).fold(0.0, f64::max);
    let mut quantities = Vec::new();
    quantities.extend(of_part("28 pairs at 1:1", &even));
    quantities.push(
        Quantity::of("28 pairs: sum over native's, mean", "", mean).between(MEAN, f64::INFINITY),
    );
    quantities
        .push(Quantity::of("28 pairs: sums below native's by 0.03", "", below as f64).exactly(0.0));
    quantities.extend(of_part("33 rows with weights", &others));
    quantities.push(Quantity::of("61 rows: most polls", "1/s", polls).between(0.0, POLLS));
    quantities.extend(attacks(&VICTIMS, 1)?);
    quantities.extend(attacks(&VICTIMS[..1], 4)?);
    Ok(Report {
        title: "Programs that run together on an engine that slices by itself".to_owned(),
        parameters: Parameters {
            paper: "none",
            fitted: "the programs' kernels and pauses, to pairs measured on H100 and H200",
            chosen: "weights and attacks",
        },
        quantities,
        notes: vec![
            "The rule was worked out on these rows: figures of a GPU decide (docs/NVIDIA.md)."
                .to_owned(),
        ],
        ..Report::default()
    })
}
