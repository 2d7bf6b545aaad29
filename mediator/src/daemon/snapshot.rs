//! What the daemon tells of itself.

use std::collections::BTreeMap;

use serde::Serialize;
use turnstile_accounting::ledger::EngineSnapshot;
use turnstile_accounting::{Moment, Nanos, TenantId};

use crate::gpu::Untracked;

/// What a tenant is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum TenantKind {
    /// A virtual machine.
    Vm,
    /// A program and its children.
    Program {
        /// Those of its processes that use the GPU.
        processes: usize,
    },
}

/// A tenant in a [`HostSnapshot`].
#[derive(Clone, Debug, Serialize)]
pub struct TenantSnapshot {
    /// Number.
    pub tenant: TenantId,
    /// Name.
    pub name: String,
    /// What it is.
    #[serde(flatten)]
    pub kind: TenantKind,
    /// Weight in force.
    pub weight: u32,
    /// Whether it is let through.
    pub admitted: bool,
    /// Compute time charged.
    pub compute_ns: Nanos,
    /// Copy time charged.
    pub copy_ns: Nanos,
    /// Compute time by the engine's own log.
    pub engine_ns: Nanos,
    /// Time held back.
    pub held_ns: Nanos,
    /// Compute time by the weights of those who wanted it (`turnstile_accounting::entitled`).
    pub entitled_ns: Nanos,
    /// Time in which it had work and did not run.
    pub waited_ns: Nanos,
    /// Whether it had work at the end of the last period.
    pub backlogged: bool,
    /// Doorbell writes that trapped.
    pub doorbells_trapped: u64,
    /// Gates moved.
    pub gate_moves: u64,
    /// Its GPU memory, where that moves.
    #[serde(flatten)]
    pub memory: Option<MemorySnapshot>,
}

/// Where a tenant's GPU memory is, and what was moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MemorySnapshot {
    /// Bytes on the GPU, or on their way to or from it.
    pub resident_bytes: u64,
    /// Bytes allocated that are not.
    pub swapped_bytes: u64,
    /// Bytes of it that were copied to the host so far.
    pub swapped_out_bytes: u64,
    /// Bytes of it that were copied back so far.
    pub swapped_in_bytes: u64,
    /// Bytes of anybody that were copied because of it so far: what it is charged for.
    pub moved_bytes: u64,
}

/// A copy of the host's state.
#[derive(Clone, Debug, Serialize)]
pub struct HostSnapshot {
    /// Figures of the GPU's own work, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub gpu: BTreeMap<&'static str, u64>,
    /// When, on the GPU's clock: the end of the last closed window.
    pub at: Moment,
    /// The VMs and programs.
    pub tenants: Vec<TenantSnapshot>,
    /// Where the engines' time went, by their own log.
    pub engines: Vec<EngineSnapshot>,
    /// Wall time less everything accounted for, all engines: zero, or time was lost (law 1).
    pub conservation_error_ns: i128,
    /// Processes that use the GPU and belong to no tenant.
    pub untracked: Vec<Untracked>,
    /// Usages that the ledger refused.
    pub ledger_errors: u64,
}
