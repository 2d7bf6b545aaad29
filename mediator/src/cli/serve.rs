//! `turnstile serve`: the daemon in the foreground. It prints what it knows when it ends, and on SIGUSR1.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use clap::ValueEnum;
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use turnstile_abi::CHUNK_BYTES;
use turnstile_accounting::Nanos;
use turnstile_mediator::daemon::{Daemon, DaemonConfig, HostConfig, MeterKind, Timing};
use turnstile_mediator::gpu::nvidia::device::{self, NvidiaGpu};
use turnstile_mediator::gpu::nvidia::identity;
use turnstile_mediator::gpu::soft::pci::PciGpu;
use turnstile_mediator::gpu::soft::{SoftConfig, SoftGpu};
use turnstile_mediator::gpu::vfio::VfioGpu;
use turnstile_mediator::gpu::vfio::fake::FakeBus;
use turnstile_mediator::gpu::{Gpu, Suspend};
use turnstile_policies::{DEFAULT_POLICY, POLICIES, Tuning, Weight};

use super::ledger::LedgerArgs;
use super::nvidia::guardian_command;
use super::nvidia_worker::worker_command;

/// How the daemon schedules and accounts; shared by `serve` and `demo`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Scheduling {
    /// The GPU to share: soft (executes kernels in software), nvidia (an NVIDIA GPU; needs root), vfio (a PCI GPU that
    /// implements the device contract), or vfio-fake (the same, simulated in this process)
    #[arg(long, value_enum, default_value_t = GpuKind::Soft)]
    pub(crate) gpu: GpuKind,
    /// Which of the host's NVIDIA GPUs
    #[arg(long, default_value_t = 0)]
    gpu_index: u32,
    /// Scheduling policy; dfq for the software GPU and slices for NVIDIA's, unless said otherwise
    #[arg(long, value_parser = POLICIES.iter().map(|row| row.name).collect::<Vec<_>>())]
    policy: Option<String>,
    /// How engine state is read
    #[arg(long, value_enum, default_value_t = MeterArg::Events)]
    pub(crate) meter: MeterArg,
    /// Longest time between two decisions with the event meter, in milliseconds; 1 for the software GPU and 10 for NVIDIA's,
    /// unless said otherwise
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1000))]
    period_ms: Option<u64>,
    /// Frames of the policy slices, in which each who waits has one turn: so many in a second
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u64).range(1..=100))]
    frames: u64,
    /// What the software GPU can do with queued commands of a VM that is held back
    #[arg(long, value_enum, default_value_t = SuspendArg::BetweenCommands)]
    suspend: SuspendArg,
    /// GPU memory of the software GPU, in MiB
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u64).range(2..=1 << 20))]
    gpu_memory_mib: u64,
    /// Host memory of the software GPU for GPU memory that is not on it, in MiB: with some, VMs together may own more than it
    /// has, and have no aperture
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=1 << 20))]
    host_pool_mib: u64,
    /// Rate of the software GPU's link to the host, in each direction, in MB/s
    #[arg(long, default_value_t = 12_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    link_mb_s: u64,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum GpuKind {
    /// The software GPU
    Soft,
    /// An NVIDIA GPU under the vendor's driver
    Nvidia,
    /// A PCI GPU that implements the device contract
    Vfio,
    /// The same, simulated in this process
    VfioFake,
}

impl MeterArg {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Events => "events",
            Self::Polled => "polled",
        }
    }
}

/// A GPU as the daemon takes it, and what suits it.
struct Chosen {
    gpu: Arc<dyn Gpu>,
    timing: Timing,
}

impl Chosen {
    /// A GPU that the default timing suits.
    fn plain(gpu: Arc<dyn Gpu>) -> Self {
        let timing = Timing::default();
        Self { gpu, timing }
    }
}

impl GpuKind {
    /// The policy for this GPU, unless another is asked for.
    const fn policy(self) -> &'static str {
        match self {
            Self::Soft | Self::Vfio | Self::VfioFake => DEFAULT_POLICY,
            Self::Nvidia => "slices",
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Soft => "software",
            Self::Nvidia => "NVIDIA",
            Self::Vfio => "PCI",
            Self::VfioFake => "simulated PCI",
        }
    }
}

impl Scheduling {
    /// Name of the policy.
    pub(crate) fn policy(&self) -> &str {
        self.policy.as_deref().unwrap_or(self.gpu.policy())
    }

    /// The same with a card on which VMs that own so many bytes together own `factor` times what it has, and room at the host
    /// for the rest.
    pub(crate) fn oversubscribed(&self, factor: f64, vms: u64) -> anyhow::Result<Self> {
        anyhow::ensure!(
            self.gpu == GpuKind::Soft && self.suspend != SuspendArg::Drains,
            "Only the software GPU moves memory, and not where queued commands drain"
        );
        let own = HostConfig::default().gpu_memory_bytes;
        // CAST: a few GiB, which an f64 holds exactly; the card has whole chunks.
        let card = (own as f64 * vms as f64 / factor) as u64 / CHUNK_BYTES * CHUNK_BYTES;
        anyhow::ensure!(
            card >= own,
            "A VM of {} MiB does not fit on a card of {} MiB; oversubscribe at most as many times as there are VMs",
            own >> 20,
            card >> 20
        );
        Ok(Self {
            gpu_memory_mib: card >> 20,
            host_pool_mib: self.host_pool_mib.max((own * vms) >> 20),
            ..self.clone()
        })
    }

