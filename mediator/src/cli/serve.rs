//! `turnstile serve`: the daemon in the foreground.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use clap::ValueEnum;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use turnstile_accounting::Nanos;
use turnstile_mediator::daemon::{Daemon, DaemonConfig, HostConfig, MeterKind, Timing};
use turnstile_mediator::gpu::soft::{SoftConfig, SoftGpu};
use turnstile_mediator::gpu::{Gpu, Suspend};
use turnstile_policies::{DEFAULT_POLICY, POLICIES, Weight};

/// How the daemon schedules and accounts; shared by `serve` and `demo`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Scheduling {
    /// Scheduling policy
    #[arg(long, default_value = DEFAULT_POLICY, value_parser = POLICIES.iter().map(|row| row.name).collect::<Vec<_>>())]
    pub(crate) policy: String,
    /// How engine state is read
    #[arg(long, value_enum, default_value_t = MeterArg::Events)]
    pub(crate) meter: MeterArg,
    /// Length of a period with the event meter, in milliseconds
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    period_ms: u64,
    /// What the software GPU can do with queued commands of a VM that is held back
    #[arg(long, value_enum, default_value_t = SuspendArg::BetweenCommands)]
    suspend: SuspendArg,
    /// GPU memory of the software GPU, in MiB
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u64).range(2..=1 << 20))]
    gpu_memory_mib: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MeterArg {
    /// Context-switch log: exact
    Events,
    /// Status registers in poll phases (LoGA)
    Polled,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum SuspendArg {
    /// Nothing: they run, and are charged
    Drains,
    /// The running one ends, the next does not begin
    BetweenCommands,
    /// The running kernel stops and goes on later
    MidKernel,
}

impl MeterArg {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Events => "events",
            Self::Polled => "polled",
        }
    }
}

impl Scheduling {
    /// Starts a daemon over the software GPU; VMs that name no weight get this one.
    pub(crate) fn start(&self, socket: PathBuf, weight: Weight) -> anyhow::Result<Daemon> {
        let memory_bytes = self.gpu_memory_mib << 20;
        let suspend = match self.suspend {
            SuspendArg::Drains => Suspend::Drains,
            SuspendArg::BetweenCommands => Suspend::BetweenCommands,
            SuspendArg::MidKernel => Suspend::MidKernel,
        };
        let soft = SoftConfig {
            memory_bytes,
            suspend,
            ..SoftConfig::default()
        };
        let gpu: Arc<dyn Gpu> =
            Arc::new(SoftGpu::new(soft).context("Starting the software GPU failed")?);
        let meter = match self.meter {
            MeterArg::Events => MeterKind::Events,
            MeterArg::Polled => MeterKind::Polled,
        };
        let timing = Timing {
            period: Nanos::from_ms(self.period_ms),
            ..Timing::default()
        };
        let host = HostConfig {
            policy: self.policy.clone(),
            weight,
            ..HostConfig::default()
        };
        Ok(Daemon::start(
            DaemonConfig {
                socket,
                host,
                meter,
                timing,
            },
            gpu,
        )?)
    }
}

/// Arguments of `serve`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Unix socket that VMMs connect to
    #[arg(long, default_value = "/run/turnstile/vmm.sock")]
    socket: PathBuf,
    /// Weight of a VM that names none
    #[arg(long, default_value_t = 100)]
    default_weight: u32,
    #[command(flatten)]
    scheduling: Scheduling,
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let weight = Weight::new(args.default_weight)?;
    // Before the threads, so that none of them takes the signal.
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let daemon = args.scheduling.start(args.socket.clone(), weight)?;
    eprintln!(
        "turnstile: software GPU, policy {}, listening on {}",
        args.scheduling.policy,
        args.socket.display()
    );
    signals.forever().next();
    eprintln!("turnstile: stopping; VMs see a lost device");
    println!(
        "{}",
        serde_json::to_string_pretty(&daemon.host().snapshot())?
    );
    Ok(())
}
