//! The matrix of cells: which loads share the GPU, at which weights.
//!
//! Cells, each under DFQ, and natively once for each set of loads (the driver knows no weights):
//!
//! - busy pairs: all 15 pairs of kernel lengths at 1:1, 3:1 and 9:1, the larger weight with the
//!   shorter kernel; and, for pairs of different lengths, at 1:3;
//! - four busy tenants: four of 200 us; one each of 50 us, 200 us, 2 ms and 50 ms; one each of 50
//!   us, 200 us, 2 ms and endless; at 1:1:1:1, 3:1:1:1 and 9:1:1:1;
//! - bursty (30 ms of work, 70 ms pause in the mean): bursts of each length beside a busy 2 ms, at
//!   1:1, 3:1 and 9:1; two bursty and two busy at 1:1:1:1 and 9:1:1:1;
//! - idle (a context and no work): beside each busy length at 1:1, at 9:1 beside 2 ms; three idle
//!   and one busy, two and two.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// How long a kernel runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Length {
    /// Microseconds of engine time.
    Us(u64),
    /// Until the load ends it.
    Endless,
}

/// The lengths of the matrix.
pub(crate) const LENGTHS: [Length; 5] = [
    Length::Us(50),
    Length::Us(200),
    Length::Us(2_000),
    Length::Us(50_000),
    Length::Endless,
];

/// A text that is no length.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no kernel length: 50us, 2ms, endless")]
pub struct LengthError(String);

impl FromStr for Length {
    type Err = LengthError;

    fn from_str(text: &str) -> Result<Self, LengthError> {
        let number = |digits: &str| digits.parse::<u64>().ok().filter(|&number| number > 0);
        let us = match text {
            "endless" => return Ok(Self::Endless),
            _ => match (text.strip_suffix("us"), text.strip_suffix("ms")) {
                (Some(us), _) => number(us),
                (_, Some(ms)) => number(ms).and_then(|ms| ms.checked_mul(1_000)),
                _ => None,
            },
        };
        us.filter(|&us| us <= 1_000_000)
            .map(Self::Us)
            .ok_or_else(|| LengthError(text.to_owned()))
    }
}

impl fmt::Display for Length {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Us(us) if us % 1_000 == 0 => write!(f, "{}ms", us / 1_000),
            Self::Us(us) => write!(f, "{us}us"),
            Self::Endless => f.write_str("endless"),
        }
    }
}

impl From<Length> for String {
    fn from(length: Length) -> Self {
        length.to_string()
    }
}

impl TryFrom<String> for Length {
    type Error = LengthError;
    fn try_from(text: String) -> Result<Self, LengthError> {
        text.parse()
    }
}

/// When a load has work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Pattern {
    /// Always: launches and waits.
    Busy,
    /// Always, several launches ahead.
    Deep,
    /// Now and then: see [`super::bursts`].
    Bursty,
    /// Never; it only has a context.
    Idle,
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Busy => "busy",
            Self::Deep => "deep",
            Self::Bursty => "bursty",
            Self::Idle => "idle",
        })
    }
}

/// One tenant of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tenant {
    /// Weight against the others.
    pub weight: u32,
    /// Length of its kernels.
    pub kernel: Length,
    /// When it has work.
    pub pattern: Pattern,
    /// Seed of its bursts.
    pub seed: u64,
}

impl Tenant {
    /// Its kernel length and pattern, without its weight.
    pub fn load(&self) -> String {
        match self.pattern {
            Pattern::Busy => self.kernel.to_string(),
            Pattern::Idle => "idle".to_owned(),
            pattern => format!("{}-{pattern}", self.kernel),
        }
    }
}

/// Tenants that share the GPU for a while.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cell {
    /// At least one.
    pub tenants: Vec<Tenant>,
}

impl Cell {
    fn new(weights: &[u32], loads: &[(Length, Pattern)]) -> Self {
        let tenant = |(index, (&weight, &(kernel, pattern)))| Tenant {
            // Weights are per cent, so that 1:1 is two defaults.
            weight: 100 * weight,
            kernel,
            pattern,
            seed: index,
        };
        let tenants = (1..).zip(weights.iter().zip(loads)).map(tenant).collect();
        Self { tenants }
    }

    /// Its loads, such as `2ms+200us-bursty`.
    pub fn loads(&self) -> String {
        let loads: Vec<String> = self.tenants.iter().map(Tenant::load).collect();
        loads.join("+")
    }

    /// Its weights, such as `3:1`.
    pub fn weights(&self) -> String {
        let weights: Vec<String> = self
            .tenants
            .iter()
            .map(|tenant| (tenant.weight / 100).to_string())
            .collect();
        weights.join(":")
    }

