//! What was measured: windows of programs, runs of rows, and the report of a call.

use serde::{Deserialize, Serialize};

use super::rows::{Mode, Program, Row};

/// What a program answers to an order.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub(super) enum Answer {
    /// PyTorch is loaded; its own process.
    Loaded { pid: u32 },
    /// It is warm.
    Ready { seconds: f64 },
    /// The window since the order to count.
    #[serde(rename = "rested")]
    WindowEnded(Window),
}

/// A window of a program's steps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Window {
    /// Steps that ended in it.
    pub(super) steps: u64,
    /// Steps a second.
    pub(super) rate: f64,
    /// Latencies of a step, of open loops since it was due.
    pub(super) p50_ms: Option<f64>,
    pub(super) p99_ms: Option<f64>,
    /// Least rate of any 2 s; absent where the window is shorter.
    pub(super) least_2s: Option<f64>,
}

/// A program's window in a run, against the same program alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Figures {
    pub(super) program: Program,
    #[serde(flatten)]
    pub(super) window: Window,
    /// Rate over the rate alone; of open loops, median latency alone over median latency.
    pub(super) progress: f64,
    /// Least rate of any 2 s over the rate alone.
    pub(super) worst_2s: Option<f64>,
    /// Compute time that the daemon charged, of the time.
    pub(super) charged_percent: Option<f64>,
}

impl Figures {
    /// Of this window, and of the window of the program alone. `None` if it did nothing alone.
    pub(super) fn of(program: &Program, window: Window, alone: &Window) -> Option<Self> {
        let (numerator, denominator) = if program.is_open_loop() {
            // Without a request that ended, nothing was done.
            (alone.p50_ms?, window.p50_ms.unwrap_or(f64::INFINITY))
        } else {
            (window.rate, alone.rate)
        };
        let is_usable = alone.rate > 0.0 && numerator >= 0.0 && denominator > 0.0;
        is_usable.then(|| Self {
            program: program.clone(),
            progress: numerator / denominator,
            worst_2s: window.least_2s.map(|least| least / alone.rate),
            charged_percent: None,
            window,
        })
    }
}

/// A row, measured once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Run {
    pub(super) mode: Mode,
    pub(super) row: Row,
    /// From 0.
    pub(super) round: u32,
    /// As the row's members.
    pub(super) programs: Vec<Figures>,
    /// Processor time of the daemon, of one core.
    pub(super) daemon_cpu_percent: Option<f64>,
}

/// A program, or a mode, that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Failure {
    pub(super) mode: Mode,
    /// Absent where it is the mode itself.
    pub(super) program: Option<Program>,
    pub(super) error: String,
}

/// A row, or a whole mode, that was not measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LeftOut {
    pub(super) mode: Mode,
    /// Absent where it is the whole mode.
    pub(super) row: Option<Row>,
    pub(super) reason: String,
}

/// What a call was made with: reports that are merged agree in all of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Setting {
    /// Name of the card, and version of the driver, where there are any.
    pub(super) card: Option<String>,
    pub(super) driver: Option<String>,
    /// The daemon's policy; its own choice if absent.
    pub(super) policy: Option<String>,
    /// Length of a window.
    pub(super) seconds: f64,
    /// From the last order to go to the beginning of the window.
    pub(super) skip: f64,
}

/// All that was measured in a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Report {
    #[serde(flatten)]
    pub(super) setting: Setting,
    /// When it began, in UTC.
    pub(super) date: String,
    pub(super) runs: Vec<Run>,
    pub(super) failures: Vec<Failure>,
    pub(super) left_out: Vec<LeftOut>,
    /// It was interrupted: rows may be missing.
    pub(super) interrupted: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(rate: f64, p50_ms: f64) -> Window {
        Window {
            steps: 100,
            rate,
            p50_ms: Some(p50_ms),
            p99_ms: Some(2.0 * p50_ms),
            least_2s: Some(rate / 2.0),
        }
    }

    #[test]
    fn progress_is_by_rate_and_of_open_loops_by_latency() {
        let of = |name: &str| {
            let program: Program = name.parse().unwrap();
            Figures::of(&program, window(25.0, 16.0), &window(50.0, 4.0)).unwrap()
        };
        assert_eq!((of("train").progress, of("infer").progress), (0.5, 0.25));
        assert_eq!(of("train").worst_2s, Some(0.25));
    }

    #[test]
    fn a_program_without_steps_has_no_progress_and_is_no_measure() {
        let (train, infer) = ("train".parse().unwrap(), "infer".parse().unwrap());
        let (none, some) = (Window::default(), window(50.0, 4.0));
        for program in [&train, &infer] {
            let figures = Figures::of(program, none.clone(), &some).unwrap();
            assert_eq!((figures.progress, figures.worst_2s), (0.0, None));
            assert_eq!(Figures::of(program, some.clone(), &none), None);
        }
    }

    #[test]
    fn answers_are_lines_of_the_programs() {
        let of = |line: &str| serde_json::from_str::<Answer>(line);
        assert_eq!(
            of(r#"{"state": "loaded", "pid": 7}"#).unwrap(),
            Answer::Loaded { pid: 7 }
        );
        let ready = r#"{"state": "ready", "rate": 3.5, "steps": 9, "seconds": 2.5}"#;
        assert_eq!(of(ready).unwrap(), Answer::Ready { seconds: 2.5 });
        let ended = r#"{"state": "rested", "steps": 1, "rate": 0.0}"#;
        let window = Window {
            steps: 1,
            ..Window::default()
        };
        assert_eq!(of(ended).unwrap(), Answer::WindowEnded(window));
        let whole = r#"{"state": "rested", "steps": 9, "rate": 2.0, "p50_ms": 1.0, "p99_ms": 2.0,
            "max_ms": 3.0, "halves": [4, 9], "least_2s": null}"#;
        assert!(matches!(of(whole), Ok(Answer::WindowEnded(_))));
        assert!(of("{}").is_err());
    }
}
