//! Hidden subcommands of the NVIDIA backend: the guardian, the mover and the usher beside the daemon.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::Command;

use turnstile_nvidia::guardian::{self, Guardian};
use turnstile_nvidia::hold::HardwareSwitch;
use turnstile_nvidia::mover;
use turnstile_nvidia::rm::RmClient;
use turnstile_nvidia::swapped;
use turnstile_nvidia::usher::{self, Usher};
use turnstile_nvidia::version;

/// Arguments of `nvidia-guardian`.
#[derive(clap::Args, Debug)]
pub(crate) struct GuardianArgs {
    /// GPU
    #[arg(long, default_value_t = 0)]
    gpu: u32,
}

pub(crate) fn guard(args: &GuardianArgs) -> anyhow::Result<()> {
    let driver = version::detect()?;
    let client = RmClient::open(args.gpu)?;
    // Not the standard library's own: that one reads ahead.
    let input = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    guardian::serve(input, io::stdout(), &HardwareSwitch::new(&client, &driver))?;
    Ok(())
}

/// The command that becomes the guardian of a GPU.
pub(crate) fn guardian_command(
    gpu: u32,
) -> anyhow::Result<impl Fn() -> Command + Send + Sync + 'static> {
    helper_command("nvidia-guardian", gpu)
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

/// Starts the guardian of a GPU.
pub(crate) fn start_guardian(gpu: u32) -> anyhow::Result<Guardian> {
    Ok(Guardian::start(guardian_command(gpu)?())?)
}

/// The mover's process: on the connection at its standard input.
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

/// Arguments of `nvidia-usher`.
#[derive(clap::Args, Debug)]
pub(crate) struct UsherArgs {
    /// CUDA's number of the GPU
    #[arg(long, default_value_t = 0)]
    gpu: u32,
}

/// The usher's process: on the connection at its standard input.
pub(crate) fn usher(args: &UsherArgs) -> anyhow::Result<()> {
    let stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    Ok(usher::run(stream, args.gpu)?)
}

/// Starts the usher of a GPU.
pub(crate) fn start_usher(gpu: u32) -> anyhow::Result<Usher> {
    let client = RmClient::open(gpu)?;
    Ok(Usher::start(client, helper_command("nvidia-usher", gpu)?)?)
}

/// A tenant of `bench swap`: on the connection at its standard input.
pub(crate) fn be_swapped() -> anyhow::Result<()> {
    let stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    Ok(swapped::run(stream)?)
}
