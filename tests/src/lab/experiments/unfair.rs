//! Long commands against short ones: shares under round robin, and under fair queuing.

use turnstile_accounting::share::shares;
use turnstile_accounting::{Moment, Nanos};

use super::{Report, mean_and_deviation, over_seeds};
use crate::lab::chart::{Chart, Series};
use crate::lab::guest::{Lengths, Load};
use crate::lab::laws::Violation;
use crate::lab::setup::MeterSetup;
use crate::lab::world::{Outcome, Participant, Setup, run};

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
pub fn report(seeds: u64) -> Result<Report, Violation> {
    let events = MeterSetup::Events {
        period_ns: Nanos::from_ms(1),
    };
    let cases = [
        ("none", "events", events),
        ("dfq", "events", events),
        ("dfq", "polled 1:5", MeterSetup::loga()),
        (
            "dfq",
            "polled always",
            MeterSetup::always_polled(Nanos::from_ms(3)),
        ),
    ];
    let (mut rows, mut series) = (Vec::new(), Vec::new());
    for (policy, meter, setup) in cases {
        let outcomes = over_seeds(seeds, |seed| run_with(seed, policy, setup))?;
        let long = |of: &[Nanos]| shares(of)[0] * 100.0;
        let whole: Vec<f64> = outcomes.iter().map(|o| long(&o.service_ns)).collect();
        let windows = outcomes.iter().flat_map(|o| &o.windows[1..]);
        let worst = windows.map(|w| (long(w) - 50.0).abs()).fold(0.0, f64::max);
        let (mean, deviation) = mean_and_deviation(&whole);
        let busy = outcomes.iter().map(|o| o.busy_ns().0).sum::<u64>() as f64;
        let moves = outcomes.iter().map(|o| o.gate_moves).sum::<u64>();
        let seconds = seeds.max(1) * END.0 / 1_000_000_000;
        rows.push(vec![
            policy.to_owned(),
            meter.to_owned(),
            format!("{mean:.2}"),
            format!("{:.2}", 100.0 - mean),
            format!("{deviation:.2}"),
            format!("{worst:.2}"),
            format!("{:.2}", busy / (seconds as f64 * 1e7)),
            (moves / seconds).to_string(),
        ]);
        let points = outcomes[0].windows.iter().enumerate();
        series.push(Series {
            name: format!("{policy}, {meter}"),
            points: points.map(|(i, w)| (i as f64, long(w))).collect(),
        });
    }
    Ok(Report {
        title: format!("Kernels of 2 ms against kernels of 200 us, equal weights, {seeds} runs of 10 s: shares in percent"),
        head: vec![
            "policy",
            "meter",
            "2 ms",
            "200 us",
            "deviation",
            "worst window, points",
            "busy",
            "gate moves/s",
        ],
        rows,
        notes: vec![
            "Round-robin by command gives 10 : 1 (90.91 % and 9.09 %), as LoGA says of its hardware (A1.1).".to_owned(),
            "Worst window: of 1 s, the first left out, against 50 %.".to_owned(),
        ],
        chart: Chart {
            title: "Share of the tenant with kernels of 2 ms".to_owned(),
            x: "second".to_owned(),
            y: "percent".to_owned(),
            series,
        },
    })
}
