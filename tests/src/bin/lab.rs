//! The experiment lab on the command line:
//! `cargo run --release -p turnstile-tests --bin lab -- share --seeds 100`.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Parser;
use clap::builder::PossibleValuesParser;
use turnstile_tests::lab::experiments::EXPERIMENTS;

/// Runs experiments in virtual time and prints their tables.
#[derive(Debug, Parser)]
struct Args {
    /// Experiments to run; all of them if none is named.
    #[arg(value_parser = PossibleValuesParser::new(EXPERIMENTS.iter().map(|row| row.name)))]
    experiments: Vec<String>,
    /// Seeds, from 0 on; each experiment has its own default.
    #[arg(long)]
    seeds: Option<u64>,
    /// Folder for charts, one SVG for each experiment.
    #[arg(long)]
    svg: Option<PathBuf>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let named =
        |name: &str| args.experiments.is_empty() || args.experiments.iter().any(|n| n == name);
    for experiment in EXPERIMENTS.iter().filter(|row| named(row.name)) {
        let seeds = args.seeds.unwrap_or(experiment.seeds).max(1);
        let report = (experiment.run)(seeds).with_context(|| experiment.name)?;
        println!(
            "{}: {}\n\n{}",
            experiment.name,
            experiment.about,
            report.table()
        );
        if let Some(folder) = &args.svg {
            fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
            let path = folder.join(format!("{}.svg", experiment.name));
            fs::write(&path, report.chart.svg()).with_context(|| path.display().to_string())?;
        }
    }
    Ok(())
}
