//! What each tenant of a cell is entitled to in every bucket: the fluid server of accounting.
//!
//! A GPU gives less than its full time: nothing executes while it switches contexts or processes
//! launches. Shares are parts of what all tenants received, so entitlement divides *what the GPU
//! gave*. How much it gave is another figure
//! ([`useful_percent`](super::cell::CellLine::useful_percent)). In each bucket the fluid server
//! gives as much as all tenants received together in it, in the same figure (executed, occupied or
//! worked):
//!
//! - tenants that always want more divide it by their weights;
//! - a tenant with unserved bursts is entitled to its part by weight until they are served, and to
//!   nothing then;
//! - what it leaves goes to the others.
//!
//! Example: an engine gives 87 % of the time, and a tenant wants 30 % and gets it. Against a server
//! with all of the time, it would have 30 / 0.87 = 35 % of what was given: "5 points too much",
//! though no tenant lacks anything.
//!
//! **What stays an error**: the fluid server serves all tenants with demand at once, a GPU one
//! after the other. A burst that waits for the engine, or is served whole beside a busy tenant, is
//! an error in windows that cut it. A burst is a number of kernels of their nominal length: kernels
//! that take longer (0.1 to 0.8 % on an H200) are more than was wanted. **What is no error here**:
//! time that no tenant received, whatever the cause.

use turnstile_accounting::gps::{
    Arrival, FluidTenant, GpsError, fluid_service, fluid_service_given,
};
use turnstile_accounting::{Moment, Nanos};

use super::BUCKET_NS;
use super::bursts::bursts;
use super::matrix::{Length, Pattern, Tenant};

/// What each of `tenants` was entitled to in each bucket of `bucket_ns`, of what all `received` in
/// it: `[tenant][bucket]`, in nanoseconds. `executed` and `received` have the same indices.
///
/// A burst's work is the nominal length of its kernels times the tenant's ratio of received to
/// executed time in the run. The ratio is 1 where executed time is what is received, and more with
/// the pauses or the launches between its kernels.
///
/// A bucket in which no tenant received anything divides one nanosecond. A window in which tenants
/// had demand but received nothing then counts with the largest error and is not left out.
///
/// # Errors
/// If arrivals are out of order; those made here are sorted.
pub fn entitlement(
    tenants: &[Tenant],
    bucket_ns: u64,
    received: &[&[u64]],
    executed: &[&[u64]],
) -> Result<Vec<Vec<u64>>, GpsError> {
    let count = received.iter().map(|buckets| buckets.len()).min();
    let given = |bucket: usize| -> Nanos {
        let all: u64 = received.iter().map(|buckets| buckets[bucket]).sum();
        Nanos(all.max(1))
    };
    let given: Vec<Nanos> = (0..count.unwrap_or(0)).map(given).collect();
    let sum = |buckets: &[u64]| buckets.iter().map(|&ns| u128::from(ns)).sum::<u128>();
    let in_figure = |tenant: usize, work_ns: u64| match sum(executed[tenant]) {
        0 => work_ns,
        // CAST: a burst has milliseconds, and a tenant receives less than a thousand times what it
        // executes.
        own => (u128::from(work_ns) * sum(received[tenant]) / own) as u64,
    };
    let arrivals = arrivals(tenants, bucket_ns * given.len() as u64, in_figure);
    let service = fluid_service_given(&fluid(tenants), &arrivals, Nanos(bucket_ns), &given)?;
    Ok(by_tenant(tenants.len(), &service))
}

/// What a GPU that loses no time serves in each of `count` buckets of [`BUCKET_NS`]:
/// `[tenant][bucket]`, in nanoseconds of wall-clock time.
///
/// # Errors
/// As [`entitlement`].
pub(crate) fn lossless(tenants: &[Tenant], count: usize) -> Result<Vec<Vec<u64>>, GpsError> {
    let arrivals = arrivals(tenants, BUCKET_NS * count as u64, |_, work_ns| work_ns);
    let service = fluid_service(&fluid(tenants), &arrivals, Nanos(BUCKET_NS), count)?;
    Ok(by_tenant(tenants.len(), &service))
}

/// Busy tenants always want more. Bursty ones want the work of their bursts, whether or not it is
/// served at once. Idle ones want nothing.
fn fluid(tenants: &[Tenant]) -> Vec<FluidTenant> {
    tenants
        .iter()
        .map(|tenant| FluidTenant {
            weight: tenant.weight,
            saturating: matches!(tenant.pattern, Pattern::Busy | Pattern::Deep),
        })
        .collect()
}

