//! `turnstile bench programs`: real programs that share a GPU, natively, under a daemon, under MPS.
//!
//! ```text
//!   rows -> runner: modes, processes -> runs, report -> judge: lines, mean -> table, JSON
//!                                          ^- merge: reports of several calls
//! ```
//!
//! The programs are `images/programs`, which measure their own steps. `docs/NVIDIA.md` explains the
//! columns and the promises.

mod estimate;
mod files;
mod judge;
mod merge;
mod modes;
mod picture;
mod process;
mod rows;
mod runner;
mod runs;
mod table;

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use serde::Serialize;
use turnstile_accounting::export::show_time;
use turnstile_accounting::record::UnixNanos;
use turnstile_figures::output::OutputArgs;
use turnstile_nvidia::{identity, version};

use super::scheduler::DaemonArgs;
use super::share::{interruption, seconds};
use super::{GpuArg, wall_ns};
use estimate::Lengths;
use judge::{Line, Mean};
use rows::{Mode, Row};
use runner::{Plan, Runner};
use runs::{Report, Setting};

/// Windows, and what precedes them, unless they are given.
const WINDOW: Duration = Duration::from_secs(10);
const SKIP: Duration = Duration::from_secs(10);
/// The same of `--quick`, and what it takes at most.
const QUICK_WINDOW: Duration = Duration::from_secs(8);
const QUICK_SKIP: Duration = Duration::from_secs(5);
const QUICK_LIMIT_S: u64 = 230;

/// Arguments of `bench programs`.
#[derive(clap::Args, Debug)]
// FIELDS: options of a command.
pub(super) struct ProgramsArgs {
    /// GPU
    #[arg(long, value_enum, default_value_t = GpuArg::Nvidia)]
    gpu: GpuArg,
    /// Its number
    #[arg(long, default_value_t = 0)]
    device: u32,
    /// What shares the GPU [default: native,turnstile,mps; with --quick the first two]
    #[arg(long, value_enum, value_delimiter = ',')]
    modes: Vec<Mode>,
    /// Only these rows of the matrix, by their numbers, such as 0..12 or 30..
    #[arg(long, value_name = "A..B", value_parser = rows::range)]
    pairs: Option<Range<usize>>,
    /// A row instead of the matrix, as train+small or "train+kernels-50-1 1:3"; repeat it for more
    #[arg(long = "row", value_name = "ROW", conflicts_with_all = ["pairs", "quick"])]
    rows: Vec<Row>,
    /// Three pairs without decoding, natively and under the daemon, within four minutes
    #[arg(long, conflicts_with = "pairs")]
    quick: bool,
    /// Print the rows with their numbers and do nothing
    #[arg(long)]
    list: bool,
    /// Join JSON results of several calls into one table, and measure nothing
    #[arg(long, value_name = "FILES", num_args = 1.., conflicts_with_all = ["list", "quick", "pairs", "rows"])]
    merge: Vec<PathBuf>,
    /// Length of each window, in seconds [default: 10; --quick 8]
    #[arg(long, value_parser = seconds)]
    seconds: Option<f64>,
    /// Seconds from a row's last arrival to its window; at most 2 alone [default: 10; --quick 5]
    #[arg(long, value_parser = seconds)]
    skip: Option<f64>,
    /// Times that each row is measured; figures are medians
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Leave out rows that would end later than this many seconds after the beginning
    #[arg(long)]
    limit_s: Option<u64>,
    /// Longest time until a program has loaded PyTorch, and until it is warm then, in seconds
    #[arg(long, default_value_t = 120.0, value_parser = seconds)]
    ready_limit_s: f64,
    /// Python with PyTorch
    #[arg(long, default_value = "python3")]
    python: PathBuf,
    /// Folder of the programs, as images/programs [default: those in this binary]
    #[arg(long, value_name = "FOLDER")]
    programs: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
    /// Write the JSON object to this file, after each row
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Write a picture of the table to this file, as SVG
    #[arg(long, value_name = "FILE")]
    picture: Option<PathBuf>,
    #[command(flatten)]
    daemon: DaemonArgs,
}

/// A report, and what is made of it.
#[derive(Debug, Serialize)]
struct Judged<'a> {
    #[serde(flatten)]
    report: &'a Report,
    lines: Vec<Line>,
    mean: Option<Mean>,
}

impl<'a> Judged<'a> {
    fn of(report: &'a Report) -> Self {
        let lines = judge::lines(&report.runs);
        Self {
            report,
            mean: judge::mean(&lines),
            lines,
        }
    }
}

/// Writes a report as JSON; a reader finds the one before it or this one.
fn write(report: &Report, file: &Path) -> anyhow::Result<()> {
    let mut next = file.as_os_str().to_owned();
    next.push(".next");
    let text = serde_json::to_string_pretty(&Judged::of(report))?;
    fs::write(&next, text)
        .and_then(|()| fs::rename(&next, file))
        .with_context(|| format!("Writing {} failed", file.display()))
}

impl ProgramsArgs {
    fn chosen(&self) -> Vec<Row> {
        if self.quick {
            return rows::quick();
        }
        if !self.rows.is_empty() {
            return self.rows.clone();
        }
        let matrix = rows::matrix();
        let range = self.pairs.clone().unwrap_or(0..matrix.len());
        let to = range.end.min(matrix.len());
        matrix[range.start.min(to)..to].to_vec()
    }

