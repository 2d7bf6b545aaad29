//! Adriaens, tables 5.3, 5.4 and 7.2: memory of programs beside each other.
//!
//! A program's use of the memory alone is in proportion to the most that it loses beside others
//! (table 7.2). On fewer SMs it follows the speed. Uses add up to the most that was seen.

use turnstile_policies::model::sm::Program;
use turnstile_policies::model::split::Split;

use super::adriaens::{ROWS, SMS, combinations, failed, place, programs};
use crate::result::{Failure, Parameters, Quantity, Report};
use crate::seeds::Seeds;

/// Largest loss beside others in percent, by program. SOURCE: table 7.2.
const LOSS: [f64; 12] = [
    6.8, 8.2, 29.7, 4.9, 3.7, 42.8, 43.9, 75.9, 21.0, 11.9, 34.2, 43.1,
];
/// For 1 to 4 programs: printed mean, maximum and minimum use in percent. SOURCE: table 5.3.
const USE: [[f64; 3]; 4] = [
    [37.0, 92.6, 2.2],
    [38.6, 94.5, 2.3],
    [40.5, 93.3, 2.4],
    [42.2, 91.7, 2.6],
];
/// Printed latency of the interconnect in cycles, likewise. SOURCE: table 5.4.
const LATENCY: [[f64; 3]; 4] = [
    [205.5, 545.5, 2.6],
    [164.5, 463.0, 2.5],
    [138.8, 608.3, 2.5],
    [119.0, 689.8, 2.5],
];
/// Largest use seen.
const MOST: f64 = 94.5;
const WHAT: [&str; 3] = ["mean", "maximum", "minimum"];

/// Use of each program alone, in percent: that of RSA is the least printed, the others' mean makes
/// that of all as printed.
fn alone() -> [f64; 12] {
    let (rsa, [mean, _, least]) = (place("RSA"), USE[0]);
    let others: f64 = LOSS.iter().sum::<f64>() - LOSS[rsa];
    let scale = (mean * LOSS.len() as f64 - least) / others;
    let mut uses = LOSS.map(|loss| (loss * scale).min(MOST));
    uses[rsa] = least;
    uses
}

/// The experiment.
///
/// # Errors
/// None, with this table.
pub fn report(_: &Seeds) -> Result<Report, Failure> {
    let (programs, uses) = (programs(SMS)?, alone());
    let mut quantities = Vec::new();
    for (index, printed) in USE.into_iter().enumerate() {
        let count = index + 1;
        let mut all = Vec::new();
        for places in combinations(programs.len(), count) {
            let chosen: Vec<&Program> = places.iter().map(|place| &programs[*place]).collect();
            let sms = Split::Even.of(&chosen, SMS).map_err(failed)?;
            let parts = chosen.iter().zip(&places).zip(&sms);
            let sum: f64 = parts
                .map(|((of, place), sms)| of.speed(*sms) * uses[*place])
                .sum();
            all.push(sum.min(MOST));
        }
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        let most = all.iter().copied().fold(0.0, f64::max);
        let least = all.iter().copied().fold(f64::MAX, f64::min);
        for ((what, value), printed) in WHAT.into_iter().zip([mean, most, least]).zip(printed) {
            let name = format!("{count} programs: use of memory, {what}");
            let one = Quantity::of(name, "%", value).paper(printed);
            let one = one.at(what, count as f64);
            quantities.push(match (what, count) {
                ("mean", 1) => one.within(printed, 0.5).fitted(),
                ("mean", _) => one.within(printed, 3.0),
                _ => one.because("of single programs the paper prints the loss, not the use"),
            });
        }
    }
    for (row, (loss, own)) in ROWS.iter().zip(LOSS.into_iter().zip(uses)) {
        let name = |what: &str| format!("{}: {what}", row.name);
        quantities.push(
            Quantity::not_modelled(
                name("largest loss beside others"),
                "%",
                "an input here: it stands for the use of memory",
            )
            .paper(loss),
        );
        quantities.push(Quantity::of(name("use of memory alone"), "%", own));
    }
    for (index, printed) in LATENCY.into_iter().enumerate() {
        for (what, printed) in WHAT.into_iter().zip(printed) {
            let name = format!(
                "{} programs: latency of the interconnect, {what}",
                index + 1
            );
            let missing = "no interconnect";
            quantities.push(Quantity::not_modelled(name, "cycles", missing).paper(printed));
        }
    }
    Ok(Report {
        title: "Use of the memory by all combinations, SMs split evenly".to_owned(),
        parameters: Parameters {
            paper: "kernels, SMs; the least and the most use",
            fitted: "uses of single programs: in proportion to table 7.2, their mean to the first row of table 5.3. The other rows are predicted",
            chosen: "RSA has the least printed use, as its loss is of latency",
        },
        quantities,
        notes: Vec::new(),
        axes: ("programs", "use in percent"),
    })
}
