//! `turnstile cuda-vm`: the CUDA device of a VM with the guest module, as a tenant.

use std::ffi::OsStr;
use std::path::PathBuf;

use crate::launch::isolated::Isolation;
use crate::launch::{self, Report};
use crate::run::learnt_file;

/// Arguments of `cuda-vm`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Name of the tenant; that of the VM's socket without its ending if absent
    #[arg(long)]
    name: Option<String>,
    /// Its weight, 1 to 10000; the daemon's default if absent
    #[arg(long)]
    weight: Option<u32>,
    /// The daemon's socket
    #[arg(long, default_value = "/run/turnstile/vmm.sock")]
    socket: PathBuf,
    /// GPU memory that the VM may have, in bytes: an allocation beyond it fails as if the GPU were
    /// full
    #[arg(long)]
    gpu_memory: Option<u64>,
    /// The stand-in driver
    #[arg(long, hide = true)]
    stand_in: bool,
    /// Append what is learnt to a file, without a daemon
    #[arg(long, hide = true)]
    learn_only: Option<PathBuf>,
    /// Socket that the VM's VMM connects to
    vm: PathBuf,
}

/// Serves the device until the VMM closes it.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let own_name = || {
        args.vm
            .file_stem()
            .and_then(OsStr::to_str)
            .map(str::to_owned)
    };
    let report = match &args.learn_only {
        Some(path) => Report::File(learnt_file(path)?),
        None => Report::Daemon {
            socket: args.socket,
            name: args.name.or_else(own_name),
            weight: args.weight,
            memory_max_bytes: None,
            memory_min_bytes: None,
            memory_high_bytes: None,
        },
    };
    let isolation = Isolation {
        library: None,
        gpu_bytes: args.gpu_memory,
        stand_in: args.stand_in,
    };
    let code = launch::serve_vm(report, &isolation, &args.vm).unwrap_or_else(|error| {
        let code = error.exit_code();
        eprintln!("turnstile cuda-vm: {:#}", anyhow::Error::from(error));
        code
    });
    std::process::exit(code)
}
