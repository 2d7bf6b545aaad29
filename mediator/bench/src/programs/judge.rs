//! Runs to lines of the table: medians over rounds, and what the promises make of them.
//!
//! The promises are of turnstile's rows, against the same programs natively, where that was
//! measured. `docs/NVIDIA.md` states them.

use std::collections::BTreeMap;

use serde::Serialize;
use turnstile_figures::percentile::median;

use super::rows::{Mode, PROGRAMS, Program, Row, evened, matrix};
use super::runs::{Figures, Run};

/// Each program's progress is at least this much of its part.
const OF_PART: f64 = 0.9;
/// A program's progress, and a sum of progress, is at most this much below native's.
const BELOW_NATIVE: f64 = 0.03;
/// The same of the sum of a row with decoding.
const BELOW_NATIVE_DECODING: f64 = 0.1;
/// The mean of all sums is at least this much of native's.
const OF_NATIVE_MEAN: f64 = 0.98;
/// Differences of the arithmetic of floating-point numbers.
const ROUNDING: f64 = 1e-9;

/// A program of a line.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Share {
    pub(super) program: Program,
    /// Its weight, of the weights of the row.
    pub(super) part: f64,
    pub(super) progress: f64,
    pub(super) rate: f64,
    pub(super) p50_ms: Option<f64>,
    pub(super) p99_ms: Option<f64>,
    /// The worst of all rounds.
    pub(super) worst_2s: Option<f64>,
    pub(super) charged_percent: Option<f64>,
}

/// Whether a row keeps the promises; absent where native was not measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Verdict {
    /// Each program's progress is at least 0.9 of its part.
    pub(super) part: bool,
    /// Each program's progress is at least the lesser of native's and its part, less 0.03.
    pub(super) native: Option<bool>,
    /// The sum is at least native's less 0.03, with decoding less 0.1.
    pub(super) sum: Option<bool>,
}

impl Verdict {
    pub(super) fn is_kept(&self) -> bool {
        self.part && self.native.unwrap_or(true) && self.sum.unwrap_or(true)
    }
}

/// A row in a mode.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Line {
    pub(super) mode: Mode,
    pub(super) row: Row,
    pub(super) rounds: usize,
    pub(super) programs: Vec<Share>,
    /// Of the programs' progress.
    pub(super) sum: f64,
    pub(super) daemon_cpu_percent: Option<f64>,
    /// Of turnstile's lines.
    pub(super) verdict: Option<Verdict>,
}

/// The mean of the sums of rows with several programs that both modes measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Mean {
    pub(super) rows: usize,
    pub(super) native: f64,
    pub(super) turnstile: f64,
    /// It is at least 0.98 of native's.
    pub(super) kept: bool,
}

/// The lines of these runs: programs alone first, then as the matrix, each row's modes together.
pub(super) fn lines(runs: &[Run]) -> Vec<Line> {
    let matrix = matrix();
    let place = |row: &Row| match row.members() {
        [(alone, _)] => PROGRAMS.iter().position(|name| *name == alone.name()),
        _ => matrix.iter().position(|other| other == row),
    };
    let mut groups: BTreeMap<_, Vec<&Run>> = BTreeMap::new();
    for run in runs {
        let row = &run.row;
        let place = place(row).unwrap_or(matrix.len());
        let key = (!row.is_alone(), place, row.clone(), run.mode);
        groups.entry(key).or_default().push(run);
    }
    let mut lines: Vec<Line> = groups.values().filter_map(|runs| line(runs)).collect();
    let natives: BTreeMap<Row, Line> = lines
        .iter()
        .filter(|line| line.mode == Mode::Native)
        .map(|line| (line.row.clone(), line.clone()))
        .collect();
    for line in &mut lines {
        if line.mode == Mode::Turnstile {
            line.verdict = Some(verdict(line, natives.get(&evened(&line.row))));
        }
    }
    lines
}

/// One line of the runs of a row in a mode. `None` if there are none.
fn line(runs: &[&Run]) -> Option<Line> {
    let first = runs.first()?;
    let share = |(index, part): (usize, f64)| {
        let all: Vec<&Figures> = runs
            .iter()
            .filter_map(|run| run.programs.get(index))
            .collect();
        let present = |of: fn(&Figures) -> Option<f64>| {
            let numbers: Vec<f64> = all.iter().filter_map(|figures| of(figures)).collect();
            numbers
        };
        Some(Share {
            program: first.programs.get(index)?.program.clone(),
            part,
            progress: median(present(|figures| Some(figures.progress)))?,
            rate: median(present(|figures| Some(figures.window.rate)))?,
            p50_ms: median(present(|figures| figures.window.p50_ms)),
            p99_ms: median(present(|figures| figures.window.p99_ms)),
            worst_2s: present(|figures| figures.worst_2s)
                .into_iter()
                .reduce(f64::min),
            charged_percent: median(present(|figures| figures.charged_percent)),
        })
    };
    let parts = first.row.parts().into_iter().enumerate();
    let programs: Vec<Share> = parts.map(share).collect::<Option<_>>()?;
    let cpu = runs.iter().filter_map(|run| run.daemon_cpu_percent);
    Some(Line {
        mode: first.mode,
        row: first.row.clone(),
        rounds: runs.len(),
        sum: programs.iter().map(|share| share.progress).sum(),
        programs,
        daemon_cpu_percent: median(cpu.collect()),
        verdict: None,
    })
}

