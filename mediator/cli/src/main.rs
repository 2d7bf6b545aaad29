//! The `turnstile` command, and the choice of the GPU backend.
//!
//! - In: arguments, files and environment of the configuration ([`options`]).
//! - Out: for `serve` a daemon with its API ([`serve`]), over the GPU that [`gpus`] starts; for
//!   other subcommands their output and an exit status.
//! - Invariants: this crate and the bench alone name a backend. A subcommand, option or key of
//!   a part that the build lacks gives one form of error, with the remedy ([`absent`]).
//! - Processes: hidden subcommands are processes beside the daemon ([`nvidia`]).
//! - Features: `dashboard`, `nvidia` (with programs and the bench), `postgres`, `tls`, `vfio`, and
//!   `parquet`, which is not a default.
#![deny(unsafe_code)]

mod absent;
mod account;
mod admin;
mod chosen;
mod completions;
mod config;
mod demo;
mod doctor;
mod finding;
mod gpu;
mod gpus;
mod lab;
#[cfg(feature = "nvidia")]
mod launch;
mod ledger;
mod manual;
#[cfg(feature = "nvidia")]
mod nvidia;
mod options;
mod report;
#[cfg(feature = "nvidia")]
mod run;
mod sealed_memory;
mod serve;
mod service;
mod soft;
mod soft_gpu;
mod top;
#[cfg(feature = "dashboard")]
mod ui;
mod usage;
#[cfg(feature = "vfio")]
mod vfio;
mod vfio_user;
mod vm;
mod vmm;

use std::any::Any;
use std::panic::{self, AssertUnwindSafe};
use std::process::ExitCode;

#[cfg(not(feature = "dashboard"))]
use absent::ui;
#[cfg(not(feature = "nvidia"))]
use absent::{bench, run};
use clap::{CommandFactory, Parser, Subcommand};
#[cfg(feature = "nvidia")]
use turnstile_bench as bench;
use turnstile_daemon::config::ConfigError;

/// Many VMs share one GPU: mediated, accounted, at their weights.
#[derive(Parser)]
#[command(name = "turnstile", version, arg_required_else_help = true)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the daemon that VMMs connect to
    Serve(Box<serve::Args>),
    /// Print the configuration that the daemon would have, or check it
    Config(config::Args),
    /// Show the whole loop: KVM guests share one GPU at their weights
    Demo(demo::Args),
    /// Tenants of a running daemon: list them, and set their weights and limits
    Vm(vm::Args),
    /// Accounts of a running daemon, which tenants belong to, and their settings
    Account(account::Args),
    /// Show what each tenant uses of the GPU, and what it is entitled to
    Top(top::Args),
    /// Open the dashboard to a browser on this machine
    Ui(ui::Args),
    /// GPUs of a running daemon
    Gpu(gpu::Args),
    /// Print completions for a shell
    Completions(completions::Args),
    /// Run one VM with the reference VMM and its test guest, against a running daemon
    Vmm(vmm::Args),
    /// Serve the devices of stock VMMs' VMs from a process of its own, which outlives the daemon
    VfioUser(vfio_user::Args),
    /// Start a VMM with memory for its guest that can be neither shrunk nor grown, where it makes
    /// none itself (Cloud Hypervisor)
    SealedMemory(sealed_memory::Args),
    /// Export what was used, and check the ledger
    Usage(usage::Args),
    /// Run a CUDA program, and what it starts, as a tenant of a running daemon
    Run(run::Args),
    /// Show what this host supports, and a remedy for what it lacks
    Doctor(doctor::Args),
    /// Measure how a GPU is shared, by the loads' own time stamps or the GPU's log
    Bench(bench::Args),
    /// Run the experiment lab, a program beside this one: figures of the papers, and ours
    Lab(lab::Args),
    /// Write manual pages
    #[command(hide = true)]
    Manual(manual::Args),
    #[cfg(feature = "nvidia")]
    #[command(flatten)]
    Nvidia(nvidia::Command),
    /// Simulate a PCI GPU that implements the device contract
    #[command(hide = true)]
    SoftGpu(soft_gpu::Args),
}

/// Exit status after the reader of standard output has gone, as of a command that the signal ended.
/// SOURCE: sh(1): 128 plus SIGPIPE's number.
const BROKEN_PIPE_STATUS: u8 = 141;

/// Whether a panic comes from printing to a closed pipe (`turnstile vm list | head -1`).
fn is_broken_pipe(panic: &(dyn Any + Send)) -> bool {
    // SOURCE: `print_to` of the standard library.
    const MESSAGE: &str = "failed printing to stdout: Broken pipe";
    let text = panic.downcast_ref::<String>();
    text.is_some_and(|text| text.starts_with(MESSAGE))
}

fn main() -> anyhow::Result<ExitCode> {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        if !is_broken_pipe(panic.payload()) {
            usual(panic);
        }
    }));
    env_logger::Builder::from_env(
        env_logger::Env::default().default_filter_or("warn,turnstile::audit=info"),
    )
    .init();
    let command = Args::parse().command;
    // Unwound instead of left at once, so that what was started for the command ends with it.
    let ended = match panic::catch_unwind(AssertUnwindSafe(|| run(command))) {
        Ok(ended) => ended,
        Err(panic) if is_broken_pipe(&*panic) => return Ok(ExitCode::from(BROKEN_PIPE_STATUS)),
        Err(panic) => panic::resume_unwind(panic),
    };
    if let Err(error) = &ended
        && error.is::<ConfigError>()
    {
        // The status of a wrong option by clap: another attempt would end as this one.
        eprintln!("{error:#}");
        return Ok(ExitCode::from(2));
    }
    ended
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Usage(args) => return Ok(usage::run(&args)),
        Command::Top(args) => return Ok(top::run(&args)),
        Command::Vm(args) => return Ok(vm::run(&args)),
        Command::Account(args) => return Ok(account::run(&args)),
        Command::Gpu(args) => return Ok(gpu::run(&args)),
        Command::Completions(args) => {
            completions::run(&args, Args::command());
            return Ok(ExitCode::SUCCESS);
        }
        Command::Config(args) => config::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Ui(args) => ui::run(&args),
        Command::Manual(args) => manual::run(&args, Args::command()),
        Command::Demo(args) => demo::run(&args),
        Command::VfioUser(args) => vfio_user::run(&args),
        Command::SealedMemory(args) => sealed_memory::run(&args),
        Command::Vmm(args) => vmm::run(&args),
        Command::Run(args) => run::run(args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Lab(args) => lab::run(&args),
        #[cfg(feature = "nvidia")]
        Command::Nvidia(command) => return nvidia::run(&command),
        Command::SoftGpu(args) => soft_gpu::run(&args),
    }?;
    Ok(ExitCode::SUCCESS)
}
