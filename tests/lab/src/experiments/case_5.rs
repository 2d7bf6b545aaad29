//! CASE, figures 4 and 5 and tables III and IV: eight mixes under MGB, SA and CG.

use turnstile_policies::place::Rule;

use super::case::{MACHINES, Machine, PARAMETERS, WORKLOADS};
use crate::result::{Failure, Quantity, Report};
use crate::seeds::{Seeds, over_seeds};

/// Printed turnaround against SA, by machine and workload.
const TURNAROUND: [[f64; 8]; 2] = [
    [4.9, 2.3, 4.9, 4.3, 4.6, 3.2, 3.6, 2.0],
    [2.4, 2.0, 3.5, 2.6, 3.8, 2.9, 2.9, 2.6],
];
/// Printed kernel slowdown on four V100 in percent, of algorithms 2 and 3.
const SLOWDOWN: [[f64; 8]; 2] = [
    [-0.3, 1.0, 0.3, 4.1, 2.9, 5.1, 1.1, 0.6],
    [-0.7, 0.8, 7.0, 3.1, 2.2, 4.1, 0.4, 2.9],
];

/// Values of one workload and seed.
#[derive(Clone, Copy, Debug)]
struct Figures {
    throughput: f64,
    over_cg: f64,
    crashes: f64,
    turnaround: f64,
    slowdown: [f64; 2],
    over_alg_2: f64,
    wait_of_alg_2: f64,
}

fn figures(machine: &Machine, workload: (usize, u32), seed: u64) -> Result<Figures, Failure> {
    let jobs = machine.jobs(seed, workload);
    let alone = machine.alone(&jobs)?;
    let (alg_2, alg_3) = (
        machine.mgb(&jobs, Rule::Exact)?,
        machine.mgb(&jobs, Rule::Fewest)?,
    );
    // The best size of CG without a crash; SA where all crash.
    let mut cg = alone.throughput();
    for workers in machine.cg_workers {
        let result = machine.cg(&jobs, workers)?;
        if result.crashed == 0 {
            cg = f64::max(cg, result.throughput());
        }
    }
    Ok(Figures {
        throughput: alg_3.throughput() / alone.throughput(),
        over_cg: alg_3.throughput() / cg,
        crashes: (alg_2.crashed + alg_3.crashed + alone.crashed) as f64,
        turnaround: alone.turnaround() / alg_3.turnaround(),
        slowdown: [alg_2.slowdown_percent, alg_3.slowdown_percent],
        over_alg_2: alg_3.throughput() / alg_2.throughput(),
        wait_of_alg_2: alg_2.wait / alg_3.wait,
    })
}

/// All figures of a machine, by workload and seed.
fn all(machine: &Machine, seeds: &Seeds) -> Result<Vec<Vec<Figures>>, Failure> {
    let of = |workload| over_seeds(seeds, |seed| figures(machine, workload, seed));
    WORKLOADS.into_iter().map(of).collect()
}

fn over(
    name: String,
    unit: &'static str,
    of: &[Figures],
    value: impl Fn(&Figures) -> f64,
) -> Quantity {
    Quantity::over(name, unit, of.iter().map(value).collect())
}

fn mean_of(of: &[Figures], value: impl Fn(&Figures) -> f64) -> f64 {
    of.iter().map(value).sum::<f64>() / of.len().max(1) as f64
}

fn mean(all: &[Vec<Figures>], value: impl Fn(&Figures) -> f64 + Copy) -> f64 {
    mean_of(&all.concat(), value)
}

