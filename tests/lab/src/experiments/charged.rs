//! LoGA 4.3: charges of a tenant with a deep queue, against what ran, by policy, meter and depth.

use turnstile_accounting::{Moment, Nanos};
use turnstile_gpu::Suspend;
use turnstile_policies::DECISION_PERIOD_NS;

use crate::daemon_loop::MeterSetup;
use crate::daemon_loop::guest::{Lengths, Load};
use crate::daemon_loop::laws::Violation;
use crate::daemon_loop::world::{Outcome, Participant, Setup, run};
use crate::result::{Failure, Parameters, Quantity, Report};
use crate::seeds::{Seeds, over_seeds};

/// Length of a run.
pub const END: Moment = Moment(10_000_000_000);
/// Policies that are compared.
pub const POLICIES: [&str; 3] = ["none", "dfq", "dfq-literal"];
/// Kernels that the first tenant keeps submitted.
pub const DEPTHS: [u32; 6] = [1, 2, 4, 8, 16, 32];
/// Lengths of its kernels.
pub const KERNELS_US: [u64; 2] = [2_000, 200];
/// What happens to the queue of a held tenant.
pub const SUSPENDS: [Suspend; 2] = [Suspend::Drains, Suspend::BetweenCommands];
/// Lengths of the kernels of the second tenant, 1 deep.
const BESIDE_US: u64 = 200;
/// Below this part of the engine an error counts as a part of the engine.
const SMALL: f64 = 0.02;

/// The meters, by name.
pub fn meters() -> [(&'static str, MeterSetup); 3] {
    let period_ns = DECISION_PERIOD_NS;
    [
        ("polled", MeterSetup::loga()),
        ("adaptive", MeterSetup::adaptive()),
        ("events", MeterSetup::Events { period_ns }),
    ]
}

/// Parameters of a run.
#[derive(Clone, Copy, Debug)]
pub struct Scene {
    /// Name of the policy.
    pub policy: &'static str,
    /// The meter.
    pub meter: MeterSetup,
    /// What happens to the queue of a held tenant.
    pub suspend: Suspend,
    /// Lengths of the kernels of the first tenant.
    pub kernel_us: u64,
    /// Kernels that it keeps submitted.
    pub depth: u32,
}

/// One run.
///
/// # Errors
/// A law was broken.
pub fn run_with(seed: u64, scene: Scene) -> Result<Outcome, Violation> {
    let saturating = |us, depth| {
        let kernels = Lengths::of(Nanos::from_us(us));
        Participant::new(100, Load::saturating(kernels, depth))
    };
    let tenants = [
        saturating(scene.kernel_us, scene.depth),
        saturating(BESIDE_US, 1),
    ];
    let setup = Setup {
        suspend: scene.suspend,
        ..Setup::new(seed, END)
    };
    let setup = Setup {
        // A queue that drains for longer than a period exceeds the bound of law 3.
        enforce_lag: false,
        ..setup.with_meter(scene.meter).with_policy(scene.policy)
    };
    run(setup, &tenants)
}

/// The error of each charge, in percent of what ran. For a tenant that ran less than 2 % of the
/// engine, in percent of the engine divided by 0.03: 10 is the limit of both promises.
pub fn errors_percent(outcome: &Outcome) -> Vec<f64> {
    let wall = outcome.ledger_wall_ns.0 as f64;
    let pairs = outcome.charged_ns.iter().zip(&outcome.service_ns);
    pairs
        .map(|(charged, ran)| {
            let error = charged.0 as f64 - ran.0 as f64;
            if (ran.0 as f64) < SMALL * wall {
                error / wall * 100.0 / 0.03
            } else {
                error / ran.0 as f64 * 100.0
            }
        })
        .collect()
}

/// The error that is farthest from zero.
pub fn worst_percent(outcome: &Outcome) -> f64 {
    let errors = errors_percent(outcome);
    errors.into_iter().fold(0.0, |worst, error| {
        if error.abs() > f64::abs(worst) {
            error
        } else {
            worst
        }
    })
}

/// Part of the time in which the registers were polled, in percent.
pub fn polled_percent(outcome: &Outcome) -> f64 {
    outcome.observed_wall_ns.0 as f64 / outcome.ledger_wall_ns.0 as f64 * 100.0
}

/// The experiment.
///
/// # Errors
/// A law was broken.
pub fn report(seeds: &Seeds) -> Result<Report, Failure> {
    let mut quantities = Vec::new();
    for policy in POLICIES {
        for (name, meter) in meters() {
            for (suspend, kernel_us) in SUSPENDS
                .into_iter()
                .flat_map(|s| KERNELS_US.map(|k| (s, k)))
            {
                let (mut errors, mut polled) = (Vec::new(), Vec::new());
                for depth in DEPTHS {
                    let scene = Scene {
                        policy,
                        meter,
                        suspend,
                        kernel_us,
                        depth,
                    };
                    let outcomes = over_seeds(seeds, |seed| run_with(seed, scene))?;
                    errors.extend(outcomes.iter().map(worst_percent));
                    polled.extend(outcomes.iter().map(polled_percent));
                }
                let case = format!("{policy}, {name}, {suspend:?}, {kernel_us} us");
                let error = Quantity::over(format!("{case}: charge error"), "%", errors);
                if matches!(meter, MeterSetup::Events { .. }) {
                    quantities.push(error.exactly(0.0));
                } else {
                    let polled = Quantity::over(format!("{case}: time polled"), "%", polled);
                    quantities.extend([error.between(-10.0, 10.0), polled.between(0.0, 17.0)]);
                }
            }
        }
    }
    Ok(Report {
        title: format!(
            "Charges against what ran: a queue of 1 to 32 kernels beside one of {BESIDE_US} us, runs of {} s",
            END.0 / 1_000_000_000
        ),
        parameters: Parameters {
            paper: "1 ms and 5 ms a channel",
            fitted: "",
            chosen: "kernels, depths",
        },
        quantities,
        notes: vec![
            "Values are over depths and seeds. Of a tenant that ran below 2 % of the engine the error is a part of the engine, shown as 10 % for 0.3 %.".to_owned(),
            "LoGA 4.3: what a held tenant has queued runs on and is charged to it. The paper prints no figure.".to_owned(),
        ],
        ..Report::default()
    })
}
