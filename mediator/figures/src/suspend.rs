//! Suspensions against the gaps that the suspended kernel recorded.

use serde::{Deserialize, Serialize};

use super::percentile::Percentiles;
use super::spans::Span;

/// One suspension and resumption, on the wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trial {
    /// The call that suspends: begun, returned.
    pub suspend: Span,
    /// The call that resumes: begun, returned.
    pub resume: Span,
}

/// Figures of the trials of one kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Suspensions {
    /// Trials made.
    pub trials: u64,
    /// Trials in which the kernel was not stopped from the suspending call's return to the resuming
    /// call's beginning.
    pub not_stopped: u64,
    /// From the beginning of the suspending call to the last instruction before the gap.
    pub to_last_instruction: Percentiles,
    /// Length of the suspending call.
    pub suspend_call: Percentiles,
    /// From the beginning of the resuming call to the first instruction.
    pub to_first_instruction: Percentiles,
    /// Length of the resuming call.
    pub resume_call: Percentiles,
}

/// Matches `trials` with `gaps`, both in order of time. A gap is a trial's if it covers the time
/// between its two calls. Clocks may differ by `error_ns`, and the last instruction may be up to a
/// step of work later than the gap's beginning.
pub fn suspensions(trials: &[Trial], gaps: &[Span], error_ns: u64) -> Suspensions {
    let mut to_last = Vec::new();
    let mut to_first = Vec::new();
    for trial in trials {
        let (from, to) = (trial.suspend.end_ns, trial.resume.begin_ns);
        let after = gaps.partition_point(|gap| gap.end_ns + error_ns < to);
        let covers = |gap: &&Span| gap.begin_ns <= from + error_ns;
        if let Some(gap) = gaps.get(after).filter(covers) {
            to_last.push(gap.begin_ns.saturating_sub(trial.suspend.begin_ns));
            to_first.push(gap.end_ns.saturating_sub(trial.resume.begin_ns));
        }
    }
    let calls = |of: fn(&Trial) -> Span| {
        Percentiles::of(trials.iter().map(|trial| of(trial).length_ns()).collect())
    };
    Suspensions {
        trials: trials.len() as u64,
        not_stopped: (trials.len() - to_last.len()) as u64,
        to_last_instruction: Percentiles::of(to_last),
        suspend_call: calls(|trial| trial.suspend),
        to_first_instruction: Percentiles::of(to_first),
        resume_call: calls(|trial| trial.resume),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(at: u64) -> Trial {
        Trial {
            suspend: Span::new(at, at + 400),
            resume: Span::new(at + 1_000, at + 1_300),
        }
    }

    #[test]
    fn a_gap_belongs_to_the_trial_that_it_covers() {
        let trials = [trial(10_000), trial(20_000), trial(30_000)];
        let gaps = [
            Span::new(5_000, 5_100),
            Span::new(10_200, 11_250),
            // The second trial's kernel was off for another reason, and back before it was resumed.
            Span::new(20_100, 20_900),
            Span::new(30_300, 31_150),
        ];
        let found = suspensions(&trials, &gaps, 10);
        assert_eq!((found.trials, found.not_stopped), (3, 1));
        assert_eq!(
            (
                found.to_last_instruction.min_ns,
                found.to_last_instruction.max_ns
            ),
            (200, 300)
        );
        assert_eq!(found.to_first_instruction.max_ns, 250);
        assert_eq!(
            (found.suspend_call.p50_ns, found.resume_call.p50_ns),
            (400, 300)
        );
    }

    #[test]
    fn a_gap_that_begins_late_is_no_stop() {
        let found = suspensions(&[trial(10_000)], &[Span::new(10_600, 11_200)], 10);
        assert_eq!(found.not_stopped, 1);
        assert_eq!(suspensions(&[], &[], 0).trials, 0);
    }
}
