//! `turnstile completions`: what a shell may offer.

use std::io;

use clap::Command;
use clap_complete::Shell;

/// Arguments of `completions`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Which shell
    shell: Shell,
}

pub(crate) fn run(args: &Args, mut command: Command) {
    clap_complete::generate(args.shell, &mut command, "turnstile", &mut io::stdout());
}
