//! `turnstile soft-gpu`: simulated hardware, served to any process with a bus for it.

use std::path::PathBuf;

use anyhow::Context;
use turnstile_soft::SoftConfig;
use turnstile_soft::pci::{PciGpu, serve};

use super::soft::soft_config;
use turnstile_daemon::config::Config;

/// Arguments of `soft-gpu`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Unix socket at which the device is served by the vfio-user protocol
    #[arg(long)]
    vfio_user: PathBuf,
    /// Its memory, in MiB
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u64).range(2..=1 << 20))]
    memory_mib: u64,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let config = SoftConfig {
        memory_bytes: args.memory_mib << 20,
        ..soft_config(&Config::default())
    };
    let device = PciGpu::new(config).context("Simulating a PCI GPU failed")?;
    eprintln!(
        "turnstile: simulated PCI GPU (7a51:0002) at {}",
        args.vfio_user.display()
    );
    serve(&device, &args.vfio_user)
        .with_context(|| format!("Listening on {} failed", args.vfio_user.display()))
}
