//! The daemon's configuration: one typed [`Config`] from files, environment and command line.
//!
//! ```text
//! defaults < turnstile.toml < conf.d/*.toml (by name) < TURNSTILE_SECTION_KEY < command line      a later one wins
//! ```
//!
//! The defaults stand here and nowhere else. An unknown key is an error in every layer, and every
//! error names its place: file and line, variable or option.

mod account;
mod card;
mod check;
mod error;
mod front;
mod layers;
mod log;
mod principal;
mod reload;

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::HostConfig;
use turnstile_host::confine::Seccomp;
use turnstile_host::run_folder;
use turnstile_policies::place::RULES;

pub use account::AccountSection;
pub use card::{CardSection, HostGpu};
pub use error::{ConfigError, Problem};
pub use front::{DoorbellKind, FrontVm};
pub use layers::{Effective, Layers, Origin, Setting, known_keys};
pub use log::{LogLevel, LogSection};
pub use principal::{Principal, PrincipalError};
pub use reload::{LIVE, Reloaded, changed};

/// A text without the byte order mark that some editors put in front of it.
pub fn without_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

/// All of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
// FIELDS: sections of a file.
pub struct Config {
    /// Accounts: which tenants belong to which, and their limits.
    pub account: Vec<AccountSection>,
    /// Several GPUs: what each has of its own.
    pub card: Vec<CardSection>,
    /// Which GPU, and how it is read.
    pub gpu: GpuSection,
    /// Policy and limits of tenants.
    pub scheduling: SchedulingSection,
    /// GPU memory.
    pub memory: MemorySection,
    /// Where VMMs connect.
    pub sockets: SocketsSection,
    /// VMs of stock VMMs.
    pub vfio_user: VfioUserSection,
    /// The durable ledger.
    pub ledger: LedgerSection,
    /// The admin API.
    pub api: ApiSection,
    /// Metrics outside the admin API.
    pub metrics: MetricsSection,
    /// What the daemon gives up.
    pub safety: SafetySection,
    /// Lines that the daemon writes to standard error.
    pub log: LogSection,
}

/// Which GPU, and how it is read.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct GpuSection {
    /// What kind of GPU is shared.
    pub kind: GpuKind,
    /// Which of the host's NVIDIA GPUs. `serve` shares all of them where neither this nor `device`
    /// nor a card is named.
    pub index: u32,
    /// Which NVIDIA GPU: its number, UUID or PCI address. Which PCI GPU: its address
    /// (0000:65:00.0), or the socket at which one is served.
    pub device: Option<String>,
    /// How engine state is read.
    pub meter: Meter,
    /// Whether a context of the daemon preempts a tenant of an NVIDIA GPU that is to stop at once.
    /// It stops about 0.3 ms sooner, for about 520 MiB of GPU memory.
    pub preemptor: bool,
    /// Whether an NVIDIA GPU's registers are read. Without them tenants are charged for the time in
    /// which they are resident.
    pub registers: bool,
    /// The software GPU's own.
    pub soft: SoftSection,
}

impl Default for GpuSection {
    fn default() -> Self {
        Self {
            kind: GpuKind::Soft,
            index: 0,
            device: None,
            meter: Meter::Events,
            preemptor: true,
            registers: true,
            soft: SoftSection::default(),
        }
    }
}

/// What the software GPU is like.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct SoftSection {
    /// Its memory, in MiB.
    pub memory_mib: u64,
    /// Rate of its link to the host, in each direction, in MB/s.
    pub link_mb_s: u64,
    /// What it can do with queued commands of a held VM.
    pub suspend: SuspendKind,
    /// File to which it appends its context switches before they are accounted; for tests.
    pub trace: Option<PathBuf>,
}

impl Default for SoftSection {
    fn default() -> Self {
        Self {
            memory_mib: 1_024,
            link_mb_s: 12_000,
            suspend: SuspendKind::BetweenCommands,
            trace: None,
        }
    }
}

