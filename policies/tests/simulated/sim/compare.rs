//! A run against the fluid server.

use super::{SECOND_NS, Setup, Sim};
use crate::load::{Guest, Load};
use turnstile_accounting::gps::{Arrival, FluidTenant, fluid_service};
use turnstile_accounting::share::max_share_error_points;
use turnstile_accounting::{Moment, Nanos};
use turnstile_policies::Policy;

/// Result of a run.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    /// Worst share error in percentage points in each one-second window, the first included.
    pub(crate) errors: Vec<f64>,
    /// Errors of absolute service, as points of the window: idle time counts too.
    pub(crate) service_errors: Vec<f64>,
    pub(crate) totals: Vec<u64>,
    pub(crate) idle_held_max_ns: u64,
}

impl Outcome {
    /// The worst of all windows after the first.
    pub(crate) fn worst(&self) -> f64 {
        self.errors[1..].iter().copied().fold(0.0, f64::max)
    }

    pub(crate) fn worst_service(&self) -> f64 {
        self.service_errors[1..].iter().copied().fold(0.0, f64::max)
    }
}

/// Runs `guests` under `policy` for `seconds` and compares with the fluid server.
pub(crate) fn compare(
    policy: &mut dyn Policy,
    guests: &[Guest],
    setup: Setup,
    seconds: u64,
) -> Outcome {
    let end = seconds * SECOND_NS;
    let mut sim = Sim::new(policy, guests, setup);
    sim.run(policy, end);
    let fluid: Vec<_> = guests
        .iter()
        .map(|g| FluidTenant {
            weight: g.weight,
            saturating: !matches!(g.load, Load::Open { .. }),
        })
        .collect();
    let mut arrivals: Vec<_> = guests
        .iter()
        .enumerate()
        .filter_map(|(tenant, g)| match &g.load {
            Load::Open { work, .. } => Some((tenant, work)),
            Load::Closed { .. } | Load::Program(_) => None,
        })
        .flat_map(|(tenant, submissions)| {
            submissions.iter().map(move |&(at, work)| Arrival {
                tenant,
                at: Moment(at),
                work_ns: Nanos(work),
            })
        })
        .collect();
    arrivals.sort_by_key(|a| a.at);
    let second = Nanos(SECOND_NS);
    let ideal = fluid_service(&fluid, &arrivals, second, seconds as usize).unwrap();
    let windows = || sim.service.iter().zip(&ideal);
    Outcome {
        errors: windows()
            .map(|(got, ideal)| max_share_error_points(got, ideal))
            .collect(),
        service_errors: windows()
            .map(|(got, ideal)| {
                let each = got.iter().zip(ideal);
                each.map(|(g, i)| g.0.abs_diff(i.0) as f64 / 1e7)
                    .fold(0.0, f64::max)
            })
            .collect(),
        totals: sim.totals,
        idle_held_max_ns: sim.idle_held_max_ns,
    }
}
