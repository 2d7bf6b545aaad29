//! The software GPU of a configuration.

use std::fs::File;
use std::sync::Arc;

use anyhow::Context;
use turnstile_daemon::config::{Config, SuspendKind};
use turnstile_gpu::Suspend;
use turnstile_soft::{SoftConfig, SoftGpu};

use super::chosen::Chosen;

/// What it is like.
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

/// Starts it.
pub(crate) fn start(config: &Config) -> anyhow::Result<Chosen> {
    let append = |path| File::options().append(true).create(true).open(path);
    let trace = (config.gpu.soft.trace.as_ref())
        .map(append)
        .transpose()
        .context("The file of gpu.soft.trace cannot be written")?;
    let gpu =
        SoftGpu::traced(soft_config(config), trace).context("Starting the software GPU failed")?;
    Ok(Chosen::plain(Arc::new(gpu)))
}
