//! The GPU that a configuration names.

use std::fs::File;
use std::sync::Arc;

use anyhow::Context;
use turnstile_daemon::Timing;
use turnstile_daemon::config::{Config, GpuKind, SuspendKind};
use turnstile_gpu::{Gpu, Suspend};
use turnstile_soft::{SoftConfig, SoftGpu};

#[cfg(not(feature = "nvidia"))]
use self::no_nvidia as nvidia;
#[cfg(not(feature = "vfio"))]
use self::no_vfio as vfio;
#[cfg(feature = "nvidia")]
use super::nvidia::gpu as nvidia;
#[cfg(feature = "vfio")]
use super::vfio;

/// A GPU as the daemon takes it, and its timing.
pub(crate) struct Chosen {
    pub(crate) gpu: Arc<dyn Gpu>,
    pub(crate) timing: Timing,
}

impl Chosen {
    /// A GPU with the default timing.
    pub(crate) fn plain(gpu: Arc<dyn Gpu>) -> Self {
        let timing = Timing::default();
        Self { gpu, timing }
    }
}

/// Starts the GPU of a configuration.
pub(crate) fn choose(config: &Config) -> anyhow::Result<Chosen> {
    match config.gpu.kind {
        GpuKind::Soft => soft(config),
        GpuKind::Nvidia => nvidia::start(config),
        GpuKind::Vfio | GpuKind::VfioUser | GpuKind::VfioFake => vfio::start(config),
    }
}

/// The software GPU of a configuration.
pub(crate) fn soft_config(config: &Config) -> SoftConfig {
    let soft = &config.gpu.soft;
    let suspend = match soft.suspend {
        SuspendKind::Drains => Suspend::Drains,
        SuspendKind::BetweenCommands => Suspend::BetweenCommands,
        SuspendKind::MidKernel => Suspend::MidKernel,
    };
    SoftConfig {
        memory_bytes: soft.memory_mib << 20,
        host_pool_bytes: config.memory.host_pool_mib << 20,
        link_rate: soft.link_mb_s * 1_000_000,
        suspend,
        ..SoftConfig::default()
    }
}

fn soft(config: &Config) -> anyhow::Result<Chosen> {
    let append = |path| File::options().append(true).create(true).open(path);
    let trace = (config.gpu.soft.trace.as_ref())
        .map(append)
        .transpose()
        .context("The file of gpu.soft.trace cannot be written")?;
    let gpu =
        SoftGpu::traced(soft_config(config), trace).context("Starting the software GPU failed")?;
    Ok(Chosen::plain(Arc::new(gpu)))
}

/// Identity and model of the GPU, for the ledger.
pub(crate) fn identity(config: &Config) -> anyhow::Result<(String, String)> {
    let named = |id: &str, model: &str| Ok((id.to_owned(), model.to_owned()));
    let device = config.gpu.device.as_deref().unwrap_or_default();
    match config.gpu.kind {
        GpuKind::Soft => return named("software-0", "Software GPU"),
        GpuKind::VfioFake => return named("software-pci-0", "Software GPU behind PCI, simulated"),
        GpuKind::Vfio | GpuKind::VfioUser => return named(&format!("pci-{device}"), "PCI GPU"),
        GpuKind::Nvidia => {}
    }
    nvidia::identity(config.gpu.index)
}

/// NVIDIA GPUs in a build without them.
#[cfg(not(feature = "nvidia"))]
mod no_nvidia {
    use super::{Chosen, Config};
    use crate::absent::absent;

    pub(super) fn start(_: &Config) -> anyhow::Result<Chosen> {
        Err(absent("gpu.kind", "nvidia"))
    }

    pub(super) fn identity(_: u32) -> anyhow::Result<(String, String)> {
        Err(absent("gpu.kind", "nvidia"))
    }
}

/// PCI GPUs in a build without them.
#[cfg(not(feature = "vfio"))]
mod no_vfio {
    use super::{Chosen, Config};
    use crate::absent::absent;

    pub(super) fn start(_: &Config) -> anyhow::Result<Chosen> {
        Err(absent("gpu.kind", "vfio"))
    }
}
