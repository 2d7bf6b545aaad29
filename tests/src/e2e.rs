//! A daemon and VMs in one process, for the end-to-end suites.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context;
use turnstile_accounting::Nanos;
use turnstile_daemon::{Daemon, DaemonConfig, HostConfig, HostSnapshot, Settings, TenantSnapshot};
use turnstile_gpu::Suspend;
use turnstile_images::{Load, Report, Workload};
use turnstile_soft::{SoftConfig, SoftGpu};
use turnstile_vmm::vmm::{self, VmConfig, VmError, VmHandle, VmReport};

/// Time for a guest to end on request.
pub const GRACE: Duration = Duration::from_secs(30);

/// Kinds of guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guests {
    /// Virtual machines.
    Kvm,
    /// Host threads in their place.
    Native,
}

impl Guests {
    /// Each kind that this host supports; prints the missing one to standard error.
    pub fn all() -> Vec<Self> {
        match kvm_guests() {
            Ok(()) => vec![Self::Native, Self::Kvm],
            Err(reason) => {
                eprintln!("skipped with KVM guests: {reason}");
                vec![Self::Native]
            }
        }
    }
}

/// Whether this host runs KVM guests, and this build has one.
///
/// # Errors
/// Why not.
pub fn kvm_guests() -> Result<(), String> {
    vmm::kvm_available().map_err(|error| error.to_string())?;
    turnstile_images::guest_built().map_err(|error| error.to_string())
}

/// Hosts share the machine's few cores: one at a time in a process, so that each measures only
/// itself.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A daemon over a software GPU, on its own socket; the only one in its process while it exists.
#[derive(Debug)]
pub struct TestHost {
    daemon: Daemon,
    socket: PathBuf,
    _alone: MutexGuard<'static, ()>,
    _folder: tempfile::TempDir,
}

impl TestHost {
    /// Starts a daemon with a GPU that ends kernels after `kernel_limit`.
    ///
    /// # Errors
    /// If the host provides no socket, threads or memory.
    pub fn start(policy: &str, kernel_limit: Nanos) -> anyhow::Result<Self> {
        let alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = tempfile::Builder::new().prefix("turnstile").tempdir()?;
        let socket = folder.path().join("vmm.sock");
        let suspend = Suspend::BetweenCommands;
        let soft = SoftConfig {
            kernel_limit,
            suspend,
            ..SoftConfig::default()
        };
        let host = HostConfig {
            policy: policy.into(),
            ..HostConfig::default()
        };
        let config = DaemonConfig {
            host,
            ..DaemonConfig::new(&socket)
        };
        let daemon = Daemon::start(config, Arc::new(SoftGpu::new(soft)?))?;
        Ok(Self {
            daemon,
            socket,
            _alone: alone,
            _folder: folder,
        })
    }

    /// The socket to which VMMs connect.
    pub fn socket(&self) -> &PathBuf {
        &self.socket
    }

    /// Tenants, totals, conservation.
    pub fn snapshot(&self) -> HostSnapshot {
        self.daemon.host().snapshot()
    }

    /// The tenant of this name.
    ///
    /// # Errors
    /// If there is none.
    pub fn tenant(&self, name: &str) -> anyhow::Result<TenantSnapshot> {
        let snapshot = self.snapshot();
        let found = snapshot
            .tenants
            .into_iter()
            .find(|tenant| tenant.name == name);
        found.with_context(|| format!("no tenant {name}"))
    }

    /// Changes a weight.
    ///
    /// # Errors
    /// If the policy knows none.
    pub fn set_weight(&self, name: &str, weight: u32) -> anyhow::Result<()> {
        let settings = Settings {
            weight: Some(turnstile_policies::Weight::new(weight)?),
            ..Settings::default()
        };
        Ok(self.daemon.host().set_settings(name, Some(settings))?)
    }

    /// Starts a VM with the test guest.
    ///
    /// # Errors
    /// If the daemon or the host refuses it.
    pub fn spawn(
        &self,
        guests: Guests,
        name: &str,
        weight: u32,
        workload: Workload,
    ) -> Result<VmHandle, VmError> {
        let config = VmConfig {
            weight: Some(weight),
            guest_elf: turnstile_images::GUEST_ELF.to_vec(),
            args: workload.encode().to_vec(),
            files: turnstile_images::files(),
            ..VmConfig::new(name, &self.socket)
        };
        match guests {
            Guests::Kvm => vmm::spawn(config),
            Guests::Native => {
                vmm::native::spawn(config, |platform| turnstile_images::run(platform))
            }
        }
    }
}

/// An endless load of kernels of this length, deep enough to use its VM's share.
pub fn load(kernel: Nanos) -> Workload {
    let depth = (8_000_000 / kernel.0).clamp(4, 64) as u32;
    Workload::Load(Load {
        duration_ns: 0,
        kernel_ns: kernel.0,
        depth,
        fence_every: depth / 2,
        ..Load::default()
    })
}

/// What the guest of an ended VM reported.
///
/// # Errors
/// If it left no report.
pub fn guest_report(vm: &VmReport) -> anyhow::Result<Report> {
    Report::decode(&vm.report)
        .with_context(|| format!("no report; {:?}, console {:?}", vm.end, vm.console))
}

/// Polls `done` every few milliseconds, for at most `limit`; returns whether it became true.
pub fn wait_for(limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let since = std::time::Instant::now();
    while since.elapsed() < limit {
        if done() {
            return true;
        }
        std::thread::park_timeout(Duration::from_millis(5));
    }
    done()
}
