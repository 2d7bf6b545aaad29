//! PCI GPUs, behind a bus.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use turnstile_daemon::config::{Config, GpuKind};
use turnstile_soft::pci::PciGpu;
use turnstile_vfio::fake::FakeBus;
use turnstile_vfio::kernel::KernelBus;
use turnstile_vfio::user::UserBus;
use turnstile_vfio::{Bus, VfioGpu};

use super::chosen::Chosen;
use super::soft::soft_config;

/// Starts the GPU of a configuration.
pub(crate) fn start(config: &Config) -> anyhow::Result<Chosen> {
    let device = config.gpu.device.as_deref().unwrap_or_default();
    let bus: Arc<dyn Bus> = match config.gpu.kind {
        GpuKind::Vfio => Arc::new(KernelBus::open(device)?),
        GpuKind::VfioUser => Arc::new(UserBus::connect(Path::new(device))?),
        _ => {
            let device = PciGpu::new(soft_config(config)).context("Simulating a PCI GPU failed")?;
            Arc::new(FakeBus::new(device))
        }
    };
    Ok(Chosen::plain(Arc::new(VfioGpu::new(bus)?)))
}
