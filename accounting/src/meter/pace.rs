//! Pauses between two reads of the status registers: without a pause a poll phase costs a whole
//! core.

use crate::units::Nanos;
use crate::usage::Usage;

/// Reads per state of mean length.
const READS: u64 = 8;
/// Longest pause.
const PAUSE_MAX: Nanos = Nanos::from_us(200);
/// Shortest pause that is worth its system call.
const PAUSE_MIN: Nanos = Nanos::from_us(10);

/// The pause of a poll phase, from the mean length of an engine's states in the phase before.
///
/// The pause is the same for a whole phase. Reads at even intervals meet each state in proportion
/// to its length, whether it is longer than the interval or shorter. A pause that grows with the
/// age of a state does not: it detects the end of a long state late, or misses a short state.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    pause: Nanos,
}

impl Pace {
    /// The pause of the next phase, after a phase with this usage.
    pub fn next(observed: &Usage) -> Self {
        let states = |engine: &crate::EngineUsage| {
            // Between two tenants the engine has at most one state without a tenant.
            2 * engine.tenants.iter().map(|part| part.turns).sum::<u64>() + 1
        };
        let states = observed.engines.iter().map(states).max().unwrap_or(1);
        let pause = Nanos(observed.window.length().0 / (states * READS)).min(PAUSE_MAX);
        let worth = pause >= PAUSE_MIN;
        Self {
            pause: if worth { pause } else { Nanos::ZERO },
        }
    }

    /// From one read to the next; zero for no pause.
    pub const fn pause(self) -> Nanos {
        self.pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meter::{Meter, Observation, PolledMeter};
    use crate::{EngineId, Moment, Sample, TenantId, Window};

    fn pause(states: u64, length_ns: u64) -> Nanos {
        let engine = EngineId(0);
        let mut meter = PolledMeter::new([engine]);
        for state in 0..states {
            let at = Moment(length_ns * state / states);
            let occupant = (state % 2 == 1).then_some(TenantId(1));
            meter.observe(Observation::Sample(engine, Sample { at, occupant }));
        }
        let window = Window::starting(Moment(0), Nanos(length_ns));
        Pace::next(&meter.close(window)).pause()
    }

    #[test]
    fn the_pause_is_a_part_of_the_mean_state() {
        assert_eq!(Pace::default().pause(), Nanos::ZERO);
        assert_eq!(pause(1, 1_000_000), Nanos(125_000));
        assert_eq!(pause(2, 1_200_000), Nanos(50_000));
        assert_eq!(pause(1, 9_000_000), PAUSE_MAX);
        assert_eq!(pause(1, 80_000), PAUSE_MIN);
        assert_eq!(pause(1, 79_999), Nanos::ZERO);
    }
}
