//! `turnstile run`: a program as a tenant.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::path::PathBuf;

use crate::exit;
use crate::identity::{Identity, tenant_name};
use crate::launch::isolated::Isolation;
use crate::launch::{self, Launch, LaunchError, Learn, Report};
use anyhow::Context;
use clap::ValueEnum;
use turnstile_host::run_folder;
use turnstile_vmm::wire::Gpus;

/// The tenant and its daemon, of `run` and `cuda-vm`.
#[derive(clap::Args, Debug)]
pub(crate) struct Joins {
    /// Name of the tenant; the command's and a number, or that of the VM's socket, if absent
    #[arg(long, value_parser = tenant_name)]
    name: Option<String>,
    /// Its weight, 1 to 10000; the daemon's default if absent
    #[arg(long)]
    weight: Option<u32>,
    #[command(flatten)]
    identity: Identity,
    /// The daemon's socket; that of this user's own daemon, else /run/turnstile/vmm.sock
    #[arg(long, default_value_os_t = run_folder::find(run_folder::VMM), hide_default_value = true)]
    socket: PathBuf,
    /// A GPU that it is to use, by its id or its place in `turnstile gpu list` from 0, or `all`;
    /// give it again for more. The daemon chooses one if absent
    #[arg(long = "gpu", value_name = "GPU")]
    gpus: Vec<String>,
    /// Append what is learnt to a file, without a daemon
    #[arg(long, hide = true)]
    learn_only: Option<PathBuf>,
}

impl Joins {
    /// Where its objects are reported to. `own_name` is its name if none was chosen, and the rest
    /// its bounds of memory: most, reserved, soft.
    pub(crate) fn report(
        self,
        own_name: Option<String>,
        [memory_max_bytes, memory_min_bytes, memory_high_bytes]: [Option<u64>; 3],
    ) -> anyhow::Result<Report> {
        if let Some(path) = self.learn_only {
            let opened = OpenOptions::new().append(true).create(true).open(&path);
            let opened = opened.with_context(|| format!("Opening {}", path.display()));
            return opened.map(Report::File);
        }
        Ok(Report::Daemon {
            socket: self.socket,
            name: self.name.or(own_name),
            weight: self.weight,
            metadata: Box::new(self.identity.sent()?),
            memory_max_bytes,
            memory_min_bytes,
            memory_high_bytes,
            gpus: gpus(self.gpus),
        })
    }
}

/// The GPUs that were named.
fn gpus(named: Vec<String>) -> Gpus {
    match &*named {
        [] => Gpus::Placed,
        names if names.iter().any(|name| name == "all") => Gpus::All,
        _ => Gpus::Named(named),
    }
}

/// Ends this process with the status of what was launched.
pub(crate) fn end(launched: Result<i32, LaunchError>) -> ! {
    let code = launched.unwrap_or_else(|error| {
        let code = error.exit_code();
        exit::report(&error.into());
        code
    });
    std::process::exit(code)
}

/// Whether a tenant's GPU memory moves, and its bounds.
#[derive(clap::Args, Debug)]
pub(crate) struct MemoryArgs {
    /// Let its GPU memory move: a library takes over its allocations (docs/NVIDIA.md lists what
    /// cannot move), with --isolated the device process
    #[arg(long)]
    pub(crate) movable: bool,
    /// GPU memory that it may have, in bytes, with --movable: an allocation beyond it fails as if
    /// the GPU were full, and the program is shown no more
    #[arg(long, requires = "movable")]
    memory_max: Option<u64>,
    /// Part of it, in bytes, that is never taken from it, with --movable
    #[arg(long, requires = "movable")]
    memory_min: Option<u64>,
    /// Bytes above which its memory goes first when others need room, with --movable
    #[arg(long, requires = "movable")]
    memory_high: Option<u64>,
}

impl MemoryArgs {
    /// Most, reserved and soft bytes.
    pub(crate) const fn bounds(&self) -> [Option<u64>; 3] {
        [self.memory_max, self.memory_min, self.memory_high]
    }
}

/// Arguments of `run`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    joins: Joins,
    #[command(flatten)]
    memory: MemoryArgs,
    /// Give it no NVIDIA node: a device process issues its calls to the driver
    /// (docs/CUDA_IN_GUESTS.md)
    #[arg(long, conflicts_with = "learn")]
    isolated: bool,
    /// GPU memory that it may have, in bytes, with --isolated: an allocation beyond it fails as if
    /// the GPU were full
    #[arg(long, requires = "isolated")]
    gpu_memory: Option<u64>,
    /// With --isolated, the stand-in driver
    #[arg(long, hide = true, requires = "isolated")]
    stand_in: bool,
    /// How the driver's objects are learnt; by default by notification where the kernel has it,
    /// else by the library
    #[arg(long, value_enum)]
    learn: Option<LearnArg>,
    /// The library of --movable, --isolated or --learn preload, if it is not beside this binary
    #[arg(long)]
    preload: Option<PathBuf>,
    /// The command and its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LearnArg {
    /// The kernel reports them (seccomp user notification): nothing in the program
    Notify,
    /// A library that is preloaded into the program reports them
    Preload,
}

/// Runs the command and ends with its status.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let report = args.joins.report(None, args.memory.bounds())?;
    let learn = args.learn.map(|learn| match learn {
        LearnArg::Notify => Learn::Notify,
        LearnArg::Preload => Learn::Preload,
    });
    let isolated = args.isolated.then(|| Isolation {
        library: args.preload.clone(),
        gpu_bytes: args.gpu_memory,
        nodes: BTreeSet::new(),
        stand_in: args.stand_in,
    });
    let launch = Launch {
        isolated,
        command: args.command,
        report,
        learn,
        library: args.preload,
        movable: args.memory.movable,
    };
    end(launch::run(launch))
}
