//! Stock machines: Linux guests in stock QEMU, and a host of the nested lab with VFIO and KVM of its own.
//!
//! `images/lab/build` fetches and makes what is booted; where it cannot, this is skipped with its reason.
#![allow(missing_docs)]

mod nested;
mod stock;

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use turnstile_mediator::daemon::{Daemon, DaemonConfig, HostSnapshot, serve_fronts};
use turnstile_mediator::gpu::soft::{SoftConfig, SoftGpu};
use turnstile_tests::machine::{Lab, LabError};
use turnstile_vmm::front::{Doorbells, Front, FrontConfig};

/// One of these tests at a time: each uses the whole machine.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is booted; says so aloud if there is nothing.
fn lab() -> Option<Lab> {
    match Lab::make(Path::new(env!("CARGO_BIN_EXE_nested"))) {
        Ok(lab) => Some(lab),
        Err(LabError::Skipped(reason)) => {
            println!("SKIPPED: {reason}");
            None
        }
        Err(failed) => panic!("{failed}"),
    }
}

fn daemon(folder: &Path) -> Daemon {
    let gpu = Arc::new(SoftGpu::new(SoftConfig::default()).unwrap());
    Daemon::start(DaemonConfig::new(folder.join("vmm.sock")), gpu).unwrap()
}

fn fronts(folder: &Path, vms: &[(&str, u32)]) -> Vec<Front> {
    let vms = vms.iter().map(|(name, weight)| FrontConfig {
        name: (*name).to_owned(),
        daemon: folder.join("vmm.sock"),
        weight: Some(*weight),
        gpu_memory_bytes: None,
        doorbells: Doorbells::Trapped,
    });
    serve_fronts(&folder.join("vm"), vms).unwrap()
}

/// GPU time charged to a tenant, by name.
fn charged(snapshot: &HostSnapshot, name: &str) -> f64 {
    let tenant = snapshot.tenants.iter().find(|tenant| tenant.name == name);
    tenant.map_or(0.0, |tenant| tenant.compute_ns.0 as f64)
}
