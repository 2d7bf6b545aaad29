//! Commands that become the backend's processes: hidden subcommands of the running executable.

use std::io;
use std::process::Command;

/// Makes the command of a process, as often as one is started.
type Make = Box<dyn Fn() -> Command + Send + Sync>;

fn command(name: &'static str, gpu: Option<u32>) -> io::Result<Make> {
    let program = std::env::current_exe()?;
    Ok(Box::new(move || {
        let mut command = Command::new(&program);
        command.arg(name);
        if let Some(gpu) = gpu {
            command.args(["--gpu", &gpu.to_string()]);
        }
        command
    }))
}

/// The command that becomes the watchdog of a GPU.
///
/// # Errors
/// If the executable of this process is not known.
pub fn watchdog_command(gpu: u32) -> io::Result<impl Fn() -> Command + Send + Sync + 'static> {
    command("nvidia-watchdog", Some(gpu))
}

/// The command that becomes the preemptor of a GPU.
///
/// # Errors
/// If the executable of this process is not known.
pub fn preemptor_command(gpu: u32) -> io::Result<impl Fn() -> Command + Send + Sync + 'static> {
    command("nvidia-preemptor", Some(gpu))
}

/// The command that becomes a mover.
///
/// # Errors
/// If the executable of this process is not known.
pub fn mover_command() -> io::Result<impl Fn() -> Command + Send + Sync + 'static> {
    command("nvidia-mover", None)
}
