//! LoGA, section 5.6: processor time of polling, and one thread for six GPUs.

use turnstile_accounting::meter::{ChannelCount, PhasePlan, Phases};

use crate::drive::{Scheduler, drive};
use crate::engine::{Engine, Program};
use crate::result::{Failure, Parameters, Quantity, Report};
use crate::seeds::Seeds;

/// Channels that CUDA 6.0 allocates for a program.
const CHANNELS: u32 = 12;
const GPUS: u64 = 6;
const CYCLES: u64 = 100;

/// Load of a program as it is sampled, less the true one, in percent: the phases begin with GPU
/// number `place` of six.
fn error(phases: Phases, place: u64, seed: u64) -> Result<f64, Failure> {
    let (poll, cycle) = (phases.poll_ns.0, phases.poll_ns.0 + phases.nonpoll_ns.0);
    // The kernel and the pause are no part of a cycle, and differ by seed.
    let program = Program::of_us(331 + 7 * seed, 1, 613 + 11 * seed);
    let mut engine = Engine::new(std::slice::from_ref(&program))?;
    let mut sampled = 0;
    let service_at = |engine: &mut Engine, at: u64| {
        while engine.advance(at).is_some() {}
        engine.service_ns()[0]
    };
    for number in 0..CYCLES {
        let begin = number * cycle + place * poll;
        let before = service_at(&mut engine, begin);
        sampled += service_at(&mut engine, begin + poll) - before;
    }
    let end_ns = CYCLES * cycle;
    let truth = drive(Scheduler::None, &[program], end_ns)?.part(0);
    Ok((sampled as f64 / (CYCLES * poll) as f64 / truth - 1.0) * 100.0)
}

/// The experiment.
///
/// # Errors
/// None, with these programs.
pub fn report(seeds: &Seeds) -> Result<Report, Failure> {
    let plan = PhasePlan {
        count: ChannelCount::Allocated,
        ..PhasePlan::default()
    };
    let mut quantities = Vec::new();
    let part = |phases: Phases| {
        let poll = phases.poll_ns.0 as f64;
        poll / (poll + phases.nonpoll_ns.0 as f64) * 100.0
    };
    for programs in [1, 11, 21] {
        let phases = plan.mean(programs, programs * CHANNELS);
        let ms = |ns: u64| ns as f64 / 1e6;
        let name = |what| format!("{programs} programs: {what}");
        let n = f64::from(programs);
        quantities.extend([
            Quantity::of(name("poll phase"), "ms", ms(phases.poll_ns.0))
                .paper(12.0 * n)
                .exactly(12.0 * n),
            Quantity::of(name("non-poll phase"), "ms", ms(phases.nonpoll_ns.0))
                .paper(60.0 * n)
                .exactly(60.0 * n),
            Quantity::of(name("part of a core"), "%", part(phases))
                .paper(16.7)
                .within(100.0 / 6.0, 0.1),
        ]);
    }
    let phases = plan.mean(1, CHANNELS);
    let (poll, cycle) = (phases.poll_ns.0, phases.poll_ns.0 + phases.nonpoll_ns.0);
    // One thread visits the GPUs in turn: number `g` is polled from `g` poll lengths on.
    let polled = |at: u64| (0..GPUS).filter(|gpu| (at % cycle) / poll == *gpu).count();
    let always_one = (0..cycle).step_by(1_000).all(|at| polled(at) == 1);
    quantities.push(Quantity::holds(
        "six GPUs: exactly one is polled at each moment",
        always_one,
    ));
    let of_gpu = |place| {
        let all =
            (seeds.first()..seeds.first() + seeds.count()).map(|seed| error(phases, place, seed));
        all.collect::<Result<Vec<f64>, Failure>>()
    };
    let first = Quantity::over(
        "one GPU: load as sampled, less the true one",
        "%",
        of_gpu(0)?,
    );
    let deviation = first.ours.deviation;
    quantities.push(first);
    for place in 1..GPUS {
        let own = Quantity::over(
            format!("GPU {} of six: the same", place + 1),
            "%",
            of_gpu(place)?,
        );
        // Two means over the seeds, each of which scatters by this much.
        quantities.push(own.within(0.0, (2.0 * deviation).max(0.1)));
    }
    let missing = "the simulated thread has no cost of its own";
    let of = |name, printed| Quantity::not_modelled(name, "%", missing).paper(printed);
    quantities.extend([
        of("measured part of a core, scheduling with it", 17.0),
        of("scheduling alone, part of a core", 0.3),
        Quantity::not_modelled(
            "NEON, part of a core",
            "%",
            "the paper could not measure it",
        ),
    ]);
    Ok(Report {
        title: "Phases by allocated channels, 12 a program; six GPUs on one thread".to_owned(),
        parameters: Parameters {
            paper: "1 ms and 5 ms a channel, 12 channels a program",
            fitted: "",
            chosen: "the programs of the six GPUs",
        },
        quantities,
        ..Report::default()
    })
}
