//! Li et al., figures 8 to 10: sharing against one process after another.

use super::li::{PROCESSES, PROGRAMS, Program};
use crate::result::{Failure, Parameters, Quantity, Report};
use crate::seeds::Seeds;

fn speedup(program: &Program, processes: u32, with_init: bool) -> f64 {
    let mut program = *program;
    if !with_init {
        program.stages.init = 0.0;
    }
    program.stages.native(&program.fit, processes) / program.total(processes)
}

/// The experiment.
///
/// # Errors
/// None.
pub fn report(_: &Seeds) -> Result<Report, Failure> {
    let mut quantities = Vec::new();
    for program in &PROGRAMS {
        for (with, name, printed) in [
            (false, "without", (1.64, 4.1)),
            (true, "with", (4.03, 18.7)),
        ] {
            let all: Vec<f64> = (1..=PROCESSES).map(|n| speedup(program, n, with)).collect();
            let rises = all.windows(2).all(|pair| pair[1] >= pair[0] - 0.02);
            let above = all[1..].iter().all(|speedup| *speedup >= 1.0);
            let title = format!("{}, {name} T_init", program.name);
            for (place, value) in all.iter().enumerate().filter(|(place, _)| *place != 7) {
                let processes = place + 1;
                let one = Quantity::of(format!("{title}, {processes} processes"), "", *value);
                quantities.push(one.at(title.clone(), processes as f64));
            }
            quantities.push(
                Quantity::of(format!("{title}, 8 processes"), "", all[7])
                    .paper_range(printed.0, printed.1)
                    .shape("never below 1 from 2 on; rising to 2 %", above && rises)
                    .at(title, 8.0),
            );
        }
        let larger =
            (2..=PROCESSES).all(|n| speedup(program, n, true) > speedup(program, n, false));
        quantities.push(Quantity::holds(
            format!(
                "{}: larger with T_init, against the printed labels",
                program.name
            ),
            larger,
        ));
    }
    Ok(Report {
        title: "Time of processes one after another, over their time together".to_owned(),
        parameters: Parameters {
            paper: "14 SMs; EP has 1 block and MG 4096; up to 8 processes",
            fitted: "",
            chosen: "blocks of the others, all stages, 8 resident blocks",
        },
        quantities,
        notes: vec!["The paper labels its two ranges in the opposite order: the time that is paid once belongs to the larger one.".to_owned()],
        axes: ("processes", "speedup"),
    })
}
