//! What the victim was served against what it was entitled to, by the GPU's own log.
//!
//! In: what ran on the compute engine, and the victim's pauses, on one clock. Out: the victim's
//! share, its entitlement, and its worst window. Pure; called by the bench after each run.
//!
//! Invariants: the victim is entitled to half of what is served while it has work or keeps its
//! place, and to nothing while it is absent. A window ends where the victim becomes absent, as
//! only lag ahead survives that. Where kernels cannot be stopped, a window does not count the rest
//! of the kernel under which the victim returns.

use std::collections::VecDeque;

use serde::Serialize;
use turnstile_figures::spans::Span;

/// Pauses that decide whether a place is kept. SOURCE: rule 2 of docs/SCHEDULING.md.
const HISTORY: usize = 16;
/// Of this many of them, the longest is left out.
const LEFT_OUT_EVERY: usize = 8;

/// A stretch in which the compute engine executed one tenant's commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) span: Span,
    /// It was the victim.
    pub(super) of_victim: bool,
}

/// What the GPU and the daemon were configured to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) patience_ns: u64,
    /// Running kernels can be stopped.
    pub(super) stops_kernels: bool,
    /// The attacker's longest kernel.
    pub(super) longest_ns: u64,
}

/// A run of the bench in figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Measured {
    pub(super) window_ns: u64,
    /// What all tenants ran.
    pub(super) served_ns: u64,
    pub(super) victim_ns: u64,
    pub(super) entitled_ns: u64,
    /// Of that, what was not possible: the victim returned under a kernel that cannot be stopped.
    pub(super) excused_ns: u64,
    /// By how much the victim fell short of its entitlement, in the worst window.
    pub(super) worst_ns: u64,
    /// The victim was in no pause.
    pub(super) has_work_ns: u64,
    /// Returns of the victim without a place.
    pub(super) returns: u64,
}

fn overlap(a: Span, b: Span) -> Span {
    let begin = a.begin_ns.max(b.begin_ns);
    Span::new(begin, a.end_ns.min(b.end_ns).max(begin))
}

/// Pauses in which the victim keeps no place: too long, or too many of the last ones were.
fn absences(pauses: &[Span], patience_ns: u64) -> Vec<Span> {
    let mut history = VecDeque::with_capacity(HISTORY);
    let mut absent = Vec::new();
    for pause in pauses {
        let mut lengths: Vec<u64> = history.iter().copied().collect();
        lengths.sort_unstable();
        let left_out = lengths.len() / LEFT_OUT_EVERY;
        let usual = lengths.iter().rev().nth(left_out);
        let keeps = usual.is_none_or(|usual| *usual <= patience_ns);
        if !keeps || pause.length_ns() > patience_ns {
            absent.push(*pause);
        }
        if history.len() == HISTORY {
            history.pop_front();
        }
        history.push_back(pause.length_ns());
    }
    absent
}