/// Figure 5.
///
/// # Errors
/// None, with these jobs.
pub fn report(seeds: &Seeds) -> Result<Report, Failure> {
    let mut quantities = Vec::new();
    for (machine, [printed_sa, printed_cg, printed_above]) in
        MACHINES.iter().zip([[2.2, 1.64, 0.0], [2.0, 1.41, 1.0]])
    {
        let all = all(machine, seeds)?;
        for (place, of) in all.iter().enumerate() {
            let name = format!("{}, W{}: MGB over SA", machine.name, place + 1);
            let one = over(name, "", of, |f| f.throughput).paper_range(1.4, 2.5);
            let above = one.ours.mean > 1.0;
            quantities.push(
                one.shape("above 1", above)
                    .at(machine.name, place as f64 + 1.0),
            );
        }
        let name = |what: &str| format!("{}, mean: {what}", machine.name);
        let value = mean(&all, |f| f.throughput);
        quantities.extend([
            Quantity::of(name("MGB over SA"), "", value)
                .paper(printed_sa)
                .shape(">= 1.4", value >= 1.4),
            Quantity::of(
                name("MGB over CG without a crash"),
                "",
                mean(&all, |f| f.over_cg),
            )
            .paper(printed_cg)
            .shape("above 1", mean(&all, |f| f.over_cg) > 1.0),
            Quantity::of(
                name("jobs that crash under MGB and SA"),
                "",
                mean(&all, |f| f.crashes),
            )
            .paper(0.0)
            .exactly(0.0),
        ]);
        // Both are against SA: CG gains what MGB gains over SA and not over CG.
        let cg = |of: &[Figures]| mean_of(of, |f| f.throughput / f.over_cg);
        let count =
            |holds: &dyn Fn(&[Figures]) -> bool| all.iter().filter(|of| holds(of)).count() as f64;
        let not_above = count(&|of| cg(of) <= 1.0);
        let above = count(&|of| cg(of) > mean_of(of, |f| f.throughput));
        let reason = "of one draw of jobs in the paper, of means over the seeds here";
        let mut counted = |what, value, printed| {
            quantities.push(
                Quantity::of(name(what), "", value)
                    .paper(printed)
                    .because(reason),
            );
        };
        counted("workloads with CG at most at SA", not_above, 2.0);
        counted("workloads with CG above MGB", above, printed_above);
    }
    let [machine, _] = &MACHINES;
    for (workers, printed) in [(10, 1.1), (16, 1.0)] {
        let gain = over_seeds(seeds, |seed| {
            let jobs = machine.jobs(seed, WORKLOADS[1]);
            let with =
                |workers| Ok::<_, Failure>(machine.run(&jobs, Rule::Fewest, workers)?.throughput());
            Ok::<_, Failure>(with(workers)? / with(6)?)
        })?;
        let name = format!("{}, W2: MGB with {workers} workers over 6", machine.name);
        quantities.push(
            Quantity::over(name, "", gain)
                .paper(printed)
                .because("the memory limits 16 workers as it does 10; the paper has no reason"),
        );
    }
    Ok(Report {
        title: "Eight mixes of 16 and 32 jobs that all wait at 0: throughput".to_owned(),
        parameters: PARAMETERS,
        quantities,
        axes: ("workload", "throughput over SA"),
        ..Report::default()
    })
}

/// Table IV.
///
/// # Errors
/// None, with these jobs.
pub fn slowdown_report(seeds: &Seeds) -> Result<Report, Failure> {
    let all = all(&MACHINES[1], seeds)?;
    let mut quantities = Vec::new();
    for (rule, (name, printed_mean)) in [("Alg. 2", 1.8), ("Alg. 3", 2.5)].into_iter().enumerate() {
        for (place, of) in all.iter().enumerate() {
            let title = format!("W{}: kernel slowdown, {name}", place + 1);
            quantities
                .push(over(title, "%", of, |f| f.slowdown[rule]).paper(SLOWDOWN[rule][place]));
        }
        let value = mean(&all, |f| f.slowdown[rule]);
        quantities.push(
            Quantity::of(format!("mean: kernel slowdown, {name}"), "%", value)
                .paper(printed_mean)
                .between(1.0, 4.0)
                .fitted(),
        );
    }
    Ok(Report {
        title: "Time of kernels over their time alone, four V100".to_owned(),
        parameters: PARAMETERS,
        quantities,
        ..Report::default()
    })
}

/// Table III.
///
/// # Errors
/// None, with these jobs.
pub fn turnaround_report(seeds: &Seeds) -> Result<Report, Failure> {
    let mut quantities = Vec::new();
    for (machine, (printed, printed_mean)) in
        MACHINES.iter().zip(TURNAROUND.into_iter().zip([3.7, 2.8]))
    {
        let all = all(machine, seeds)?;
        for (place, of) in all.iter().enumerate() {
            let name = format!("{}, W{}: turnaround over MGB's", machine.name, place + 1);
            quantities.push(over(name, "", of, |f| f.turnaround).paper(printed[place]));
        }
        let value = mean(&all, |f| f.turnaround);
        quantities.push(
            Quantity::of(format!("{}, mean: turnaround over MGB's", machine.name), "", value)
                .paper(printed_mean)
                .within(printed_mean, 0.3)
                .because("with all jobs queued at 0 and packing alone, turnaround gains what throughput gains"),
        );
    }
    Ok(Report {
        title: "Mean turnaround under SA over that under MGB".to_owned(),
        parameters: PARAMETERS,
        quantities,
        ..Report::default()
    })
}

/// Figure 4.
///
/// # Errors
/// None, with these jobs.
pub fn rules_report(seeds: &Seeds) -> Result<Report, Failure> {
    let all = all(&MACHINES[1], seeds)?;
    let mut quantities = Vec::new();
    for (place, of) in all.iter().enumerate() {
        let name = format!("W{}: Alg. 3 over Alg. 2", place + 1);
        quantities.push(over(name, "", of, |f| f.over_alg_2));
    }
    let value = mean(&all, |f| f.over_alg_2);
    quantities.push(
        Quantity::of("mean: Alg. 3 over Alg. 2", "", value)
            .paper(1.21)
            .shape(">= 1", value >= 1.0),
    );
    let value = mean(&all, |f| f.wait_of_alg_2);
    quantities.push(
        Quantity::of(
            "mean: time until a job is placed, Alg. 2 over Alg. 3",
            "",
            value,
        )
        .paper(1.3)
        .shape(">= 1", value >= 1.0),
    );
    Ok(Report {
        title: "Throughput on four V100".to_owned(),
        parameters: PARAMETERS,
        quantities,
        ..Report::default()
    })
}
