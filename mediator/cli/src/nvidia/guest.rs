//! The device process: of a program (`run --isolated`), or of a VM with the guest module.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::launch::isolated::{self, Isolation};

/// Arguments of the device process.
#[derive(clap::Args, Debug)]
pub(crate) struct DeviceArgs {
    /// Socket that gets lines about channels
    #[arg(long)]
    report: Option<PathBuf>,
    /// Socket of the launcher, for memory that moves
    #[arg(long)]
    memory: Option<PathBuf>,
    /// GPU memory that the programs may have, in bytes
    #[arg(long)]
    gpu_memory: Option<u64>,
    /// Node of a GPU that the programs may use, by number; all if absent
    #[arg(long = "node", value_name = "NUMBER")]
    nodes: Vec<u8>,
    /// Serves a VM on this socket, until its VMM closes it
    #[arg(long, value_name = "SOCKET")]
    vm: Option<PathBuf>,
    /// The stand-in driver
    #[arg(long)]
    stand_in: bool,
}

/// Arguments of a program's first process.
#[derive(clap::Args, Debug)]
pub(crate) struct ProgramArgs {
    /// The library that it loads
    #[arg(long)]
    library: PathBuf,
    /// The command and its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Serves a program's calls.
pub(crate) fn device(args: &DeviceArgs) -> anyhow::Result<()> {
    let isolation = Isolation {
        library: None,
        gpu_bytes: args.gpu_memory,
        nodes: args.nodes.iter().copied().collect(),
        stand_in: args.stand_in,
    };
    isolated::device(
        &isolation,
        args.report.as_deref(),
        args.memory.as_deref(),
        args.vm.as_deref(),
    )
}

/// Becomes the program.
pub(crate) fn program(args: &ProgramArgs) -> anyhow::Result<std::process::ExitCode> {
    isolated::program(&args.library, &args.command).map(Into::into)
}
