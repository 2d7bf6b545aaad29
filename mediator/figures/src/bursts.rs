//! Bursty work, generated identically for the load that executes it and for the entitlement model.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Mean engine time of a burst.
pub(crate) const ON_NS: u64 = 30_000_000;
/// Mean time from the end of a burst, if it is served at once, to the next burst.
pub(crate) const OFF_NS: u64 = 70_000_000;

/// Work that arrives at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Burst {
    /// Arrival time, from the beginning of the run.
    pub at_ns: u64,
    /// Number of kernels.
    pub kernels: u64,
}

/// The bursts of a run of `length_ns` with kernels of `kernel_ns`. Lengths and pauses are uniform
/// between half and one and a half of their means. Open loop: a burst arrives whether or not the
/// previous one is done.
pub fn bursts(seed: u64, kernel_ns: u64, length_ns: u64) -> Vec<Burst> {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut about = |mean: u64| random.random_range(mean / 2..=mean + mean / 2);
    let mut found = Vec::new();
    let mut at_ns = about(OFF_NS);
    while at_ns < length_ns {
        let on_ns = about(ON_NS);
        let kernels = (on_ns / kernel_ns.max(1)).max(1);
        found.push(Burst { at_ns, kernels });
        at_ns += on_ns + about(OFF_NS);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_need_three_tenths_and_are_the_same_each_time() {
        let (kernel_ns, length_ns) = (200_000, 60_000_000_000);
        let all = bursts(7, kernel_ns, length_ns);
        assert_eq!(all, bursts(7, kernel_ns, length_ns));
        assert_ne!(all, bursts(8, kernel_ns, length_ns));
        assert!(all.windows(2).all(|pair| pair[0].at_ns < pair[1].at_ns));
        let work: u64 = all.iter().map(|burst| burst.kernels * kernel_ns).sum();
        let part = work as f64 / length_ns as f64;
        assert!((0.28..0.32).contains(&part), "{part}");
    }

    #[test]
    fn a_burst_of_long_kernels_has_one() {
        assert!(
            bursts(7, 50_000_000, 1_000_000_000)
                .iter()
                .all(|burst| burst.kernels == 1)
        );
        assert_eq!(bursts(7, 1, 0), []);
    }
}
