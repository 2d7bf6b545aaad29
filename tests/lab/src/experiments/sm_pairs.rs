//! Adriaens, tables 5.2, 6.3 and 6.4: the splits and the throughput of four pairs.

use turnstile_policies::model::sm::{Program, throughput};
use turnstile_policies::model::split::Split;

use super::adriaens::{SMS, failed, place, programs};
use crate::result::{Failure, Parameters, Quantity, Report};
use crate::seeds::Seeds;

/// Columns of both tables.
const SPLITS: [Split; 6] = [
    Split::Worst,
    Split::SmartEven,
    Split::Fair,
    Split::Rounds,
    Split::Profile,
    Split::Best,
];

/// A pair: the printed SMs of the first one, and the printed throughput.
type Pair = ([&'static str; 2], [u32; 6], [f64; 6]);

const PAIRS: [Pair; 4] = [
    (
        ["DVC", "SHA1"],
        [29, 15, 14, 14, 8, 8],
        [0.99, 1.16, 1.09, 1.09, 1.23, 1.23],
    ),
    (
        ["AES Encrypt", "Image Denoising"],
        [1, 15, 15, 15, 16, 25],
        [1.00, 1.01, 1.01, 1.01, 1.01, 1.01],
    ),
    (
        ["JPEG Decode", "Radix Sort"],
        [2, 15, 16, 15, 17, 20],
        [0.99, 1.06, 1.07, 1.06, 1.07, 1.08],
    ),
    (
        ["JPEG Encode", "SAD"],
        [1, 15, 18, 15, 14, 25],
        [1.00, 1.05, 1.05, 1.05, 1.04, 1.08],
    ),
];

/// Printed throughput of an even split, by pair. SOURCE: table 5.2.
const EVEN: [f64; 4] = [1.14, 1.01, 1.06, 1.05];

/// SMs of DVC beside SHA1 by the rule of Rounds, where 14 is printed.
const ROUNDS_OF_DVC: f64 = 19.0;

/// Tolerance of a throughput.
fn tolerance([first, second]: [&str; 2], split: Split) -> f64 {
    match (first, second, split) {
        ("DVC", _, _) => 0.15,
        ("JPEG Decode", _, Split::Worst) | ("JPEG Encode", _, Split::Best) => 0.08,
        _ => 0.05,
    }
}

/// The experiment.
///
/// # Errors
/// None, with this table.
pub fn report(_: &Seeds) -> Result<Report, Failure> {
    let programs = programs(SMS)?;
    let mut quantities = Vec::new();
    for (names, sms_printed, printed) in PAIRS {
        let chosen: [&Program; 2] = names.map(|name| &programs[place(name)]);
        for (index, split) in SPLITS.into_iter().enumerate() {
            let sms = split.of(&chosen, SMS).map_err(failed)?;
            let case = format!("{} + {}, {split:?}", names[0], names[1]);
            let expected = f64::from(sms_printed[index]);
            let own = Quantity::of(format!("{case}: SMs of the first"), "", f64::from(sms[0]))
                .paper(expected);
            quantities.push(match split {
                Split::Rounds if names[0] == "DVC" => own
                    .exactly(ROUNDS_OF_DVC)
                    .because("printed 14 against the rule: rounds 3 + 2 = 5 against 4 + 2 = 6"),
                Split::SmartEven | Split::Rounds => own.exactly(expected),
                Split::Profile => own.within(expected, 2.0),
                Split::Fair => own.within(expected, 3.0),
                _ => own.because("many splits have nearly the same throughput"),
            });
            let value = throughput(&chosen, &sms);
            quantities.push(
                Quantity::of(format!("{case}: throughput"), "", value)
                    .paper(printed[index])
                    .within(printed[index], tolerance(names, split)),
            );
        }
    }
    for ((names, ..), printed) in PAIRS.into_iter().zip(EVEN) {
        let chosen = names.map(|name| &programs[place(name)]);
        let value = throughput(&chosen, &[SMS / 2; 2]);
        let name = format!("{} + {}, 15 and 15 SMs: throughput", names[0], names[1]);
        let one = Quantity::of(name, "", value).paper(printed);
        quantities.push(one.within(printed, tolerance(names, Split::Even)));
    }
    Ok(Report {
        title: "Splits of 30 SMs, and throughput over taking turns".to_owned(),
        parameters: Parameters {
            paper: "speeds by the kernels of table 3.2, heuristics by the merged values of table 6.1",
            fitted: "",
            chosen: "of equal splits the nearest to even",
        },
        quantities,
        notes: vec![
            "Table 5.2 prints 1.14 for the even split of DVC and SHA1, table 6.4 prints 1.16."
                .to_owned(),
        ],
        ..Report::default()
    })
}
