//! The reference: an ideal fluid server (generalised processor sharing).
//!
//! The fluid GPU serves all backlogged tenants at once, each at a rate in proportion to its weight.
//! It is never idle while a tenant is backlogged. No real schedule of non-preemptive commands can
//! follow it exactly. How far a schedule stays behind it in a window is the schedule's share error.
//!
//! A real engine also loses time (switches, launches) that the fluid model does not have. For
//! comparison with such an engine, [`fluid_service_given`] gives the fluid server in each window
//! only what all tenants together received. Both then divide the same sum, and only its
//! distribution among the tenants is compared.
//!
//! Between two arrivals each tenant's service is `min(backlog, weight * V)` for one common `V`.
//! That is weighted max-min division of the time by backlogs, so [`water_fill`] is the simulator.

use crate::share::{Claim, water_fill};
use crate::units::{Moment, Nanos};
use thiserror::Error;

/// Service is divided in units of 2^-20 ns, so that rounding stays below 1 ns over a million
/// arrivals.
const SCALE_BITS: u32 = 20;

/// One tenant of the fluid server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FluidTenant {
    /// Its weight against the others'.
    pub weight: u32,
    /// Always backlogged; arrivals of such a tenant change nothing.
    pub saturating: bool,
}

/// Work that arrives whether or not earlier work has finished (open loop).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Index of the tenant.
    pub tenant: usize,
    /// When it arrives.
    pub at: Moment,
    /// Engine time that it takes when it runs alone.
    pub work_ns: Nanos,
}

/// Why the fluid server cannot run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum GpsError {
    /// Arrivals have to be in order of time.
    #[error("Arrival {0} is earlier than the one before it")]
    Unordered(usize),
    /// An arrival of an unknown tenant.
    #[error("Arrival {0} names a tenant that does not exist")]
    UnknownTenant(usize),
}

/// Ideal service of each tenant in each of `windows` windows of `window_ns`, from moment 0 on.
///
/// The result is indexed `[window][tenant]`. A window's services add up to its length unless the
/// server was idle in it. The sum is exact to one nanosecond per tenant, as each tenant's service
/// is rounded down over all time.
///
/// # Errors
/// If arrivals are out of order, or of an unknown tenant.
pub fn fluid_service(
    tenants: &[FluidTenant],
    arrivals: &[Arrival],
    window_ns: Nanos,
    windows: usize,
) -> Result<Vec<Vec<Nanos>>, GpsError> {
    let whole = std::iter::repeat_n(window_ns, windows);
    simulate(tenants, arrivals, window_ns, whole, Unwanted::Lost)
}

/// Ideal service if the server has only `given_ns[window]` to give in each window, as a measured
/// engine had.
///
/// Within a window the capacity arrives evenly. Capacity that no tenant wants on arrival is given
/// at the window's end for work that has arrived by then: the measured engine gave it after that
/// arrival. So the services of a window add up to the smaller of two sums: what is given, and what
/// is pending or arrives in it (rounded as in [`fluid_service`]). What is pending of all tenants
/// together equals that of any other server that does the same work in the same windows, in any
/// order.
///
/// Each of `given_ns`, and `window_ns`, has to be below 2^53 ns (104 days).
///
/// # Errors
/// As [`fluid_service`].
pub fn fluid_service_given(
    tenants: &[FluidTenant],
    arrivals: &[Arrival],
    window_ns: Nanos,
    given_ns: &[Nanos],
) -> Result<Vec<Vec<Nanos>>, GpsError> {
    let given = given_ns.iter().copied();
    simulate(tenants, arrivals, window_ns, given, Unwanted::Kept)
}

/// What happens to capacity that no tenant wants on arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unwanted {
    /// It is lost, as time that passes.
    Lost,
    /// It is kept until the window's end.
    Kept,
}

