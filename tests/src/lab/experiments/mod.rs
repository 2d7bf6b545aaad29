//! Experiments: each is a function from seeds to rows, a table beside the paper's numbers, and a
//! chart.

pub mod adversary;
pub mod charged;
pub mod launch_wait;
pub mod literal;
pub mod loga;
pub mod loga11;
pub mod share;
pub mod swap;
pub mod unfair;

use std::fmt::Write;
use std::num::NonZero;
use std::thread;

use super::chart::Chart;
use super::laws::Violation;

/// Result of an experiment.
#[derive(Clone, Debug)]
pub struct Report {
    /// One line that describes the experiment.
    pub title: String,
    /// Names of the columns.
    pub head: Vec<&'static str>,
    /// Cells, row by row.
    pub rows: Vec<Vec<String>>,
    /// Conclusions, one line each.
    pub notes: Vec<String>,
    /// The chart.
    pub chart: Chart,
}

impl Report {
    /// The report as text.
    pub fn table(&self) -> String {
        let head = self.head.iter().map(|name| (*name).to_owned()).collect();
        let lines: Vec<&Vec<String>> = std::iter::once(&head).chain(&self.rows).collect();
        let width = |column: usize| {
            let cells = lines.iter().filter_map(|line| line.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let mut text = format!("{}\n\n", self.title);
        for line in &lines {
            for (column, cell) in line.iter().enumerate() {
                let gap = if column == 0 { "" } else { "  " };
                // Writing to a string cannot fail.
                let _ = write!(text, "{gap}{cell:>0$}", width(column));
            }
            text.push('\n');
        }
        for note in &self.notes {
            text.push_str("\n- ");
            text.push_str(note);
        }
        text.push('\n');
        text
    }
}

/// One experiment.
#[derive(Clone, Copy, Debug)]
pub struct Experiment {
    /// The name on the command line.
    pub name: &'static str,
    /// One line of help.
    pub about: &'static str,
    /// Default number of seeds.
    pub seeds: u64,
    /// Runs it with this number of seeds.
    pub run: fn(u64) -> Result<Report, Violation>,
}

/// All experiments.
pub const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        name: "share",
        about: "share error against the fluid ideal, four tenants, by weights",
        seeds: 100,
        run: share::report,
    },
    Experiment {
        name: "loga-length",
        about: "LoGA Fig. 9: measured kernel length, polling all the time",
        seeds: 10,
        run: loga::length_report,
    },
    Experiment {
        name: "loga-load",
        about: "LoGA Fig. 10: measured load, polling all the time and one sixth of it",
        seeds: 10,
        run: loga::load_report,
    },
    Experiment {
        name: "loga-charged",
        about: "LoGA 4.3: charges against what ran, by policy, meter, depth and suspension",
        seeds: 2,
        run: charged::report,
    },
    Experiment {
        name: "loga-11",
        about: "LoGA Fig. 11: six programs beside four that launch and wait",
        seeds: 1,
        run: loga11::report,
    },
    Experiment {
        name: "launch-wait",
        about: "pairs of which one or both launch and wait, every policy",
        seeds: 1,
        run: launch_wait::report,
    },
    Experiment {
        name: "adversary",
        about: "a victim's worst window beside tenants of one account, by seed",
        seeds: 200,
        run: adversary::report,
    },
    Experiment {
        name: "unfair",
        about: "long commands against short ones, without and with a policy",
        seeds: 10,
        run: unfair::report,
    },
    Experiment {
        name: "literal",
        about: "the paper's rule as printed against the repaired one",
        seeds: 10,
        run: literal::report,
    },
    Experiment {
        name: "swap",
        about: "guests that own more memory than the card has, against a card that has it",
        seeds: 100,
        run: swap::report,
    },
];

/// Calls `work` for each seed, on all cores; results are in the order of the seeds.
///
/// # Errors
/// The error of the lowest seed that failed.
pub fn over_seeds<R: Send>(
    seeds: u64,
    work: impl Fn(u64) -> Result<R, Violation> + Sync,
) -> Result<Vec<R>, Violation> {
    let cores = thread::available_parallelism().map_or(1, NonZero::get) as u64;
    let share = |core: u64| {
        let own = (core..seeds).step_by(cores as usize);
        own.map(|seed| (seed, work(seed))).collect::<Vec<_>>()
    };
    let mut results: Vec<(u64, Result<R, Violation>)> = thread::scope(|scope| {
        let share = &share;
        let workers: Vec<_> = (0..cores)
            .map(|core| scope.spawn(move || share(core)))
            .collect();
        workers
            .into_iter()
            // PANIC: a worker's panic is passed on.
            .flat_map(|worker| worker.join().expect("a worker"))
            .collect()
    });
    results.sort_by_key(|(seed, _)| *seed);
    results.into_iter().map(|(_, result)| result).collect()
}

/// Mean and standard deviation.
pub fn mean_and_deviation(values: &[f64]) -> (f64, f64) {
    let count = values.len().max(1) as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (mean, (squares / count).sqrt())
}