/// Policy and limits of tenants.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct SchedulingSection {
    /// Name of the policy; unset: the one that suits the GPU.
    pub policy: Option<String>,
    /// Which of several GPUs takes a VM: a name of `turnstile_policies::place::RULES`.
    pub placement: String,
    /// VMs that may wait for a place on a GPU, 0 to 1024; 0 refuses those that fit on none.
    pub queue: usize,
    /// Longest time between two decisions with the event meter, in ms; unset: suited to the GPU.
    pub period_ms: Option<u64>,
    /// The longest pause of a tenant that launches and waits for which its place is kept, in
    /// microseconds; 0 keeps none.
    pub patience_us: u64,
    /// Weight of a tenant that names none, 1 to 10000.
    pub default_weight: u32,
    /// Tenants at a time.
    pub tenants_max: usize,
    /// Channels that a VM may have open.
    pub channels_per_vm: u32,
}

impl Default for SchedulingSection {
    fn default() -> Self {
        let host = HostConfig::default();
        Self {
            policy: None,
            placement: RULES[0].name.into(),
            queue: 0,
            period_ms: None,
            patience_us: host.tuning.patience_ns.0 / 1_000,
            default_weight: host.weight.get(),
            tenants_max: host.tenants_max,
            channels_per_vm: host.channels,
        }
    }
}

/// GPU memory.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct MemorySection {
    /// GPU memory of a VM that names none, in MiB.
    pub vm_mib: u64,
    /// Host memory for GPU memory that is not on the GPU, in MiB. With some, VMs together may own
    /// more than the GPU has, and have no aperture.
    pub host_pool_mib: u64,
    /// Movable memory of an NVIDIA GPU for tenants, in MiB; 0: all but 8 GiB for their contexts.
    pub card_mib: u64,
}

impl Default for MemorySection {
    fn default() -> Self {
        Self {
            vm_mib: HostConfig::default().gpu_memory_bytes >> 20,
            host_pool_mib: 0,
            card_mib: 0,
        }
    }
}

/// Where VMMs connect.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct SocketsSection {
    /// Unix socket of VMMs and launchers. Unset: in `/run/turnstile`; of a user without access
    /// to it, in a folder of its own.
    pub vmm: PathBuf,
}

impl Default for SocketsSection {
    fn default() -> Self {
        Self {
            vmm: run_folder::own().join(run_folder::VMM),
        }
    }
}

/// VMs of stock VMMs (QEMU, Cloud Hypervisor): each has a vfio-user socket of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct VfioUserSection {
    /// Folder of the sockets; each is called as its VM, with `.sock` behind.
    pub folder: Option<PathBuf>,
    /// The VMs, each as `NAME`, `NAME:WEIGHT` or either with `@ACCOUNT` behind.
    pub vms: Vec<FrontVm>,
    /// How their doorbell writes reach the daemon.
    pub doorbells: DoorbellKind,
}

/// The durable ledger; none is kept unless a path or a server is named.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct LedgerSection {
    /// SQLite file.
    pub path: Option<PathBuf>,
    /// PostgreSQL server, as a connection URL or `key=value` pairs, without a password.
    pub postgres: Option<String>,
    /// File with the password of the PostgreSQL user in its first line.
    pub postgres_password_file: Option<PathBuf>,
    /// Length of a window, in milliseconds.
    pub window_ms: u64,
    /// Days after which entries are discarded; 0 for never.
    pub keep_days: u64,
    /// Name of this host; unset: its own.
    pub node: Option<String>,
    /// Price list, for bills over the API and for the billed accounts of tenants in metrics.
    pub prices: Option<PathBuf>,
}

impl Default for LedgerSection {
    fn default() -> Self {
        Self {
            path: None,
            postgres: None,
            postgres_password_file: None,
            window_ms: 60_000,
            keep_days: 400,
            node: None,
            prices: None,
        }
    }
}

