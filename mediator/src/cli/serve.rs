//! `turnstile serve`: the daemon in the foreground. It prints what it knows when it ends, and on SIGUSR1.

use std::sync::Arc;

use anyhow::Context;
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use turnstile_abi::CHUNK_BYTES;
use turnstile_accounting::Nanos;
use turnstile_accounting::record::GpuIdentity;
use turnstile_mediator::api::Api;
use turnstile_mediator::config::{Config, GpuKind, Meter, SuspendKind};
use turnstile_mediator::daemon::{Daemon, DaemonConfig, HostConfig, MeterKind, Timing};
use turnstile_mediator::gpu::nvidia::device::{self, Moving, NvidiaGpu};
use turnstile_mediator::gpu::nvidia::identity;
use turnstile_mediator::gpu::soft::{SoftConfig, SoftGpu};
use turnstile_mediator::gpu::{Gpu, Suspend};
use turnstile_policies::{Tuning, Weight};

use super::nvidia::{guardian_command, mover_command};
use super::nvidia_worker::worker_command;
use super::options::Options;
use super::{api, ledger};

/// A GPU as the daemon takes it, and what suits it.
struct Chosen {
    gpu: Arc<dyn Gpu>,
    timing: Timing,
}

/// Gives VMs so much of a card that those who own so many bytes each together own `factor` times it, and room at the host for the
/// rest.
pub(crate) fn oversubscribe(config: &mut Config, factor: f64, vms: u64) -> anyhow::Result<()> {
    anyhow::ensure!(
        config.gpu.kind != GpuKind::Soft || config.gpu.soft.suspend != SuspendKind::Drains,
        "Memory does not move where queued commands drain"
    );
    let own = config.memory.vm_mib << 20;
    // CAST: a few GiB, which an f64 holds exactly; the card has whole chunks.
    let card = (own as f64 * vms as f64 / factor) as u64 / CHUNK_BYTES * CHUNK_BYTES;
    anyhow::ensure!(
        card >= own,
        "A VM of {} MiB does not fit on a card of {} MiB; oversubscribe at most as many times as there are VMs",
        own >> 20,
        card >> 20
    );
    config.gpu.soft.memory_mib = card >> 20;
    config.memory.card_mib = card >> 20;
    config.memory.host_pool_mib = config.memory.host_pool_mib.max((own * vms) >> 20);
    Ok(())
}

fn soft(config: &Config) -> anyhow::Result<Chosen> {
    let soft = &config.gpu.soft;
    let suspend = match soft.suspend {
        SuspendKind::Drains => Suspend::Drains,
        SuspendKind::BetweenCommands => Suspend::BetweenCommands,
        SuspendKind::MidKernel => Suspend::MidKernel,
    };
    let soft = SoftConfig {
        memory_bytes: soft.memory_mib << 20,
        host_pool_bytes: config.memory.host_pool_mib << 20,
        link_rate: soft.link_mb_s * 1_000_000,
        suspend,
        ..SoftConfig::default()
    };
    let gpu = SoftGpu::new(soft).context("Starting the software GPU failed")?;
    let timing = Timing::default();
    Ok(Chosen {
        gpu: Arc::new(gpu),
        timing,
    })
}

fn nvidia(config: &Config) -> anyhow::Result<Chosen> {
    let index = config.gpu.index;
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
    let gpu = NvidiaGpu::start(index, guardian_command(index)?, worker_command, moving)
        .context("The NVIDIA GPU cannot be shared")?;
    let timing = Timing {
        period: device::PERIOD,
        tick: device::TICK,
        ..Timing::default()
    };
    Ok(Chosen {
        gpu: Arc::new(gpu),
        timing,
    })
}

/// Identity and model of the GPU, for the ledger.
fn identity(config: &Config) -> anyhow::Result<(String, String)> {
    if config.gpu.kind == GpuKind::Soft {
        return Ok(("software-0".to_owned(), "Software GPU".to_owned()));
    }
    let index = config.gpu.index;
    let known = identity::of(index).context("The driver does not tell the GPU's UUID")?;
    let known = known.with_context(|| format!("The driver does not tell of GPU {index}"))?;
    Ok((known.uuid, known.model))
}

/// Starts a daemon.
pub(crate) fn start(config: &Config) -> anyhow::Result<Daemon> {
    // First: a ledger that cannot be written is no reason to touch a GPU.
    let ledger = ledger::open(&config.ledger, || identity(config))?;
    let Chosen { gpu, mut timing } = match config.gpu.kind {
        GpuKind::Soft => soft(config)?,
        GpuKind::Nvidia => nvidia(config)?,
    };
    let scheduling = &config.scheduling;
    if let Some(ms) = scheduling.period_ms {
        timing.period = Nanos::from_ms(ms);
    }
    let meter = match config.gpu.meter {
        Meter::Events => MeterKind::Events,
        Meter::Polled => MeterKind::Polled,
    };
    let tuning = Tuning {
        frame_ns: Nanos(1_000_000_000 / scheduling.frames_per_s),
        first_slice_ns: match config.gpu.kind {
            GpuKind::Soft => Nanos::ZERO,
            GpuKind::Nvidia => device::FIRST_SLICE,
        },
        ..Tuning::default()
    };
    let host = HostConfig {
        policy: config.policy().to_owned(),
        tuning,
        weight: Weight::new(scheduling.default_weight)?,
        gpu_memory_bytes: config.memory.vm_mib << 20,
        channels: scheduling.channels_per_vm,
        tenants_max: scheduling.tenants_max,
    };
    let daemon = DaemonConfig {
        socket: config.sockets.vmm.clone(),
        host,
        meter,
        timing,
    };
    Ok(Daemon::with_ledger(daemon, gpu, ledger)?)
}

/// Arguments of `serve`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    options: Options,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let config = args.options.config()?;
    // Before the threads, so that none of them takes the signal.
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGUSR1])?;
    let daemon = start(&config)?;
    let (gpu, model) = identity(&config)?;
    let identity = GpuIdentity {
        node: ledger::node(&config.ledger),
        gpu,
        model,
    };
    let _api = Api::start(api::config(&config)?, daemon.host().clone(), identity)?;
    eprintln!(
        "turnstile: {} GPU, policy {}, listening on {}",
        config.gpu.kind.name(),
        config.policy(),
        config.sockets.vmm.display()
    );
    let tell = || -> anyhow::Result<()> {
        println!(
            "{}",
            serde_json::to_string_pretty(&daemon.host().snapshot())?
        );
        Ok(())
    };
    for signal in signals.forever() {
        if signal != SIGUSR1 {
            break;
        }
        tell()?;
    }
    eprintln!("turnstile: stopping; VMs see a lost device");
    tell()
}