/// The figures of `window`. Segments and pauses are in order and do not overlap.
pub(super) fn measure(
    window: Span,
    segments: &[Segment],
    pauses: &[Span],
    rules: Rules,
) -> Measured {
    let mut measured = Measured {
        window_ns: window.length_ns(),
        ..Measured::default()
    };
    let within = |pause: &Span| overlap(*pause, window).length_ns();
    measured.has_work_ns = window.length_ns() - pauses.iter().map(within).sum::<u64>();
    let absences = absences(pauses, rules.patience_ns);
    let returns_within =
        |absence: &&Span| (window.begin_ns..window.end_ns).contains(&absence.end_ns);
    measured.returns = absences.iter().filter(returns_within).count() as u64;
    // Twice the shortfall: what the others were served beyond the victim.
    let (mut now, mut least, mut worst) = (0i64, 0, 0);
    let mut next = 0;
    for segment in segments {
        let span = overlap(segment.span, window);
        measured.served_ns += span.length_ns();
        while absences
            .get(next)
            .is_some_and(|it| it.end_ns <= span.begin_ns)
        {
            next += 1;
            least = now;
        }
        if segment.of_victim {
            measured.victim_ns += span.length_ns();
            measured.entitled_ns += span.length_ns();
            // CAST: a run has minutes.
            now -= span.length_ns() as i64;
            least = least.min(now);
            continue;
        }
        let (mut at, mut excused_until) = (span.begin_ns, 0);
        loop {
            let absence = absences.get(next).filter(|it| it.begin_ns < span.end_ns);
            let until = absence.map_or(span.end_ns, |it| it.begin_ns).max(at);
            let excused = until.min(excused_until).saturating_sub(at);
            measured.entitled_ns += until - at;
            measured.excused_ns += excused;
            now += (until - at - excused) as i64;
            worst = worst.max(now - least);
            let Some(absence) = absence.filter(|it| it.end_ns < span.end_ns) else {
                break;
            };
            at = at.max(absence.end_ns);
            next += 1;
            least = now;
            if !rules.stops_kernels {
                excused_until = at + rules.longest_ns;
            }
        }
    }
    measured.excused_ns /= 2;
    measured.entitled_ns /= 2;
    measured.worst_ns = (worst / 2).unsigned_abs();
    measured
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn rules(stops_kernels: bool) -> Rules {
        Rules {
            patience_ns: MS,
            stops_kernels,
            longest_ns: 10 * MS,
        }
    }

    /// Segments of these lengths in milliseconds; an `a` is the attacker's, a `v` the victim's.
    fn ran(lengths: &[(char, u64)]) -> Vec<Segment> {
        let mut at = 0;
        let segment = |(name, ms): &(char, u64)| {
            let begin = at;
            at += ms * MS;
            let of_victim = *name == 'v';
            let span = Span::new(begin, at);
            Segment { span, of_victim }
        };
        lengths
            .iter()
            .map(segment)
            .filter(|it| it.span.length_ns() > 0)
            .collect()
    }

    #[test]
    fn the_worst_window_is_half_of_what_the_others_had_beyond_the_victim() {
        let segments = ran(&[('v', 4), ('a', 10), ('v', 2), ('a', 10), ('v', 30)]);
        let measured = measure(Span::new(0, 56 * MS), &segments, &[], rules(false));
        assert_eq!(measured.worst_ns, 9 * MS);
        assert_eq!((measured.served_ns, measured.victim_ns), (56 * MS, 36 * MS));
        assert_eq!(measured.entitled_ns, 28 * MS);
        assert_eq!((measured.has_work_ns, measured.returns), (56 * MS, 0));
    }

    #[test]
    fn an_absence_and_the_kernel_under_which_it_ends_are_not_counted() {
        let segments = ran(&[('v', 4), ('a', 20), ('v', 4)]);
        let pauses = [Span::new(4 * MS, 18 * MS)];
        let window = Span::new(0, 28 * MS);
        let measured = measure(window, &segments, &pauses, rules(false));
        assert_eq!((measured.worst_ns, measured.returns), (0, 1));
        assert_eq!(measured.entitled_ns, 7 * MS);
        assert_eq!(measured.excused_ns, 3 * MS);
        assert_eq!(measured.has_work_ns, 14 * MS);
        let measured = measure(window, &segments, &pauses, rules(true));
        assert_eq!(
            measured.worst_ns,
            3 * MS,
            "a kernel that can be stopped counts"
        );
    }

    #[test]
    fn a_short_pause_counts_while_the_place_is_kept() {
        let short = Span::new(4 * MS, 5 * MS);
        let segments = ran(&[('v', 4), ('a', 8)]);
        let measured = measure(Span::new(0, 12 * MS), &segments, &[short], rules(false));
        assert_eq!((measured.worst_ns, measured.returns), (4 * MS, 0));
        let long: Vec<Span> = (0..3)
            .map(|n| Span::new(n * 9 * MS, (n * 9 + 5) * MS))
            .collect();
        let all = [long, vec![Span::new(40 * MS, 40 * MS + 1)]].concat();
        assert_eq!(absences(&all, MS).len(), 4, "long pauses take the place");
    }
}
