//! `turnstile vfio-user`: sockets for stock VMMs, in this process or as one of its own.

use std::path::{Path, PathBuf};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use turnstile_daemon::config::{DoorbellKind, FrontVm};
use turnstile_daemon::{sent, serve_fronts};
use turnstile_host::run_folder;
use turnstile_policies::Weight;
use turnstile_vmm::front::{Doorbells, Front, FrontConfig};

/// Arguments of `vfio-user`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The daemon's socket; that of this user's own daemon, else /run/turnstile/vmm.sock
    #[arg(long, default_value_os_t = run_folder::find(run_folder::VMM), hide_default_value = true)]
    socket: PathBuf,
    /// Folder of the VMs' sockets, NAME.sock each
    #[arg(long)]
    folder: PathBuf,
    /// A VM; may be repeated
    #[arg(
        long = "vm",
        value_name = "NAME[:WEIGHT][,label=KEY=VALUE]",
        required = true
    )]
    vms: Vec<FrontVm>,
    /// How doorbell writes of their guests come
    #[arg(long, value_enum, default_value_t)]
    doorbells: DoorbellKind,
}

/// Serves VMs' devices until what is returned is dropped.
pub(crate) fn serve(
    daemon: &Path,
    folder: &Path,
    vms: &[FrontVm],
    doorbells: DoorbellKind,
) -> anyhow::Result<Vec<Front>> {
    let configs = vms.iter().map(|vm| FrontConfig {
        name: vm.name.clone(),
        daemon: daemon.to_owned(),
        weight: vm.weight.map(Weight::get),
        gpu_memory_bytes: None,
        metadata: sent(&vm.metadata),
        doorbells: match doorbells {
            DoorbellKind::Trapped => Doorbells::Trapped,
            DoorbellKind::Mapped => Doorbells::Mapped,
        },
    });
    let fronts = serve_fronts(folder, configs)?;
    for vm in vms {
        let socket = folder.join(format!("{}.sock", vm.name));
        eprintln!("turnstile: VM {vm} on {}", socket.display());
    }
    Ok(fronts)
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    // Before the threads, so that none of them takes the signal.
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let fronts = serve(&args.socket, &args.folder, &args.vms, args.doorbells)?;
    signals.forever().next();
    drop(fronts);
    Ok(())
}
