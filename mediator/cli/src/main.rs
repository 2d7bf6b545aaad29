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
#[cfg(feature = "nvidia")]
mod cuda_vm;
mod demo;
mod doctor;
mod exit;
mod finding;
mod gpu;
mod gpus;
mod identity;
mod lab;
#[cfg(feature = "nvidia")]
mod launch;
mod ledger;
mod logging;
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

use std::panic::{self, AssertUnwindSafe};
use std::process::ExitCode;

#[cfg(not(feature = "dashboard"))]
use absent::ui;
#[cfg(not(feature = "nvidia"))]
use absent::{bench, cuda_vm, run};
use clap::{CommandFactory, Parser, Subcommand};
#[cfg(feature = "nvidia")]
use turnstile_bench as bench;

use exit::Exit;

/// The git tag, and how far the source is from it; the crate's version without git.
const VERSION: &str = env!("TURNSTILE_VERSION");

/// Many VMs share one GPU: mediated, accounted, at their weights.
#[derive(Parser)]
#[command(name = "turnstile", version = VERSION, arg_required_else_help = true)]
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
    /// Serve the CUDA device of a VM with the guest module, as a tenant of a running daemon
    CudaVm(cuda_vm::Args),
    /// Show what this host supports, and a remedy for what it lacks
    Doctor(doctor::Args),
    /// Measure how a GPU is shared, by the loads' own time stamps or the GPU's log
    Bench(bench::Args),
    /// Run the experiment lab, a program beside this one: figures of the papers, and ours
    Lab(lab::Args),
    /// Print the names that completions offer
    #[command(hide = true)]
    Names(completions::NamesArgs),
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

fn main() -> ExitCode {
    exit::begin();
    let command = match Args::try_parse() {
        Ok(args) => args.command,
        Err(error) => {
            return match exit::usage_line(&error) {
                Some(line) => {
                    eprintln!("{line}");
                    Exit::Usage.into()
                }
                None => error.exit(),
            };
        }
    };
    // A daemon begins its log when it has read its configuration.
    if !matches!(command, Command::Serve(_)) {
        logging::begin();
    }
    // Unwound instead of left at once, so that what was started for the command ends with it.
    match panic::catch_unwind(AssertUnwindSafe(|| run(command))) {
        Ok(Ok(ended)) => ended,
        Ok(Err(error)) => exit::report(&error).into(),
        Err(panic) if exit::is_broken_pipe(&*panic) => Exit::BrokenPipe.into(),
        Err(_) => Exit::Failed.into(),
    }
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Usage(args) => return usage::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Vm(args) => return Ok(vm::run(&args)),
        Command::Account(args) => return Ok(account::run(&args)),
        Command::Gpu(args) => return Ok(gpu::run(&args)),
        Command::Completions(args) => completions::run(&args, Args::command()),
        Command::Names(args) => completions::names(&args),
        Command::Config(args) => config::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Ui(args) => ui::run(&args),
        Command::Manual(args) => manual::run(&args, Args::command()),
        Command::Demo(args) => demo::run(&args),
        Command::VfioUser(args) => vfio_user::run(&args),
        Command::SealedMemory(args) => sealed_memory::run(&args),
        Command::Vmm(args) => vmm::run(&args),
        Command::Run(args) => run::run(args),
        Command::CudaVm(args) => cuda_vm::run(args),
        Command::Doctor(args) => return doctor::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Lab(args) => lab::run(&args),
        #[cfg(feature = "nvidia")]
        Command::Nvidia(command) => return nvidia::run(&command),
        Command::SoftGpu(args) => soft_gpu::run(&args),
    }?;
    Ok(ExitCode::SUCCESS)
}
