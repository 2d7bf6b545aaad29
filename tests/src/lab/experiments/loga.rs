//! LoGA's accuracy (A1.6, Fig. 9 and 10): the polled time of one throttle, against what ran.

use turnstile_accounting::{Moment, Nanos};

use super::{Report, mean_and_deviation, over_seeds};
use crate::lab::chart::{Chart, Series};
use crate::lab::guest::{Lengths, Load};
use crate::lab::laws::Violation;
use crate::lab::setup::MeterSetup;
use crate::lab::world::{Outcome, Participant, Setup, run};

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

fn percent(value: f64) -> String {
    format!("{:+.3}", value * 100.0)
}

fn series(name: &str, values: &[f64]) -> Series {
    let points = KERNELS_US.iter().zip(values);
    Series {
        name: name.to_owned(),
        points: points.map(|(us, value)| (*us as f64, *value)).collect(),
    }
}

/// Fig. 9.
///
/// # Errors
/// A law was broken.
pub fn length_report(seeds: u64) -> Result<Report, Violation> {
    let (mut rows, mut means, mut exact) = (Vec::new(), Vec::new(), Vec::new());
    for kernel_us in KERNELS_US {
        let errors = over_seeds(seeds, |seed| {
            Ok(length_ratio(seed, END, always(), kernel_us)? - 1.0)
        })?;
        let period_ns = Nanos::from_ms(10);
        let events = length_ratio(0, END, MeterSetup::Events { period_ns }, kernel_us)? - 1.0;
        let (mean, deviation) = mean_and_deviation(&errors);
        rows.push(vec![
            kernel_us.to_string(),
            percent(mean),
            format!("{:.3}", deviation * 100.0),
            percent(events),
            "-6 to 0".to_owned(),
        ]);
        means.push(mean * 100.0);
        exact.push(events * 100.0);
    }
    Ok(Report {
        title: format!("Measured kernel length less intended, percent; one throttle, polled all the time, {seeds} runs of 10 s"),
        head: vec!["kernel, us", "polled, mean", "deviation", "events", "paper (Fig. 9)"],
        rows,
        notes: vec![
            "The paper's underestimate comes from a dispatcher and an engine that see a switch at different times; the software GPU's see it at once, so what is left is one read (1 us) at either end of a kernel.".to_owned(),
        ],
        chart: Chart {
            title: "Measured kernel length less intended (LoGA Fig. 9)".to_owned(),
            x: "kernel, us".to_owned(),
            y: "percent".to_owned(),
            series: vec![
                series("polled", &means),
                series("events", &exact),
                series("paper, at worst", &[-6.0; 10]),
            ],
        },
    })
}

/// Fig. 10.
///
/// # Errors
/// A law was broken.
pub fn load_report(seeds: u64) -> Result<Report, Violation> {
    let (mut rows, mut always_means, mut sixth_worst) = (Vec::new(), Vec::new(), Vec::new());
    for kernel_us in KERNELS_US {
        let all = over_seeds(seeds, |seed| load_error(seed, END, always(), kernel_us))?;
        let sixth = over_seeds(seeds, |seed| {
            load_error(seed, END, MeterSetup::loga(), kernel_us)
        })?;
        let worst = |errors: &[f64]| errors.iter().fold(0.0, |worst: f64, e| worst.max(e.abs()));
        let (all_mean, _) = mean_and_deviation(&all);
        let (sixth_mean, deviation) = mean_and_deviation(&sixth);
        rows.push(vec![
            kernel_us.to_string(),
            percent(all_mean),
            percent(worst(&all)),
            percent(sixth_mean),
            format!("{:.3}", deviation * 100.0),
            percent(worst(&sixth)),
            "2.5 or less".to_owned(),
        ]);
        always_means.push(all_mean * 100.0);
        sixth_worst.push(worst(&sixth) * 100.0);
    }
    Ok(Report {
        title: format!("Charged load less intended, percent of it; cycles of 1 ms, {seeds} runs of 10 s"),
        head: vec![
            "kernel, us",
            "always: mean",
            "worst",
            "1:5: mean",
            "deviation",
            "worst",
            "paper (Fig. 10, always)",
        ],
        rows,
        notes: vec![
            "1:5 is LoGA's default (1 ms polled, 5 ms not, lengths varied by half); the paper prints no error for it.".to_owned(),
        ],
        chart: Chart {
            title: "Charged load less intended (LoGA Fig. 10)".to_owned(),
            x: "kernel of a cycle of 1000 us, us".to_owned(),
            y: "percent".to_owned(),
            series: vec![
                series("always polled", &always_means),
                series("1:5, worst run", &sixth_worst),
                series("paper's bound", &[2.5; 10]),
            ],
        },
    })
}
