//! Share-a-GPU, figures 9 and 10: each launch divided over two GPUs.

use super::slice_turns::PARAMETERS;
use crate::result::{Failure, Parameters, Quantity, Report};
use crate::seeds::Seeds;
use crate::slices::{PLAN, PROGRAMS, Plan, run};

/// Two GPUs; the cost of registration is fitted to figure 9.
const TWO: Plan = Plan {
    slice_s: 0.5,
    gpus: 2,
    registration_s: 0.000_6,
    ..PLAN
};

/// Figure 9.
///
/// # Errors
/// None, with these programs.
pub fn alone_report(_: &Seeds) -> Result<Report, Failure> {
    let (mut quantities, mut gains) = (Vec::new(), Vec::new());
    for program in PROGRAMS {
        let (end_s, _) = run(&[program], &TWO)?;
        let gain = program.native_s / (program.native_s - program.gpu_s + end_s);
        gains.push(gain);
        quantities.push(Quantity::of(format!("{}: speedup", program.name), "", gain));
    }
    let mean = gains.iter().sum::<f64>() / gains.len() as f64;
    quantities.push(
        Quantity::of("mean: speedup", "", mean)
            .paper(1.65)
            .within(1.65, 0.15)
            .fitted(),
    );
    Ok(Report {
        title: "Each program alone on two GPUs, 500 ms, over native on one".to_owned(),
        parameters: Parameters {
            fitted: "0.6 ms of registration for each launch, to the mean of figure 9",
            ..PARAMETERS
        },
        quantities,
        ..Report::default()
    })
}

/// Figure 10.
///
/// # Errors
/// None, with these programs.
pub fn together_report(_: &Seeds) -> Result<Report, Failure> {
    let (one_s, one) = run(&PROGRAMS, &PLAN)?;
    let (two_s, two) = run(
        &PROGRAMS,
        &Plan {
            slice_s: 1.0,
            ..TWO
        },
    )?;
    let mut quantities = Vec::new();
    let mut sums = [0.0, 0.0];
    for (program, (one, two)) in PROGRAMS.iter().zip(one.iter().zip(&two)) {
        sums = [sums[0] + one.end_s, sums[1] + two.end_s];
        let name = format!("{}: end on one GPU over that on two", program.name);
        quantities.push(Quantity::of(name, "", one.end_s / two.end_s));
    }
    quantities.extend([
        Quantity::of("end of all, one GPU over two", "", one_s / two_s)
            .paper(1.55)
            .within(1.55, 0.15),
        Quantity::of("mean end, one GPU over two", "", sums[0] / sums[1])
            .paper(1.4)
            .because("the introduction prints 40 % faster, without its measure"),
    ]);
    Ok(Report {
        title: "All seven, once each, 1000 ms, on two GPUs over one".to_owned(),
        parameters: Parameters {
            fitted: "0.6 ms of registration for each launch, to figure 9; nothing to figure 10",
            ..PARAMETERS
        },
        quantities,
        ..Report::default()
    })
}