    fn modes(&self) -> Vec<Mode> {
        let mut modes = self.modes.clone();
        if modes.is_empty() {
            modes = vec![Mode::Native, Mode::Turnstile];
            if !self.quick {
                modes.push(Mode::Mps);
            }
        }
        // Native first: it is what progress is measured against.
        modes.sort_unstable();
        modes.dedup();
        modes
    }

    fn lengths(&self) -> Lengths {
        let (window, skip) = if self.quick {
            (QUICK_WINDOW, QUICK_SKIP)
        } else {
            (WINDOW, SKIP)
        };
        Lengths {
            window: self.seconds.map_or(window, Duration::from_secs_f64),
            skip: self.skip.map_or(skip, Duration::from_secs_f64),
            rounds: self.rounds,
        }
    }

    /// A report without runs.
    fn report(&self, lengths: &Lengths) -> Report {
        let identity = identity::of(self.device).ok().flatten();
        Report {
            setting: Setting {
                card: identity.map(|identity| identity.model),
                driver: version::loaded().ok(),
                policy: self.daemon.policy().map(str::to_owned),
                seconds: lengths.window.as_secs_f64(),
                skip: lengths.skip.as_secs_f64(),
            },
            date: show_time(UnixNanos(wall_ns())),
            runs: Vec::new(),
            failures: Vec::new(),
            left_out: Vec::new(),
            interrupted: false,
        }
    }

    fn measure(&self, rows: Vec<Row>) -> anyhow::Result<Report> {
        let folder = tempfile::Builder::new()
            .prefix("turnstile-bench")
            .tempdir()?;
        let files = match &self.programs {
            Some(programs) => fs::canonicalize(programs)
                .with_context(|| format!("--programs {}", programs.display()))?,
            None => {
                files::write(folder.path())?;
                folder.path().to_owned()
            }
        };
        let limit_s = self.limit_s.or(self.quick.then_some(QUICK_LIMIT_S));
        let lengths = self.lengths();
        let plan = Plan {
            modes: self.modes(),
            rows,
            lengths,
            limit: limit_s.map(Duration::from_secs),
            ready_limit: Duration::from_secs_f64(self.ready_limit_s),
            python: self.python.clone(),
            files,
            device: self.device,
            daemon: self.daemon.clone(),
            folder: folder.path().to_owned(),
        };
        let stop = interruption()?;
        Runner::new(&plan, self.report(&lengths), &stop, self.out.as_deref()).run()
    }
}

pub(super) fn run(args: &ProgramsArgs) -> anyhow::Result<()> {
    let GpuArg::Nvidia = args.gpu;
    let rows = args.chosen();
    if args.list {
        for (number, row) in rows.iter().enumerate() {
            println!("{number:>3} {row}");
        }
        return Ok(());
    }
    let report = if args.merge.is_empty() {
        if rows.is_empty() {
            bail!("The matrix has no such rows; --list prints them");
        }
        args.measure(rows)?
    } else {
        let report = merge::files(&args.merge)?;
        if let Some(out) = &args.out {
            write(&report, out)?;
        }
        report
    };
    let judged = Judged::of(&report);
    args.output.print(&judged, |judged| {
        table::print(&report, &judged.lines, judged.mean.as_ref());
    })?;
    if let Some(file) = &args.picture {
        let svg = picture::svg(&table::title(&report), &judged.lines);
        fs::write(file, svg).with_context(|| format!("Writing {} failed", file.display()))?;
    }
    for problem in table::problems(&report) {
        eprintln!("{problem}");
    }
    if report.interrupted {
        bail!("It was interrupted: rows may be missing above");
    }
    if !report.failures.is_empty() {
        bail!("{} programs or modes failed", report.failures.len());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Words {
        #[command(flatten)]
        programs: ProgramsArgs,
    }

    fn args(words: &[&str]) -> ProgramsArgs {
        Words::parse_from(["programs"].iter().chain(words)).programs
    }

    #[test]
    fn parts_of_the_matrix_are_the_whole() {
        let all = args(&[]).chosen();
        let mut parts = args(&["--pairs", "..7"]).chosen();
        parts.extend(args(&["--pairs", "7..40"]).chosen());
        parts.extend(args(&["--pairs", "40.."]).chosen());
        assert_eq!(parts, all);
        assert!(args(&["--pairs", "90..99"]).chosen().is_empty());
        let own = args(&["--row", "train+kernels-50-1 1:3"]).chosen();
        assert_eq!(own[0].to_string(), "train+kernels-50-1 1:3");
    }

    #[test]
    fn native_is_first_and_quick_has_no_mps() {
        let modes = |words: &[&str]| args(words).modes();
        assert_eq!(
            modes(&["--modes", "mps,native,mps"]),
            [Mode::Native, Mode::Mps]
        );
        assert_eq!(modes(&["--quick"]), [Mode::Native, Mode::Turnstile]);
        assert_eq!(modes(&[]).len(), 3);
        let lengths = args(&["--quick", "--seconds", "2.5"]).lengths();
        assert_eq!(
            (lengths.window, lengths.skip),
            (Duration::from_millis(2_500), QUICK_SKIP)
        );
    }
}