fn verdict(line: &Line, native: Option<&Line>) -> Verdict {
    let at_least = |value: f64, least: f64| value >= least - ROUNDING;
    let keeps_part = |share: &Share| at_least(share.progress, OF_PART * share.part);
    let natives = |share: &Share| {
        let native = native?.programs.iter();
        let mut same = native.filter(|other| other.program == share.program);
        Some(at_least(
            share.progress,
            same.next()?.progress.min(share.part) - BELOW_NATIVE,
        ))
    };
    let below = if line.row.programs().any(Program::decodes) {
        BELOW_NATIVE_DECODING
    } else {
        BELOW_NATIVE
    };
    let of_native: Option<Vec<bool>> = line.programs.iter().map(natives).collect();
    Verdict {
        part: line.programs.iter().all(keeps_part),
        native: of_native.map(|all| all.into_iter().all(|kept| kept)),
        sum: native.map(|native| at_least(line.sum, native.sum - below)),
    }
}

/// The mean of sums; `None` if no row with several programs was measured in both modes.
pub(super) fn mean(lines: &[Line]) -> Option<Mean> {
    let native_of = |row: &Row| {
        let even = evened(row);
        let mut natives = lines.iter().filter(|line| line.mode == Mode::Native);
        natives.find(|line| line.row == even)
    };
    let sums: Vec<(f64, f64)> = lines
        .iter()
        .filter(|line| line.mode == Mode::Turnstile && !line.row.is_alone())
        .filter_map(|line| Some((native_of(&line.row)?.sum, line.sum)))
        .collect();
    let rows = sums.len();
    let mean = |of: fn(&(f64, f64)) -> f64| sums.iter().map(of).sum::<f64>() / rows as f64;
    let (native, turnstile) = (mean(|sums| sums.0), mean(|sums| sums.1));
    (rows > 0).then_some(Mean {
        rows,
        native,
        turnstile,
        kept: turnstile >= OF_NATIVE_MEAN * native - ROUNDING,
    })
}

#[cfg(test)]
mod tests {
    use super::super::runs::Window;
    use super::*;
    use proptest::prelude::*;

    fn run(mode: Mode, row: &str, progress: &[f64]) -> Run {
        let row: Row = row.parse().unwrap();
        let figures = |(program, progress): (&Program, &f64)| Figures {
            program: program.clone(),
            window: Window::default(),
            progress: *progress,
            worst_2s: Some(progress / 2.0),
            charged_percent: None,
        };
        Run {
            mode,
            round: 0,
            programs: row.programs().zip(progress).map(figures).collect(),
            row,
            daemon_cpu_percent: None,
        }
    }

    fn verdict_of(native: &[f64], row: &str, turnstile: &[f64]) -> Verdict {
        let even = evened(&row.parse().unwrap()).to_string();
        let runs = [
            run(Mode::Native, &even, native),
            run(Mode::Turnstile, row, turnstile),
        ];
        let lines = lines(&runs);
        lines.iter().find_map(|line| line.verdict).unwrap()
    }

    fn kept(part: bool, native: bool, sum: bool) -> Verdict {
        Verdict {
            part,
            native: Some(native),
            sum: Some(sum),
        }
    }

    #[test]
    fn each_promise_is_judged_by_itself() {
        let native = [0.5, 0.5];
        let row = "train+small 1:1";
        assert_eq!(
            verdict_of(&native, row, &[0.49, 0.5]),
            kept(true, true, true)
        );
        assert_eq!(
            verdict_of(&native, row, &[0.46, 0.6]),
            kept(true, false, true)
        );
        assert_eq!(
            verdict_of(&native, row, &[0.48, 0.48]),
            kept(true, true, false)
        );
        assert_eq!(
            verdict_of(&native, row, &[0.44, 0.6]),
            kept(false, false, true)
        );
        // Native starves the second one: its part, less a tenth, is promised all the same.
        assert_eq!(
            verdict_of(&[0.8, 0.2], row, &[0.6, 0.4]),
            kept(false, true, true)
        );
    }

