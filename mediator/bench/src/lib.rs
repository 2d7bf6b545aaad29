//! `turnstile bench`: what sharing a GPU is like, by the loads' own time stamps or the GPU's log.
//!
//! - In: the arguments of a subcommand; a GPU, or the socket of a running daemon.
//! - Out: a table or JSON on standard output; an error where a measurement is not as required.
//! - Invariants: loads and daemons are processes of the running executable, which end with the
//!   bench. The arithmetic is in `turnstile-figures`.
//! - Threads: the caller's, and a reader for the output of each process.
#![deny(unsafe_code)]

mod adversary;
mod api;
mod daemon;
mod ending;
mod kills;
mod load;
mod messages;
mod overhead;
mod processes;
mod programs;
mod scheduler;
mod share;
mod signals;
mod suspend;
mod swap;
mod table;
mod talk;
mod train;
mod xsched;

use std::io::IsTerminal;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Subcommand, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};

pub use load::{LoadArgs, load};

/// Arguments of `bench`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Debug)]
enum What {
    /// A victim beside attackers of another account, against a daemon with the software GPU
    Adversary(adversary::AdversaryArgs),
    /// Latency of the admin API of a running daemon, at a fixed rate of requests
    Api(api::ApiArgs),
    /// Shares of the matrix: kernel lengths, weights, patterns; native and under DFQ
    Share(share::ShareArgs),
    /// What the GPU shows of its engines and channels, read without a pause
    Signals(signals::SignalsArgs),
    /// From the call that suspends a tenant to the last instruction of its kernel
    Suspend(suspend::SuspendArgs),
    /// A tenant's memory to the host and back in the middle of its kernel
    Swap(swap::SwapArgs),
    /// Trainings that together own more memory than the GPU has, against one after another
    Train(train::TrainArgs),
    /// What the daemon costs a tenant that is alone
    Overhead(overhead::OverheadArgs),
    /// PyTorch programs alone, in pairs and all together: natively, under the daemon, under MPS
    Programs(Box<programs::ProgramsArgs>),
    /// What happens when the watchdog, the daemon, a tenant are killed
    Kills(kills::KillsArgs),
}

/// Which GPU is benched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum GpuArg {
    /// NVIDIA, under the vendor's driver
    Nvidia,
}

/// Runs a subcommand.
///
/// # Errors
/// If the GPU, a load or a daemon fails, or a measurement is not what it has to be.
pub fn run(args: &Args) -> anyhow::Result<()> {
    match &args.what {
        What::Adversary(args) => adversary::run(args),
        What::Api(args) => api::run(args),
        What::Share(args) => share::run(args),
        What::Signals(args) => signals::run(args),
        What::Suspend(args) => suspend::run(args),
        What::Swap(args) => swap::run(args),
        What::Train(args) => train::run(args),
        What::Overhead(args) => overhead::run(args),
        What::Programs(args) => programs::run(args),
        What::Kills(args) => kills::run(args),
    }
}

fn progress(steps: usize) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(steps as u64);
    if let Ok(style) =
        ProgressStyle::with_template("{spinner} {bar:40} {pos}/{len} {elapsed} left {eta} {msg}")
    {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// The wall clock, which the loads' reports are on.
fn wall_ns() -> u64 {
    // CAST: until the year 2554.
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_nanos() as u64
}
