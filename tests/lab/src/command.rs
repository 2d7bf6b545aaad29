//! The command: `turnstile-lab list`, and `turnstile-lab run`.
//!
//! In: arguments. Out: tables on standard output, files, an exit status. 0: all went well; 1: a law
//! was broken, a file cannot be written, or `--check` found another verdict; 2: wrong arguments.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Parser, Subcommand};
use serde_json::Value;

use crate::experiments::{EXPERIMENTS, Experiment};
use crate::page::page;
use crate::run::Run;
use crate::seeds::Seeds;

/// Figures of papers and promises of our own, in virtual time.
#[derive(Debug, Parser)]
#[command(name = "turnstile-lab", version, arg_required_else_help = true)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print one row for each experiment
    List,
    /// Run experiments and print their tables
    Run(RunArgs),
}

#[derive(Debug, clap::Args)]
struct RunArgs {
    /// Experiments, by their ids in `list`.
    experiments: Vec<String>,
    /// Run all of them.
    #[arg(long, conflicts_with = "experiments")]
    all: bool,
    /// Number of seeds; each experiment has its own default.
    #[arg(long)]
    seeds: Option<u64>,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// File for all results as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Folder for charts, one SVG for each experiment.
    #[arg(long, value_name = "FOLDER")]
    svg: Option<PathBuf>,
    /// File for all results as a page of Markdown.
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
    /// End with status 1 if a verdict differs from the recorded one.
    #[arg(long)]
    check: bool,
}

/// Why the command ends early.
#[derive(Debug, thiserror::Error)]
enum CommandError {
    #[error("No experiment is called {0}; `turnstile-lab list` prints all ids")]
    Unknown(String),
    #[error("Name an experiment, or give --all; `turnstile-lab list` prints all ids")]
    NothingSelected,
    #[error("--seeds {count} from --seed {first} is no range of seeds: 1 or more are needed")]
    Seeds { first: u64, count: u64 },
    #[error("{path} cannot be written: {error}; name a {kind} that can be made")]
    Unwritable {
        path: PathBuf,
        kind: &'static str,
        error: io::Error,
    },
}

impl CommandError {
    const fn status(&self) -> u8 {
        match self {
            Self::Unknown(_) | Self::NothingSelected | Self::Seeds { .. } => 2,
            Self::Unwritable { .. } => 1,
        }
    }
}

/// Runs the command with these arguments, of which the first is the program; returns the exit
/// status. A first argument that is no subcommand stands for `run`.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let mut arguments: Vec<OsString> = arguments.into_iter().collect();
    let words = ["list", "run", "help", "-h", "--help", "-V", "--version"];
    if arguments
        .get(1)
        .is_some_and(|word| !words.iter().any(|known| word == known))
    {
        arguments.insert(1, "run".into());
    }
    let args = match Args::try_parse_from(arguments) {
        Ok(args) => args,
        Err(error) => {
            let _ = error.print();
            return u8::try_from(error.exit_code()).unwrap_or(2);
        }
    };
    let ended = match args.command {
        Command::List => {
            list();
            Ok(true)
        }
        Command::Run(args) => run(&args),
    };
    match ended {
        Ok(passed) => u8::from(!passed),
        Err(error) => {
            eprintln!("turnstile-lab: {error}");
            error.status()
        }
    }
}

fn list() {
    println!(
        "{:<14} {:<34} {:<8} {:<6} about",
        "id", "paper", "needs", "kind"
    );
    for row in EXPERIMENTS {
        let Experiment {
            id,
            source,
            needs,
            kind,
            about,
            ..
        } = row;
        let built = if row.run.is_some() {
            ""
        } else {
            " (not built)"
        };
        println!(
            "{id:<14} {source:<34} {needs:<8} {:<6} {about}{built}",
            kind.name()
        );
    }
}

/// The experiments and their seeds, all arguments checked.
fn selected(args: &RunArgs) -> Result<Vec<(&'static Experiment, Seeds)>, CommandError> {
    let rows: Vec<&Experiment> = if args.all {
        EXPERIMENTS.iter().collect()
    } else {
        let row = |id: &String| {
            let row = EXPERIMENTS.iter().find(|row| row.id == id);
            row.ok_or_else(|| CommandError::Unknown(id.clone()))
        };
        args.experiments.iter().map(row).collect::<Result<_, _>>()?
    };
    if rows.is_empty() {
        return Err(CommandError::NothingSelected);
    }
    let with_seeds = |row: &'static Experiment| {
        // Without random numbers one seed is all that there is.
        let count = match (args.seeds, row.seeds) {
            (Some(count), own) if own > 1 || count == 0 => count,
            (_, own) => own,
        };
        let first = args.seed;
        let seeds = Seeds::new(first, count);
        let seeds = seeds.ok_or(CommandError::Seeds { first, count })?;
        Ok((row, seeds))
    };
    rows.into_iter().map(with_seeds).collect()
}

