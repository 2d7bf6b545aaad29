//! What a load process is told and what it says: one line of JSON each on its standard output, `ready` and `done`.

use serde::{Deserialize, Serialize};

use super::matrix::{Length, Pattern};
use super::percentile::Percentiles;
use super::spans::Span;

/// What a load does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadSpec {
    /// GPU.
    pub gpu: u32,
    /// Length of its kernels.
    pub kernel: Length,
    /// When it has work.
    pub pattern: Pattern,
    /// Of its bursts.
    pub seed: u64,
    /// Launches ahead, for [`Pattern::Deep`].
    pub in_flight: u32,
    /// From start to end.
    pub length_ns: u64,
    /// Blocks of 256 threads of each kernel; 0 fills every processor.
    pub blocks: u32,
    /// Turns of work that take a millisecond of engine time, if that is known already.
    pub turns_per_ms: Option<u64>,
    /// Report every gap as well.
    pub list_gaps: bool,
}

/// What a load says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Said {
    /// It waits for the moment to start: a line with the wall clock in nanoseconds.
    Ready {
        /// Its process.
        pid: u32,
        /// Turns of work that take a millisecond of engine time.
        turns_per_ms: u64,
    },
    /// It is done.
    Done(Box<LoadReport>),
}

/// What a load found out about itself. Times are of the wall clock unless said.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadReport {
    /// Its process.
    pub pid: u32,
    /// Where its first bucket begins.
    pub start_ns: u64,
    /// Engine time executed in each bucket of [`super::BUCKET_NS`].
    pub executed_ns: Vec<u64>,
    /// The same with its own pauses between kernels that are too short for anybody else to have run.
    pub occupied_ns: Vec<u64>,
    /// Kernels that ended within the buckets.
    pub kernels: u64,
    /// Kernels whose records had no room: the figures are wrong if there are any.
    pub unrecorded: u64,
    /// Engine time of all its kernels, whenever they ran.
    pub life_executed_ns: u64,
    /// The same with pauses.
    pub life_occupied_ns: u64,
    /// Stretches in which it was off the engine in the middle of a kernel.
    pub gaps: u64,
    /// Gaps whose records had no room.
    pub gaps_unrecorded: u64,
    /// Time in gaps.
    pub gap_ns: u64,
    /// Every gap in order of time, if asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gap_list: Vec<Span>,
    /// From launch to the return of the wait for it.
    pub latency: Percentiles,
    /// Engine time that each kernel executed, pauses and gaps not counted.
    pub kernel_length: Percentiles,
    /// How far its clock may be from the wall clock.
    pub clock_error_ns: u64,
    /// Wall clock less device clock.
    pub clock_offset_ns: i64,
    /// How much faster the wall clock goes, in parts per billion.
    pub clock_drift_ppb: f64,
    /// Smallest step of the device's clock that was seen.
    pub clock_step_ns: u64,
    /// Turns of work that took a millisecond of engine time.
    pub turns_per_ms: u64,
    /// Time of one step of work, after which the clock is read.
    pub step_ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_survives_its_line() {
        let report = LoadReport {
            executed_ns: vec![1, 2],
            gap_list: vec![Span::new(3, 4)],
            clock_offset_ns: -5,
            ..LoadReport::default()
        };
        let line = serde_json::to_string(&Said::Done(Box::new(report.clone()))).unwrap();
        assert!(!line.contains('\n') && line.starts_with("{\"done\":"));
        assert_eq!(
            serde_json::from_str::<Said>(&line).unwrap(),
            Said::Done(Box::new(report))
        );
    }
}