    fn soft_config(&self) -> SoftConfig {
        let suspend = match self.suspend {
            SuspendArg::Drains => Suspend::Drains,
            SuspendArg::BetweenCommands => Suspend::BetweenCommands,
            SuspendArg::MidKernel => Suspend::MidKernel,
        };
        SoftConfig {
            memory_bytes: self.gpu_memory_mib << 20,
            host_pool_bytes: self.host_pool_mib << 20,
            link_rate: self.link_mb_s * 1_000_000,
            suspend,
            ..SoftConfig::default()
        }
    }

    fn soft(&self) -> anyhow::Result<Chosen> {
        let gpu = SoftGpu::new(self.soft_config()).context("Starting the software GPU failed")?;
        Ok(Chosen::plain(Arc::new(gpu)))
    }

    fn vfio_fake(&self) -> anyhow::Result<Chosen> {
        let device = PciGpu::new(self.soft_config()).context("Simulating a PCI GPU failed")?;
        let gpu = VfioGpu::new(Arc::new(FakeBus::new(device)))?;
        Ok(Chosen::plain(Arc::new(gpu)))
    }

    fn nvidia(&self) -> anyhow::Result<Chosen> {
        anyhow::ensure!(
            self.meter == MeterArg::Events,
            "An NVIDIA GPU is accounted by its events; leave --meter out"
        );
        let gpu = NvidiaGpu::start(
            self.gpu_index,
            guardian_command(self.gpu_index)?,
            worker_command,
        )
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
    fn identity(&self) -> anyhow::Result<(String, String)> {
        let named = |id: &str, model: &str| Ok((id.to_owned(), model.to_owned()));
        match self.gpu {
            GpuKind::Soft => return named("software-0", "Software GPU"),
            GpuKind::VfioFake => {
                return named("software-pci-0", "Software GPU behind PCI, simulated");
            }
            GpuKind::Vfio => return named("pci-0", "PCI GPU"),
            GpuKind::Nvidia => {}
        }
        let known =
            identity::of(self.gpu_index).context("The driver does not tell the GPU's UUID")?;
        let known =
            known.with_context(|| format!("The driver does not tell of GPU {}", self.gpu_index))?;
        Ok((known.uuid, known.model))
    }

    /// Starts a daemon; tenants that name no weight get this one.
    pub(crate) fn start(&self, socket: PathBuf, weight: Weight) -> anyhow::Result<Daemon> {
        self.start_with(socket, weight, None)
    }

    /// Starts a daemon with a durable ledger, if one is asked for.
    fn start_with(
        &self,
        socket: PathBuf,
        weight: Weight,
        ledger: Option<&LedgerArgs>,
    ) -> anyhow::Result<Daemon> {
        // First: a ledger that cannot be written is no reason to touch a GPU.
        let ledger = ledger
            .map(|ledger| ledger.open(|| self.identity()))
            .transpose()?
            .flatten();
        let Chosen { gpu, mut timing } = match self.gpu {
            GpuKind::Soft => self.soft()?,
            GpuKind::Nvidia => self.nvidia()?,
            GpuKind::Vfio => anyhow::bail!("No device was named"),
            GpuKind::VfioFake => self.vfio_fake()?,
        };
        if let Some(ms) = self.period_ms {
            timing.period = Nanos::from_ms(ms);
        }
        let meter = match self.meter {
            MeterArg::Events => MeterKind::Events,
            MeterArg::Polled => MeterKind::Polled,
        };
        let tuning = Tuning {
            frame_ns: Nanos(1_000_000_000 / self.frames),
            first_slice_ns: match self.gpu {
                GpuKind::Soft | GpuKind::Vfio | GpuKind::VfioFake => Nanos::ZERO,
                GpuKind::Nvidia => device::FIRST_SLICE,
            },
            ..Tuning::default()
        };
        let host = HostConfig {
            policy: self.policy().to_owned(),
            tuning,
            weight,
            ..HostConfig::default()
        };
        Ok(Daemon::with_ledger(
            DaemonConfig {
                socket,
                host,
                meter,
                timing,
            },
            gpu,
            ledger,
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
    #[command(flatten)]
    ledger: LedgerArgs,
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let weight = Weight::new(args.default_weight)?;
    // Before the threads, so that none of them takes the signal.
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGUSR1])?;
    let daemon = args
        .scheduling
        .start_with(args.socket.clone(), weight, Some(&args.ledger))?;
    eprintln!(
        "turnstile: {} GPU, policy {}, listening on {}",
        args.scheduling.gpu.name(),
        args.scheduling.policy(),
        args.socket.display()
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
