//! What each tenant of a cell is entitled to in every bucket: the fluid server of accounting.

use turnstile_accounting::gps::{Arrival, FluidTenant, GpsError, fluid_service};
use turnstile_accounting::{Moment, Nanos};

use super::BUCKET_NS;
use super::bursts::bursts;
use super::matrix::{Length, Pattern, Tenant};

/// Service that a fluid GPU gives to `tenants` in each of `count` buckets: `[tenant][bucket]`, in nanoseconds.
///
/// Busy tenants always want more; a bursty one wants the work of its bursts, whether or not it is served at once; an idle one
/// wants nothing.
///
/// # Errors
/// Never with bursts as they are made; the fluid server refuses arrivals out of order.
pub fn entitlement(tenants: &[Tenant], count: usize) -> Result<Vec<Vec<u64>>, GpsError> {
    let fluid: Vec<FluidTenant> = tenants
        .iter()
        .map(|tenant| FluidTenant {
            weight: tenant.weight,
            saturating: matches!(tenant.pattern, Pattern::Busy | Pattern::Deep),
        })
        .collect();
    let mut arrivals = Vec::new();
    for (index, tenant) in tenants.iter().enumerate() {
        let (Pattern::Bursty, Length::Us(us)) = (tenant.pattern, tenant.kernel) else {
            continue;
        };
        let kernel_ns = us * 1_000;
        for burst in bursts(tenant.seed, kernel_ns, BUCKET_NS * count as u64) {
            arrivals.push(Arrival {
                tenant: index,
                at: Moment(burst.at_ns),
                work_ns: Nanos(burst.kernels * kernel_ns),
            });
        }
    }
    arrivals.sort_by_key(|arrival| arrival.at);
    let service = fluid_service(&fluid, &arrivals, Nanos(BUCKET_NS), count)?;
    let of = |tenant: usize| service.iter().map(|bucket| bucket[tenant].0).collect();
    Ok((0..tenants.len()).map(of).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(weight: u32, kernel: Length, pattern: Pattern) -> Tenant {
        Tenant {
            weight,
            kernel,
            pattern,
            seed: 1,
        }
    }

    #[test]
    fn busy_tenants_are_entitled_to_their_weights() {
        let tenants = [
            tenant(900, Length::Us(200), Pattern::Busy),
            tenant(100, Length::Endless, Pattern::Busy),
            tenant(500, Length::Us(200), Pattern::Idle),
        ];
        let due = entitlement(&tenants, 3).unwrap();
        assert_eq!(
            due,
            [vec![9_000_000; 3], vec![1_000_000; 3], vec![0; 3]],
            "an idle tenant's weight is nobody's"
        );
    }

    #[test]
    fn a_burst_is_served_in_full_and_takes_no_more_than_its_weight() {
        let tenants = [
            tenant(100, Length::Us(2_000), Pattern::Busy),
            tenant(100, Length::Us(200), Pattern::Bursty),
        ];
        let due = entitlement(&tenants, 1_000).unwrap();
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
}
