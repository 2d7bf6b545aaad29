//! How long a call still takes.

use std::time::Duration;

use super::rows::{Mode, Row, programs_of, rows_of};

/// A program alone is measured this long after it began: it shares with none, and is warm.
pub(super) const ALONE_SKIP: Duration = Duration::from_secs(2);
/// From the end of a window to the beginning of the next: answers, and the daemon's snapshots.
const BETWEEN: Duration = Duration::from_millis(500);
/// Loading PyTorch, and an end, of a mode; measured once one was prepared.
const LOADING: Duration = Duration::from_secs(20);
/// Making one program warm; measured likewise.
const WARMING: Duration = Duration::from_secs(6);

/// Lengths of all windows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lengths {
    pub(super) window: Duration,
    pub(super) skip: Duration,
    pub(super) rounds: u32,
}

impl Lengths {
    /// From the order to go to the beginning of a row's window.
    pub(super) fn skip_of(&self, row: &Row) -> Duration {
        if row.is_alone() {
            self.skip.min(ALONE_SKIP)
        } else {
            self.skip
        }
    }

    /// Time that a row takes, once.
    pub(super) fn of(&self, row: &Row) -> Duration {
        self.skip_of(row) + self.window + BETWEEN
    }
}

/// What a mode does after its programs are warm, in each round. Programs alone are the reference in
/// the first mode; in others they come last, so that a limit of time costs no row its figures.
pub(super) fn steps_of(mode: Mode, is_first: bool, rows: &[Row]) -> Vec<Row> {
    let mut steps = rows_of(mode, rows);
    let alone = programs_of(&steps).into_iter().map(Row::alone);
    let alone: Vec<Row> = alone.collect();
    let place = if is_first { 0 } else { steps.len() };
    steps.splice(place..place, alone);
    steps
}

/// The time that is left, by what is left to do.
#[derive(Clone, Debug)]
pub(super) struct Estimate {
    /// Of each mode: its steps in all rounds, and their time.
    modes: Vec<(usize, Duration)>,
    /// The mode under way, its steps that are done, the time of those that are not.
    mode: usize,
    done: usize,
    windows: Duration,
    is_prepared: bool,
    /// Time in which the programs of a mode become warm.
    preparation: Duration,
}

impl Estimate {
    pub(super) fn of(modes: &[Mode], rows: &[Row], lengths: &Lengths) -> Self {
        let of_mode = |mode: &Mode| {
            let steps = steps_of(*mode, Some(mode) == modes.first(), rows);
            let round: Duration = steps.iter().map(|row| lengths.of(row)).sum();
            (
                steps.len() * lengths.rounds as usize,
                round * lengths.rounds,
            )
        };
        let mut estimate = Self {
            modes: modes.iter().map(of_mode).collect(),
            mode: 0,
            done: 0,
            windows: Duration::ZERO,
            is_prepared: false,
            // CAST: at most some ten programs.
            preparation: LOADING + WARMING * programs_of(rows).len() as u32,
        };
        estimate.begin(0);
        estimate
    }

    /// The mode of this number begins; what was left of the one before is left out.
    pub(super) fn begin(&mut self, mode: usize) {
        (self.mode, self.done, self.is_prepared) = (mode, 0, false);
        self.windows = self.modes.get(mode).map_or(Duration::ZERO, |of| of.1);
    }

    /// The programs of the mode are warm.
    pub(super) fn prepared(&mut self, took: Duration) {
        (self.is_prepared, self.preparation) = (true, took);
    }

    /// A step is done, or left out.
    pub(super) fn step(&mut self, length: Duration) {
        self.done += 1;
        self.windows = self.windows.saturating_sub(length);
    }

    /// Steps that are done, and all steps.
    pub(super) fn steps(&self) -> (usize, usize) {
        let sum = |modes: &[(usize, Duration)]| modes.iter().map(|of| of.0).sum::<usize>();
        let before = self.modes.get(..self.mode).unwrap_or_default();
        (sum(before) + self.done, sum(&self.modes))
    }

    pub(super) fn left(&self) -> Duration {
        let later = self.modes.get(self.mode + 1..).unwrap_or_default();
        // CAST: at most three modes.
        let preparations = later.len() as u32 + u32::from(!self.is_prepared);
        let windows: Duration = later.iter().map(|of| of.1).sum();
        self.windows + windows + self.preparation * preparations
    }
}

/// A length for reading.
pub(super) fn words(length: Duration) -> String {
    match length.as_secs() {
        seconds @ 0..100 => format!("{seconds} s"),
        seconds => format!("{} min", seconds.div_ceil(60)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::rows::{matrix, quick};
    use super::*;

    /// The lengths of `--quick`.
    const SHORT: Lengths = Lengths {
        window: super::super::QUICK_WINDOW,
        skip: super::super::QUICK_SKIP,
        rounds: 1,
    };

    #[test]
    fn the_quick_rows_take_less_than_four_minutes() {
        let estimate = Estimate::of(&[Mode::Native, Mode::Turnstile], &quick(), &SHORT);
        assert!(estimate.left() < Duration::from_secs(230), "{estimate:?}");
        assert_eq!(estimate.steps(), (0, 2 * (3 + 3)));
    }

    #[test]
    fn all_that_was_done_leaves_nothing() {
        let modes = [Mode::Native, Mode::Turnstile, Mode::Mps];
        let rounds = 2;
        let lengths = Lengths { rounds, ..SHORT };
        let mut estimate = Estimate::of(&modes, &matrix(), &lengths);
        let all = estimate.steps().1;
        for (number, mode) in modes.into_iter().enumerate() {
            estimate.begin(number);
            if mode == Mode::Turnstile {
                // It did not start.
                continue;
            }
            estimate.prepared(Duration::from_secs(30));
            for row in steps_of(mode, mode == Mode::Native, &matrix()) {
                (0..rounds).for_each(|_| estimate.step(lengths.of(&row)));
            }
        }
        assert_eq!(estimate.left(), Duration::ZERO);
        assert_eq!(estimate.steps(), (all, all));
    }

    #[test]
    fn programs_alone_are_first_where_they_are_the_reference() {
        let rows = [matrix()[0].clone()];
        let alone = |is_first| -> Vec<bool> {
            let steps = steps_of(Mode::Turnstile, is_first, &rows);
            steps.iter().map(Row::is_alone).collect()
        };
        assert_eq!(alone(true), [true, true, false]);
        assert_eq!(alone(false), [false, true, true]);
    }

    #[test]
    fn a_lone_program_waits_less_before_its_window() {
        let alone = Row::alone("train".parse().unwrap());
        assert_eq!(SHORT.skip_of(&alone), ALONE_SKIP);
        assert_eq!(SHORT.skip_of(&matrix()[0]), super::super::QUICK_SKIP);
        assert_eq!(
            (
                words(Duration::from_secs(99)),
                words(Duration::from_secs(101))
            ),
            ("99 s".into(), "2 min".into())
        );
    }
}