/// The bursts of a run; `work_ns` converts a tenant's nominal work to the figure that is divided.
fn arrivals(
    tenants: &[Tenant],
    length_ns: u64,
    work_ns: impl Fn(usize, u64) -> u64,
) -> Vec<Arrival> {
    let mut arrivals = Vec::new();
    for (index, tenant) in tenants.iter().enumerate() {
        let (Pattern::Bursty, Length::Us(us)) = (tenant.pattern, tenant.kernel) else {
            continue;
        };
        let kernel_ns = us * 1_000;
        for burst in bursts(tenant.seed, kernel_ns, length_ns) {
            arrivals.push(Arrival {
                tenant: index,
                at: Moment(burst.at_ns),
                work_ns: Nanos(work_ns(index, burst.kernels * kernel_ns)),
            });
        }
    }
    arrivals.sort_by_key(|arrival| arrival.at);
    arrivals
}

fn by_tenant(tenants: usize, service: &[Vec<Nanos>]) -> Vec<Vec<u64>> {
    let of = |tenant: usize| service.iter().map(|bucket| bucket[tenant].0).collect();
    (0..tenants).map(of).collect()
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;
    use crate::windows::worst;
    use proptest::prelude::*;
    use turnstile_accounting::share::{max_share_error_points, shares};

    fn tenant(weight: u32, kernel: Length, pattern: Pattern) -> Tenant {
        Tenant {
            weight,
            kernel,
            pattern,
            seed: 1,
        }
    }

    fn slices(side: &[Vec<u64>]) -> Vec<&[u64]> {
        side.iter().map(Vec::as_slice).collect()
    }

    /// Entitlement to executed time, in buckets of 10 ms.
    fn due(tenants: &[Tenant], executed: &[Vec<u64>]) -> Vec<Vec<u64>> {
        let executed = slices(executed);
        entitlement(tenants, BUCKET_NS, &executed, &executed).unwrap()
    }

    fn sliding(received: &[Vec<u64>], entitled: &[Vec<u64>]) -> f64 {
        worst(received, entitled, 100, 100, 1).unwrap().points
    }

    fn sums(side: &[Vec<u64>], buckets: Range<usize>) -> Vec<Nanos> {
        let sum = |tenant: &Vec<u64>| Nanos(tenant[buckets.clone()].iter().sum());
        side.iter().map(sum).collect()
    }

    fn percents(side: &[Vec<u64>]) -> Vec<f64> {
        let parts = shares(&sums(side, 100..side[0].len()));
        parts.iter().map(|part| 100.0 * part).collect()
    }

    /// A bursty tenant of 50 us and a busy one of 2 ms, one after the other in buckets of 10 ms. In
    /// a bucket of its own the bursty one executes 8.4 ms, the busy one 9.9 ms; 1 ms is lost where
    /// both run. The bursty one goes first, unless it is `starved` in this bucket.
    fn in_turns(
        tenants: &[Tenant; 2],
        count: usize,
        starved: impl Fn(usize) -> bool,
    ) -> Vec<Vec<u64>> {
        let Length::Us(us) = tenants[1].kernel else {
            unreachable!("these have lengths")
        };
        let mut bursts = bursts(tenants[1].seed, us * 1_000, BUCKET_NS * count as u64)
            .into_iter()
            .peekable();
        let (mut waiting, mut side) = (0, vec![Vec::new(), Vec::new()]);
        for bucket in 0..count {
            let begin = BUCKET_NS * bucket as u64;
            while let Some(burst) = bursts.next_if(|burst| burst.at_ns <= begin) {
                waiting += burst.kernels * us * 1_000;
            }
            let own = if starved(bucket) {
                0
            } else {
                waiting.min(8_400_000)
            };
            waiting -= own;
            side[1].push(own);
            side[0].push(match own {
                0 => 9_900_000,
                8_400_000 => 0,
                own => 8_900_000 - own,
            });
        }
        side
    }

    fn pair() -> [Tenant; 2] {
        [
            tenant(100, Length::Us(2_000), Pattern::Busy),
            tenant(100, Length::Us(50), Pattern::Bursty),
        ]
    }

    #[test]
    fn without_loss_busy_tenants_are_entitled_to_their_weights() {
        let tenants = [
            tenant(900, Length::Us(200), Pattern::Busy),
            tenant(100, Length::Endless, Pattern::Busy),
            tenant(500, Length::Us(200), Pattern::Idle),
        ];
        let expected = [vec![9_000_000; 3], vec![1_000_000; 3], vec![0; 3]];
        assert_eq!(
            lossless(&tenants, 3).unwrap(),
            expected,
            "an idle tenant's weight is nobody's"
        );
        let executed = [vec![3_000_000; 3], vec![7_000_000; 3], vec![0; 3]];
        assert_eq!(due(&tenants, &executed), expected);
    }

    #[test]
    fn a_burst_is_served_in_full_and_takes_no_more_than_its_weight() {
        let tenants = [
            tenant(100, Length::Us(2_000), Pattern::Busy),
            tenant(100, Length::Us(200), Pattern::Bursty),
        ];
        let due = lossless(&tenants, 1_000).unwrap();
        let all = bursts(1, 200_000, 10_000_000_000);
        let wanted: u64 = all.iter().map(|burst| burst.kernels * 200_000).sum();
        let got: u64 = due[1].iter().sum();
        assert!(
            got <= wanted && wanted - got < 100_000_000,
            "{got} of {wanted}"
        );
        assert!(due[1].iter().all(|&bucket| bucket <= BUCKET_NS / 2 + 1));
        assert!(
            due[1].contains(&0),
            "between bursts it is entitled to nothing"
        );
        let whole = |bucket: usize| (due[0][bucket] + due[1][bucket]).abs_diff(BUCKET_NS) <= 2;
        assert!((0..1_000).all(whole));
    }

    #[test]
    fn share_error_is_small_for_fully_served_tenant_on_gpu_with_lost_time() {
        let tenants = pair();
        let executed = in_turns(&tenants, 600, |_| false);
        let due = due(&tenants, &executed);
        let lossless = lossless(&tenants, 600).unwrap();
        let (now, before) = (sliding(&executed, &due), sliding(&executed, &lossless));
        // Bursts are served whole, and begin or end in the middle of windows.
        assert!(now < 2.5 && before > 4.0, "{now} {before}");
        let part = |side: &[Vec<u64>]| percents(side)[1];
        let (share, now, before) = (part(&executed), part(&due), part(&lossless));
        assert!(
            (share - now).abs() < 0.5 && share - before > 1.5,
            "{share} {now} {before}"
        );
        let all = |side: &[Vec<u64>]| side.iter().flatten().sum::<u64>();
        assert!(
            all(&due).abs_diff(all(&executed)) <= 2,
            "both divide the same"
        );
    }

    /// What a bursty tenant of 50 us and one of 2 ms executed in each 10 ms. They ran for 4 s at
    /// 1:1 on one H200: together 86 % of the time.
    #[test]
    fn a_recorded_burst_that_lacks_nothing_has_what_it_is_entitled_to() {
        let number = |word: &str| word.parse().unwrap();
        let executed: Vec<Vec<u64>> = include_str!("entitlement/50us-bursty-2ms.txt")
            .lines()
            .map(|line| line.split(' ').map(number).collect())
            .collect();
        let mut tenants = pair();
        tenants.reverse();
        tenants[1].seed = 2;
        let (due, lossless) = (due(&tenants, &executed), lossless(&tenants, 400).unwrap());
        let (share, now, before) = (
            percents(&executed)[0],
            percents(&due)[0],
            percents(&lossless)[0],
        );
        assert!(
            (share - now).abs() < 0.3 && share - before > 5.0,
            "{share} {now} {before}"
        );
        let aligned = |due: &[Vec<u64>]| worst(&executed, due, 100, 100, 100).unwrap().points;
        let (now, before) = (aligned(&due), aligned(&lossless));
        assert!(now < 0.5 && before > 6.0, "{now} {before}");
        let (now, before) = (sliding(&executed, &due), sliding(&executed, &lossless));
        // Bursts were served whole at the edges of some windows.
        assert!((2.0..2.5).contains(&now) && before > 6.9, "{now} {before}");
    }

    #[test]
    fn one_second_without_service_shows_as_share_error() {
        let tenants = pair();
        let executed = in_turns(&tenants, 600, |bucket| (200..300).contains(&bucket));
        let due = due(&tenants, &executed);
        let (had, wanted) = (sums(&executed, 200..300), sums(&due, 200..300));
        let points = max_share_error_points(&had, &wanted);
        assert!((25.0..50.0).contains(&points), "{points}");
        assert!(sliding(&executed, &due) >= points);
    }

    #[test]
    fn a_second_in_which_nothing_is_given_is_not_left_out() {
        let tenants = pair();
        let mut executed = in_turns(&tenants, 600, |_| false);
        for buckets in &mut executed {
            buckets[300..400].fill(0);
        }
        let due = due(&tenants, &executed);
        let points = max_share_error_points(&sums(&executed, 300..400), &sums(&due, 300..400));
        assert!(points >= 49.0, "{points}");
        assert!(sliding(&executed, &due) >= points);
    }

    #[test]
    fn with_pauses_and_launches_a_burst_is_more() {
        let tenants = pair();
        let executed = in_turns(&tenants, 600, |_| false);
        let more = |percent: u64| {
            move |buckets: &Vec<u64>| -> Vec<u64> {
                buckets.iter().map(|ns| ns * percent / 100).collect()
            }
        };
        let occupied = vec![more(101)(&executed[0]), more(119)(&executed[1])];
        let due = entitlement(&tenants, BUCKET_NS, &slices(&occupied), &slices(&executed)).unwrap();
        let all = |buckets: &[u64]| buckets.iter().sum::<u64>() as f64;
        assert!((all(&due[1]) / all(&occupied[1]) - 1.0).abs() < 0.02);
        assert!(sliding(&occupied, &due) < 2.5);
    }

    #[test]
    fn bursty_tenants_served_one_after_the_other_are_due_what_they_executed() {
        let mut tenants = [tenant(100, Length::Us(200), Pattern::Bursty); 2];
        tenants[1].seed = 2;
        // One after the other, each burst whole.
        let mut executed = vec![vec![0; 600]; 2];
        let (mut free_ns, arrivals) = (0, arrivals(&tenants, 6_000_000_000, |_, work_ns| work_ns));
        for burst in &arrivals {
            let begin_ns = free_ns.max(burst.at.0);
            free_ns = begin_ns + burst.work_ns.0;
            let span = crate::spans::Span::new(begin_ns, free_ns);
            let served = crate::spans::buckets(&[span], 0, BUCKET_NS, 600);
            executed[burst.tenant]
                .iter_mut()
                .zip(served)
                .for_each(|(all, ns)| *all += ns);
        }
        let due = due(&tenants, &executed);
        for (due, executed) in due.iter().zip(&executed) {
            let (due, executed) = (due.iter().sum::<u64>(), executed.iter().sum::<u64>());
            // Work under way when the run ends.
            assert!(due.abs_diff(executed) < 50_000_000, "{due} {executed}");
        }
        for bucket in 0..600 {
            let (due, executed) = (
                due[0][bucket] + due[1][bucket],
                executed[0][bucket] + executed[1][bucket],
            );
            assert!(due.abs_diff(executed) <= 4, "{bucket}: {due} {executed}");
        }
    }

    proptest! {
        /// With busy tenants only, the error equals the one from the weights, whatever the GPU
        /// gave.
        #[test]
        fn busy_tenants_are_entitled_to_their_weights_of_whatever_is_given(
            weights in prop::collection::vec(1u32..=100, 1..5),
            seed in prop::collection::vec(0u64..10_000_000, 40..80),
        ) {
            let tenants: Vec<Tenant> = weights.iter().map(|&weight| tenant(100 * weight, Length::Us(200), Pattern::Busy)).collect();
            let count = seed.len();
            let executed: Vec<Vec<u64>> = (0..tenants.len())
                .map(|tenant| (0..count).map(|bucket| seed[(bucket * (tenant + 1)) % count] / tenants.len() as u64).collect())
                .collect();
            let (given, whole) = (due(&tenants, &executed), lossless(&tenants, count).unwrap());
            for from in 0..count - 10 {
                let error = |due: &[Vec<u64>]| {
                    let width = |side: &[Vec<u64>]| -> Vec<Vec<u64>> { side.iter().map(|b| b[from..from + 10].to_vec()).collect() };
                    worst(&width(&executed), &width(due), 10, 0, 1).unwrap().points
                };
                let (given, whole) = (error(&given), error(&whole));
                prop_assert!((given - whole).abs() < 1e-4, "{} {}", given, whole);
            }
        }
    }
}
