//! Percentiles of measured lengths.

use serde::{Deserialize, Serialize};

/// Percentiles of measured lengths, in nanoseconds. All zero if there were none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// Number of lengths.
    pub count: u64,
    /// The shortest.
    pub min_ns: u64,
    /// Half of them are at most this long.
    pub p50_ns: u64,
    /// Nine in ten are at most this long.
    pub p90_ns: u64,
    /// Ninety-nine in a hundred are at most this long.
    pub p99_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// Their mean.
    pub mean_ns: f64,
}

impl Percentiles {
    /// Of these lengths, in any order.
    pub fn of(mut lengths_ns: Vec<u64>) -> Self {
        lengths_ns.sort_unstable();
        let (Some(&min_ns), Some(&max_ns)) = (lengths_ns.first(), lengths_ns.last()) else {
            return Self::default();
        };
        let sum: u128 = lengths_ns.iter().map(|&ns| u128::from(ns)).sum();
        Self {
            count: lengths_ns.len() as u64,
            min_ns,
            p50_ns: rank(&lengths_ns, 50),
            p90_ns: rank(&lengths_ns, 90),
            p99_ns: rank(&lengths_ns, 99),
            max_ns,
            mean_ns: sum as f64 / lengths_ns.len() as f64,
        }
    }
}

/// Nearest rank: the smallest length that `percent` of all do not exceed. Precondition: sorted, not
/// empty.
fn rank(sorted: &[u64], percent: usize) -> u64 {
    sorted[(sorted.len() * percent).div_ceil(100).max(1) - 1]
}

/// The middle number, or the mean of the two in the middle if their count is even. `None` if there
/// are none.
pub fn median(mut numbers: Vec<f64>) -> Option<f64> {
    numbers.sort_by(f64::total_cmp);
    let middle = numbers.len() / 2;
    let upper = *numbers.get(middle)?;
    if numbers.len() % 2 == 1 {
        return Some(upper);
    }
    Some((numbers[middle - 1] + upper) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn percentiles_are_nearest_ranks() {
        let all = Percentiles::of((1..=1_000).rev().collect());
        assert_eq!(
            (all.min_ns, all.p50_ns, all.p90_ns, all.p99_ns, all.max_ns),
            (1, 500, 900, 990, 1_000)
        );
        assert!((all.mean_ns - 500.5).abs() < 1e-9);
        assert_eq!(Percentiles::of(vec![7]).p99_ns, 7);
        assert_eq!(Percentiles::of(vec![]), Percentiles::default());
    }

    #[test]
    fn a_median_stands_in_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(vec![]), None);
    }

    proptest! {
        #[test]
        fn each_percentile_is_the_smallest_value_that_covers_its_part(lengths in prop::collection::vec(0u64..1_000, 1..200)) {
            let all = Percentiles::of(lengths.clone());
            for (percent, bound) in [(50, all.p50_ns), (90, all.p90_ns), (99, all.p99_ns), (100, all.max_ns)] {
                let within = lengths.iter().filter(|&&ns| ns <= bound).count();
                let below = lengths.iter().filter(|&&ns| ns < bound).count();
                prop_assert!(within * 100 >= lengths.len() * percent);
                prop_assert!(below * 100 < lengths.len() * percent);
            }
        }
    }
}
