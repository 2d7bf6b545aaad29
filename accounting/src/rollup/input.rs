//! Configuration of a rollup, states of tenants, and errors: what a rollup takes and refuses.
//!
//! In: the GPU, its engines and the length of a window; for each period the states of the tenants.
//! Out: the errors of a rollup. The daemon and tests make the values; [`super::Rollup`] reads them.

use crate::record::{CapInForce, GpuIdentity, TenantKind};
use crate::units::{EngineId, Moment, Nanos, TenantId};
use thiserror::Error;
use uuid::Uuid;

/// Configuration of a rollup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RollupConfig {
    /// The GPU.
    pub gpu: GpuIdentity,
    /// The run of the daemon.
    pub boot: Uuid,
    /// Length of a billing window; windows begin at its multiples on the calendar.
    pub window_ns: Nanos,
    /// The GPU's engines, ascending, and whether each is a compute engine.
    pub engines: Vec<(EngineId, bool)>,
}

/// State of a tenant at the end of a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing<'a> {
    /// The tenant.
    pub tenant: TenantId,
    /// Its name.
    pub name: &'a str,
    /// Its kind.
    pub kind: TenantKind,
    /// Name of its account; it does not change while the tenant is connected.
    pub account: Option<&'a str>,
    /// Weight in force.
    pub weight: u32,
    /// Cap in force.
    pub cap: Option<CapInForce>,
    /// Time for which it was held back since it was added.
    pub held_total_ns: Nanos,
    /// Whether it had work.
    pub backlogged: bool,
    /// GPU memory that it holds, if known.
    pub memory_bytes: Option<u64>,
}

/// Why a rollup was not made, or a period not taken; the period's time becomes a gap of the open
/// window.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RollupError {
    /// A name with control characters, which ids and exports cannot carry.
    #[error("{0:?} cannot name a node or a GPU: it is empty or has control characters")]
    Name(String),
    /// A window of zero length.
    #[error("A billing window has to be longer than nothing")]
    WindowLength,
    /// Time was lost or counted twice (law 1).
    #[error("Engine {} accounts for {accounted_ns} of a period of {period_ns}", engine.0)]
    Unbalanced {
        /// The engine.
        engine: EngineId,
        /// Sum of its parts.
        accounted_ns: Nanos,
        /// The period's length, which the sum has to equal.
        period_ns: Nanos,
    },
    /// The period begins before the last one ended.
    #[error("Period begins at {} ns, but {} ns was reached", from.0, reached.0)]
    Overlap {
        /// Beginning of the period refused.
        from: Moment,
        /// End of the last period.
        reached: Moment,
    },
    /// The period does not list the GPU's engines in ascending order.
    #[error("Period lists other engines than the GPU's {expected}")]
    Engines {
        /// How many engines the GPU has.
        expected: usize,
    },
}
