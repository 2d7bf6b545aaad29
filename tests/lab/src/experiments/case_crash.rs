//! CASE, table II: jobs that crash under CG, which is blind to memory.

use turnstile_policies::place::Rule;

use super::case::{MACHINES, PARAMETERS};
use crate::jobs::{Plan, run};
use crate::result::{Failure, Quantity, Report};
use crate::seeds::{Seeds, over_seeds};

const JOBS: usize = 16;
/// Large jobs to one small one, of the four mixes.
const MIXES: [u32; 4] = [1, 2, 3, 5];
/// Printed percent of jobs that crash, by machine, number of workers and mix.
const PRINTED: [[[f64; 4]; 4]; 2] = [
    [
        [0.0, 3.0, 8.0, 0.0],
        [14.0, 6.0, 6.0, 9.0],
        [13.0, 13.0, 20.0, 22.0],
        [16.0, 17.0, 16.0, 16.0],
    ],
    [
        [0.0, 6.0, 17.0, 0.0],
        [13.0, 19.0, 25.0, 13.0],
        [15.0, 25.0, 20.0, 25.0],
        [33.0, 29.0, 38.0, 50.0],
    ],
];

/// The experiment.
///
/// # Errors
/// None, with these jobs.
pub fn report(seeds: &Seeds) -> Result<Report, Failure> {
    let mut quantities = Vec::new();
    for (machine, printed) in MACHINES.iter().zip(PRINTED) {
        for (mix, large) in MIXES.into_iter().enumerate() {
            let mut means = Vec::new();
            for (index, workers) in machine.cg_workers.into_iter().enumerate() {
                let crashed = over_seeds(seeds, |seed| {
                    let result = machine.cg(&machine.jobs(seed, (JOBS, large)), workers)?;
                    Ok::<_, Failure>(result.crashed as f64 / JOBS as f64 * 100.0)
                })?;
                let name = format!("{}, {large}:1, {workers} workers: crash", machine.name);
                let one = Quantity::over(name, "%", crashed).paper(printed[index][mix]);
                means.push(one.ours.mean);
                quantities.push(match index {
                    0 => one.between_mean(0.0, 20.0),
                    3 => {
                        let above = means[3] > means[0];
                        one.shape("above that of the fewest workers", above)
                    }
                    _ => one,
                });
            }
        }
        let rules = [
            ("MGB, Alg. 3", Rule::Fewest),
            ("MGB, Alg. 2", Rule::Exact),
            ("SA", Rule::Alone),
            ("schedGPU", Rule::MemoryOnly),
        ];
        for (name, rule) in rules {
            let crashed = over_seeds(seeds, |seed| {
                let plan = Plan {
                    gpus: machine.gpus,
                    workers: machine.workers,
                    rule,
                };
                let result = run(&machine.jobs(seed, (JOBS, 5)), &plan)?;
                Ok::<_, Failure>(result.crashed as f64)
            })?;
            let name = format!("{}, 5:1, {name}: jobs that crash", machine.name);
            quantities.push(Quantity::over(name, "", crashed).paper(0.0).exactly(0.0));
        }
    }
    Ok(Report {
        title: "16 jobs, a GPU's memory overcommitted: the job that comes last crashes".to_owned(),
        parameters: PARAMETERS,
        quantities,
        notes: vec!["Printed means over the four mixes are 11 % and 20 %; the printed values are of one draw.".to_owned()],
        ..Report::default()
    })
}
