//! Engine state in its two forms: polled samples and logged switches.
//!
//! A *sample* says who is on the engine at one moment; what lies between two samples is inferred. A
//! *switch event* says "from `at` on, the engine is in `state`"; a log without holes is a complete
//! timeline, from which time follows exactly.
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
//! Any order is legal for the meter: it never assumes a grammar of the hardware.
//!
//! Some hardware logs less: the GPU context-switch records of NVIDIA drivers give "context active"
//! and "context saved" only, and a resident context that idles looks like one that runs. Such a log
//! bounds a tenant's time from above; a meter for it has to combine the log with another signal of
//! activity (polled busy bits, fences). [`crate::Observation`] carries both forms so that one meter
//! can be given both.

use crate::units::{EngineId, Moment, TenantId};
use serde::{Deserialize, Serialize};

/// One reading of an engine's status.
///
/// Whoever polls has already combined the status register (identity: the current channel) with that
/// channel's bit in the channel table (activity: executing or with commands pending), as LoGA does
/// (A1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// When the registers were read.
    pub at: Moment,
    /// Who was executing; `None` is an idle engine.
    pub occupant: Option<TenantId>,
}

/// What an engine is doing; exactly one of these at any moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EngineState {
    /// Nothing to execute.
    Idle,
    /// Saving one context and loading another; nobody's time.
    Switching,
    /// Executing commands of this tenant.
    Running(TenantId),
    /// Stalled on a fault that this tenant caused.
    Fault(TenantId),
}

/// What work a tenant has for one engine: commands that the engine could start now or as soon as a
/// command of the same channel ends, or executes. A wait that is not over, a fence and a copy are
/// no work of a compute engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Demand {
    /// None: the tenant is idle on this engine.
    #[default]
    Nothing,
    /// The engine executes a command of it, and no other could be started then.
    Executes,
    /// A command of it could be started, or directly follows the one that is executed.
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
    /// What it is from then on.
    pub demand: Demand,
}

/// A record of a context-switch log: from `at` on, the engine is in `state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwitchEvent {
    /// When the state began.
    pub at: Moment,
    /// The engine that changed its state.
    pub engine: EngineId,
    /// Number of this record in the engine's log, counted up by one; a jump is a loss of records.
    pub seq: u64,
    /// The state that began.
    pub state: EngineState,
}
