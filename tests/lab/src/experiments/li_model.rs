//! Li et al., table 3: the formulas against the recursion, and against a schedule of all blocks.

use turnstile_policies::model::blocks::makespan;
use turnstile_policies::model::processes::Fit;

use super::li::{PROCESSES, PROGRAMS, Program, RESIDENT_MAX, SMS};
use crate::result::{Failure, Parameters, Quantity, Report};
use crate::seeds::Seeds;

/// Curvature of the stretch that is not linear, per block and block.
const CURVE: f64 = 0.15;

/// Time of all processes by a schedule of all blocks; a block beside `r - 1` others takes
/// `length(r)`.
fn scheduled(program: &Program, processes: u32, length: impl Fn(usize) -> f64) -> f64 {
    let stages = &program.stages;
    let arrivals: Vec<f64> = (1..=processes)
        .map(|process| stages.init + f64::from(process) * stages.input)
        .collect();
    if program.pipelines {
        let (mut kernels, mut outputs) = (0.0_f64, 0.0_f64);
        for arrival in arrivals {
            kernels = makespan(&program.fit, &[arrival.max(kernels)], &length);
            outputs = outputs.max(kernels) + stages.output;
        }
        return outputs;
    }
    makespan(&program.fit, &arrivals, length) + f64::from(processes) * stages.output
}

/// Mean deviation of the formula over 1 to 8 processes, in percent.
fn deviation(program: &Program, other: impl Fn(u32) -> f64) -> f64 {
    let one = |processes| (program.total(processes) / other(processes) - 1.0).abs() * 100.0;
    (1..=PROCESSES).map(one).sum::<f64>() / f64::from(PROCESSES)
}

/// The experiment.
///
/// # Errors
/// None.
pub fn report(_: &Seeds) -> Result<Report, Failure> {
    let mut quantities = Vec::new();
    for mut program in PROGRAMS {
        // As in the paper's comparison.
        program.stages.init = 0.0;
        let program = &program;
        let (stages, name) = (&program.stages, program.name);
        let linear = |r: usize| stages.round + (r as f64 - 1.0) * stages.stretch;
        let curved =
            |r: usize| linear(r) * (1.0 + CURVE * (r as f64 - 1.0) / 7.0 * (8.0 - r as f64) / 7.0);
        let recursion = |processes| stages.by_recursion(&program.fit, processes, program.pipelines);
        let of = |what: &str, value| Quantity::of(format!("{name}: {what}"), "%", value);
        quantities.extend([
            of("formula against recursion", deviation(program, recursion)).exactly(0.0),
            of(
                "formula against schedule, linear stretch",
                deviation(program, |n| scheduled(program, n, linear)),
            )
            .paper(program.printed_percent)
            .between(0.0, 1.0),
            of(
                "formula against schedule, curved stretch",
                deviation(program, |n| scheduled(program, n, curved)),
            )
            .paper(program.printed_percent)
            .because("the formula's stretch is linear; the paper's is of hardware"),
        ]);
    }
    let mut uneven = PROGRAMS[2];
    uneven.fit = Fit::new(80, SMS, RESIDENT_MAX).map_err(super::adriaens::failed)?;
    uneven.stages.init = 0.0;
    let linear = |r: usize| uneven.stages.round + (r as f64 - 1.0) * uneven.stages.stretch;
    let off = deviation(&uneven, |n| scheduled(&uneven, n, linear));
    quantities.push(
        Quantity::of(
            "ES with 80 blocks, no multiple of the SMs: formula against schedule",
            "%",
            off,
        )
        .because("SMs with fewer blocks go on before the round ends"),
    );
    quantities.push(Quantity::not_modelled(
        "Fig. 7: time by resident blocks",
        "",
        "the figure has no numbers; the stretch for each block is chosen",
    ));
    Ok(Report {
        title: "Mean deviation over 1 to 8 processes".to_owned(),
        parameters: Parameters {
            paper: "14 SMs; EP has 1 block and MG 4096",
            fitted: "",
            chosen: "no T_init, as in the paper's comparison; blocks of the others (of ES a multiple of the SMs), all stages, 8 resident blocks, the curve",
        },
        quantities,
        notes: vec![
            "The printed deviations are of the paper's model from its hardware.".to_owned(),
        ],
        ..Report::default()
    })
}
