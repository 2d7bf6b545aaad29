//! The yardstick: an ideal fluid server (generalised processor sharing).
//!
//! The fluid GPU serves all backlogged tenants at once, each at a rate in proportion to its weight,
//! and is never idle while anyone is backlogged. No real schedule of non-preemptive commands can
//! follow it exactly; how far it stays behind in a window is its share error.
//!
//! Between two arrivals everybody's service is `min(backlog, weight * V)` for one common `V`, which is
//! weighted max-min division of the stretch of time by backlogs: so [`water_fill`] is the simulator.

use crate::share::{Claim, water_fill};
use crate::units::{Moment, Nanos};
use thiserror::Error;

/// Fluid is divided in units of 2^-20 ns, so that rounding stays below 1 ns over a million arrivals.
const SCALE_BITS: u32 = 20;

/// One tenant of the fluid server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FluidTenant {
    /// Its weight against the others'.
    pub weight: u32,
    /// Always backlogged; arrivals of such a tenant change nothing.
    pub saturating: bool,
}

/// Work that arrives whether or not earlier work is done (open loop).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Index of the tenant.
    pub tenant: usize,
    /// When.
    pub at: Moment,
    /// Engine time that it takes alone.
    pub work_ns: Nanos,
}

/// Why the fluid server cannot run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum GpsError {
    /// Arrivals have to be in order of time.
    #[error("Arrival {0} is earlier than the one before it")]
    Unordered(usize),
    /// An arrival of nobody.
    #[error("Arrival {0} names a tenant that does not exist")]
    UnknownTenant(usize),
}

/// Ideal service of each tenant in each of `windows` windows of `window_ns`, from moment 0 on.
///
/// The result is indexed `[window][tenant]`. A window's services add up to its length unless the
/// server was idle in it (to one nanosecond per tenant, as each is rounded down over all time).
pub fn fluid_service(
    tenants: &[FluidTenant],
    arrivals: &[Arrival],
    window_ns: Nanos,
    windows: usize,
) -> Result<Vec<Vec<Nanos>>, GpsError> {
    for (index, arrival) in arrivals.iter().enumerate() {
        if arrival.tenant >= tenants.len() {
            return Err(GpsError::UnknownTenant(index));
        }
        if index > 0 && arrival.at < arrivals[index - 1].at {
            return Err(GpsError::Unordered(index));
        }
    }
    let mut server = Fluid::new(tenants);
    let mut pending = arrivals.iter().peekable();
    let mut service = Vec::with_capacity(windows);
    let mut before = server.served_ns();
    for window in 1..=windows as u64 {
        let end = Moment(window_ns.0 * window);
        while let Some(arrival) = pending.next_if(|a| a.at < end) {
            server.run_until(arrival.at);
            server.arrive(arrival.tenant, arrival.work_ns);
        }
        server.run_until(end);
        let now = server.served_ns();
        service.push(
            now.iter()
                .zip(&before)
                .map(|(&now, &before)| now - before)
                .collect(),
        );
        before = now;
    }
    Ok(service)
}

/// The fluid server's state; backlog and service in units of 2^-20 ns.
#[derive(Debug)]
struct Fluid {
    claims: Vec<Claim>,
    served: Vec<u128>,
    now: Moment,
}

impl Fluid {
    fn new(tenants: &[FluidTenant]) -> Self {
        let claim = |t: &FluidTenant| Claim {
            weight: t.weight,
            demand: (!t.saturating).then_some(0),
        };
        Self {
            claims: tenants.iter().map(claim).collect(),
            served: vec![0; tenants.len()],
            now: Moment(0),
        }
    }

    fn arrive(&mut self, tenant: usize, work: Nanos) {
        if let Some(backlog) = &mut self.claims[tenant].demand {
            *backlog += u128::from(work.0) << SCALE_BITS;
        }
    }

    fn run_until(&mut self, end: Moment) {
        let stretch = u128::from(end.since(self.now).0) << SCALE_BITS;
        if stretch > 0 {
            for (tenant, part) in water_fill(stretch, &self.claims).into_iter().enumerate() {
                self.served[tenant] += part;
                if let Some(backlog) = &mut self.claims[tenant].demand {
                    *backlog -= part;
                }
            }
            self.now = end;
        }
    }

    fn served_ns(&self) -> Vec<Nanos> {
        // CAST: service in ns is at most the time simulated, a u64.
        self.served
            .iter()
            .map(|&units| Nanos((units >> SCALE_BITS) as u64))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SATURATING: FluidTenant = FluidTenant {
        weight: 100,
        saturating: true,
    };
    const OPEN: FluidTenant = FluidTenant {
        weight: 100,
        saturating: false,
    };

    fn arrival(tenant: usize, at: u64, work: u64) -> Arrival {
        Arrival {
            tenant,
            at: Moment(at),
            work_ns: Nanos(work),
        }
    }

    #[test]
    fn saturating_tenants_share_by_weight() {
        let tenants = [
            FluidTenant {
                weight: 300,
                saturating: true,
            },
            SATURATING,
        ];
        let service = fluid_service(&tenants, &[], Nanos(1_000), 2).unwrap();
        assert_eq!(
            service,
            [[Nanos(750), Nanos(250)], [Nanos(750), Nanos(250)]]
        );
    }

    #[test]
    fn a_burst_is_served_at_its_rate_until_it_is_done() {
        // 100 ns of work at half the rate last from 50 to 250.
        let service =
            fluid_service(&[SATURATING, OPEN], &[arrival(1, 50, 100)], Nanos(100), 3).unwrap();
        let burst: Vec<_> = service.iter().map(|w| w[1]).collect();
        assert_eq!(burst, [Nanos(25), Nanos(50), Nanos(25)]);
        assert_eq!(service[2][0], Nanos(75));
    }

    #[test]
    fn an_idle_server_serves_nobody() {
        let service = fluid_service(&[OPEN], &[arrival(0, 0, 30)], Nanos(100), 2).unwrap();
        assert_eq!(service, [[Nanos(30)], [Nanos(0)]]);
    }

    #[test]
    fn bad_arrivals_are_refused() {
        let run = |arrivals: &[Arrival]| fluid_service(&[OPEN], arrivals, Nanos(1), 1);
        assert_eq!(run(&[arrival(1, 0, 1)]), Err(GpsError::UnknownTenant(0)));
        assert_eq!(
            run(&[arrival(0, 5, 1), arrival(0, 4, 1)]),
            Err(GpsError::Unordered(1))
        );
    }

    proptest! {
        /// With one saturating tenant the server is never idle, and nobody's work is lost.
        #[test]
        fn windows_are_full(
            mut work in prop::collection::vec((1usize..4, 0u64..9_000, 1u64..2_000), 0..40),
        ) {
            work.sort_by_key(|w| w.1);
            let arrivals: Vec<_> = work.iter().map(|&(t, at, work)| arrival(t, at, work)).collect();
            let service = fluid_service(&[SATURATING, OPEN, OPEN, OPEN], &arrivals, Nanos(1_000), 10).unwrap();
            for window in &service {
                let sum: u64 = window.iter().map(|n| n.0).sum();
                prop_assert!(sum.abs_diff(1_000) <= 4, "{}", sum);
            }
            for tenant in 1..4 {
                let arrived: u64 = work.iter().filter(|w| w.0 == tenant).map(|w| w.2).sum();
                prop_assert!(service.iter().map(|w| w[tenant].0).sum::<u64>() <= arrived);
            }
        }
    }
}
