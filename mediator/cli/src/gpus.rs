//! The GPUs that a configuration names.

use turnstile_daemon::config::{Config, ConfigError, Effective, GpuKind};

#[cfg(not(feature = "nvidia"))]
use self::no_nvidia as nvidia;
#[cfg(not(feature = "vfio"))]
use self::no_vfio as vfio;
use super::chosen::Chosen;
#[cfg(feature = "nvidia")]
use super::nvidia::gpu as nvidia;
use super::soft;
#[cfg(feature = "vfio")]
use super::vfio;

/// The configuration on this host: without a GPU named, all NVIDIA GPUs are its cards.
pub(crate) fn on_this_host(effective: &Effective) -> Result<Config, ConfigError> {
    effective.on_host(&nvidia::present())
}

/// Starts the GPU of a configuration.
pub(crate) fn choose(config: &Config) -> anyhow::Result<Chosen> {
    match config.gpu.kind {
        GpuKind::Soft => soft::start(config),
        GpuKind::Nvidia => nvidia::start(config),
        GpuKind::Vfio | GpuKind::VfioUser | GpuKind::VfioFake => vfio::start(config),
    }
}

/// Identity and model of the GPU, for the ledger.
pub(crate) fn identity(config: &Config) -> anyhow::Result<(String, String)> {
    let named = |id: &str, model: &str| Ok((id.to_owned(), model.to_owned()));
    let index = config.gpu.index;
    let device = config.gpu.device.as_deref().unwrap_or_default();
    match config.gpu.kind {
        GpuKind::Soft => return named(&format!("software-{index}"), "Software GPU"),
        GpuKind::VfioFake => {
            return named(
                &format!("software-pci-{index}"),
                "Software GPU behind PCI, simulated",
            );
        }
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

    pub(super) fn present() -> Vec<turnstile_daemon::config::HostGpu> {
        Vec::new()
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
