//! The NVIDIA backend in the command: the GPU of a configuration, and hidden subcommands, which are
//! processes beside the daemon (watchdog, mover, preemptor, workers).

pub(crate) mod doctor;
pub(crate) mod gpu;
mod guest;
mod worker;

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use clap::Subcommand;
use turnstile_nvidia::hold::HardwareSwitch;
use turnstile_nvidia::hold::watchdog;
use turnstile_nvidia::mover;
use turnstile_nvidia::preemptor;
use turnstile_nvidia::rm::RmClient;
use turnstile_nvidia::swapped;
use turnstile_nvidia::version;

/// Subcommands of this backend, which other processes start.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Answer a program's calls when its launcher is gone
    #[command(hide = true)]
    RunKeeper,
    /// Issue the driver's calls of an isolated program
    #[command(hide = true)]
    GuestDevice(guest::DeviceArgs),
    /// Become an isolated program
    #[command(hide = true)]
    GuestProgram(guest::ProgramArgs),
    /// One load of the bench
    #[command(hide = true)]
    NvidiaLoad(turnstile_bench::LoadArgs),
    /// Resume what a daemon that is gone had suspended
    #[command(hide = true)]
    NvidiaWatchdog(WatchdogArgs),
    /// Move GPU memory to the host and back; started by the daemon
    #[command(hide = true)]
    NvidiaMover,
    /// Preempt a tenant at once; started by the daemon
    #[command(hide = true)]
    NvidiaPreemptor(PreemptorArgs),
    /// One tenant of the bench with movable memory
    #[command(hide = true)]
    NvidiaSwapLoad,
    /// Execute one VM's commands on a real GPU; started by the daemon
    #[command(hide = true)]
    NvidiaWorker(worker::WorkerArgs),
    /// Check workers on a real GPU, and measure them
    #[command(hide = true)]
    NvidiaWorkerCheck(worker::CheckArgs),
}

/// Becomes the process of a subcommand.
pub(crate) fn run(command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::RunKeeper => Ok(crate::launch::keep()?),
        Command::GuestDevice(args) => guest::device(args),
        Command::GuestProgram(args) => return guest::program(args),
        Command::NvidiaLoad(args) => turnstile_bench::load(args),
        Command::NvidiaWatchdog(args) => guard(args),
        Command::NvidiaMover => move_memory(),
        Command::NvidiaPreemptor(args) => preemptor(args),
        Command::NvidiaSwapLoad => be_swapped(),
        Command::NvidiaWorker(args) => worker::worker(args),
        Command::NvidiaWorkerCheck(args) => worker::check(args),
    }?;
    Ok(ExitCode::SUCCESS)
}

/// Arguments of the watchdog, `nvidia-watchdog`.
#[derive(clap::Args, Debug)]
pub(crate) struct WatchdogArgs {
    /// GPU
    #[arg(long, default_value_t = 0)]
    gpu: u32,
}

fn guard(args: &WatchdogArgs) -> anyhow::Result<()> {
    let driver = version::detect()?;
    let client = RmClient::open(args.gpu)?;
    // Not the standard library's own `Stdin`: that one reads ahead.
    let input = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    watchdog::serve(input, io::stdout(), &HardwareSwitch::new(&client, &driver))?;
    Ok(())
}

/// The mover's process: serves the connection at its standard input.
fn move_memory() -> anyhow::Result<()> {
    let stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    Ok(mover::run(stream)?)
}

/// Arguments of the preemptor.
#[derive(clap::Args, Debug)]
pub(crate) struct PreemptorArgs {
    /// CUDA's number of the GPU
    #[arg(long, default_value_t = 0)]
    gpu: u32,
}

/// The preemptor's process: serves the connection at its standard input.
fn preemptor(args: &PreemptorArgs) -> anyhow::Result<()> {
    let stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    Ok(preemptor::run(stream, args.gpu)?)
}

/// A tenant of `bench swap`: serves the connection at its standard input.
fn be_swapped() -> anyhow::Result<()> {
    let stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    Ok(swapped::run(stream)?)
}
