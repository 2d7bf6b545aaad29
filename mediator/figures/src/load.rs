//! Options and messages of a load process. It writes one line of JSON per message to its standard
//! output: `ready` and `done`, or `ready` and a `block` for each one requested.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::matrix::{Length, Pattern};
use super::percentile::Percentiles;
use super::spans::Span;

/// Duration of work on a GPU without other load.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// Turns (iterations) of work in a millisecond of engine time.
    pub turns_per_ms: f64,
    /// Engine time of a kernel without any turns.
    pub fixed_ns: f64,
}

impl Calibration {
    /// The line through two kernels, each given as turns and engine time. `None` if the one with
    /// more turns took no longer.
    pub fn through(few: (u64, u64), many: (u64, u64)) -> Option<Self> {
        let turns = many.0.checked_sub(few.0).filter(|&turns| turns > 0)? as f64;
        let ns = many.1.checked_sub(few.1).filter(|&ns| ns > 0)? as f64;
        let turns_per_ms = turns / ns * 1e6;
        Some(Self {
            turns_per_ms,
            fixed_ns: (few.1 as f64 - few.0 as f64 * ns / turns).max(0.0),
        })
    }

    /// Turns of a kernel of `length_ns`; at least one.
    pub fn turns(&self, length_ns: u64) -> u64 {
        // CAST: saturates; a negative length is one turn.
        (((length_ns as f64 - self.fixed_ns) / 1e6 * self.turns_per_ms).round() as u64).max(1)
    }

    /// Engine time of `turns`, without the fixed time of a kernel.
    pub fn turns_ns(&self, turns: u64) -> u64 {
        // CAST: saturates.
        (turns as f64 / self.turns_per_ms * 1e6) as u64
    }
}

/// A text that is no calibration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no calibration: TURNS_PER_MS:FIXED_NS")]
pub struct CalibrationError(String);

impl FromStr for Calibration {
    type Err = CalibrationError;

    fn from_str(text: &str) -> Result<Self, CalibrationError> {
        let parsed = text.split_once(':').and_then(|(turns, fixed)| {
            Some((turns.parse::<f64>().ok()?, fixed.parse::<f64>().ok()?))
        });
        parsed
            .filter(|(turns, fixed)| turns.is_finite() && *turns > 0.0 && fixed.is_finite())
            .map(|(turns_per_ms, fixed_ns)| Self {
                turns_per_ms,
                fixed_ns,
            })
            .ok_or_else(|| CalibrationError(text.to_owned()))
    }
}

impl fmt::Display for Calibration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.turns_per_ms, self.fixed_ns)
    }
}

/// What a load does.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadSpec {
    /// GPU.
    pub gpu: u32,
    /// Length of its kernels.
    pub kernel: Length,
    /// When it has work.
    pub pattern: Pattern,
    /// Seed of its bursts.
    pub seed: u64,
    /// Launches ahead, for [`Pattern::Deep`].
    pub in_flight: u32,
    /// Length of its run.
    pub length_ns: u64,
    /// Blocks of 256 threads of each kernel; 0 fills every processor.
    pub blocks: u32,
    /// Duration of work, if it is known already.
    pub calibration: Option<Calibration>,
    /// Report every gap as well.
    pub list_gaps: bool,
    /// Bytes of each copy to the GPU beside its kernels; 0 copies nothing.
    pub copy_bytes: usize,
}

/// A message of a load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoadMessage {
    /// It waits for its start time: a line with the wall clock in nanoseconds.
    Ready {
        /// Its process.
        pid: u32,
        /// Duration of its work, if it has a calibration.
        #[serde(default)]
        calibration: Option<Calibration>,
    },
    /// A block of work is done.
    Block(Block),
    /// It is done.
    Done(Box<LoadReport>),
}

/// Pieces of work that were done one after the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Block {
    /// The median length of a piece, in nanoseconds.
    pub median_ns: f64,
    /// The mean, from the beginning of the first to the end of the last.
    pub mean_ns: f64,
}

impl Block {
    /// Adds one of the two blocks of a round; both together are their average.
    pub fn add_half(&mut self, half: Self) {
        self.median_ns += half.median_ns / 2.0;
        self.mean_ns += half.mean_ns / 2.0;
    }
}

