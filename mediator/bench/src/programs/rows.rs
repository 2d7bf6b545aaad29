//! The rows of the matrix: which programs run together, at which weights.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Programs of the matrix, by the names of their files.
pub(super) const PROGRAMS: [&str; 8] = [
    "train",
    "small",
    "loader",
    "infer",
    "decode",
    "graph",
    "copy_heavy",
    "memory",
];
/// Pairs that are measured at 1:3 and 3:1 as well.
const WEIGHTED: [[&str; 2]; 6] = [
    ["train", "decode"],
    ["train", "small"],
    ["train", "graph"],
    ["train", "memory"],
    ["graph", "memory"],
    ["decode", "small"],
];
/// Pairs of `--quick`: three programs, none of which takes long to become warm.
const QUICK: [[&str; 2]; 3] = [["train", "small"], ["train", "memory"], ["small", "memory"]];
/// Name of the row in which all programs run at equal weights.
const ALL: &str = "all";
/// Begins the name of a program of kernels of one length: `kernels-MICROSECONDS-DEPTH[-PAUSE_US]`.
const KERNELS: &str = "kernels-";
/// A tenant's weight is this times its number in the row's name.
pub(super) const WEIGHT_UNIT: u32 = 100;
/// Largest number in a row's name: a tenant's weight is at most 10,000.
const WEIGHT_MAX: u32 = 100;

/// What shares the GPU among the programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Mode {
    /// The driver's time slices
    Native,
    /// A daemon of this binary, with programs under `turnstile run`
    Turnstile,
    /// The vendor's Multi-Process Service
    Mps,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Native => "native",
            Self::Turnstile => "turnstile",
            Self::Mps => "mps",
        })
    }
}

/// A text that names no program, row or range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum RowError {
    #[error("{0:?} is no program; they are {programs}, and kernels-MICROSECONDS-DEPTH[-PAUSE_US]", programs = PROGRAMS.join(", "))]
    Program(String),
    #[error("{0:?} names a program twice")]
    Twice(String),
    #[error(
        "{0:?} has not one weight from 1 to {WEIGHT_MAX} for each program, as in \"train+small 1:3\""
    )]
    Weights(String),
    #[error("{0:?} is no range of rows, as in 0..12, 12.. or ..12")]
    Range(String),
}

/// A program, by its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(super) struct Program(String);

impl Program {
    pub(super) fn name(&self) -> &str {
        &self.0
    }

    /// The file that it runs, and its arguments.
    pub(super) fn words(&self) -> (String, Vec<String>) {
        match self.0.strip_prefix(KERNELS) {
            Some(numbers) => (
                "kernels.py".into(),
                numbers.split('-').map(str::to_owned).collect(),
            ),
            None => (format!("{}.py", self.0), Vec::new()),
        }
    }

    /// Its requests are due at fixed times: its progress is by latency, not by rate.
    pub(super) fn is_open_loop(&self) -> bool {
        self.0 == "infer"
    }

    /// It launches a token's kernels one by one: the promise of the sum is weaker for it.
    pub(super) fn decodes(&self) -> bool {
        self.0 == "decode"
    }
}

impl FromStr for Program {
    type Err = RowError;

    fn from_str(text: &str) -> Result<Self, RowError> {
        let of_kernels = || {
            let numbers: Vec<&str> = text.strip_prefix(KERNELS)?.split('-').collect();
            let are_numbers = numbers.iter().all(|number| number.parse::<u32>().is_ok());
            (are_numbers && (2..=3).contains(&numbers.len())).then_some(())
        };
        if PROGRAMS.contains(&text) || of_kernels().is_some() {
            return Ok(Self(text.to_owned()));
        }
        Err(RowError::Program(text.to_owned()))
    }
}

impl TryFrom<String> for Program {
    type Error = RowError;

    fn try_from(text: String) -> Result<Self, RowError> {
        text.parse()
    }
}

impl From<Program> for String {
    fn from(program: Program) -> Self {
        program.0
    }
}

/// Programs that run together, with their weights. No program is in it twice, none is without one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(super) struct Row {
    members: Vec<(Program, u32)>,
}

impl Row {
    pub(super) fn alone(program: Program) -> Self {
        Self {
            members: vec![(program, 1)],
        }
    }

    /// Programs and the numbers of their weights.
    pub(super) fn members(&self) -> &[(Program, u32)] {
        &self.members
    }

    pub(super) fn programs(&self) -> impl Iterator<Item = &Program> {
        self.members.iter().map(|(program, _)| program)
    }

