//! `turnstile cuda-vm`: the CUDA device of a VM with the guest module, as a tenant.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::PathBuf;

use crate::launch::isolated::Isolation;
use crate::launch::serve_vm;
use crate::run::{Joins, MemoryArgs, end};

/// Arguments of `cuda-vm`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    joins: Joins,
    /// GPU memory that the VM may have, in bytes: an allocation beyond it fails as if the GPU were
    /// full
    #[arg(long)]
    gpu_memory: Option<u64>,
    #[command(flatten)]
    memory: MemoryArgs,
    /// The stand-in driver
    #[arg(long, hide = true)]
    stand_in: bool,
    /// Socket that the VM's VMM connects to
    vm: PathBuf,
}

/// Serves the device until the VMM closes it.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let own_name = args.vm.file_stem().and_then(OsStr::to_str);
    let report = args
        .joins
        .report(own_name.map(str::to_owned), args.memory.bounds())?;
    let isolation = Isolation {
        library: None,
        gpu_bytes: args.gpu_memory,
        nodes: BTreeSet::new(),
        stand_in: args.stand_in,
    };
    end(serve_vm(report, &isolation, args.memory.movable, &args.vm))
}
