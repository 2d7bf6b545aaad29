//! The VMs of an NVIDIA GPU, with a worker each.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::{Arc, PoisonError, RwLock};
use std::thread;

use rustix::fs::{MemfdFlags, SealFlags};
use turnstile_abi::ErrorCode;
use turnstile_accounting::{Moment, TenantId};
use turnstile_vmm::wire::ObjectChange;

use super::notify::Listener;
use super::worker::{Worker, WorkerConfig};
use turnstile_gpu::{DoorbellChange, Refusal, TenantResources};

/// The workers of this GPU, and how they are started.
pub(super) struct Vms {
    config: WorkerConfig,
    command: Arc<dyn Fn() -> Command + Send + Sync>,
    workers: RwLock<BTreeMap<TenantId, Arc<Worker>>>,
}

impl fmt::Debug for Vms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vms").finish_non_exhaustive()
    }
}

impl Vms {
    /// No VMs. `command` starts a process that calls [`super::worker::run`].
    pub(super) fn new(
        config: WorkerConfig,
        command: impl Fn() -> Command + Send + Sync + 'static,
    ) -> Self {
        Self {
            config,
            command: Arc::new(command),
            workers: RwLock::default(),
        }
    }

    /// Starts a VM's worker. `changed` is called with the process id and the objects that the
    /// driver gives to the process, and with `None` when it has ended; so for each later process of
    /// the VM. Returns the file of the VM's aperture, which is empty: memory of a real GPU is not
    /// visible through one.
    ///
    /// # Errors
    /// The refusal for the VM.
    pub(super) fn start(
        &self,
        tenant: TenantId,
        resources: TenantResources,
        changed: impl Fn(u32, Option<&[ObjectChange]>) + Send + Sync + 'static,
    ) -> Result<File, Refusal> {
        let changed = Arc::new(changed);
        let on_listener = move |pid, listener| {
            let changed = changed.clone();
            let listening = thread::Builder::new()
                .name("gpu-listen".into())
                .spawn(move || listen(pid, listener, &*changed));
            if let Err(error) = listening {
                // The process's calls fail then, and it ends.
                log::error!("Listening to a worker failed: {error}");
            }
        };
        let command = self.command.clone();
        let config = self.config.clone();
        let worker = Worker::start(tenant, resources, config, move || command(), on_listener)?;
        let file = empty_aperture().map_err(|error| Refusal {
            code: ErrorCode::HostLimit,
            detail: error.to_string(),
        })?;
        self.workers
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(tenant, Arc::new(worker));
        Ok(file)
    }

    /// The worker of a VM.
    ///
    /// # Errors
    /// If the tenant has no worker.
    pub(super) fn of(&self, tenant: TenantId) -> Result<Arc<Worker>, Refusal> {
        let workers = self.workers.read().unwrap_or_else(PoisonError::into_inner);
        let lost = || Refusal::from(ErrorCode::DeviceLost);
        workers.get(&tenant).cloned().ok_or_else(lost)
    }

    /// Ends a VM's worker; a tenant without one is ignored.
    pub(super) fn end(&self, tenant: TenantId) {
        let ended = self
            .workers
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&tenant);
        if let Some(worker) = ended {
            worker.end();
        }
    }

    /// Ends all workers.
    pub(super) fn end_all(&self) {
        let mut workers = self.workers.write().unwrap_or_else(PoisonError::into_inner);
        for worker in std::mem::take(&mut *workers).into_values() {
            worker.end();
        }
    }

    /// The VMs with commands that were announced and have not finished. Waits for no worker.
    pub(super) fn with_commands(&self) -> Vec<TenantId> {
        let workers = self.workers.read().unwrap_or_else(PoisonError::into_inner);
        let busy = workers.iter().filter(|(_, worker)| worker.has_commands());
        busy.map(|(tenant, _)| *tenant).collect()
    }

    /// A VM wrote its doorbells, or some of its gates are open, or none.
    pub(super) fn doorbells_changed(&self, tenant: TenantId, change: DoorbellChange) {
        if let Ok(worker) = self.of(tenant) {
            match change {
                DoorbellChange::Written => worker.ring(),
                DoorbellChange::AnyOpen(open) => worker.set_unwatched(open),
            }
        }
    }

    /// Sets the GPU's clock, which the fences of all workers use.
    pub(super) fn set_clock(&self, now: Moment) {
        let workers = self.workers.read().unwrap_or_else(PoisonError::into_inner);
        workers.values().for_each(|worker| worker.set_clock(now));
    }
}

/// Answers a process's system calls until it has ended.
fn listen(pid: u32, listener: Listener, changed: &impl Fn(u32, Option<&[ObjectChange]>)) {
    // Announces the process before the driver has given it anything.
    changed(pid, Some(&[]));
    listener.serve(|seen| changed(pid, Some(&[seen.change])));
    changed(pid, None);
}

fn empty_aperture() -> rustix::io::Result<File> {
    let fd: OwnedFd = rustix::fs::memfd_create(
        "turnstile-no-aperture",
        MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
    )?;
    rustix::fs::ftruncate(&fd, 4096)?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK)?;
    Ok(File::from(fd))
}