    pub(super) fn is_alone(&self) -> bool {
        self.members.len() == 1
    }

    /// The part of the GPU that each program is entitled to.
    pub(super) fn parts(&self) -> Vec<f64> {
        let sum: u32 = self.members.iter().map(|(_, weight)| weight).sum();
        let part = |(_, weight): &(Program, u32)| f64::from(*weight) / f64::from(sum);
        self.members.iter().map(part).collect()
    }

    /// The same programs at equal weights, as modes without weights have them.
    pub(super) fn without_weights(&self) -> Self {
        let even = |(program, _): &(Program, u32)| (program.clone(), 1);
        Self {
            members: self.members.iter().map(even).collect(),
        }
    }

    fn pair(names: [&str; 2], weights: [u32; 2]) -> Self {
        let member = |(name, weight): (&str, u32)| (Program(name.to_owned()), weight);
        Self {
            members: names.into_iter().zip(weights).map(member).collect(),
        }
    }

    fn all() -> Self {
        let member = |name: &str| (Program(name.to_owned()), 1);
        Self {
            members: PROGRAMS.into_iter().map(member).collect(),
        }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::all() {
            return f.write_str(ALL);
        }
        let names: Vec<&str> = self.programs().map(Program::name).collect();
        f.write_str(&names.join("+"))?;
        if self.is_alone() {
            return Ok(());
        }
        let weights: Vec<String> = self.members.iter().map(|(_, w)| w.to_string()).collect();
        write!(f, " {}", weights.join(":"))
    }
}

impl FromStr for Row {
    type Err = RowError;

    fn from_str(text: &str) -> Result<Self, RowError> {
        if text == ALL {
            return Ok(Self::all());
        }
        let (names, weights) = match text.split_once(' ') {
            Some((names, weights)) => (names, Some(weights)),
            None => (text, None),
        };
        let programs: Vec<Program> = names
            .split('+')
            .map(Program::from_str)
            .collect::<Result<_, _>>()?;
        if programs.iter().collect::<BTreeSet<_>>().len() < programs.len() {
            return Err(RowError::Twice(text.to_owned()));
        }
        let number = |weight: &str| match weight.parse() {
            Ok(weight) if (1..=WEIGHT_MAX).contains(&weight) => Ok(weight),
            _ => Err(RowError::Weights(text.to_owned())),
        };
        let weights: Vec<u32> = match weights {
            Some(weights) => weights.split(':').map(number).collect::<Result<_, _>>()?,
            None => vec![1; programs.len()],
        };
        if weights.len() != programs.len() {
            return Err(RowError::Weights(text.to_owned()));
        }
        let row = Self {
            members: programs.into_iter().zip(weights).collect(),
        };
        // A program alone has one weight, whatever it is.
        Ok(if row.is_alone() {
            row.without_weights()
        } else {
            row
        })
    }
}

impl TryFrom<String> for Row {
    type Error = RowError;

    fn try_from(text: String) -> Result<Self, RowError> {
        text.parse()
    }
}

impl From<Row> for String {
    fn from(row: Row) -> Self {
        row.to_string()
    }
}

/// All rows in which programs share: the pairs, each followed by its other weights, and all eight.
pub(super) fn matrix() -> Vec<Row> {
    let mut rows = Vec::new();
    for (index, one) in PROGRAMS.iter().enumerate() {
        for other in &PROGRAMS[index + 1..] {
            rows.push(Row::pair([*one, *other], [1, 1]));
            let weighted = WEIGHTED
                .iter()
                .find(|pair| pair.contains(one) && pair.contains(other));
            if let Some(pair) = weighted {
                rows.extend([[1, 3], [3, 1]].map(|weights| Row::pair(*pair, weights)));
            }
        }
    }
    rows.push(Row::all());
    rows
}

/// The rows of `--quick`.
pub(super) fn quick() -> Vec<Row> {
    QUICK.map(|pair| Row::pair(pair, [1, 1])).to_vec()
}

/// The programs of these rows, in the order in which they appear.
pub(super) fn programs_of(rows: &[Row]) -> Vec<Program> {
    let mut seen = BTreeSet::new();
    rows.iter()
        .flat_map(Row::programs)
        .filter(|program| seen.insert(*program))
        .cloned()
        .collect()
}

/// The rows that a mode measures: without weights, each set of programs once.
pub(super) fn rows_of(mode: Mode, rows: &[Row]) -> Vec<Row> {
    let mut seen = BTreeSet::new();
    rows.iter()
        .map(|row| match mode {
            Mode::Turnstile => row.clone(),
            Mode::Native | Mode::Mps => evened(row),
        })
        .filter(|row| seen.insert(row.clone()))
        .collect()
}

