//! Engine state in its two forms: polled samples and logged switches.
//!
//! A *sample* names the tenant on the engine at one moment; the state between two samples is
//! inferred. A *switch event* states that from `at` on the engine is in `state`. A log of them
//! without holes is a complete timeline, from which times follow exactly.
//!
//! The four states of a timeline and its usual order:
//!
//! ```text
//!            +------------------------------------------+
//!            v                                          |
//!   Idle -> Switching -> Running(a) -> Switching -> Running(b) -> Idle
//!                            |  ^
//!                            v  |
//!                         Fault(a)
//! ```
//!
//! The meter accepts any order: it assumes no grammar of the hardware.
//!
//! Some hardware logs less: the GPU context-switch records of NVIDIA drivers give "context active"
//! and "context saved" only. A resident context that idles looks like one that runs. Such a log
//! bounds a tenant's time from above. A meter for it has to combine the log with another signal of
//! activity (polled busy bits, fences). [`crate::Observation`] has both forms, so that one meter
//! can take both.

use crate::units::{EngineId, Moment, TenantId};
use serde::{Deserialize, Serialize};

/// One reading of an engine's status.
///
/// The caller that polls has combined the status register (identity: the current channel) with that
/// channel's bit in the channel table (activity: executing or with commands pending), as LoGA does
/// (A1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// When the registers were read.
    pub at: Moment,
    /// The tenant that executed; `None` is an idle engine.
    pub occupant: Option<TenantId>,
}

/// What an engine is doing; exactly one of these at any moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EngineState {
    /// Nothing to execute.
    Idle,
    /// Saving one context and loading another; the time of no tenant.
    Switching,
    /// Executing commands of this tenant.
    Running(TenantId),
    /// Stalled on a fault that this tenant caused.
    Fault(TenantId),
}

/// A tenant's work for one engine: commands that execute, or that the engine could start now or as
/// soon as a command of the same channel ends. An unsatisfied wait, a fence and a copy are no work
/// of a compute engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Demand {
    /// None: the tenant is idle on this engine.
    #[default]
    Nothing,
    /// The engine executes a command of it, and could start no other.
    Executes,
    /// The engine could start a command of it, now or directly after the one that executes.
    Queued,
}

/// A tenant's demand for an engine changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DemandEvent {
    /// When it changed.
    pub at: Moment,
    /// The engine.
    pub engine: EngineId,
    /// The tenant.
    pub tenant: TenantId,
    /// The demand from then on.
    pub demand: Demand,
}

/// A record of a context-switch log: from `at` on, the engine is in `state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwitchEvent {
    /// When the state began.
    pub at: Moment,
    /// The engine that changed its state.
    pub engine: EngineId,
    /// Number of this record in the engine's log; it increases by one, so a jump is a loss of
    /// records.
    pub seq: u64,
    /// The state that began.
    pub state: EngineState,
}
