//! The daemon's configuration: one typed [`Config`] from files, environment and command line.
//!
//! ```text
//! defaults < turnstile.toml < conf.d/*.toml (by name) < TURNSTILE_SECTION_KEY < command line      a later one wins
//! ```
//!
//! The defaults stand here and nowhere else. An unknown key is an error in every layer, and every
//! error names its place: file and line, variable or option.

mod account;
mod error;
mod front;
mod layers;
mod principal;
mod reload;

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use turnstile_abi::{CHANNELS_MAX, CHUNK_BYTES, GPU_MEMORY_BYTES_MAX};
use turnstile_policies::{DEFAULT_POLICY, POLICIES, Weight};

use crate::HostConfig;
use turnstile_host::confine::Seccomp;
use turnstile_host::run_folder;

pub use account::AccountSection;
pub use error::{ConfigError, Problem};
pub use front::{DoorbellKind, FrontVm};
pub use layers::{Effective, Layers, Origin, Setting, known_keys};
pub use principal::{Principal, PrincipalError};
pub use reload::{LIVE, Reloaded, changed};

/// Longest path of a Unix socket. SOURCE: unix(7), `sun_path`, less its final zero.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// A text without the byte order mark that some editors put in front of it.
pub fn without_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

/// All of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Accounts: which tenants belong to which, and their limits.
    pub account: Vec<AccountSection>,
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
    /// Which of the host's NVIDIA GPUs.
    pub index: u32,
    /// Which PCI GPU: its address (0000:65:00.0), or the socket at which one is served.
    pub device: Option<String>,
    /// How engine state is read.
    pub meter: Meter,
    /// Whether a context of the daemon preempts a tenant of an NVIDIA GPU that is to stop at once.
    /// It stops about 0.3 ms sooner, for about 520 MiB of GPU memory.
    pub preemptor: bool,
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
}

impl Default for SafetySection {
    fn default() -> Self {
        Self {
            seccomp: Seccomp::Enforce,
            landlock: true,
            keep_capabilities: false,
        }
    }
}

/// Lines that the daemon writes to standard error. `RUST_LOG` wins over the level.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogSection {
    /// The least important lines that are written; of other crates, warnings at most.
    pub level: LogLevel,
    /// Whether each line has its time, in UTC.
    pub timestamps: bool,
}

impl Default for LogSection {
    fn default() -> Self {
        Self {
            level: LogLevel::Info,
            timestamps: true,
        }
    }
}

/// Importance of a line of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogLevel {
    /// Failures
    Error,
    /// What an operator should look into
    Warn,
    /// Start, end, tenants that come and go, changes
    Info,
    /// More, for the search of a fault
    Debug,
    /// All
    Trace,
}

impl LogLevel {
    /// What it is called.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
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

impl Config {
    /// Name of the policy: the configured one, or the one that suits the GPU.
    pub fn policy(&self) -> &str {
        let suits = match self.gpu.kind {
            GpuKind::Nvidia => "owed",
            GpuKind::Soft | GpuKind::Vfio | GpuKind::VfioUser | GpuKind::VfioFake => DEFAULT_POLICY,
        };
        self.scheduling.policy.as_deref().unwrap_or(suits)
    }

