//! A daemon over the software GPU, and sockets for stock VMMs in front of it: for the tests here,
//! and for those of `turnstile-tests`.

use std::path::Path;
use std::sync::Arc;

use turnstile_daemon::{Daemon, DaemonConfig, HostSnapshot, serve_fronts};
use turnstile_soft::{SoftConfig, SoftGpu};
use turnstile_vmm::front::{Doorbells, Front, FrontConfig};
use turnstile_vmm::wire::Metadata;

/// A daemon over a software GPU.
///
/// # Panics
/// When the host gives no socket, threads or memory.
pub fn daemon(folder: &Path) -> Daemon {
    let gpu = Arc::new(SoftGpu::new(SoftConfig::default()).unwrap());
    Daemon::start(DaemonConfig::new(folder.join("vmm.sock")), gpu).unwrap()
}

/// Sockets for VMMs, `vm/NAME.sock`: names and weights.
///
/// # Panics
/// As [`daemon`].
pub fn fronts(folder: &Path, vms: &[(&str, u32)], doorbells: Doorbells) -> Vec<Front> {
    let vms = vms.iter().map(|(name, weight)| FrontConfig {
        name: (*name).to_owned(),
        daemon: folder.join("vmm.sock"),
        weight: Some(*weight),
        gpu_memory_bytes: None,
        metadata: Metadata::default(),
        doorbells,
    });
    serve_fronts(&folder.join("vm"), vms).unwrap()
}

/// GPU time charged to a tenant, by name, in nanoseconds.
pub fn charged(snapshot: &HostSnapshot, name: &str) -> f64 {
    let tenant = snapshot.tenants.iter().find(|tenant| tenant.name == name);
    tenant.map_or(0.0, |tenant| tenant.compute_ns.0 as f64)
}
