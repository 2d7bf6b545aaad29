//! LoGA's accuracy (A1.6, Fig. 9 and 10): the polled time of one throttle, against what ran.

use turnstile_accounting::{Moment, Nanos};

use crate::daemon_loop::MeterSetup;
use crate::daemon_loop::guest::{Lengths, Load};
use crate::daemon_loop::laws::Violation;
use crate::daemon_loop::world::{Outcome, Participant, Setup, run};
use crate::result::{Failure, Parameters, Quantity, Report};
use crate::seeds::{Seeds, over_seeds};

/// Kernel lengths of both figures.
pub const KERNELS_US: [u64; 10] = [100, 200, 300, 400, 500, 600, 700, 800, 900, 1_000];
/// A cycle of Fig. 10.
pub const CYCLE_US: u64 = 1_000;
/// Length of a run: LoGA's.
pub const END: Moment = Moment(10_000_000_000);
/// Time from a kernel's end to the next launch: some microseconds, varying. An assumption.
const RELAUNCH: Lengths = Lengths {
    shortest_ns: Nanos(6_000),
    longest_ns: Nanos(10_000),
};

/// One throttle, accounted and not scheduled.
///
/// # Errors
/// A law was broken.
pub fn throttle(
    seed: u64,
    end: Moment,
    meter: MeterSetup,
    kernel_ns: Nanos,
    sleep: Lengths,
) -> Result<Outcome, Violation> {
    let load = Load::Closed {
        kernels: Lengths::of(kernel_ns),
        depth: 1,
        think: sleep,
    };
    let setup = Setup::new(seed, end).with_meter(meter).with_policy("none");
    run(setup, &[Participant::new(100, load)])
}

/// Fig. 9: measured over intended length of kernels, launched one after the other.
///
/// # Errors
/// A law was broken.
pub fn length_ratio(
    seed: u64,
    end: Moment,
    meter: MeterSetup,
    kernel_us: u64,
) -> Result<f64, Violation> {
    let outcome = throttle(seed, end, meter, Nanos::from_us(kernel_us), RELAUNCH)?;
    // All kernels have the same length, so the ratio of the sums is that of the lengths.
    Ok(outcome.observed_ns[0].0 as f64 / outcome.observable_ns[0].0 as f64)
}

/// Fig. 10: charged load over intended load, less one; a kernel each millisecond.
///
/// # Errors
/// A law was broken.
pub fn load_error(
    seed: u64,
    end: Moment,
    meter: MeterSetup,
    kernel_us: u64,
) -> Result<f64, Violation> {
    let sleep = Lengths::of(Nanos::from_us(CYCLE_US - kernel_us));
    let outcome = throttle(seed, end, meter, Nanos::from_us(kernel_us), sleep)?;
    // The ledger may end before the run, by part of a cycle.
    let measured = outcome.charged_ns[0].0 as f64 / outcome.ledger_wall_ns.0 as f64;
    Ok(measured / (kernel_us as f64 / CYCLE_US as f64) - 1.0)
}

/// Polls all the time, with a decision each 10 ms.
pub fn always() -> MeterSetup {
    MeterSetup::always_polled(Nanos::from_ms(10))
}

/// Fig. 9.
///
/// # Errors
/// A law was broken.
pub fn length_report(seeds: &Seeds) -> Result<Report, Failure> {
    let mut quantities = Vec::new();
    for kernel_us in KERNELS_US {
        let ratio = |seed, meter| Ok::<_, Failure>(length_ratio(seed, END, meter, kernel_us)?);
        let polled = over_seeds(seeds, |seed| ratio(seed, always()))?;
        let polled = polled.iter().map(|ratio| (ratio - 1.0) * 100.0).collect();
        let period_ns = Nanos::from_ms(10);
        let events = ratio(seeds.first(), MeterSetup::Events { period_ns })?;
        let x = kernel_us as f64;
        quantities.extend([
            Quantity::over(format!("{kernel_us} us, polled"), "%", polled)
                .between(-0.01, 0.01)
                .at("polled", x),
            Quantity::of(
                format!("{kernel_us} us, events"),
                "%",
                (events - 1.0) * 100.0,
            )
            .exactly(0.0)
            .at("events", x),
        ]);
    }
    Ok(Report {
        title: "Measured kernel length less intended; one throttle, polled all the time, 10 s"
            .to_owned(),
        parameters: Parameters {
            paper: "kernels, no sleep, length of a run",
            fitted: "",
            chosen: "6 to 10 us from a kernel's end to the next launch; a read each 1 us",
        },
        quantities,
        notes: Vec::new(),
        axes: ("kernel, us", "percent"),
    })
}

/// Fig. 10.
///
/// # Errors
/// A law was broken.
pub fn load_report(seeds: &Seeds) -> Result<Report, Failure> {
    let mut quantities = Vec::new();
    for kernel_us in KERNELS_US {
        let errors = |meter| {
            let errors = over_seeds(seeds, |seed| load_error(seed, END, meter, kernel_us));
            errors.map(|all| all.iter().map(|error| error * 100.0).collect())
        };
        let x = kernel_us as f64;
        quantities.extend([
            Quantity::over(
                format!("{kernel_us} us, always polled"),
                "%",
                errors(always())?,
            )
            .paper_range(-2.5, 2.5)
            .between(-2.5, 2.5)
            .at("always polled", x),
            Quantity::over(
                format!("{kernel_us} us, polled 1:5"),
                "%",
                errors(MeterSetup::loga())?,
            )
            .at("1:5", x),
        ]);
    }
    Ok(Report {
        title: "Charged load less intended, percent of it; cycles of 1 ms, 10 s".to_owned(),
        parameters: Parameters {
            paper: "kernels, cycles, length of a run",
            fitted: "",
            chosen: "a read each 1 us",
        },
        quantities,
        notes: vec![
            "1:5 is LoGA's default (1 ms polled, 5 ms not, lengths varied by half); the paper prints no error for it.".to_owned(),
        ],
        axes: ("kernel of a cycle of 1000 us, us", "percent"),
    })
}