    /// What is out of range or does not go together, by key.
    pub fn problems(&self) -> Vec<(&'static str, String)> {
        let mut found = Vec::new();
        self.ranges(&mut found);
        let mut say = |wrong: bool, key, text: &str| {
            if wrong {
                found.push((key, text.to_owned()));
            }
        };
        let policy = &self.scheduling.policy;
        let known = |name: &String| POLICIES.iter().any(|row| row.name == name);
        let names: Vec<_> = POLICIES.iter().map(|row| row.name).collect();
        let meant = policy
            .as_ref()
            .and_then(|name| layers::nearest(name, names.iter().copied()));
        let meant = meant.map_or_else(String::new, |name| format!("did you mean {name}? "));
        say(
            policy.as_ref().is_some_and(|name| !known(name)),
            "scheduling.policy",
            &format!(
                "there is no such policy; {meant}There are: {}",
                names.join(", ")
            ),
        );
        let (vm, card) = (self.memory.vm_mib, self.gpu.soft.memory_mib);
        say(
            self.gpu.kind == GpuKind::Soft && vm > card,
            "memory.vm_mib",
            &format!("a VM of {vm} MiB does not fit on a GPU of {card} MiB (gpu.soft.memory_mib)"),
        );
        let odd = |mib: u64| !(mib << 20).is_multiple_of(CHUNK_BYTES);
        let text = "GPU memory is a multiple of 2 MiB";
        say(odd(vm), "memory.vm_mib", text);
        let fits = match self.policy() {
            "none" => true,
            name if !names.contains(&name) => true,
            policy => (policy == "owed") == (self.gpu.kind == GpuKind::Nvidia),
        };
        let text = "an NVIDIA GPU takes owed or none, other GPUs all but owed";
        say(!fits, "scheduling.policy", text);
        say(
            self.gpu.kind == GpuKind::Nvidia && self.gpu.meter != Meter::Events,
            "gpu.meter",
            "an NVIDIA GPU is accounted by its events",
        );
        say(
            matches!(self.gpu.kind, GpuKind::Vfio | GpuKind::VfioUser) && self.gpu.device.is_none(),
            "gpu.device",
            "which device? Its PCI address for vfio, its server's socket for vfio-user",
        );
        say(
            self.ledger.path.is_some() && self.ledger.postgres.is_some(),
            "ledger.postgres",
            "a ledger is a file or a server; leave one of ledger.path and ledger.postgres out",
        );
        let tls = &self.api.tls;
        let files = [&tls.certificate, &tls.key, &tls.client_ca];
        for text in account::problems(&self.account) {
            say(true, "account", &text);
        }
        if let Some(folder) = &self.vfio_user.folder {
            let bytes = |vm: &FrontVm| folder.join(&vm.name).as_os_str().len() + ".sock".len();
            let long = self
                .vfio_user
                .vms
                .iter()
                .any(|vm| bytes(vm) > SOCKET_PATH_BYTES_MAX);
            let text = "the path of a VM's socket has more than 107 bytes; shorten folder or name";
            say(long, "vfio_user.vms", text);
        }
        let names = || self.vfio_user.vms.iter().map(|vm| &vm.name);
        let twice = names().any(|name| names().filter(|other| *other == name).count() > 1);
        say(twice, "vfio_user.vms", "a VM is named twice");
        say(
            self.vfio_user.folder.is_none() && !self.vfio_user.vms.is_empty(),
            "vfio_user.folder",
            "the VMs of vfio_user.vms need a folder for their sockets",
        );
        say(
            self.api.listen.is_some() && files.iter().any(|file| file.is_none()),
            "api.listen",
            "the network is served over mutual TLS alone: api.tls.certificate, api.tls.key and api.tls.client_ca are needed",
        );
        say(
            (self.metrics.listen).is_some_and(|address| !address.ip().is_loopback()),
            "metrics.listen",
            "not a loopback address; a scraper elsewhere uses api.listen",
        );
        found
    }

    fn ranges(&self, found: &mut Vec<(&'static str, String)>) {
        let mut within = |key, value: u64, least: u64, most: u64| {
            if !(least..=most).contains(&value) {
                found.push((key, format!("{value} is not within {least} and {most}")));
            }
        };
        let (scheduling, soft) = (&self.scheduling, &self.gpu.soft);
        if let Some(ms) = scheduling.period_ms {
            within("scheduling.period_ms", ms, 1, 1_000);
        }
        within("scheduling.patience_us", scheduling.patience_us, 0, 100_000);
        let weight = scheduling.default_weight.into();
        within("scheduling.default_weight", weight, 1, Weight::MAX.into());
        // CAST: usize is 64 bits here.
        let tenants = scheduling.tenants_max as u64;
        within("scheduling.tenants_max", tenants, 1, 4_096);
        let channels = scheduling.channels_per_vm.into();
        within(
            "scheduling.channels_per_vm",
            channels,
            1,
            CHANNELS_MAX.into(),
        );
        let memory_max = GPU_MEMORY_BYTES_MAX >> 20;
        within("gpu.soft.memory_mib", soft.memory_mib, 2, memory_max);
        within("gpu.soft.link_mb_s", soft.link_mb_s, 1, 1_000_000);
        let memory = &self.memory;
        within("memory.vm_mib", memory.vm_mib, 2, memory_max);
        within("memory.host_pool_mib", memory.host_pool_mib, 0, memory_max);
        within("memory.card_mib", memory.card_mib, 0, memory_max);
        within("ledger.window_ms", self.ledger.window_ms, 100, 3_600_000);
        within("ledger.keep_days", self.ledger.keep_days, 0, 36_500);
    }
}

#[cfg(test)]
mod tests;
