//! Adriaens, figures 6.3 and 6.4: pairs on 10 to 60 SMs.

use turnstile_policies::model::split::Split;

use super::adriaens::{geometric_mean, programs, throughputs};
use crate::result::{Failure, Parameters, Quantity, Report};
use crate::seeds::Seeds;

const SPLITS: [Split; 5] = [
    Split::Even,
    Split::SmartEven,
    Split::Rounds,
    Split::Profile,
    Split::Fair,
];

/// The experiment.
///
/// # Errors
/// None, with these numbers of SMs.
pub fn report(_: &Seeds) -> Result<Report, Failure> {
    let mut quantities = Vec::new();
    for sms in (10..=60).step_by(10) {
        let programs = programs(sms)?;
        let mean = |split| Ok::<_, Failure>(geometric_mean(&throughputs(&programs, 2, split)?));
        let means = SPLITS
            .map(mean)
            .into_iter()
            .collect::<Result<Vec<_>, _>>()?;
        for (split, mean) in SPLITS.into_iter().zip(&means) {
            let name = format!("{sms} SMs, {split:?}");
            let one = Quantity::of(name, "", *mean).at(format!("{split:?}"), f64::from(sms));
            quantities.push(match split {
                Split::Rounds | Split::Profile if sms <= 20 => {
                    one.shape("above Smart Even", *mean > means[1])
                }
                Split::Fair if sms == 10 => one.shape("above Smart Even", *mean > means[1]),
                _ => one,
            });
        }
    }
    Ok(Report {
        title: "Pairs of 12 programs, throughput over taking turns on the same SMs".to_owned(),
        parameters: Parameters {
            paper: "kernels; 10 to 60 SMs",
            fitted: "",
            chosen: "steps of 10",
        },
        quantities,
        notes: vec![
            "The figures are without numbers: with few SMs Smart Even falls behind.".to_owned(),
        ],
        axes: ("SMs", "throughput"),
    })
}
