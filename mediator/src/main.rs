//! The `turnstile` command.

mod cli;

use std::any::Any;
use std::panic::{self, AssertUnwindSafe};
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use turnstile_mediator::config::ConfigError;

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
    Serve(Box<cli::serve::Args>),
    /// Print the configuration that the daemon would have, or check it
    Config(cli::config::Args),
    /// Show the whole loop: KVM guests share one GPU at their weights
    Demo(cli::demo::Args),
    /// Tenants of a running daemon: list them, and set their weights and limits
    Vm(cli::vm::Args),
    /// Accounts of a running daemon, which tenants belong to, and their settings
    Account(cli::account::Args),
    /// Show what each tenant uses of the GPU, and what it is entitled to
    Top(cli::top::Args),
    /// Open the dashboard to a browser on this machine
    Ui(cli::ui::Args),
    /// GPUs of a running daemon
    Gpu(cli::gpu::Args),
    /// Print completions for a shell
    Completions(cli::completions::Args),
    /// Run one VM with the reference VMM and its test guest, against a running daemon
    Vmm(cli::vmm::Args),
    /// Serve the devices of stock VMMs' VMs from a process of its own, which outlives the daemon
    VfioUser(cli::vfio_user::Args),
    /// Start a VMM with memory for its guest that can be neither shrunk nor grown, where it makes
    /// none itself (Cloud Hypervisor)
    SealedMemory(cli::sealed_memory::Args),
    /// Export what was used, and check the ledger
    Usage(cli::usage::Args),
    /// Run a CUDA program, and what it starts, as a tenant of a running daemon
    Run(cli::run::Args),
    /// Answer a program's calls when its launcher is gone
    #[command(hide = true)]
    RunKeeper,
    /// Issue the driver's calls of an isolated program
    #[command(hide = true)]
    GuestDevice(cli::guest::DeviceArgs),
    /// Become an isolated program
    #[command(hide = true)]
    GuestProgram(cli::guest::ProgramArgs),
    /// Show what this host supports, and a remedy for what it lacks
    Doctor(cli::doctor::Args),
    /// Measure how a GPU is shared, by the loads' own time stamps or the GPU's log
    Bench(cli::bench::Args),
    /// Write manual pages
    #[command(hide = true)]
    Manual(cli::manual::Args),
    /// One load of the bench
    #[command(hide = true)]
    NvidiaLoad(cli::bench::LoadArgs),
    /// Resume what a daemon that is gone had suspended
    #[command(hide = true)]
    NvidiaWatchdog(cli::nvidia::WatchdogArgs),
    /// Move GPU memory to the host and back; started by the daemon
    #[command(hide = true)]
    NvidiaMover,
    /// Preempt a tenant at once; started by the daemon
    #[command(hide = true)]
    NvidiaPreemptor(cli::nvidia::PreemptorArgs),
    /// One tenant of the bench with movable memory
    #[command(hide = true)]
    NvidiaSwapLoad,
    /// Execute one VM's commands on a real GPU; started by the daemon
    #[command(hide = true)]
    NvidiaWorker(cli::nvidia_worker::WorkerArgs),
    /// Simulate a PCI GPU that implements the device contract
    #[command(hide = true)]
    SoftGpu(cli::soft_gpu::Args),
    /// Check workers on a real GPU, and measure them
    #[command(hide = true)]
    NvidiaWorkerCheck(cli::nvidia_worker::CheckArgs),
}

/// Exit status after the reader of standard output has gone, as of a command that the signal ended.
/// SOURCE: sh(1): 128 plus SIGPIPE's number.
const READER_GONE: u8 = 141;

/// Whether a panic comes from printing to a closed pipe (`turnstile vm list | head -1`).
fn is_reader_gone(panic: &(dyn Any + Send)) -> bool {
    // SOURCE: `print_to` of the standard library.
    const SAYS: &str = "failed printing to stdout: Broken pipe";
    let text = panic.downcast_ref::<String>();
    text.is_some_and(|text| text.starts_with(SAYS))
}

fn main() -> anyhow::Result<ExitCode> {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        if !is_reader_gone(panic.payload()) {
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
        Err(panic) if is_reader_gone(&*panic) => return Ok(ExitCode::from(READER_GONE)),
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
        Command::Usage(args) => return Ok(cli::usage::run(&args)),
        Command::Top(args) => return Ok(cli::top::run(&args)),
        Command::Vm(args) => return Ok(cli::vm::run(&args)),
        Command::Account(args) => return Ok(cli::account::run(&args)),
        Command::Gpu(args) => return Ok(cli::gpu::run(&args)),
        Command::Completions(args) => {
            cli::completions::run(&args, Args::command());
            return Ok(ExitCode::SUCCESS);
        }
        Command::Config(args) => cli::config::run(&args),
        Command::Serve(args) => cli::serve::run(&args),
        Command::Ui(args) => cli::ui::run(&args),
        Command::Manual(args) => cli::manual::run(&args, Args::command()),
        Command::Demo(args) => cli::demo::run(&args),
        Command::VfioUser(args) => cli::vfio_user::run(&args),
        Command::SealedMemory(args) => cli::sealed_memory::run(&args),
        Command::Vmm(args) => cli::vmm::run(&args),
        Command::Run(args) => cli::run::run(args),
        Command::RunKeeper => Ok(turnstile_mediator::launch::keep()?),
        Command::GuestDevice(args) => cli::guest::device(&args),
        Command::GuestProgram(args) => return cli::guest::program(&args),
        Command::Doctor(args) => cli::doctor::run(&args),
        Command::Bench(args) => cli::bench::run(&args),
        Command::NvidiaLoad(args) => cli::bench::load(&args),
        Command::NvidiaWatchdog(args) => cli::nvidia::guard(&args),
        Command::NvidiaMover => cli::nvidia::move_memory(),
        Command::NvidiaPreemptor(args) => cli::nvidia::preemptor(&args),
        Command::NvidiaSwapLoad => cli::nvidia::be_swapped(),
        Command::NvidiaWorker(args) => cli::nvidia_worker::worker(&args),
        Command::SoftGpu(args) => cli::soft_gpu::run(&args),
        Command::NvidiaWorkerCheck(args) => cli::nvidia_worker::check(&args),
    }?;
    Ok(ExitCode::SUCCESS)
}
