//! Options of the command line that set keys of the configuration. Their defaults are the
//! configuration's.

use std::path::{Path, PathBuf};

use turnstile_daemon::config::{
    Config, DoorbellKind, Effective, FrontVm, GpuKind, Layers, Meter, Principal, SuspendKind,
};
use turnstile_policies::POLICIES;

/// Where packages put the configuration.
pub(crate) const DEFAULT_PATH: &str = "/etc/turnstile/turnstile.toml";

/// How the daemon schedules and accounts; shared by `serve` and `demo`.
#[derive(clap::Args, Clone, Debug)]
// FIELDS: options of a command.
pub(crate) struct Scheduling {
    /// The GPU to share: soft (executes kernels in software; the default), nvidia (an NVIDIA GPU;
    /// needs root), vfio (a PCI GPU that implements the device contract), vfio-user (the same,
    /// served by another process), vfio-fake (the same, simulated in this process)
    #[arg(long, value_enum)]
    gpu: Option<GpuKind>,
    /// Index of the NVIDIA GPU; serve shares all of them if none is named
    #[arg(long)]
    gpu_index: Option<u32>,
    /// One GPU: number, UUID or PCI address for nvidia, PCI address for vfio (0000:65:00.0), its
    /// server's socket for vfio-user
    #[arg(long, value_name = "ADDRESS")]
    device: Option<String>,
    /// Scheduling policy; by default dfq for the software GPU and owed for NVIDIA's
    #[arg(long, value_parser = POLICIES.iter().map(|row| row.name).collect::<Vec<_>>())]
    policy: Option<String>,
    /// How engine state is read; events by default
    #[arg(long, value_enum)]
    meter: Option<Meter>,
    /// Longest time between two decisions with the event meter, in milliseconds; 1 by default
    #[arg(long)]
    period_ms: Option<u64>,
    /// What the software GPU can do with queued commands of a held VM; between-commands by default
    #[arg(long, value_enum)]
    suspend: Option<SuspendKind>,
    /// GPU memory of the software GPU, in MiB
    #[arg(long)]
    gpu_memory_mib: Option<u64>,
    /// Host memory for GPU memory that is not on the GPU, in MiB: with some, VMs, and programs
    /// under `run --movable`, may together own more memory than the GPU has; VMs have no aperture
    /// then
    #[arg(long)]
    host_pool_mib: Option<u64>,
    /// Memory that VMs and programs have together on an NVIDIA GPU with movable memory, in MiB; by
    /// default all but 8 GiB
    #[arg(long)]
    card_mib: Option<u64>,
    /// GPU memory of a VM that names none, in MiB
    #[arg(long)]
    vm_memory_mib: Option<u64>,
    /// Rate of the software GPU's link to the host, in each direction, in MB/s
    #[arg(long)]
    link_mb_s: Option<u64>,
}

impl Scheduling {
    /// Adds the options that were given.
    fn add(&self, layers: &mut Layers) {
        layers.option("--gpu", "gpu.kind", self.gpu);
        layers.option("--gpu-index", "gpu.index", self.gpu_index);
        layers.option("--device", "gpu.device", self.device.as_ref());
        layers.option("--policy", "scheduling.policy", self.policy.as_ref());
        layers.option("--meter", "gpu.meter", self.meter);
        layers.option("--period-ms", "scheduling.period_ms", self.period_ms);
        layers.option("--suspend", "gpu.soft.suspend", self.suspend);
        layers.option(
            "--gpu-memory-mib",
            "gpu.soft.memory_mib",
            self.gpu_memory_mib,
        );
        layers.option(
            "--host-pool-mib",
            "memory.host_pool_mib",
            self.host_pool_mib,
        );
        layers.option("--card-mib", "memory.card_mib", self.card_mib);
        layers.option("--vm-memory-mib", "memory.vm_mib", self.vm_memory_mib);
        layers.option("--link-mb-s", "gpu.soft.link_mb_s", self.link_mb_s);
    }

    /// The options that were given, over the defaults: no file is read.
    pub(crate) fn config(&self) -> anyhow::Result<Config> {
        let mut layers = Layers::new();
        self.add(&mut layers);
        Ok(layers.finish()?.config)
    }
}

/// Place and parameters of the ledger.
#[derive(clap::Args, Clone, Debug)]
struct Ledger {
    /// Keep a durable ledger in this file; none is kept unless it is named
    #[arg(long)]
    ledger: Option<PathBuf>,
    /// Length of the ledger's windows, in seconds
    #[arg(long)]
    ledger_window_s: Option<u64>,
    /// Days after which entries are discarded; 0 for never
    #[arg(long)]
    ledger_keep_days: Option<u64>,
    /// Name of this host in the ledger; its own by default
    #[arg(long)]
    node: Option<String>,
}