    /// Whether all tenants always want the engine: then shares are owed in every window.
    pub fn busy(&self) -> bool {
        let saturating = |tenant: &Tenant| matches!(tenant.pattern, Pattern::Busy | Pattern::Deep);
        self.tenants.iter().all(saturating)
    }

    /// What `--filter` is matched against.
    pub fn name(&self) -> String {
        format!("{} {}", self.loads(), self.weights())
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

/// Every cell of the matrix, in the order of the module's list.
pub fn matrix() -> Vec<Cell> {
    const TWO_MS: Length = Length::Us(2_000);
    let busy = |lengths: &[Length]| -> Vec<(Length, Pattern)> {
        lengths
            .iter()
            .map(|&length| (length, Pattern::Busy))
            .collect()
    };
    let mut cells = Vec::new();
    for (index, &short) in LENGTHS.iter().enumerate() {
        for &long in &LENGTHS[index..] {
            for weights in [[1, 1], [3, 1], [9, 1]] {
                cells.push(Cell::new(&weights, &busy(&[short, long])));
            }
            if short != long {
                cells.push(Cell::new(&[1, 3], &busy(&[short, long])));
            }
        }
    }
    let fours = [
        [Length::Us(200); 4],
        [LENGTHS[0], LENGTHS[1], LENGTHS[2], LENGTHS[3]],
        [LENGTHS[0], LENGTHS[1], LENGTHS[2], LENGTHS[4]],
    ];
    for four in fours {
        for heavy in [1, 3, 9] {
            cells.push(Cell::new(&[heavy, 1, 1, 1], &busy(&four)));
        }
    }
    for &length in &LENGTHS[..4] {
        for heavy in [1, 3, 9] {
            let loads = [(length, Pattern::Bursty), (TWO_MS, Pattern::Busy)];
            cells.push(Cell::new(&[heavy, 1], &loads));
        }
    }
    for heavy in [1, 9] {
        let loads = [
            (LENGTHS[1], Pattern::Bursty),
            (TWO_MS, Pattern::Bursty),
            (LENGTHS[1], Pattern::Busy),
            (TWO_MS, Pattern::Busy),
        ];
        cells.push(Cell::new(&[heavy, 1, 1, 1], &loads));
    }
    let idle = (TWO_MS, Pattern::Idle);
    for &length in &LENGTHS {
        cells.push(Cell::new(&[1, 1], &[idle, (length, Pattern::Busy)]));
    }
    cells.push(Cell::new(&[9, 1], &[idle, (TWO_MS, Pattern::Busy)]));
    let mine = (LENGTHS[1], Pattern::Busy);
    cells.push(Cell::new(&[1; 4], &[idle, idle, idle, mine]));
    cells.push(Cell::new(
        &[1; 4],
        &[idle, idle, mine, (TWO_MS, Pattern::Busy)],
    ));
    cells
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_length_reads_as_it_is_written() {
        for length in LENGTHS {
            assert_eq!(length.to_string().parse(), Ok(length));
        }
        for bad in [
            "",
            "us",
            "0us",
            "-1us",
            "2s",
            "2000ms",
            "18446744073709551615ms",
        ] {
            assert!(bad.parse::<Length>().is_err(), "{bad}");
        }
    }

    #[test]
    fn the_matrix_has_every_busy_pair_at_every_ratio_and_no_cell_twice() {
        let cells = matrix();
        let names: BTreeSet<String> = cells.iter().map(Cell::name).collect();
        assert_eq!(names.len(), cells.len());
        for (index, short) in LENGTHS.iter().enumerate() {
            for long in &LENGTHS[index..] {
                for weights in ["1:1", "3:1", "9:1"] {
                    let name = format!("{short}+{long} {weights}");
                    assert!(names.contains(&name), "{name}");
                }
            }
        }
        for pattern in [Pattern::Bursty, Pattern::Idle] {
            for tenants in [2, 4] {
                let has = |cell: &Cell| {
                    cell.tenants.len() == tenants
                        && cell.tenants.iter().any(|tenant| tenant.pattern == pattern)
                };
                assert!(cells.iter().any(has), "{pattern} {tenants}");
            }
        }
        assert!(names.contains("50us+200us+2ms+50ms 9:1:1:1"));
        assert!(names.contains("idle+endless 1:1"));
        let busy = cells.iter().filter(|cell| cell.busy()).count();
        assert_eq!(busy, 15 * 3 + 10 + 9);
    }
}
