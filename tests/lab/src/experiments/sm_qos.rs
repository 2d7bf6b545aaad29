//! Adriaens, tables 7.1 and 7.3: one program with reserved SMs, two others on the rest.

use turnstile_policies::model::sm::Program;
use turnstile_policies::model::split::Split;

use super::adriaens::{ROWS, SMS, combinations, failed, geometric_mean, place, programs};
use crate::result::{Failure, Parameters, Quantity, Report};
use crate::seeds::Seeds;

/// SMs that are reserved for SAD, and the printed throughput by way of splitting the rest.
const RESERVED: [(u32, [f64; 5]); 5] = [
    (5, [1.22, 1.21, 1.22, 1.25, 1.25]),
    (10, [1.20, 1.23, 1.22, 1.22, 1.22]),
    (15, [1.21, 1.21, 1.22, 1.22, 1.22]),
    (20, [1.20, 1.20, 1.20, 1.20, 1.20]),
    (25, [1.12, 1.12, 1.13, 1.13, 1.13]),
];
const SPLITS: [Split; 5] = [
    Split::Even,
    Split::SmartEven,
    Split::Fair,
    Split::Rounds,
    Split::Profile,
];
/// Printed for the twelve programs: dynamic over static reservation, and the fewest SMs for 75 % of
/// the speed over all partners. SOURCE: table 7.3.
const DYNAMIC: [(f64, f64); 12] = [
    (1.00, 23.0),
    (1.00, 23.0),
    (1.23, 18.0),
    (1.11, 22.0),
    (1.00, 23.0),
    (1.07, 22.0),
    (1.02, 22.0),
    (2.81, 1.0),
    (1.06, 20.0),
    (1.00, 23.0),
    (1.35, 16.0),
    (1.00, 22.0),
];
/// Part of the speed alone that is promised.
const PROMISED: f64 = 0.75;
/// Programs with as many SMs by the curve as printed.
const EXACT: [&str; 7] = [
    "AES Decrypt",
    "AES Encrypt",
    "Image Denoising",
    "JPEG Decode",
    "JPEG Encode",
    "Radix Sort",
    "SHA1",
];

/// The experiment.
///
/// # Errors
/// None, with this table.
pub fn report(_: &Seeds) -> Result<Report, Failure> {
    let programs = programs(SMS)?;
    let sad = &programs[place("SAD")];
    let mut quantities = Vec::new();
    for (reserved, printed) in RESERVED {
        for (split, printed) in SPLITS.into_iter().zip(printed) {
            let throughput = |places: Vec<usize>| {
                let chosen: Vec<&Program> = places.iter().map(|place| &programs[*place]).collect();
                let rest = split.of(&chosen, SMS - reserved).map_err(failed)?;
                let others = turnstile_policies::model::sm::throughput(&chosen, &rest);
                Ok(sad.speed(reserved) + others)
            };
            let all = combinations(programs.len(), 2).into_iter().map(throughput);
            let all: Vec<f64> = all.collect::<Result<_, Failure>>()?;
            quantities.push(
                Quantity::of(
                    format!("SAD on {reserved}, {split:?}"),
                    "",
                    geometric_mean(&all),
                )
                .paper(printed)
                .within(printed, 0.1)
                .at(format!("{split:?}"), f64::from(reserved)),
            );
        }
    }
    for (row, program) in ROWS.iter().zip(&programs) {
        let printed = f64::from(row.sms_for_75);
        let fewest = f64::from(program.fewest_for(PROMISED));
        let own = Quantity::of(format!("{}: SMs for 75 %", row.name), "", fewest).paper(printed);
        quantities.push(match row.name {
            "RSA" => own.because(
                "alone its blocks fit one SM; the paper's partner takes its memory traffic",
            ),
            name if EXACT.contains(&name) => own.exactly(printed),
            _ => own.within(printed, 2.0),
        });
    }
    let missing = "needs the loss by shared memory for each partner";
    let none = |name, printed| Quantity::not_modelled(name, "", missing).paper(printed);
    for (row, (gain, fewest)) in ROWS.iter().zip(DYNAMIC) {
        let name = |what| format!("{}: {what}", row.name);
        quantities.push(none(name("dynamic over static reservation"), gain));
        quantities.push(none(name("SMs for 75 %, beside the best partner"), fewest));
    }
    let name = "gain of others from a dynamic reservation, geometric mean".to_owned();
    quantities.push(none(name, 1.16));
    Ok(Report {
        title: "SAD with reserved SMs and two others on the rest; SMs for 75 % of the speed alone"
            .to_owned(),
        parameters: Parameters {
            paper: "kernels, SMs, the promised part",
            fitted: "",
            chosen: "the two others are all 78 pairs of the 12 programs",
        },
        quantities,
        notes: Vec::new(),
        axes: ("SMs reserved", "throughput"),
    })
}
