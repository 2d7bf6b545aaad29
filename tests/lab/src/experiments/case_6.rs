//! CASE, figure 6: eight equal jobs against schedGPU, and a mix of 128 jobs against SA.

use turnstile_policies::place::{Job, Rule};

use super::case::{MACHINES, PARAMETERS};
use crate::jobs::{Plan, Work, run};
use crate::result::{Failure, Parameters, Quantity, Report};
use crate::seeds::{Seeds, over_seeds};

/// Darknet's jobs: printed gain over schedGPU, and the chosen load of one job.
const JOBS: [(&str, f64, f64); 4] = [
    ("predict", 1.4, 0.18),
    ("generate", 2.2, 0.29),
    ("train", 3.1, 0.41),
    ("detect", 1.0, 0.12),
];

/// The experiment.
///
/// # Errors
/// None, with these jobs.
pub fn report(seeds: &Seeds) -> Result<Report, Failure> {
    let machine = &MACHINES[1];
    let plan = |rule, workers| Plan {
        gpus: machine.gpus,
        workers,
        rule,
    };
    let mut quantities = Vec::new();
    for (name, printed, load) in JOBS {
        let work = Work {
            job: Job {
                memory_bytes: 1 << 30,
                blocks: 100,
                threads: 256,
            },
            seconds: 30.0,
            load,
        };
        let throughput = |rule| Ok::<_, Failure>(run(&[work; 8], &plan(rule, 8))?.throughput());
        let gain = throughput(Rule::Fewest)? / throughput(Rule::MemoryOnly)?;
        let one = Quantity::of(format!("8 x {name}: MGB over schedGPU"), "", gain).paper(printed);
        quantities.push(match 8.0 * load > 1.0 {
            true => one.shape("above 1: they exceed one GPU", gain > 1.1),
            false => one.shape("about 1: they fit one GPU", (gain - 1.0).abs() < 0.1),
        });
    }
    let gains = over_seeds(seeds, |seed| {
        let jobs = machine.jobs(seed, (128, 1));
        let mgb = run(&jobs, &plan(Rule::Fewest, 32))?.throughput();
        Ok::<_, Failure>(mgb / machine.alone(&jobs)?.throughput())
    })?;
    let one = Quantity::over("128 jobs, 32 workers: MGB over SA", "", gains).paper(2.7);
    let above = one.ours.mean > 1.4;
    quantities.push(one.shape(">= 1.4", above));
    Ok(Report {
        title: "Throughput on four V100".to_owned(),
        parameters: Parameters {
            fitted: "the loads of Darknet's jobs, to figure 6",
            ..PARAMETERS
        },
        quantities,
        ..Report::default()
    })
}
