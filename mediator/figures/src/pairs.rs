//! Extra time of one side over another, from alternating blocks of work: medians and their
//! confidence intervals.
//!
//! A *round* is a block of each side, then one of each in the opposite order, so that drift affects
//! all sides alike. A *group* is the rounds of one set of processes. Processes differ from each
//! other permanently (in the place of their memory): many rounds of one group are worth less than
//! some rounds each of many groups.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde::Serialize;

use super::percentile::median;

/// Samples of the bootstrap.
const SAMPLES: usize = 2_000;

/// Extra time of one side over the other, in percent of the other's.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Excess {
    /// Median over the groups of each group's median round.
    pub median_percent: f64,
    /// Bounds of 95 % of the medians of groups and rounds that were drawn anew from those measured.
    pub interval_percent: [f64; 2],
    /// Standard deviation of those medians.
    pub standard_error_percent: f64,
    /// Each group's median.
    pub groups_percent: Vec<f64>,
    /// Rounds of all groups.
    pub rounds: usize,
}

impl Excess {
    /// From the rounds of each group, each the time of the one side and of the other. `None` if a
    /// group has none.
    pub fn of(groups: &[Vec<(f64, f64)>]) -> Option<Self> {
        let percents: Vec<Vec<f64>> = groups
            .iter()
            .map(|rounds| rounds.iter().map(percent).collect())
            .collect();
        let of_groups: Option<Vec<f64>> = percents.iter().cloned().map(median).collect();
        let groups_percent = of_groups?;
        let median_percent = median(groups_percent.clone())?;
        let mut random = SmallRng::seed_from_u64(1);
        let mut drawn: Vec<f64> = (0..SAMPLES)
            .filter_map(|_| draw(&percents, &mut random))
            .collect();
        drawn.sort_by(f64::total_cmp);
        let mean = drawn.iter().sum::<f64>() / drawn.len() as f64;
        let variance = drawn.iter().map(|m| (m - mean).powi(2)).sum::<f64>() / drawn.len() as f64;
        // CAST: an index of the samples.
        let at = |part: f64| drawn[((drawn.len() - 1) as f64 * part).round() as usize];
        Some(Self {
            median_percent,
            interval_percent: [at(0.025), at(0.975)],
            standard_error_percent: variance.sqrt(),
            groups_percent,
            rounds: percents.iter().map(Vec::len).sum(),
        })
    }
}

fn percent((one, other): &(f64, f64)) -> f64 {
    100.0 * (one - other) / other
}

/// The median of as many groups, drawn with replacement, of as many rounds each, drawn likewise.
fn draw(groups: &[Vec<f64>], random: &mut SmallRng) -> Option<f64> {
    let of_groups: Option<Vec<f64>> = (0..groups.len())
        .map(|_| {
            let rounds = &groups[random.random_range(0..groups.len())];
            let again = (0..rounds.len()).map(|_| rounds[random.random_range(0..rounds.len())]);
            median(again.collect())
        })
        .collect();
    median(of_groups?)
}

/// The order of `sides` in half a round. Each second half reverses the one before it, and each
/// round begins with another side.
pub fn order(sides: usize, half: usize) -> Vec<usize> {
    let round = half / 2;
    let turned = (0..sides).map(|place| (place + round) % sides.max(1));
    if half.is_multiple_of(2) {
        turned.collect()
    } else {
        turned.rev().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{prop_assert, proptest};

    #[test]
    fn an_excess_is_found_where_groups_differ_and_all_drifts() {
        let mut random = SmallRng::seed_from_u64(7);
        let mut noise = |width: f64| random.random_range(-width..width);
        let groups: Vec<Vec<(f64, f64)>> = (0..40)
            .map(|_| {
                let own = 1.0 + noise(0.004);
                (0..50)
                    .map(|round| {
                        let drift = 10.0 + f64::from(round) / 10.0;
                        (drift * own * (1.01 + noise(0.01)), drift)
                    })
                    .collect()
            })
            .collect();
        let excess = Excess::of(&groups).unwrap();
        let [low, high] = excess.interval_percent;
        assert!(low < 1.0 && 1.0 < high, "{excess:?}");
        assert!(
            high - low < 0.4 && excess.standard_error_percent < 0.1,
            "{excess:?}"
        );
        assert_eq!((excess.groups_percent.len(), excess.rounds), (40, 2_000));
    }

    #[test]
    fn sides_that_are_equal_have_none() {
        let excess = Excess::of(&[vec![(2.0, 2.0); 3], vec![(5.0, 5.0)]]).unwrap();
        assert_eq!(
            (excess.median_percent, excess.interval_percent),
            (0.0, [0.0; 2])
        );
        assert_eq!(Excess::of(&[vec![(1.0, 1.0)], vec![]]), None);
        assert_eq!(Excess::of(&[]), None);
    }

    proptest! {
        /// Whatever grows evenly within a round grows as much for each side.
        #[test]
        fn a_round_is_as_long_ago_for_each_side(sides in 1usize..6, round in 0usize..20) {
            let mut places = vec![0; sides];
            for half in 0..2 {
                for (place, side) in order(sides, 2 * round + half).into_iter().enumerate() {
                    places[side] += half * sides + place;
                }
            }
            prop_assert!(places.iter().all(|sum| *sum == places[0]), "{places:?}");
        }
    }
}
