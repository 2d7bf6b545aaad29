//! LoGA, figures 7 and 8: the cost of accounting, NEON's and LoGA's, without scheduling.

use crate::drive::{Scheduler, drive};
use crate::engine::Program;
use crate::result::{Failure, Parameters, Quantity, Report};
use crate::seeds::Seeds;

/// Length of a run.
const END_NS: u64 = 20_000_000_000;
/// Tolerance of a cost that follows by arithmetic, in percentage points.
const POINTS: f64 = 1.5;

/// Programs beside the throttles; the first one always wants the engine.
fn shapes() -> [(&'static str, Program); 6] {
    let mixed = Program {
        kernels_ns: vec![50_000, 5_000_000],
        ..Program::of_us(50, 1, 0)
    };
    [
        ("500 us", Program::of_us(500, 1, 0)),
        ("100 us", Program::of_us(100, 1, 0)),
        ("2 ms", Program::of_us(2_000, 1, 0)),
        ("50 us and 5 ms", mixed),
        ("500 us, half I/O", Program::of_us(500, 1, 500)),
        ("200 us, 8 deep", Program::of_us(200, 8, 0)),
    ]
}

fn beside(program: &Program, throttle_us: u64, throttles: u64) -> Vec<Program> {
    let all =
        (0..throttles).map(|place| Program::throttle_us(throttle_us, 1_000, place, throttles));
    std::iter::once(program.clone()).chain(all).collect()
}

/// The part of the engine of a program in free run, and the cost of NEON's accounting to its
/// turnaround in percent.
fn cost(programs: &[Program]) -> Result<(f64, f64), Failure> {
    let free = drive(Scheduler::None, programs, END_NS)?;
    let sampled = drive(Scheduler::Neon { schedules: false }, programs, END_NS)?;
    let ratio = free.service_ns[0] as f64 / sampled.service_ns[0] as f64;
    Ok((free.part(0), (ratio - 1.0) * 100.0))
}

/// Load of the throttles alone, in percent, which nothing contends for.
pub(super) fn load(kernel_us: u64, pause_us: u64, throttles: u64) -> Result<Quantity, Failure> {
    let all =
        (0..throttles).map(|place| Program::throttle_us(kernel_us, pause_us, place, throttles));
    let served = drive(Scheduler::None, &all.collect::<Vec<_>>(), END_NS)?;
    let cycle_us = (kernel_us + pause_us) as f64;
    let printed = (throttles * kernel_us) as f64 / cycle_us * 100.0;
    let sum = (0..served.service_ns.len())
        .map(|place| served.part(place))
        .sum::<f64>();
    let name = format!("{throttles} throttles ({kernel_us}, {pause_us}): load");
    Ok(Quantity::of(name, "%", sum * 100.0)
        .paper(printed)
        .within(printed, 0.01))
}

/// The cost by arithmetic, in percent. A cycle has `tasks` samples of 1 ms, and a free run of five
/// times that. A program that always wants the engine has one sample, and `part` of the free run.
fn by_arithmetic(part: f64, tasks: f64) -> f64 {
    (6.0 * tasks * part / (5.0 * tasks * part + 1.0) - 1.0) * 100.0
}

fn parameters() -> Parameters {
    Parameters {
        paper: "throttles; samples of 1 ms, a free run of five times all samples, at most 96 commands",
        fitted: "",
        chosen: "the programs, in place of Rodinia's",
    }
}

/// The cost of LoGA's accounting in the daemon's loop, in percent: polls against events.
#[cfg(feature = "world")]
fn cost_of_polls(
    seed: u64,
    program: &Program,
    throttle_us: u64,
    throttles: u64,
) -> Result<f64, Failure> {
    use turnstile_accounting::{Moment, Nanos};

    use crate::daemon_loop::guest::{Lengths, Load};
    use crate::daemon_loop::world::{MeterSetup, Participant, Setup, run};

    let load = |of: &Program| Load::Program {
        kernels_ns: of.kernels_ns.iter().map(|ns| Nanos(*ns)).collect(),
        depth: of.depth,
        pauses: Lengths::of(Nanos(of.pause_ns)),
        start: Moment(of.start_ns),
    };
    let all = beside(program, throttle_us, throttles);
    let tenants: Vec<Participant> = all
        .iter()
        .map(|of| Participant::new(100, load(of)))
        .collect();
    let service = |setup: Setup| Ok::<_, Failure>(run(setup, &tenants)?.service_ns[0].0 as f64);
    let setup = Setup::new(seed, Moment(1_000_000_000)).with_policy("none");
    let events = service(setup)?;
    Ok((events / service(setup.with_meter(MeterSetup::loga()))? - 1.0) * 100.0)
}

fn figure(
    seeds: &Seeds,
    (throttle_us, mean_printed): (u64, f64),
    (loga_printed, loga_points): (f64, f64),
) -> Result<Report, Failure> {
    let (mut quantities, mut costs) = (Vec::new(), Vec::new());
    for (index, (name, program)) in shapes().iter().enumerate() {
        let (part, cost) = cost(&beside(program, throttle_us, 10))?;
        costs.push(cost);
        let one = Quantity::of(format!("NEON, {name}"), "%", cost);
        quantities.push(if index == 0 {
            one.within(by_arithmetic(part, 11.0), POINTS)
        } else {
            one
        });
    }
    let mean = costs.iter().sum::<f64>() / costs.len() as f64;
    let worst = costs.iter().copied().fold(0.0, f64::max);
    let mean = Quantity::of("NEON, mean", "%", mean).paper(mean_printed);
    quantities.push(
        mean.clone()
            .shape("above LoGA's", mean.ours.mean > loga_points),
    );
    let worst = Quantity::of("NEON, worst", "%", worst);
    quantities.push(if throttle_us == 10 {
        worst.paper(23.4)
    } else {
        worst
    });
    quantities.push(load(throttle_us, 1_000, 10)?);
    // Throttles that saturate, with kernels as long as the program's.
    let saturating: Vec<Program> = vec![Program::of_us(throttle_us, 1, 0); 11];
    let (_, cost) = cost(&saturating)?;
    quantities.push(
        Quantity::of("NEON, beside 10 throttles without pauses", "%", cost)
            .paper(0.0)
            .within(0.0, POINTS),
    );
    let [(_, program), ..] = shapes();
    #[cfg(feature = "world")]
    quantities.push(
        Quantity::of(
            "LoGA, 500 us",
            "%",
            cost_of_polls(seeds.first(), &program, throttle_us, 10)?,
        )
        .paper(loga_printed)
        .between(-loga_points, loga_points),
    );
    #[cfg(not(feature = "world"))]
    let _ = (seeds, loga_printed, program);
    Ok(Report {
        title: format!("A program beside 10 throttles of {throttle_us} us and pauses of 1000 us: turnaround over that without accounting, less 1"),
        parameters: parameters(),
        quantities,
        notes: vec!["Accounting alone: no task is held back. The demanded cost is 66 r / (55 r + 1) - 1, with r the program's part in free run.".to_owned()],
        ..Report::default()
    })
}

/// Figure 7a.
///
/// # Errors
/// A law was broken.
pub fn light_report(seeds: &Seeds) -> Result<Report, Failure> {
    figure(seeds, (10, 11.4), (0.0, 0.5))
}

/// Figure 7b.
///
/// # Errors
/// A law was broken.
pub fn heavy_report(seeds: &Seeds) -> Result<Report, Failure> {
    figure(seeds, (100, 7.6), (0.7, 0.7))
}

/// Figure 8: by arithmetic, the cost with 1, 5, 10, 15 and 20 throttles.
///
/// # Errors
/// A law was broken.
pub fn count_report(seeds: &Seeds) -> Result<Report, Failure> {
    let [(_, program), ..] = shapes();
    let (mut quantities, mut costs) = (Vec::new(), Vec::new());
    for (throttles, expected) in [(1, 9.0), (5, 15.9), (10, 17.6), (15, 18.3), (20, 18.6)] {
        let (_, cost) = cost(&beside(&program, 10, throttles))?;
        costs.push(cost);
        quantities.push(
            Quantity::of(format!("NEON, {throttles} throttles"), "%", cost)
                .within(expected, POINTS)
                .at("NEON", throttles as f64),
        );
        #[cfg(feature = "world")]
        quantities.push(
            Quantity::of(
                format!("LoGA, {throttles} throttles"),
                "%",
                cost_of_polls(seeds.first(), &program, 10, throttles)?,
            )
            .between(-0.5, 0.5)
            .at("LoGA", throttles as f64),
        );
    }
    let _ = seeds;
    let rising = costs.windows(2).all(|pair| pair[0] < pair[1]);
    quantities.push(Quantity::holds(
        "heartwall and most: NEON's cost rises",
        rising,
    ));
    let missing = "needs caches and the program's own phases";
    for name in [
        "lavaMD: first below 1, then above LoGA",
        "mummergpu: falls, below LoGA beyond 16",
        "dwt2d, bfs, gaussian, huffman: dip, then rise, above LoGA",
        "myocyte, nn: fall, stay above LoGA",
    ] {
        quantities.push(Quantity::not_modelled(name, "", missing));
    }
    Ok(Report {
        title: "A program of 500 us beside 1 to 20 throttles of 10 us and pauses of 1000 us".to_owned(),
        parameters: parameters(),
        quantities,
        notes: vec!["The demanded costs follow from the paper's parameters by arithmetic; the figure has no numbers.".to_owned()],
        axes: ("throttles", "cost in percent"),
    })
}