    #[test]
    fn weights_move_parts_and_native_has_none() {
        let row = "train+small 3:1";
        assert_eq!(
            verdict_of(&[0.5, 0.5], row, &[0.74, 0.25]),
            kept(true, true, true)
        );
        assert_eq!(
            verdict_of(&[0.5, 0.5], row, &[0.5, 0.5]),
            kept(false, true, true)
        );
    }

    #[test]
    fn decoding_widens_the_promise_of_the_sum_only() {
        let native = [0.55, 0.55];
        let short = [0.5, 0.52];
        assert_eq!(
            verdict_of(&native, "train+decode 1:1", &short),
            kept(true, true, true)
        );
        assert_eq!(
            verdict_of(&native, "train+graph 1:1", &short),
            kept(true, true, false)
        );
    }

    #[test]
    fn without_native_only_the_part_is_judged_and_there_is_no_mean() {
        let lines = lines(&[run(Mode::Turnstile, "train+small", &[0.5, 0.5])]);
        let verdict = lines[0].verdict.unwrap();
        assert_eq!((verdict.native, verdict.sum), (None, None));
        assert!(verdict.is_kept());
        assert_eq!(mean(&lines), None);
    }

    #[test]
    fn the_mean_is_of_rows_with_several_programs_in_both_modes() {
        let runs = [
            run(Mode::Native, "train", &[1.0]),
            run(Mode::Turnstile, "train", &[0.5]),
            run(Mode::Native, "train+small", &[0.5, 0.5]),
            run(Mode::Turnstile, "train+small", &[0.5, 0.5]),
            run(Mode::Turnstile, "train+small 1:3", &[0.2, 0.7]),
            run(Mode::Native, "train+loader", &[0.1, 0.1]),
            run(Mode::Mps, "train+small", &[0.1, 0.1]),
        ];
        let mean = mean(&lines(&runs)).unwrap();
        assert_eq!((mean.rows, mean.kept), (2, false));
        assert!((mean.turnstile - 0.95).abs() < 1e-9 && (mean.native - 1.0).abs() < 1e-9);
    }

    #[test]
    fn lines_are_in_the_order_of_programs_and_matrix_with_a_rows_modes_together() {
        let runs = [
            run(Mode::Turnstile, "all", &[0.125; 8]),
            run(Mode::Native, "train+small", &[0.5, 0.5]),
            run(Mode::Native, "small", &[1.0]),
            run(Mode::Turnstile, "train+kernels-50-1", &[0.5, 0.5]),
            run(Mode::Native, "train", &[1.0]),
            run(Mode::Native, "all", &[0.125; 8]),
        ];
        let names = lines(&runs).into_iter().map(|line| line.row.to_string());
        let names: Vec<String> = names.collect();
        let expected = ["train", "small", "train+small 1:1", "all", "all"];
        assert_eq!(names[..5], expected);
        assert_eq!(names[5], "train+kernels-50-1 1:1");
    }

    #[test]
    fn rounds_reduce_to_their_median_and_worst_windows_to_the_worst() {
        let row = "train+small";
        let runs = [0.4, 0.6, 0.5].map(|progress| run(Mode::Native, row, &[progress, 0.5]));
        let lines = lines(&runs);
        let (line, share) = (&lines[0], &lines[0].programs[0]);
        assert_eq!((lines.len(), line.rounds), (1, 3));
        assert_eq!((share.progress, share.worst_2s), (0.5, Some(0.2)));
        assert!((line.sum - 1.0).abs() < 1e-9);
    }

    proptest! {
        /// No program that makes more progress makes a kept promise a broken one.
        #[test]
        fn more_progress_breaks_no_promise(
            native in prop::array::uniform2(0.0f64..1.5),
            turnstile in prop::array::uniform2(0.0f64..1.5),
            more in prop::array::uniform2(0.0f64..0.5),
        ) {
            let row = "train+decode 3:1";
            let before = verdict_of(&native, row, &turnstile);
            let raised = [turnstile[0] + more[0], turnstile[1] + more[1]];
            let after = verdict_of(&native, row, &raised);
            prop_assert!(!before.part || after.part);
            prop_assert!(before.native <= after.native && before.sum <= after.sum);
        }

        /// As much as native, of the parts at least: nothing is short.
        #[test]
        fn native_with_its_parts_keeps_all_promises(more in prop::array::uniform2(0.0f64..0.5)) {
            let progress = [0.5 + more[0], 0.5 + more[1]];
            prop_assert!(verdict_of(&progress, "train+small", &progress).is_kept());
        }
    }
}
