//! Adriaens, table 6.2 and chapter 8: ways to split the SMs.

use turnstile_policies::model::split::Split;

use super::adriaens::{SMS, geometric_mean, programs, throughputs};
use crate::result::{Failure, Parameters, Quantity, Report};
use crate::seeds::Seeds;

/// Printed geometric mean of pairs, and that of the curve alone to two decimals.
const PRINTED: [(Split, f64, f64); 11] = [
    (Split::Worst, 1.00, 0.95),
    (Split::Even, 1.14, 1.11),
    (Split::SmartEven, 1.16, 1.15),
    (Split::Packed, 1.16, 1.15),
    (Split::Rounds, 1.16, 1.17),
    (Split::Profile, 1.17, 1.20),
    (Split::Fair, 1.16, 1.15),
    (Split::Blocks, 1.13, 1.14),
    (Split::ThreadsPerBlock, 1.13, 1.12),
    (Split::Threads, 1.12, 1.13),
    (Split::Best, 1.19, 1.22),
];

/// Printed for three and four programs.
const MANY: [(Split, [f64; 2]); 5] = [
    (Split::Even, [1.22, 1.30]),
    (Split::SmartEven, [1.24, 1.32]),
    (Split::Rounds, [1.255, 1.32]),
    (Split::Profile, [1.255, 1.32]),
    (Split::Fair, [1.255, 1.32]),
];

/// The experiment.
///
/// # Errors
/// None, with this table.
pub fn report(_: &Seeds) -> Result<Report, Failure> {
    let programs = programs(SMS)?;
    let mut quantities = Vec::new();
    let mut means = Vec::new();
    for (split, printed, by_curve) in PRINTED {
        let all = throughputs(&programs, 2, split)?;
        let mean = geometric_mean(&all);
        means.push((split, mean));
        let name = format!("pairs, {split:?}");
        let least = all.iter().copied().fold(f64::MAX, f64::min);
        let most = all.iter().copied().fold(0.0, f64::max);
        let extreme = |what: &str, value, printed| {
            Quantity::of(format!("{name}: {what}"), "", value)
                .paper(printed)
                .because("the curve has no contention")
        };
        let (least_printed, most_printed) = match split {
            Split::Best => (1.00, 2.00),
            Split::Worst => (0.89, 1.97),
            _ => (0.99, 2.00),
        };
        quantities.extend([
            Quantity::of(format!("{name}: mean"), "", mean)
                .paper(printed)
                .within(printed, 0.05),
            Quantity::of(
                format!("{name}: mean, against that of the curve alone"),
                "",
                mean,
            )
            .within(by_curve, 0.011),
            extreme("minimum", least, least_printed),
            extreme("maximum", most, most_printed),
        ]);
    }
    let mean = |of| {
        means
            .iter()
            .find(|(split, _)| *split == of)
            .map_or(0.0, |found| found.1)
    };
    let order = [
        Split::Even,
        Split::SmartEven,
        Split::Rounds,
        Split::Profile,
        Split::Best,
    ];
    let rising = order.windows(2).all(|pair| mean(pair[0]) <= mean(pair[1]));
    quantities.push(
        Quantity::of(
            "Even, Smart Even, Rounds, Profile, Best",
            "",
            f64::from(rising),
        )
        .shape("rising", rising),
    );
    for (split, printed) in MANY {
        for (count, printed) in [3, 4].into_iter().zip(printed) {
            let mean = geometric_mean(&throughputs(&programs, count, split)?);
            quantities.push(
                Quantity::of(format!("{count} programs, {split:?}: mean"), "", mean)
                    .paper(printed)
                    .within(printed, 0.05),
            );
        }
    }
    Ok(Report {
        title: "Throughput over taking turns, by the way the SMs are split".to_owned(),
        parameters: Parameters {
            paper: "speeds by the kernels of table 3.2, heuristics by the merged values of table 6.1",
            fitted: "",
            chosen: "RSA has 4 resident blocks, which fit one SM; of equal splits the nearest to even",
        },
        quantities,
        notes: vec![
            "1.255 stands for the printed 1.25 to 1.26. Fair is by the profile, which is the exhaustive search of the same curve.".to_owned(),
        ],
        ..Report::default()
    })
}