fn simulate(
    tenants: &[FluidTenant],
    arrivals: &[Arrival],
    window_ns: Nanos,
    given: impl Iterator<Item = Nanos>,
    unwanted: Unwanted,
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
    let mut service = Vec::new();
    let mut before = server.served_ns();
    for (window, given) in (0u64..).zip(given) {
        let begin = Moment(window_ns.0 * window);
        let end = Moment(begin.0 + window_ns.0);
        let given = u128::from(given.0) << SCALE_BITS;
        let granted_by =
            |at: Moment| given * u128::from(at.since(begin).0) / u128::from(window_ns.0);
        let (mut granted, mut left) = (0, 0);
        while let Some(arrival) = pending.next_if(|a| a.at < end) {
            let by_now = granted_by(arrival.at);
            left += server.serve(by_now - granted);
            granted = by_now;
            server.arrive(arrival.tenant, arrival.work_ns);
        }
        left += server.serve(given - granted);
        if unwanted == Unwanted::Kept {
            server.serve(left);
        }
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
        }
    }

    fn arrive(&mut self, tenant: usize, work: Nanos) {
        if let Some(backlog) = &mut self.claims[tenant].demand {
            *backlog += u128::from(work.0) << SCALE_BITS;
        }
    }

    /// Divides `units` among the tenants with a backlog; returns what is left over.
    fn serve(&mut self, units: u128) -> u128 {
        let mut left = units;
        if units > 0 {
            for (tenant, part) in water_fill(units, &self.claims).into_iter().enumerate() {
                self.served[tenant] += part;
                left -= part;
                if let Some(backlog) = &mut self.claims[tenant].demand {
                    *backlog -= part;
                }
            }
        }
        left
    }

    fn served_ns(&self) -> Vec<Nanos> {
        // CAST: service in ns is at most what was given, or the time simulated, a u64.
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
    fn window_without_pending_work_has_zero_service() {
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

    #[test]
    fn what_is_given_is_divided_by_weight_and_a_modest_one_leaves_the_rest() {
        // Of 40 and 60 the burst of 25, beside a tenant of the same weight, gets 20 and 5.
        let given = [Nanos(40), Nanos(60)];
        let service = fluid_service_given(
            &[SATURATING, OPEN],
            &[arrival(1, 0, 25)],
            Nanos(100),
            &given,
        );
        assert_eq!(
            service.unwrap(),
            [[Nanos(20), Nanos(20)], [Nanos(55), Nanos(5)]]
        );
    }

    #[test]
    fn what_was_given_after_an_arrival_is_not_lost_before_it() {
        let service = fluid_service_given(
            &[OPEN],
            &[arrival(0, 90, 70)],
            Nanos(100),
            &[Nanos(60), Nanos(60)],
        );
        assert_eq!(service.unwrap(), [[Nanos(60)], [Nanos(10)]]);
    }

    fn open_work() -> impl Strategy<Value = Vec<Arrival>> {
        prop::collection::vec((1usize..4, 0u64..9_000, 1u64..2_000), 0..40).prop_map(|mut work| {
            work.sort_by_key(|w| w.1);
            work.iter()
                .map(|&(t, at, work)| arrival(t, at, work))
                .collect()
        })
    }

    proptest! {
        /// A server that is given all time equals the one that is never idle.
        #[test]
        fn given_all_its_time_it_is_the_same_server(arrivals in open_work()) {
            let tenants = [SATURATING, OPEN, OPEN, OPEN];
            let whole = fluid_service(&tenants, &arrivals, Nanos(1_000), 10);
            let given = fluid_service_given(&tenants, &arrivals, Nanos(1_000), &[Nanos(1_000); 10]);
            prop_assert_eq!(whole, given);
        }

        /// Given what another server did, it does the same in sum, although no tenant saturates it.
        #[test]
        fn given_what_another_did_it_does_as_much(arrivals in open_work()) {
            let tenants = [OPEN; 4];
            let whole = fluid_service(&tenants, &arrivals, Nanos(1_000), 40).unwrap();
            let sum = |window: &Vec<Nanos>| window.iter().map(|n| n.0).sum::<u64>();
            let did: Vec<Nanos> = whole.iter().map(|window| Nanos(sum(window))).collect();
            let given = fluid_service_given(&tenants, &arrivals, Nanos(1_000), &did).unwrap();
            let (mut all, mut due) = (0, 0);
            for (window, did) in given.iter().zip(&did) {
                all += did.0;
                due += sum(window);
                // Each service is rounded down once over all time.
                prop_assert!(due <= all && all - due <= 4 + tenants.len() as u64, "{} of {}", due, all);
            }
        }

        /// A window's services are the smaller of what is given and what is wanted; no tenant is
        /// served more work than it submitted.
        #[test]
        fn as_much_is_served_as_is_given_and_wanted(
            arrivals in open_work(),
            given in prop::collection::vec(0u64..1_500, 12),
            saturated: bool,
        ) {
            let tenants = [FluidTenant { saturating: saturated, ..SATURATING }, OPEN, OPEN, OPEN];
            let capacity: Vec<Nanos> = given.iter().map(|&ns| Nanos(ns)).collect();
            let service = fluid_service_given(&tenants, &arrivals, Nanos(1_000), &capacity).unwrap();
            let (mut backlog, mut served, mut expected) = (0, 0, 0);
            for (window, (service, &given)) in service.iter().zip(&given).enumerate() {
                let within = |a: &&Arrival| a.at.0 / 1_000 == window as u64;
                backlog += arrivals.iter().filter(within).map(|a| a.work_ns.0).sum::<u64>();
                let done = if saturated { given } else { given.min(backlog) };
                backlog = backlog.saturating_sub(done);
                expected += done;
                served += service.iter().map(|n| n.0).sum::<u64>();
                prop_assert!(served <= expected && expected - served <= 4, "{} of {}", served, expected);
            }
            for tenant in 1..4 {
                let arrived: u64 = arrivals.iter().filter(|a| a.tenant == tenant).map(|a| a.work_ns.0).sum();
                prop_assert!(service.iter().map(|w| w[tenant].0).sum::<u64>() <= arrived);
            }
        }

        /// Saturating tenants divide what is given by their weights.
        #[test]
        fn the_saturating_divide_what_is_given_by_weight(
            given in prop::collection::vec(0u64..1_000_000, 1..30),
            weights in prop::collection::vec(1u32..=900, 1..5),
        ) {
            let tenants: Vec<_> = weights.iter().map(|&weight| FluidTenant { weight, saturating: true }).collect();
            let capacity: Vec<Nanos> = given.iter().map(|&ns| Nanos(ns)).collect();
            let service = fluid_service_given(&tenants, &[], Nanos(1_000_000), &capacity).unwrap();
            let (all, sum) = (given.iter().sum::<u64>(), weights.iter().sum::<u32>());
            for (tenant, &weight) in weights.iter().enumerate() {
                let got: u64 = service.iter().map(|w| w[tenant].0).sum();
                let due = all * u64::from(weight) / u64::from(sum);
                prop_assert!(got.abs_diff(due) <= 1, "{} of {}", got, due);
            }
        }

        /// With one saturating tenant the server is never idle, and no tenant is served more work
        /// than it submitted.
        #[test]
        fn windows_are_full(arrivals in open_work()) {
            let service = fluid_service(&[SATURATING, OPEN, OPEN, OPEN], &arrivals, Nanos(1_000), 10).unwrap();
            for window in &service {
                let sum: u64 = window.iter().map(|n| n.0).sum();
                prop_assert!(sum.abs_diff(1_000) <= 4, "{}", sum);
            }
            for tenant in 1..4 {
                let arrived: u64 = arrivals.iter().filter(|a| a.tenant == tenant).map(|a| a.work_ns.0).sum();
                prop_assert!(service.iter().map(|w| w[tenant].0).sum::<u64>() <= arrived);
            }
        }
    }
}
