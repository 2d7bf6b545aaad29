//! LoGA, section 2.3: engaged, first come first served, and disengaged.

use crate::drive::{Scheduler, Served, drive};
use crate::engine::Program;
use crate::result::{Failure, Parameters, Quantity, Report};
use crate::seeds::Seeds;

const END_NS: u64 = 4_000_000_000;
/// Share error that is permitted, in percentage points.
const POINTS: f64 = 0.5;

/// The experiment.
///
/// # Errors
/// None, with these programs.
pub fn report(_: &Seeds) -> Result<Report, Failure> {
    let pair = [Program::of_us(2_000, 2, 0), Program::of_us(200, 2, 0)];
    let share = |served: &Served| {
        let sum = served.service_ns.iter().sum::<u64>() as f64;
        served.service_ns[0] as f64 / sum * 100.0
    };
    let mut quantities = Vec::new();
    let engaged = drive(Scheduler::by_name("engaged")?, &pair, END_NS)?;
    let dfq = drive(Scheduler::by_name("dfq")?, &pair, END_NS)?;
    for (name, served) in [("engaged", &engaged), ("disengaged", &dfq)] {
        quantities.push(
            Quantity::of(
                format!("2 ms beside 200 us, {name}: share of the first"),
                "%",
                share(served),
            )
            .within(50.0, POINTS),
        );
    }
    let exits = |served: &Served| served.exits(0).max(served.exits(1));
    quantities
        .push(Quantity::of("engaged: exits a kernel", "", exits(&engaged)).within(1.0, 0.001));
    let first = Program {
        launches: Some(1_000),
        ..Program::of_us(2_000, 1, 0)
    };
    let second = Program {
        launches: Some(1_000),
        ..Program::of_us(200, 1, 0)
    };
    let fcfs = drive(Scheduler::by_name("fcfs")?, &[first, second], 1_999_000_000)?;
    quantities.push(
        Quantity::of(
            "first come first served: kernels of the second before the first ends",
            "",
            fcfs.commands[1] as f64,
        )
        .exactly(0.0),
    );
    let throttles: Vec<Program> = (0..4)
        .map(|place| Program::throttle_us(200, 800, place, 4))
        .collect();
    for (name, policy) in [("engaged", "engaged"), ("disengaged", "dfq")] {
        let served = drive(Scheduler::by_name(policy)?, &throttles, END_NS)?;
        let parts = (0..4).map(|place| served.part(place) * 100.0);
        let worst = parts.map(|part| (part - 20.0).abs()).fold(0.0, f64::max);
        quantities.push(
            Quantity::of(
                format!("four throttles (200, 800), {name}: worst share off 20 %"),
                "points",
                worst,
            )
            .between(0.0, POINTS),
        );
    }
    #[cfg(feature = "world")]
    quantities.push({
        use turnstile_accounting::Moment;

        use crate::daemon_loop::guest::Load;
        use crate::daemon_loop::world::{Participant, Setup, run};

        let tenants = [2_000, 200].map(|us| Participant::new(100, Load::program(us, 8, 0)));
        let outcome = run(Setup::new(0, Moment(1_000_000_000)), &tenants)?;
        let exits = outcome.traps_per_launch(0).max(outcome.traps_per_launch(1));
        Quantity::of(
            "disengaged, in the daemon's loop: exits a kernel",
            "",
            exits,
        )
        .between(0.0, 0.1)
    });
    Ok(Report {
        title: "Two programs, and four throttles".to_owned(),
        parameters: Parameters {
            paper: "none: the section has no numbers",
            fitted: "",
            chosen: "all",
        },
        quantities,
        notes: vec!["Engaged: each submission is trapped and one command runs at a time, the program with the least exact service first.".to_owned()],
        ..Report::default()
    })
}