/// The admin API.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ApiSection {
    /// Unix socket; credentials decide on a role. Unset: api.sock beside `sockets.vmm`.
    pub socket: Option<PathBuf>,
    /// Unix socket on which no peer may write. Unset: api-ro.sock beside `sockets.vmm`.
    pub read_only_socket: Option<PathBuf>,
    /// Principals that may read and write.
    pub operators: Vec<Principal>,
    /// Principals that may read.
    pub viewers: Vec<Principal>,
    /// Address to listen on; needs all of `tls`.
    pub listen: Option<SocketAddr>,
    /// Whether a write without `If-Match` is refused (428).
    pub require_if_match: bool,
    /// File that keeps settings from the API (weights, caps, limits) over restarts; unset: none.
    pub state: Option<PathBuf>,
    /// Certificates of `listen`.
    pub tls: TlsSection,
}

impl Default for ApiSection {
    fn default() -> Self {
        Self {
            socket: None,
            read_only_socket: None,
            operators: vec![Principal::Uid(0)],
            viewers: Vec::new(),
            listen: None,
            require_if_match: false,
            state: None,
            tls: TlsSection::default(),
        }
    }
}

/// Mutual TLS: PEM files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct TlsSection {
    /// The daemon's certificate, and those between it and a root.
    pub certificate: Option<PathBuf>,
    /// Its private key.
    pub key: Option<PathBuf>,
    /// Certificates of the authorities that sign clients' certificates.
    pub client_ca: Option<PathBuf>,
}

/// Metrics outside the admin API (which has them, too).
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct MetricsSection {
    /// Loopback address that serves `/metrics` and nothing else, to all users of the host.
    pub listen: Option<SocketAddr>,
    /// Whether metrics are also exported under DCGM's names.
    pub dcgm_compat: bool,
}

/// What the daemon gives up before it accepts connections.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct SafetySection {
    /// System calls that a thread does not need.
    pub seccomp: Seccomp,
    /// Files that the software GPU's daemon does not need, where the kernel has Landlock.
    pub landlock: bool,
    /// Whether the daemon keeps its initial capabilities. For an NVIDIA GPU it always does.
    pub keep_capabilities: bool,
    /// Whether memory files of VMs have to have all of their pages: then none is charged to the
    /// daemon's control group.
    pub preallocated_memory: bool,
}

impl Default for SafetySection {
    fn default() -> Self {
        Self {
            seccomp: Seccomp::Enforce,
            landlock: true,
            keep_capabilities: false,
            preallocated_memory: false,
        }
    }
}

/// What kind of GPU is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum GpuKind {
    /// The software GPU
    Soft,
    /// An NVIDIA GPU under the vendor's driver
    Nvidia,
    /// A PCI GPU that implements the device contract, bound to vfio-pci
    Vfio,
    /// The same behind a vfio-user server
    VfioUser,
    /// The same, simulated in the daemon
    VfioFake,
}

/// How engine state is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Meter {
    /// Context-switch log: exact
    Events,
    /// Status registers in poll phases (LoGA)
    Polled,
    /// The same with pauses between samples, which grow with how long the engines stay as they are
    Adaptive,
}

/// What the software GPU does with queued commands of a held VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum SuspendKind {
    /// Nothing: they run, and are charged
    Drains,
    /// The running one ends, the next does not begin
    BetweenCommands,
    /// The running kernel stops and goes on later
    MidKernel,
}

impl GpuKind {
    /// What it is called.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Soft => "software",
            Self::Nvidia => "NVIDIA",
            Self::Vfio => "PCI",
            Self::VfioUser => "vfio-user",
            Self::VfioFake => "simulated PCI",
        }
    }
}

impl Meter {
    /// What it is called.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Events => "events",
            Self::Polled => "polled",
            Self::Adaptive => "adaptive",
        }
    }
}

#[cfg(test)]
mod tests;
