//! Lengths of poll and non-poll phases (A1.3).

use crate::units::Nanos;
use serde::{Deserialize, Serialize};

/// Which channels lengthen the phases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChannelCount {
    /// Channels with at least one doorbell write.
    #[default]
    Used,
    /// All channels, as in the paper: 12 per CUDA 6.0 application.
    Allocated,
}

/// The lengths of one cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phases {
    /// How long to poll.
    pub poll_ns: Nanos,
    /// How long to leave the GPU alone after that.
    pub nonpoll_ns: Nanos,
}

/// The phase lengths per channel.
///
/// Accuracy and cost depend on the ratio of the two lengths alone; 1:5 takes a sixth of a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhasePlan {
    /// Length of a poll phase per channel.
    pub base_poll_ns: Nanos,
    /// Length of a non-poll phase per channel.
    pub base_nonpoll_ns: Nanos,
    /// The channels that count.
    pub count: ChannelCount,
}

impl Default for PhasePlan {
    /// The paper's lengths (1 ms, 5 ms), by used channels.
    fn default() -> Self {
        Self {
            base_poll_ns: Nanos::from_ms(1),
            base_nonpoll_ns: Nanos::from_ms(5),
            count: ChannelCount::Used,
        }
    }
}

impl PhasePlan {
    /// The mean lengths for a GPU with this number of channels; one channel if there are none.
    pub fn mean(&self, used: u32, allocated: u32) -> Phases {
        let channels = u64::from(match self.count {
            ChannelCount::Used => used,
            ChannelCount::Allocated => allocated,
        });
        let length = |base: Nanos| Nanos(base.0.saturating_mul(channels.max(1)).max(1));
        Phases {
            poll_ns: length(self.base_poll_ns),
            nonpoll_ns: length(self.base_nonpoll_ns),
        }
    }

    /// The mean lengths scaled by one factor in [0.5, 1.5), uniform if `random` is.
    ///
    /// The cycle varies so that a periodic tenant is not always in the same state when it is
    /// polled. Both lengths have the same factor, so that their ratio, and with it the cost, does
    /// not change.
    pub fn randomised(&self, used: u32, allocated: u32, random: u64) -> Phases {
        let mean = self.mean(used, allocated);
        let scale = |length: Nanos| {
            let part = (u128::from(length.0) * u128::from(random)) >> 64;
            // CAST: part < length, which is a u64.
            Nanos((length.0.div_ceil(2)).saturating_add(part as u64))
        };
        Phases {
            poll_ns: scale(mean.poll_ns),
            nonpoll_ns: scale(mean.nonpoll_ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_papers_three_examples() {
        let plan = PhasePlan {
            count: ChannelCount::Allocated,
            ..PhasePlan::default()
        };
        for (applications, poll_ms, nonpoll_ms) in [(1, 12, 60), (11, 132, 660), (21, 252, 1260)] {
            let phases = plan.mean(applications, 12 * applications);
            assert_eq!(phases.poll_ns, Nanos::from_ms(poll_ms));
            assert_eq!(phases.nonpoll_ns, Nanos::from_ms(nonpoll_ms));
        }
    }

    #[test]
    fn the_mean_is_kept() {
        let plan = PhasePlan::default();
        let steps = 1_000;
        let total: u64 = (0..steps)
            .map(|i| {
                plan.randomised(1, 1, u64::MAX / steps * i + u64::MAX / steps / 2)
                    .poll_ns
                    .0
            })
            .sum();
        assert!(total.abs_diff(steps * 1_000_000) <= steps, "{total}");
    }

    proptest! {
        #[test]
        fn lengths_are_within_half_of_the_mean(base in 0u64..1 << 40, used in 0u32..5_000, random: u64) {
            let plan = PhasePlan { base_poll_ns: Nanos(base), ..PhasePlan::default() };
            let mean = plan.mean(used, 0).poll_ns.0;
            let length = plan.randomised(used, 0, random).poll_ns.0;
            prop_assert!(length >= 1);
            prop_assert!(length >= mean / 2 && length <= mean + mean.div_ceil(2));
        }
    }
}