/// A file is written to its side and then renamed, so that no half of it remains.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let mut side = path.as_os_str().to_owned();
    side.push(".part");
    fs::write(&side, text)?;
    let renamed = fs::rename(&side, path);
    if renamed.is_err() {
        let _ = fs::remove_file(&side);
    }
    renamed
}

fn run(args: &RunArgs) -> Result<bool, CommandError> {
    execute(selected(args)?, args)
}

/// Runs all these experiments, also after one that fails; returns whether all went well.
fn execute(rows: Vec<(&'static Experiment, Seeds)>, args: &RunArgs) -> Result<bool, CommandError> {
    let unwritable = |path: &Path, kind| {
        let path = path.to_owned();
        move |error| CommandError::Unwritable { path, kind, error }
    };
    for file in [&args.json, &args.page].into_iter().flatten() {
        let folder = file
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty());
        let is_folder = file.is_dir().then_some(io::ErrorKind::IsADirectory);
        let lacks = folder.is_some_and(|folder| !folder.is_dir());
        let wrong = is_folder.or(lacks.then_some(io::ErrorKind::NotFound));
        wrong.map_or(Ok(()), |kind| Err(unwritable(file, "file")(kind.into())))?;
    }
    if let Some(folder) = &args.svg {
        let made = fs::create_dir_all(folder).and_then(|()| write(&folder.join(".probe"), ""));
        made.map_err(unwritable(folder, "folder"))?;
        let _ = fs::remove_file(folder.join(".probe"));
    }
    let (mut runs, mut passed) = (Vec::new(), true);
    for (row, seeds) in rows {
        let run = Run::new(row, seeds);
        println!("{}", run.section());
        if let Some(Err(failure)) = &run.result {
            eprintln!("turnstile-lab: {}: {failure}", row.id);
            passed = false;
        } else if args.check && !run.agrees() {
            let recorded = row.verdict.map_or("none", |verdict| verdict.name());
            eprintln!(
                "turnstile-lab: {}: {}, recorded is {recorded}",
                row.id,
                run.verdict()
            );
            passed = false;
        }
        if let (Some(folder), Some(chart)) = (&args.svg, run.chart()) {
            let file = folder.join(format!("{}.svg", row.id));
            write(&file, &chart.svg()).map_err(unwritable(&file, "file"))?;
        }
        runs.push(run);
    }
    if let Some(file) = &args.json {
        let all: Value = runs.iter().map(Run::json).collect();
        write(file, &format!("{all:#}\n")).map_err(unwritable(file, "file"))?;
    }
    if let Some(file) = &args.page {
        write(file, &page(&runs)).map_err(unwritable(file, "file"))?;
    }
    Ok(passed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::Kind;
    use crate::result::{Failure, Quantity, Report, Verdict};

    const BROKEN: Experiment = Experiment {
        id: "broken",
        source: "none",
        about: "a law that is broken",
        needs: "-",
        kind: Kind::Exact,
        seeds: 1,
        verdict: Some(Verdict::Exact),
        run: Some(|_| Err(Failure("Seed 3, at 5 ns: a law".to_owned()))),
    };
    static ROWS: [Experiment; 3] = [
        BROKEN,
        Experiment {
            id: "sound",
            run: Some(|_| {
                Ok(Report {
                    quantities: vec![Quantity::holds("it holds", true)],
                    ..Report::default()
                })
            }),
            ..BROKEN
        },
        Experiment {
            id: "absent",
            run: None,
            ..BROKEN
        },
    ];

    #[test]
    fn a_broken_law_ends_its_experiment_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let page = folder.path().join("page.md");
        let args = RunArgs {
            experiments: Vec::new(),
            all: true,
            seeds: None,
            seed: 0,
            json: None,
            svg: None,
            page: Some(page.clone()),
            check: true,
        };
        let passes = |rows: &'static [Experiment]| {
            let rows = rows.iter().map(|row| (row, Seeds::from(1)));
            execute(rows.collect(), &args).unwrap()
        };
        assert!(!passes(&ROWS), "the status is 1");
        let text = fs::read_to_string(&page).unwrap();
        assert!(text.contains("failed: Seed 3, at 5 ns: a law"), "{text}");
        assert!(
            text.contains("| `sound` | none | exact | exact |"),
            "{text}"
        );
        assert!(
            text.contains("| `absent` | none | exact | not built |"),
            "{text}"
        );
        assert!(passes(&ROWS[1..]));
    }
}
