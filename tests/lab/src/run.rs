//! An experiment that was run: its row, its seeds, and its result.

use crate::experiments::Experiment;
use crate::result::{Failure, Report};
use crate::seeds::Seeds;

/// An experiment that was run.
#[derive(Debug)]
pub struct Run {
    /// Its row.
    pub row: &'static Experiment,
    /// Its seeds.
    pub seeds: Seeds,
    /// Its result; none if it is not built.
    pub result: Option<Result<Report, Failure>>,
}

impl Run {
    /// Runs an experiment.
    pub fn new(row: &'static Experiment, seeds: Seeds) -> Self {
        let result = row.run.map(|run| run(&seeds));
        Self { row, seeds, result }
    }
}
