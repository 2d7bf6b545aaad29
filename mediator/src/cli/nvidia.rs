//! Hidden subcommands of the NVIDIA backend, which are processes beside the daemon: the watchdog
//! (watchdog), the mover and the preemptor.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::Command;

use turnstile_nvidia::hold::HardwareSwitch;
use turnstile_nvidia::hold::watchdog::{self, Watchdog};
use turnstile_nvidia::mover;
use turnstile_nvidia::preemptor::{self, Preemptor};
use turnstile_nvidia::rm::RmClient;
use turnstile_nvidia::swapped;
use turnstile_nvidia::version;

/// Arguments of the watchdog, `nvidia-watchdog`.
#[derive(clap::Args, Debug)]
pub(crate) struct WatchdogArgs {
    /// GPU
    #[arg(long, default_value_t = 0)]
    gpu: u32,
}

pub(crate) fn guard(args: &WatchdogArgs) -> anyhow::Result<()> {
    let driver = version::detect()?;
    let client = RmClient::open(args.gpu)?;
    // Not the standard library's own `Stdin`: that one reads ahead.
    let input = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    watchdog::serve(input, io::stdout(), &HardwareSwitch::new(&client, &driver))?;
    Ok(())
}

/// The command that becomes the watchdog of a GPU.
pub(crate) fn watchdog_command(
    gpu: u32,
) -> anyhow::Result<impl Fn() -> Command + Send + Sync + 'static> {
    helper_command("nvidia-watchdog", gpu)
}

/// The command that becomes a process beside the daemon, for a GPU.
fn helper_command(
    name: &'static str,
    gpu: u32,
) -> anyhow::Result<impl Fn() -> Command + Send + Sync + 'static> {
    let program = std::env::current_exe()?;
    Ok(move || {
        let mut command = Command::new(&program);
        command.args([name, "--gpu", &gpu.to_string()]);
        command
    })
}

/// Starts the watchdog of a GPU.
pub(crate) fn start_watchdog(gpu: u32) -> anyhow::Result<Watchdog> {
    Ok(Watchdog::start(watchdog_command(gpu)?())?)
}

/// The mover's process: serves the connection at its standard input.
pub(crate) fn move_memory() -> anyhow::Result<()> {
    let stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    Ok(mover::run(stream)?)
}

/// The command that becomes a mover.
pub(crate) fn mover_command() -> anyhow::Result<impl Fn() -> Command + Send + Sync + 'static> {
    let program = std::env::current_exe()?;
    Ok(move || {
        let mut command = Command::new(&program);
        command.arg("nvidia-mover");
        command
    })
}

/// Arguments of the preemptor.
#[derive(clap::Args, Debug)]
pub(crate) struct PreemptorArgs {
    /// CUDA's number of the GPU
    #[arg(long, default_value_t = 0)]
    gpu: u32,
}

/// The preemptor's process: serves the connection at its standard input.
pub(crate) fn preemptor(args: &PreemptorArgs) -> anyhow::Result<()> {
    let stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    Ok(preemptor::run(stream, args.gpu)?)
}

/// Starts the preemptor of a GPU.
pub(crate) fn start_preemptor(gpu: u32) -> anyhow::Result<Preemptor> {
    let client = RmClient::open(gpu)?;
    Ok(Preemptor::start(
        client,
        helper_command("nvidia-preemptor", gpu)?,
    )?)
}

/// A tenant of `bench swap`: serves the connection at its standard input.
pub(crate) fn be_swapped() -> anyhow::Result<()> {
    let stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    Ok(swapped::run(stream)?)
}
