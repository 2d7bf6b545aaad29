//! Shares of four tenants against the fluid ideal: two saturate, one has bursts, one idles.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use turnstile_accounting::gps::{Arrival, FluidTenant, fluid_service};
use turnstile_accounting::share::max_share_error_points;
use turnstile_accounting::{Moment, Nanos};

use crate::daemon_loop::guest::{Lengths, Load};
use crate::daemon_loop::laws::Violation;
use crate::daemon_loop::world::{Outcome, Participant, Setup, run};
use crate::result::{Failure, Parameters, Quantity, Report};
use crate::seeds::{Seeds, over_seeds};

/// Weights of the two that saturate; the others have 100.
pub const WEIGHTS: [(u32, u32); 3] = [(100, 100), (300, 100), (900, 100)];
/// The largest share error that is promised, in percentage points.
pub const BOUND_POINTS: f64 = 0.5;
/// Length of a run.
pub const END: Moment = Moment(4_000_000_000);

/// The tenant with the heavier weight: the one with long kernels (about 2 ms), or the one with
/// short ones (about 200 us).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heavier {
    /// Long kernels.
    Long,
    /// Short kernels.
    Short,
}

/// The four tenants of a seed. Kernel lengths vary by a tenth, depths are 1 or 2, and the bursts
/// take about a twelfth of the GPU's time.
pub fn tenants(seed: u64, weights: (u32, u32), heavier: Heavier) -> Vec<Participant> {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut saturating = |shortest, longest| {
        let depth = random.random_range(1..=2);
        Load::saturating(Lengths::between_us(shortest, longest), depth)
    };
    let (long, short) = (saturating(1_800, 2_000), saturating(180, 220));
    let (first, second) = match heavier {
        Heavier::Long => (long, short),
        Heavier::Short => (short, long),
    };
    let (every, kernels) = (Nanos::from_ms(30), Lengths::between_us(50, 1_000));
    let bursts = Load::bursty(seed, every, 5, kernels, 4, END);
    vec![
        Participant::new(weights.0, first),
        Participant::new(weights.1, second),
        Participant::new(100, bursts),
        Participant::new(100, Load::idle()),
    ]
}

/// The share error of each window of a run, in percentage points of the fluid ideal.
///
/// # Panics
/// If windows and tenants are not those of the run.
pub fn errors_points(outcome: &Outcome, tenants: &[Participant], window_ns: Nanos) -> Vec<f64> {
    let fluid: Vec<FluidTenant> = tenants
        .iter()
        .map(|tenant| FluidTenant {
            weight: tenant.weight,
            saturating: tenant.load.is_saturating() && tenant.joins == Moment(0),
        })
        .collect();
    let mut arrivals = Vec::new();
    for (place, tenant) in tenants.iter().enumerate() {
        if tenant.load.is_saturating() && tenant.joins > Moment(0) {
            // More work than the run has time for.
            arrivals.push(Arrival {
                tenant: place,
                at: tenant.joins,
                work_ns: Nanos(window_ns.0 * (1 + outcome.windows.len() as u64)),
            });
        }
        if let Load::Open { work, .. } = &tenant.load {
            arrivals.extend(work.iter().map(|&(at, work_ns)| Arrival {
                tenant: place,
                at,
                work_ns,
            }));
        }
    }
    arrivals.sort_by_key(|arrival| arrival.at);
    let windows = outcome.windows.len();
    // PANIC: arrivals are in order and of these tenants.
    let ideal = fluid_service(&fluid, &arrivals, window_ns, windows).expect("a fluid run");
    let pairs = outcome.windows.iter().zip(&ideal);
    pairs
        .map(|(got, due)| max_share_error_points(got, due))
        .collect()
}

/// The worst window after the first.
pub fn worst_points(outcome: &Outcome, tenants: &[Participant], window_ns: Nanos) -> f64 {
    let errors = errors_points(outcome, tenants, window_ns);
    errors[1..].iter().copied().fold(0.0, f64::max)
}

/// One run of one seed.
///
/// # Errors
/// A law was broken.
pub fn run_seed(
    setup: Setup,
    weights: (u32, u32),
    heavier: Heavier,
) -> Result<(Outcome, f64), Violation> {
    let tenants = tenants(setup.seed, weights, heavier);
    let outcome = run(setup, &tenants)?;
    let worst = worst_points(&outcome, &tenants, setup.window_ns);
    Ok((outcome, worst))
}

/// Worst windows of all seeds, for one pair of weights and both assignments, seed by seed.
///
/// # Errors
/// A law was broken.
pub fn worst_of_seeds(
    seeds: impl Into<Seeds>,
    weights: (u32, u32),
    setup: impl Fn(u64) -> Setup + Sync,
) -> Result<Vec<[(Outcome, f64); 2]>, Violation> {
    over_seeds(seeds, |seed| {
        let long = run_seed(setup(seed), weights, Heavier::Long)?;
        let short = run_seed(setup(seed), weights, Heavier::Short)?;
        Ok([long, short])
    })
}

/// The experiment.
///
/// # Errors
/// A law was broken.
pub fn report(seeds: &Seeds) -> Result<Report, Failure> {
    let mut quantities = Vec::new();
    for weights in WEIGHTS {
        let results = worst_of_seeds(seeds, weights, |seed| Setup::new(seed, END))?;
        for (index, heavier) in [Heavier::Long, Heavier::Short].into_iter().enumerate() {
            let over = |what: &str, unit, of: &dyn Fn(&(Outcome, f64)) -> f64| {
                let name = format!("{}:100, heavier {heavier:?}: {what}", weights.0);
                let values = results.iter().map(|pair| of(&pair[index]));
                Quantity::over(name, unit, values.collect())
            };
            let moves = |of: &(Outcome, f64)| of.0.gate_moves as f64 / (END.0 as f64 / 1e9);
            quantities.extend([
                over("share error of the worst second", "points", &|of| of.1)
                    .between(0.0, BOUND_POINTS),
                over("lag, of law 3", "%", &|of| of.0.lag_permille as f64 / 10.0)
                    .between(0.0, 100.0),
                over("engine idle behind a gate", "us", &|of| {
                    of.0.idle_behind_gate_max_ns.0 as f64 / 1e3
                }),
                over("gate moves", "/s", &moves),
            ]);
        }
    }
    Ok(Report {
        title: "Share error in seconds after the first, runs of 4 s, dfq by events".to_owned(),
        parameters: Parameters {
            chosen: "all",
            ..Parameters::default()
        },
        quantities,
        notes: vec![
            "Tenants: kernels of about 2 ms and of about 200 us, both always backlogged; bursts; one idle.".to_owned(),
            "LoGA has no weights and prints no share error: its scheduler was out of scope.".to_owned(),
        ],
        ..Report::default()
    })
}
