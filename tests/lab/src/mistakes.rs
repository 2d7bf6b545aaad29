//! Mistakes that the papers print, beside their repairs: each is two quantities of an experiment.
//!
//! In: the runs. Out: a section of the page ([`crate::page`]).

use std::fmt::Write;

use crate::result::{Paper, Quantity, number};
use crate::run::Run;

/// A mistake: what is printed, and what is done here.
#[derive(Clone, Copy, Debug)]
pub struct Mistake {
    /// Where it is, and what is wrong.
    pub printed: &'static str,
    /// What replaces it.
    pub repair: &'static str,
    /// The experiment.
    pub id: &'static str,
    /// Its quantities as printed and repaired. If both are one, the paper's value is that printed.
    pub quantities: [&'static str; 2],
}

const fn mistake(
    id: &'static str,
    printed: &'static str,
    repair: &'static str,
    quantities: [&'static str; 2],
) -> Mistake {
    Mistake {
        printed,
        repair,
        id,
        quantities,
    }
}

/// All mistakes.
pub const MISTAKES: [Mistake; 8] = [
    mistake(
        "literal",
        "LoGA 4.2: a held tenant is charged for the non-poll phase too",
        "charged for what ran",
        [
            "ReadmittedToPoll, dfq-literal: share of the first",
            "ReadmittedToPoll, dfq: share of the first",
        ],
    ),
    mistake(
        "literal",
        "LoGA 4.2: a tenant that does not wait holds the others back",
        "virtual time of runnable tenants alone",
        [
            "LightTenant, dfq-literal: engine busy",
            "LightTenant, dfq: engine busy",
        ],
    ),
    mistake(
        "case-fig1",
        "CASE Alg. 3: least warps begin at 0, the comparison is reversed",
        "fewest warps",
        [
            "Alg. 3 as printed: the most loaded GPU",
            "Alg. 3 repaired: {k1, k4}, {k2, k3}",
        ],
    ),
    mistake(
        "case-task",
        "CASE Alg. 1: launches are compared with the first of a task alone",
        "union and find",
        [
            "random traces, as printed: tasks are the closure",
            "random traces, union and find: tasks are the closure",
        ],
    ),
    mistake(
        "slice-states",
        "Share-a-GPU Alg. 2: no first PrepareState",
        "sent at the first request",
        ["as printed: turns", "repaired: turns"],
    ),
    mistake(
        "sm-take",
        "Adriaens 5.6: terminate beats migrate below S / (S - 1)^2",
        "S^2 / (S - 1)^2",
        ["S = 0.6: T_T / T_M as printed", "S = 0.6: T_T / T_M"],
    ),
    mistake(
        "sm-pairs",
        "Adriaens Table 6.3: Rounds gives DVC 14 SMs",
        "its own rule",
        ["DVC + SHA1, Rounds: SMs of the first"; 2],
    ),
    mistake(
        "li-speedup",
        "Li Fig. 10: the larger range is labelled as without T_init",
        "with it, as only separate processes pay it each",
        [
            "EP, without T_init, 8 processes",
            "EP, with T_init, 8 processes",
        ],
    ),
];

fn quantity<'a>(runs: &'a [Run], id: &str, name: &str) -> Option<&'a Quantity> {
    let run = runs.iter().find(|run| run.row.id == id)?;
    let report = run.result.as_ref()?.as_ref().ok()?;
    report.quantities.iter().find(|one| one.name == name)
}

/// The section, with the mistakes of experiments that ran.
pub fn section(runs: &[Run]) -> String {
    let mut text = String::from(
        "## Printed mistakes beside their repairs\n\nThe sections of the experiments have more.\n\n\
         | printed | gives | repair | gives | experiment |\n|---|---|---|---|---|\n",
    );
    for of in MISTAKES {
        let [printed, repaired] = of.quantities.map(|name| quantity(runs, of.id, name));
        let (Some(printed), Some(repaired)) = (printed, repaired) else {
            continue;
        };
        let value = match (of.quantities[0] == of.quantities[1], printed.paper) {
            (true, Paper::Value(value)) => value,
            (true, _) => 0.0,
            (false, _) => printed.ours.mean,
        };
        let unit = |of: &Quantity| match of.unit {
            "" => String::new(),
            unit => format!(" {unit}"),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "| {} | {}{} | {} | {}{} | `{}` |",
            of.printed,
            number(value),
            unit(printed),
            of.repair,
            number(repaired.ours.mean),
            unit(repaired),
            of.id,
        );
    }
    text
}
