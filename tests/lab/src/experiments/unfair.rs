//! Long commands against short ones: shares under round robin, and under fair queuing.

use turnstile_accounting::share::shares;
use turnstile_accounting::{Moment, Nanos};

use crate::daemon_loop::MeterSetup;
use crate::daemon_loop::guest::{Lengths, Load};
use crate::daemon_loop::laws::Violation;
use crate::daemon_loop::world::{Outcome, Participant, Setup, run};
use crate::result::{Failure, Parameters, Quantity, Report};
use crate::seeds::{Seeds, over_seeds};

/// Length of a run.
pub const END: Moment = Moment(10_000_000_000);

/// Kernels of 2 ms and of 200 us, both saturating, equal weights.
pub fn tenants() -> [Participant; 2] {
    [2_000, 200].map(|us| {
        let kernels = Lengths::of(Nanos::from_us(us));
        Participant::new(100, Load::saturating(kernels, 1))
    })
}

/// One run.
///
/// # Errors
/// A law was broken.
pub fn run_with(seed: u64, policy: &str, meter: MeterSetup) -> Result<Outcome, Violation> {
    let setup = Setup::new(seed, END).with_meter(meter).with_policy(policy);
    run(setup, &tenants())
}

/// The experiment.
///
/// # Errors
/// A law was broken.
pub fn report(seeds: &Seeds) -> Result<Report, Failure> {
    let events = MeterSetup::Events {
        period_ns: Nanos::from_ms(1),
    };
    let polled = MeterSetup::always_polled(Nanos::from_ms(3));
    // Policy, meter, expected share of the long commands, tolerance of the mean and of a window.
    let cases = [
        ("none", "events", events, 1_000.0 / 11.0, 0.1, 0.5),
        ("dfq", "events", events, 50.0, 0.5, 0.5),
        ("dfq", "polled 1:5", MeterSetup::loga(), 50.0, 2.0, 6.0),
        ("dfq", "polled always", polled, 50.0, 0.5, 2.0),
    ];
    let mut quantities = Vec::new();
    for (policy, meter, setup, expected, tolerance, of_window) in cases {
        let outcomes = over_seeds(seeds, |seed| run_with(seed, policy, setup))?;
        let long = |of: &[Nanos]| shares(of)[0] * 100.0;
        let off = |window: &Vec<Nanos>| (long(window) - expected).abs();
        let name = |what| format!("{policy}, {meter}: {what}");
        let over = |what, unit, of: &dyn Fn(&Outcome) -> f64| {
            Quantity::over(name(what), unit, outcomes.iter().map(of).collect())
        };
        let whole = over("share of the 2 ms", "%", &|o| long(&o.service_ns));
        let worst = over("worst second after the first, off", "points", &|o| {
            o.windows[1..].iter().map(off).fold(0.0, f64::max)
        });
        quantities.extend([
            whole.within(expected, tolerance),
            worst.between(0.0, of_window),
            over("engine busy", "%", &|o| {
                o.busy_ns().0 as f64 / (END.0 as f64 / 100.0)
            }),
        ]);
    }
    Ok(Report {
        title: "Kernels of 2 ms against kernels of 200 us, equal weights, 10 s".to_owned(),
        parameters: Parameters {
            chosen: "all",
            ..Parameters::default()
        },
        quantities,
        notes: vec![
            "Round-robin by command gives 10 : 1, as LoGA describes its hardware.".to_owned(),
        ],
        ..Report::default()
    })
}
