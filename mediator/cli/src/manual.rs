//! Manual pages, generated from the definition of the command line.

use std::path::PathBuf;

use anyhow::Context;
use clap::Command;

/// Arguments of `manual`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Where to write a page for each command
    #[arg(long)]
    folder: PathBuf,
}

pub(crate) fn run(args: &Args, command: Command) -> anyhow::Result<()> {
    std::fs::create_dir_all(&args.folder)?;
    clap_mangen::generate_to(command, &args.folder)
        .with_context(|| format!("Writing manual pages to {}", args.folder.display()))
}
