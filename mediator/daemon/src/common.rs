//! What all GPUs of a daemon have in common.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use uuid::Uuid;

use super::journal::Journal;
use super::limits::{Limits, rows};

/// What all hosts of a daemon have in common.
#[derive(Clone, Debug)]
pub(crate) struct Common {
    /// This run of the daemon.
    pub(crate) boot: Uuid,
    /// Number of the next tenant.
    pub(crate) next: Arc<AtomicU32>,
    pub(crate) journal: Arc<Journal>,
    /// Counts what tenants, accounts and clients hold. Its lock is an innermost one.
    pub(crate) limits: Arc<Limits>,
}

impl Common {
    /// For `gpus` GPUs with so many tenants each.
    pub(crate) fn new(gpus: usize, tenants_max: usize) -> Self {
        Self {
            boot: Uuid::new_v4(),
            next: Arc::new(AtomicU32::new(1)),
            journal: Arc::default(),
            limits: Limits::new(rows((gpus * tenants_max) as u64)),
        }
    }
}