/// The admin API.
#[derive(clap::Args, Clone, Debug)]
struct Api {
    /// Unix socket of the admin API; api.sock beside --socket unless named
    #[arg(long)]
    api_socket: Option<PathBuf>,
    /// Unix socket of the admin API for reading only; api-ro.sock beside --socket unless named
    #[arg(long)]
    api_read_only_socket: Option<PathBuf>,
    /// Principal that may read and change beside root and the daemon's user, as uid:1000,
    /// user:NAME, group:NAME; may be repeated
    #[arg(long, value_name = "PRINCIPAL")]
    api_operator: Vec<Principal>,
    /// Principal that may read; may be repeated
    #[arg(long, value_name = "PRINCIPAL")]
    api_viewer: Vec<Principal>,
    /// Keep settings over restarts, in this file; unless it is named they are lost when the daemon
    /// ends
    #[arg(long)]
    state: Option<PathBuf>,
}

impl Api {
    /// Adds the options that were given.
    fn add(&self, layers: &mut Layers) {
        let list = |all: &Vec<Principal>| (!all.is_empty()).then(|| all.clone());
        let read_only = self.api_read_only_socket.as_ref();
        layers.option("--api-socket", "api.socket", self.api_socket.as_ref());
        layers.option("--api-read-only-socket", "api.read_only_socket", read_only);
        layers.option("--api-operator", "api.operators", list(&self.api_operator));
        layers.option("--api-viewer", "api.viewers", list(&self.api_viewer));
        layers.option("--state", "api.state", self.state.as_ref());
    }
}

/// Files of the configuration, for all subcommands that read it.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Files {
    /// Configuration; conf.d/*.toml beside it are read after it. Without it,
    /// /etc/turnstile/turnstile.toml if that exists
    #[arg(long, value_name = "PATH")]
    config: Option<PathBuf>,
    /// Set any key of the configuration; may be repeated
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    assignments: Vec<String>,
}

impl Files {
    fn path(&self) -> &Path {
        self.config.as_deref().unwrap_or(Path::new(DEFAULT_PATH))
    }

    /// Files, environment, and `--set`.
    pub(crate) fn layers(&self) -> anyhow::Result<Layers> {
        let mut layers = Layers::new();
        layers.files(self.path(), self.config.is_some());
        // A name that is not UTF-8 cannot be a key.
        let variables = std::env::vars_os().filter_map(|(name, value)| {
            let name = name.into_string().ok()?;
            Some((name, value.to_string_lossy().into_owned()))
        });
        layers.variables(variables);
        for text in &self.assignments {
            layers.assignment(text);
        }
        Ok(layers)
    }
}

/// All of `serve`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    files: Files,
    /// Unix socket that VMMs connect to
    #[arg(long)]
    socket: Option<PathBuf>,
    /// Folder of the vfio-user sockets of VMs of stock VMMs, NAME.sock each
    #[arg(long, value_name = "FOLDER")]
    vfio_user: Option<PathBuf>,
    /// A VM of a stock VMM; may be repeated
    #[arg(long, value_name = "NAME[:WEIGHT][,label=KEY=VALUE]")]
    vfio_user_vm: Vec<FrontVm>,
    /// How doorbell writes of their guests reach the daemon; trapped by default
    #[arg(long, value_enum)]
    vfio_user_doorbells: Option<DoorbellKind>,
    /// Weight of a VM that names none
    #[arg(long)]
    default_weight: Option<u32>,
    #[command(flatten)]
    scheduling: Scheduling,
    #[command(flatten)]
    ledger: Ledger,
    #[command(flatten)]
    api: Api,
}

impl Options {
    /// The configuration file, which has drop-ins beside it.
    pub(crate) fn file(&self) -> &Path {
        self.files.path()
    }

    /// The configuration from all of its sources.
    pub(crate) fn effective(&self) -> anyhow::Result<Effective> {
        let mut layers = self.files.layers()?;
        layers.option("--socket", "sockets.vmm", self.socket.as_ref());
        let folder = self.vfio_user.as_ref();
        layers.option("--vfio-user", "vfio_user.folder", folder);
        let vms = (!self.vfio_user_vm.is_empty()).then_some(&self.vfio_user_vm);
        layers.option("--vfio-user-vm", "vfio_user.vms", vms);
        let doorbells = self.vfio_user_doorbells;
        layers.option("--vfio-user-doorbells", "vfio_user.doorbells", doorbells);
        let weight = self.default_weight;
        layers.option("--default-weight", "scheduling.default_weight", weight);
        self.scheduling.add(&mut layers);
        self.api.add(&mut layers);
        let ledger = &self.ledger;
        layers.option("--ledger", "ledger.path", ledger.ledger.as_ref());
        let window_ms = ledger.ledger_window_s.map(|s| s.saturating_mul(1_000));
        layers.option("--ledger-window-s", "ledger.window_ms", window_ms);
        layers.option(
            "--ledger-keep-days",
            "ledger.keep_days",
            ledger.ledger_keep_days,
        );
        layers.option("--node", "ledger.node", ledger.node.as_ref());
        Ok(layers.finish()?)
    }
}
