//! Sums of the open window: engines, tenants, and the part of a period in which a tenant ran.
//!
//! In: usages of periods. Out: the sums from which the window's records are made. Only
//! [`super::Rollup`] reads and changes them.

use crate::record::{EngineRecord, SignalSet, UnixNanos};
use crate::units::{EngineId, Moment, Nanos, TenantId};
use crate::usage::Usage;
use std::collections::BTreeMap;

/// A tenant's part of the open window.
#[derive(Clone, Debug, Default)]
// FIELDS: a row: one quantity each.
pub(super) struct Sums {
    pub(super) engine_ns: Nanos,
    pub(super) estimated_ns: Nanos,
    pub(super) fault_ns: Nanos,
    pub(super) copy_ns: Nanos,
    pub(super) copy_bytes: u64,
    pub(super) held_ns: Nanos,
    pub(super) waiting_ns: Nanos,
    pub(super) memory_byte_ns: Option<u128>,
    pub(super) signals: SignalSet,
    pub(super) error_bound_ns: Nanos,
    pub(super) turns: u64,
}

/// The current window.
#[derive(Clone, Debug)]
pub(super) struct Open {
    pub(super) start: UnixNanos,
    pub(super) end: UnixNanos,
    pub(super) from: Moment,
    pub(super) to: Moment,
    pub(super) engines: Vec<EngineRecord>,
    pub(super) tenants: BTreeMap<TenantId, Sums>,
    /// Whether the GPU counts copied bytes.
    pub(super) counts_bytes: bool,
    pub(super) overflow: bool,
}

/// The part of a period in which a tenant did not wait: its longest time on a compute engine,
/// stalls included.
pub(super) fn ran_ns(usage: &Usage, tenant: TenantId, engines: &[(EngineId, bool)]) -> Nanos {
    let part = |engine: &crate::usage::EngineUsage| {
        let index = engine
            .tenants
            .binary_search_by_key(&tenant, |t| t.tenant)
            .ok()?;
        Some(engine.tenants[index].used_ns + engine.tenants[index].fault_ns)
    };
    usage
        .engines
        .iter()
        .zip(engines)
        .filter_map(|(engine, (_, compute))| if *compute { part(engine) } else { None })
        .max()
        .unwrap_or_default()
}
