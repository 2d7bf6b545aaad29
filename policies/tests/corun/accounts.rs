//! An account of several tenants beside an account of one, and the weights inside an account.

use crate::pairs::no_failures;
use std::collections::HashMap;
use turnstile_corun::{Mediator, Outcome, Program, SEC, observe, program};

const MIXED: [&str; 4] = ["train", "decode", "50us", "2ms"];
const MANY: [&str; 6] = ["train", "decode", "50us", "2ms", "2ms-deep", "mixed"];
const ONE: [&str; 4] = ["train", "decode", "50us", "2ms-deep"];
const SATURATING: [&str; 3] = ["50us", "2ms", "2ms-deep"];

fn group(kind: &'static str, count: usize) -> Vec<Program> {
    let name = |index: usize| {
        if kind == "mixed" {
            MIXED[index % 4]
        } else {
            kind
        }
    };
    (0..count)
        .map(|index| program(name(index)).account(0))
        .collect()
}

fn run(programs: &[Program], weights: &[u32]) -> Outcome {
    let accounts: Vec<_> = weights.iter().map(|weight| (*weight, None)).collect();
    let mut mediator = Mediator::new(programs, &accounts);
    observe(programs, &mut mediator, 10 * SEC, 30 * SEC, 1)
}

#[derive(Default)]
struct Table {
    /// What an account works without others.
    without: HashMap<(&'static str, usize), f64>,
    failures: Vec<String>,
    rows: usize,
    least: Option<f64>,
    /// Points of resident time that splitting gains at most.
    gain: f64,
}

impl Table {
    fn row(
        &mut self,
        many: &'static str,
        one: &'static str,
        weights: (u32, u32),
        counts: &[usize],
    ) {
        let all = f64::from(weights.0 + weights.1);
        let (part, other) = (f64::from(weights.0) / all, f64::from(weights.1) / all);
        let mut share_of_one = None;
        for &count in counts {
            let mut programs = group(many, count);
            let without = self
                .without
                .entry((many, count))
                .or_insert_with(|| run(&programs, &[1]).worked.iter().sum());
            let without = *without;
            programs.push(program(one).account(1));
            let outcome = run(&programs, &[weights.0, weights.1]);
            let worked: f64 = outcome.worked[..count].iter().sum();
            let tenants = outcome.progress[..count]
                .iter()
                .map(|p| p / part * count as f64);
            let least = tenants.fold(f64::MAX, f64::min);
            let ratios = [
                worked / without / part,
                least,
                outcome.progress[count] / other,
            ];
            let low = ratios.into_iter().fold(f64::MAX, f64::min);
            let resident: f64 = outcome.resident.iter().sum();
            let share = (resident - outcome.resident[count]) / resident * 100.0;
            let gain = share - *share_of_one.get_or_insert(share);
            let saturates = SATURATING.contains(&many) && ["50us", "2ms-deep"].contains(&one);
            self.rows += 1;
            self.least = Some(self.least.map_or(low, |least| least.min(low)));
            if saturates {
                self.gain = self.gain.max(gain);
            }
            if low < 0.9 || saturates && gain > 2.0 {
                let row = format!("{count} x {many} + {one} at {weights:?}");
                self.failures
                    .push(format!("{row}: {ratios:.2?}, gain {gain:.1}"));
            }
        }
    }

    fn finish(self) {
        let Self {
            rows, least, gain, ..
        } = &self;
        println!("{rows} rows: least {least:.2?}, splitting gains at most {gain:.1} points");
        no_failures(self.failures);
    }
}

#[test]
fn an_account_of_four_shares_with_an_account_of_one() {
    let mut table = Table::default();
    for (many, one) in [("50us", "2ms-deep"), ("mixed", "train"), ("decode", "50us")] {
        for weights in [(1, 1), (1, 3), (3, 1)] {
            table.row(many, one, weights, &[1, 4]);
        }
    }
    table.finish();
}

#[test]
#[ignore = "in full"]
fn accounts_of_one_four_and_eight_share_with_an_account_of_one() {
    let mut table = Table::default();
    for weights in [(1, 1), (1, 3), (3, 1)] {
        for many in MANY {
            for one in ONE {
                table.row(many, one, weights, &[1, 4, 8]);
            }
        }
    }
    table.finish();
}

#[test]
fn tenants_divide_their_account_by_weight() {
    let inside: [(&[&'static str], &[u32]); 6] = [
        (&["50us", "2ms-deep"], &[1, 3]),
        (&["2ms-deep", "2ms-deep", "2ms-deep"], &[1, 2, 3]),
        (&["train", "train2"], &[1, 3]),
        (&["50us", "50ms"], &[1, 1]),
        (&["50us", "50ms"], &[3, 1]),
        (&["train", "decode", "50us", "2ms"], &[1, 1, 2, 4]),
    ];
    let mut failures = Vec::new();
    let (mut least, mut least_other) = (f64::MAX, f64::MAX);
    for (names, weights) in inside {
        for other in ["2ms-deep", "decode", "train"] {
            let tenants = names.iter().zip(weights);
            let mut programs: Vec<Program> = tenants
                .map(|(name, weight)| program(name).weight(*weight).account(0))
                .collect();
            programs.push(program(other).account(1));
            let outcome = run(&programs, &[1, 1]);
            let all = f64::from(weights.iter().sum::<u32>());
            let parts = weights.iter().map(|weight| 0.5 * f64::from(*weight) / all);
            let ratios = parts
                .zip(&outcome.progress)
                .map(|(part, progress)| progress / part);
            let low = ratios.fold(f64::MAX, f64::min);
            let beside = outcome.progress[names.len()] / 0.5;
            (least, least_other) = (least.min(low), least_other.min(beside));
            if low < 0.9 || beside < 0.9 {
                failures.push(format!("{names:?} beside {other}: {low:.2} {beside:.2}"));
            }
        }
    }
    println!("inside an account: least {least:.2}, the account beside it {least_other:.2}");
    no_failures(failures);
}

/// No tenant of another account can be held, so the only account is owed nothing.
#[test]
fn tenants_of_the_only_account_have_their_parts() {
    let rows: [&[&'static str]; 5] = [
        &["train", "200us"],
        &["50us", "50ms"],
        &["2ms-deep", "50us"],
        &["train", "decode"],
        &["50us", "2ms", "train", "decode"],
    ];
    let mut failures = Vec::new();
    for names in rows {
        let tenants = names.iter().map(|name| program(name).account(0));
        let programs: Vec<Program> = tenants.collect();
        let outcome = run(&programs, &[1]);
        let part = 1.0 / names.len() as f64;
        let ratios = outcome.progress.iter().map(|progress| progress / part);
        let low = ratios.fold(f64::MAX, f64::min);
        if low < 0.9 {
            failures.push(format!("{names:?}: {:.2?}", outcome.progress));
        }
    }
    no_failures(failures);
}
