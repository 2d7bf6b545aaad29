//! `turnstile lab`: executes `turnstile-lab`, which stands beside this command.
//!
//! The lab depends on the product and is a program of its own.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Name of the program.
const PROGRAM: &str = "turnstile-lab";

/// Arguments of `lab`.
#[derive(clap::Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    /// Arguments of the lab: `list`, or `run` and names of experiments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Becomes the lab; returns only if it cannot be started.
pub(crate) fn run(args: &Args) -> Result<()> {
    let own = std::env::current_exe().context("the path of this command")?;
    let program = own.with_file_name(PROGRAM);
    let error = Command::new(&program).args(&args.arguments).exec();
    let path = program.display();
    match error.kind() {
        ErrorKind::NotFound => bail!(
            "{path} does not exist; build it with `cargo build --release -p {PROGRAM}` and put it there"
        ),
        _ => Err(error).with_context(|| path.to_string()),
    }
}
