//! An NVIDIA GPU that a configuration names.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use turnstile_daemon::Timing;
use turnstile_daemon::config::{Config, HostGpu};
use turnstile_nvidia::commands::{mover_command, preemptor_command, watchdog_command};
use turnstile_nvidia::preemptor::Preemptor;
use turnstile_nvidia::rm::RmClient;
use turnstile_nvidia::sharing::{MEMORY_TICK, Moving, SharedGpu};
use turnstile_nvidia::version;
use turnstile_nvidia::vms_only::VmsOnly;
use turnstile_nvidia::worker::WorkerConfig;

use super::worker::worker_command;
use crate::chosen::Chosen;

/// Starts the preemptor of a GPU.
fn start_preemptor(gpu: u32) -> anyhow::Result<Preemptor> {
    let client = RmClient::open(gpu)?;
    Ok(Preemptor::start(client, preemptor_command(gpu)?)?)
}

/// Starts the GPU of a configuration.
pub(crate) fn start(config: &Config) -> anyhow::Result<Chosen> {
    let index = config.gpu.index;
    let workers = WorkerConfig {
        device: index,
        ..WorkerConfig::default()
    };
    let known = version::detect();
    if let Some(lacks) = known.err().and_then(|error| error.lacks()) {
        log::warn!("{lacks}");
        let gpu = VmsOnly::start(workers, worker_command, lacks);
        let gpu = gpu.context("The NVIDIA GPU cannot be shared")?;
        return Ok(Chosen::plain(Arc::new(gpu)));
    }
    let memory = &config.memory;
    let moving = (memory.host_pool_mib > 0)
        .then(|| -> anyhow::Result<Moving> {
            Ok(Moving {
                pool_bytes: memory.host_pool_mib << 20,
                card_bytes: (memory.card_mib > 0).then_some(memory.card_mib << 20),
                mover: Box::new(mover_command()?),
            })
        })
        .transpose()?;
    let preemptor = config.gpu.preemptor.then(|| start_preemptor(index));
    let preemptor = preemptor.and_then(|preemptor| {
        let refused = |error| {
            log::warn!("{error:#}; without a preemptor, suspending takes 350 us instead of 4");
        };
        preemptor.map_err(refused).ok()
    });
    let watchdog = watchdog_command(index)?;
    let registers = config.gpu.registers;
    let gpu = SharedGpu::start(
        workers,
        registers,
        watchdog,
        worker_command,
        preemptor,
        moving,
    )
    .context("The NVIDIA GPU cannot be shared")?;
    let timing = Timing {
        tick: MEMORY_TICK,
        ..Timing::default()
    };
    Ok(Chosen {
        gpu: Arc::new(gpu),
        timing,
    })
}

/// Identity and model of a GPU, as the driver reports them.
pub(crate) fn identity(index: u32) -> anyhow::Result<(String, String)> {
    let known = turnstile_nvidia::identity::of(index)
        .context("The driver does not report the GPU's UUID")?;
    let known = known.with_context(|| format!("The driver does not report GPU {index}"))?;
    Ok((known.uuid, known.model))
}

/// GPUs that the driver reports and that have a device file here, by number.
pub(crate) fn present() -> Vec<HostGpu> {
    // Without a driver there are none; what starts a GPU reports why.
    let all = turnstile_nvidia::identity::all().unwrap_or_default();
    let here = all
        .into_iter()
        .filter(|(index, _)| Path::new(&format!("/dev/nvidia{index}")).exists());
    let mut gpus: Vec<HostGpu> = here
        .map(|(index, own)| HostGpu {
            index,
            uuid: own.uuid,
            address: own.address,
        })
        .collect();
    gpus.sort_by_key(|gpu| gpu.index);
    gpus
}