/// The row in which a mode without weights measures the programs of this one: sorted as the matrix.
pub(super) fn evened(row: &Row) -> Row {
    let mut even = row.without_weights();
    let place = |program: &Program| PROGRAMS.iter().position(|name| *name == program.name());
    even.members
        .sort_by_key(|(program, _)| (place(program).unwrap_or(PROGRAMS.len()), program.clone()));
    even
}

/// `A..B`, where either may be absent.
pub(super) fn range(text: &str) -> Result<Range<usize>, RowError> {
    let wrong = || RowError::Range(text.to_owned());
    let (from, to) = text.split_once("..").ok_or_else(wrong)?;
    let number = |part: &str, absent: usize| match part {
        "" => Ok(absent),
        part => part.parse().map_err(|_| wrong()),
    };
    let range = number(from, 0)?..number(to, usize::MAX)?;
    if range.is_empty() {
        return Err(wrong());
    }
    Ok(range)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_matrix_has_every_pair_six_of_them_at_other_weights_and_all() {
        let rows = matrix();
        let names: BTreeSet<String> = rows.iter().map(Row::to_string).collect();
        assert_eq!((rows.len(), names.len()), (28 + 12 + 1, 41));
        for (index, one) in PROGRAMS.iter().enumerate() {
            for other in &PROGRAMS[index + 1..] {
                assert!(names.contains(&format!("{one}+{other} 1:1")));
            }
        }
        for [one, other] in WEIGHTED {
            assert!(names.contains(&format!("{one}+{other} 1:3")));
            assert!(names.contains(&format!("{one}+{other} 3:1")));
        }
        assert_eq!(rows.last().unwrap().to_string(), "all");
        assert_eq!(programs_of(&rows).len(), 8);
    }

    #[test]
    fn modes_without_weights_measure_each_set_of_programs_once() {
        let native = rows_of(Mode::Native, &matrix());
        assert_eq!(native.len(), 29);
        assert_eq!(rows_of(Mode::Turnstile, &matrix()).len(), 41);
        let weighted: Row = "decode+small 1:3".parse().unwrap();
        assert!(native.contains(&evened(&weighted)), "in either order");
        assert!(quick().iter().all(|row| native.contains(row)));
    }

    #[test]
    fn parts_are_of_the_weights() {
        let row: Row = "train+small 1:3".parse().unwrap();
        assert_eq!(row.parts(), [0.25, 0.75]);
        assert_eq!("train".parse::<Row>().unwrap().parts(), [1.0]);
    }

    #[test]
    fn what_is_no_row_no_program_or_no_range_is_refused() {
        for bad in [
            "",
            "train+",
            "train+nothing",
            "train+train",
            "train+small 1",
            "train+small 0:1",
            "train+small 1:101",
            "kernels-50",
            "kernels-50-x",
            "../train",
        ] {
            assert!(bad.parse::<Row>().is_err(), "{bad}");
        }
        for bad in ["", "3", "5..5", "7..2", "a..b", "-1..3"] {
            assert!(range(bad).is_err(), "{bad}");
        }
        assert_eq!(range("..4"), Ok(0..4));
        assert_eq!(range("4.."), Ok(4..usize::MAX));
    }

    #[test]
    fn kernels_of_one_length_have_arguments() {
        let program: Program = "kernels-50-1-20".parse().unwrap();
        let (file, words) = program.words();
        assert_eq!(
            (file.as_str(), words.join(" ")),
            ("kernels.py", "50 1 20".into())
        );
        assert_eq!("infer".parse::<Program>().unwrap().words().0, "infer.py");
    }

    proptest! {
        #[test]
        fn a_row_reads_as_it_is_written(
            chosen in prop::sample::subsequence(PROGRAMS.to_vec(), 1..=8),
            weights in prop::collection::vec(1u32..=WEIGHT_MAX, 8),
        ) {
            let member = |(name, weight): (&&str, &u32)| (Program((*name).to_owned()), *weight);
            let members: Vec<_> = chosen.iter().zip(&weights).map(member).collect();
            let mut row = Row { members };
            if row.is_alone() {
                row = row.without_weights();
            }
            prop_assert_eq!(row.to_string().parse::<Row>(), Ok(row.clone()));
            prop_assert!((row.parts().iter().sum::<f64>() - 1.0).abs() < 1e-9);
        }
    }
}
