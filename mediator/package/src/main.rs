//! `turnstile-package`: the step of `mediator/package/build` that makes the RPM package.
#![deny(unsafe_code)]

use std::path::PathBuf;

use clap::Parser;
use turnstile_package::{Source, write};

/// Make an RPM package of what a Debian package has.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// The files as they are installed, and DEBIAN
    stage: PathBuf,
    /// Folder of the scripts
    scripts: PathBuf,
    /// The version as RPM sorts it
    version: String,
    /// Folder of the package
    out: PathBuf,
    /// All times in the package, in seconds of Unix time
    #[arg(long, default_value_t = 0)]
    epoch: u32,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let source = Source {
        stage: &args.stage,
        scripts: &args.scripts,
        version: &args.version,
        epoch_s: args.epoch,
    };
    println!("{}", write(&source, &args.out)?.display());
    Ok(())
}
