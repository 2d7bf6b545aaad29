//! Adriaens, table 5.1: an even split of the SMs against taking turns.

use turnstile_policies::model::split::Split;

use super::adriaens::{SMS, exceeded_by, geometric_mean, programs, throughputs};
use crate::result::{Failure, Parameters, Quantity, Report};
use crate::seeds::Seeds;

/// For 2, 3 and 4 programs: printed mean, maximum, minimum, and what 75, 50 and 25 % of the runs
/// exceed.
const PRINTED: [(usize, [f64; 6]); 3] = [
    (2, [1.14, 2.00, 0.99, 1.03, 1.09, 1.20]),
    (3, [1.22, 2.91, 0.99, 1.07, 1.14, 1.26]),
    (4, [1.30, 3.83, 0.99, 1.12, 1.19, 1.55]),
];

/// The experiment.
///
/// # Errors
/// None, with this table.
pub fn report(_: &Seeds) -> Result<Report, Failure> {
    let programs = programs(SMS)?;
    let mut quantities = Vec::new();
    for (count, [mean, most, least, lower, middle, upper]) in PRINTED {
        let all = throughputs(&programs, count, Split::Even)?;
        let of = |what: &str, value, printed| {
            Quantity::of(format!("{count} programs: {what}"), "", value)
                .paper(printed)
                .at(what, count as f64)
        };
        let max = all.iter().copied().fold(0.0, f64::max);
        let min = all.iter().copied().fold(f64::MAX, f64::min);
        let quartile = |percent| exceeded_by(&all, percent);
        let upper_one = of("25 % exceed", quartile(25), upper);
        quantities.extend([
            of("mean", geometric_mean(&all), mean).within(mean, 0.05),
            of("maximum", max, most).within(most, 0.2),
            of("minimum", min, least)
                .because("the curve has no caches, so that a part can be worse than by turns"),
            of("75 % exceed", quartile(75), lower).within(lower, 0.1),
            of("50 % exceed", quartile(50), middle).within(middle, 0.1),
            match count {
                4 => upper_one.because("the curve alone lacks the memory that many share"),
                _ => upper_one.within(upper, 0.1),
            },
        ]);
    }
    Ok(Report {
        title: "All 78, 364 and 1365 combinations of 12 programs, 30 SMs: throughput of an even split over taking turns".to_owned(),
        parameters: Parameters {
            paper: "time, blocks and resident blocks of each kernel; SMs",
            fitted: "",
            chosen: "RSA has 4 resident blocks; the first programs get the remainder",
        },
        quantities,
        notes: vec!["Model: a kernel's time is its number of rounds; no contention.".to_owned()],
        axes: ("programs", "throughput"),
    })
}
