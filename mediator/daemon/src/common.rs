//! What all GPUs of a daemon have in common.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use turnstile_accounting::TenantId;
use turnstile_gpu::Refusal;
use turnstile_policies::place::Job;
use uuid::Uuid;

use super::journal::Journal;
use super::limits::{Limits, rows};
use super::registry::Registry;

/// Places tasks of VMs on the GPUs of a daemon.
pub(crate) trait PlaceTasks: fmt::Debug + Send + Sync {
    /// Begins a task of a VM; returns its number.
    ///
    /// # Errors
    /// The refusal that the guest sees: `NoRoomNow` where the request may be repeated.
    fn begin(&self, tenant: TenantId, job: Job) -> Result<u32, Refusal>;

    /// Ends a task of a VM.
    ///
    /// # Errors
    /// `NoSuchTask`.
    fn end(&self, tenant: TenantId, number: u32) -> Result<(), Refusal>;
}

/// What all hosts of a daemon have in common.
#[derive(Clone, Debug)]
pub(crate) struct Common {
    /// This run of the daemon.
    pub(crate) boot: Uuid,
    /// Number of the next tenant.
    next: Arc<AtomicU32>,
    pub(crate) journal: Arc<Journal>,
    /// Counts what tenants, accounts and clients hold. Its lock is an innermost one.
    pub(crate) limits: Arc<Limits>,
    /// Where tasks of VMs are placed, once the GPUs are a daemon's.
    pub(crate) tasks: Arc<OnceLock<Weak<dyn PlaceTasks>>>,
    /// Processes of tenants that are programs, which may be on several GPUs. Its lock is taken
    /// after a host's, and before that of the limits.
    registry: Arc<Mutex<Registry>>,
}

impl Common {
    /// For `gpus` GPUs with so many tenants each.
    pub(crate) fn new(gpus: usize, tenants_max: usize) -> Self {
        Self {
            boot: Uuid::new_v4(),
            next: Arc::new(AtomicU32::new(1)),
            journal: Arc::default(),
            limits: Limits::new(rows((gpus * tenants_max) as u64)),
            tasks: Arc::default(),
            registry: Arc::default(),
        }
    }

    /// A number that no tenant of this daemon had before.
    pub(crate) fn number(&self) -> TenantId {
        TenantId(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// Processes of all programs.
    pub(crate) fn registry(&self) -> MutexGuard<'_, Registry> {
        // A panic under the lock leaves at worst one process unknown.
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
