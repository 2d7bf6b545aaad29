//! The rows of the tables: pairs of programs with their weights, and attacks.

use crate::{Mediator, Ns, Outcome, Program, SEC, observe, program};

/// The programs of `turnstile bench programs`.
pub const EIGHT: [&str; 8] = [
    "train", "small", "loader", "infer", "decode", "graph", "copy", "memory",
];
/// Pairs for which time slices alone are not sufficient.
pub const LAUNCHES: [(&str, &str); 7] = [
    ("50us", "50ms"),
    ("train", "200us"),
    ("2ms", "200us"),
    ("50us", "memory"),
    ("train", "train2"),
    ("200us-deep", "2ms-deep"),
    ("50us-deep", "50ms-deep"),
];
/// Pairs of programs with weights.
pub const SIX: [(&str, &str); 6] = [
    ("train", "decode"),
    ("train", "small"),
    ("train", "memory"),
    ("train", "graph"),
    ("graph", "memory"),
    ("loader", "memory"),
];

/// Two programs and their weights.
pub type Row = ((&'static str, &'static str), (u32, u32));

/// All pairs of the eight programs, at equal weights.
pub fn pairs() -> Vec<Row> {
    let mut pairs = Vec::new();
    for (index, first) in EIGHT.iter().enumerate() {
        pairs.extend(
            EIGHT[index + 1..]
                .iter()
                .map(|second| ((*first, *second), (1, 1))),
        );
    }
    pairs
}

/// The pairs of launches at three weights, and six of programs at two.
pub fn weighted() -> Vec<Row> {
    let at = |rows: &[(&'static str, &'static str)], weights| -> Vec<Row> {
        rows.iter().map(|pair| (*pair, weights)).collect()
    };
    [
        at(&LAUNCHES, (1, 1)),
        at(&LAUNCHES, (1, 3)),
        at(&LAUNCHES, (3, 1)),
        at(&SIX, (1, 3)),
        at(&SIX, (3, 1)),
    ]
    .concat()
}

/// The programs of a row.
pub fn programs(((first, second), (one, other)): Row) -> Vec<Program> {
    vec![program(first).weight(one), program(second).weight(other)]
}

/// The part of each program; each has an account of its own.
pub fn parts(programs: &[Program]) -> Vec<f64> {
    let all: u32 = programs.iter().map(|program| program.weight).sum();
    programs
        .iter()
        .map(|program| f64::from(program.weight) / f64::from(all))
        .collect()
}

/// Runs the programs under the rule: 10 s to settle, then `length`.
pub fn owed(programs: &[Program], length: Ns) -> Outcome {
    let mut mediator = Mediator::new(programs, &[]);
    observe(programs, &mut mediator, 10 * SEC, length, 1)
}

/// The least of `figures` over the parts.
pub fn least(figures: &[f64], parts: &[f64]) -> f64 {
    let ratios = figures
        .iter()
        .zip(parts)
        .map(|(figure, part)| figure / part);
    ratios.fold(f64::MAX, f64::min)
}

/// Programs that are attacked.
pub const VICTIMS: [&str; 4] = ["train", "decode", "50us", "memory"];
/// Programs that try to take more than their part.
pub const ATTACKS: [&str; 14] = [
    "waits",
    "polls",
    "tiny-deep",
    "tickle",
    "stretched",
    "rests-0.4",
    "rests-0.6",
    "bursts",
    "flicker",
    "flicker-fast",
    "spy-forces-turns",
    "spy-forces-together",
    "50ms",
    "50ms-deep",
];

/// A victim beside so many attackers of one account, for 30 s after 10 s. The victim comes first.
pub fn attacked(victim: &'static str, attack: &'static str, count: usize) -> Outcome {
    let mut programs = vec![program(victim).account(0)];
    programs.extend((0..count).map(|_| program(attack).account(1)));
    let mut mediator = Mediator::new(&programs, &[(1, None), (1, None)]);
    observe(&programs, &mut mediator, 10 * SEC, 30 * SEC, 1)
}