/// A load's measurements of itself. Times are on the wall clock unless noted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
// FIELDS: a report: one figure each.
pub struct LoadReport {
    /// Its process.
    pub pid: u32,
    /// Where its first bucket begins.
    pub start_ns: u64,
    /// Engine time executed in each bucket of [`super::FINE_NS`].
    pub executed_ns: Vec<u64>,
    /// The same with its own pauses between kernels that are too short for another context to have
    /// run.
    pub occupied_ns: Vec<u64>,
    /// Time in which the engine worked for it: executed, and the processing of launches.
    #[serde(default)]
    pub worked_ns: Vec<u64>,
    /// Time of its copies, by the stamps before and after each; empty if it makes none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub copied_ns: Vec<u64>,
    /// Kernels that ended within the buckets.
    pub kernels: u64,
    /// Kernels without room for their record: if there are any, the figures are wrong.
    pub unrecorded: u64,
    /// Engine time of all its kernels, whenever they ran.
    pub life_executed_ns: u64,
    /// The same with pauses.
    pub life_occupied_ns: u64,
    /// Stretches in which it was off the engine in the middle of a kernel.
    pub gaps: u64,
    /// Gaps without room for their record.
    pub gaps_unrecorded: u64,
    /// Time in gaps.
    pub gap_ns: u64,
    /// Every gap in order of time, if requested.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gap_list: Vec<Span>,
    /// Every pause between kernels in which another context may have run, if requested.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pause_list: Vec<Span>,
    /// Pauses of its host of [`super::HOST_PAUSE_NS`] and more: from the end of a kernel to the
    /// launch of the next, where it had one to launch. The GPU had no work of the load in them.
    #[serde(default)]
    pub host_pauses: Vec<Span>,
    /// Time for which its thread was runnable but not running, by the host's kernel; none where the
    /// kernel does not report it.
    #[serde(default)]
    pub host_waited_ns: Option<u64>,
    /// From a launch to the return of the wait for it.
    pub latency: Percentiles,
    /// Engine time that each kernel executed, pauses and gaps not counted.
    pub kernel_length: Percentiles,
    /// Largest difference of its clock from the wall clock.
    pub clock_error_ns: u64,
    /// Wall clock minus device clock.
    pub clock_offset_ns: i64,
    /// How much faster the wall clock runs, in parts per billion.
    pub clock_drift_ppb: f64,
    /// Smallest observed step of the device's clock.
    pub clock_step_ns: u64,
    /// Time of one step of work, after which the clock is read.
    pub step_ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_calibration_is_a_line_through_two_kernels() {
        let line = Calibration::through((1_000, 104_000), (20_000, 2_004_000)).unwrap();
        assert!((line.turns_per_ms - 10_000.0).abs() < 1e-6);
        assert!((line.fixed_ns - 4_000.0).abs() < 1e-6);
        assert_eq!(
            (line.turns(50_000), line.turns(1), line.turns_ns(16)),
            (460, 1, 1_600)
        );
        assert_eq!(line.to_string().parse(), Ok(line));
        assert_eq!(Calibration::through((5, 10), (5, 20)), None);
        assert_eq!(Calibration::through((5, 10), (9, 10)), None);
        for bad in ["", "1", "0:1", "nan:1", "1:inf", "a:b"] {
            assert!(bad.parse::<Calibration>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_report_survives_its_line() {
        let report = LoadReport {
            executed_ns: vec![1, 2],
            gap_list: vec![Span::new(3, 4)],
            clock_offset_ns: -5,
            ..LoadReport::default()
        };
        let line = serde_json::to_string(&LoadMessage::Done(Box::new(report.clone()))).unwrap();
        assert!(!line.contains('\n') && line.starts_with("{\"done\":"));
        assert_eq!(
            serde_json::from_str::<LoadMessage>(&line).unwrap(),
            LoadMessage::Done(Box::new(report))
        );
        let line = r#"{"ready": {"pid": 3}}"#;
        let (pid, calibration) = (3, None);
        assert_eq!(
            serde_json::from_str::<LoadMessage>(line).unwrap(),
            LoadMessage::Ready { pid, calibration }
        );
    }
}
