//! The sum of what each tenant used between two times.

use super::{ExportError, Part, Request, UNRECORDED, read};
use crate::ids::resource_id;
use crate::record::{GpuIdentity, TenantIdentity, TenantRecord, UnixNanos};
use crate::store::Store;
use serde::Serialize;
use std::collections::BTreeMap;
use uuid::Uuid;

/// What one tenant used of one GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
// FIELDS: a row: one quantity each.
pub struct TenantSum {
    /// The GPU.
    pub gpu: GpuIdentity,
    /// The tenant, with its last metadata.
    pub tenant: TenantIdentity,
    /// Its id as a resource, the same for each run of the daemon.
    pub resource: Uuid,
    /// Windows in which it has a record.
    pub windows: u64,
    /// Time on the compute engines: what is billed.
    pub engine_ns: u128,
    /// The part of it that was not observed, but estimated.
    pub estimated_ns: u128,
    /// Neither engine nor copy time is off by more.
    pub error_bound_ns: u128,
    /// Time on the copy engines.
    pub copy_ns: u128,
    /// Bytes that copy engines moved; none if a window does not count them.
    pub copy_bytes: Option<u128>,
    /// Time for which it was held back.
    pub held_ns: u128,
    /// Time in which it had work and did not run.
    pub waiting_ns: u128,
    /// GPU memory held, integrated over time; none if a window does not have it.
    pub memory_byte_ns: Option<u128>,
}

/// The sums of all tenants, and the entries that were read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// By GPU, tenant's id and resource.
    pub tenants: Vec<TenantSum>,
    /// Windows and gaps.
    pub entries: u64,
    /// Time that was not accounted, of all causes.
    pub unknown_ns: u128,
    /// The same by GPU and cause.
    pub unknown: Vec<UnknownSum>,
}

/// Time of a GPU without a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnknownSum {
    /// The GPU.
    pub gpu: GpuIdentity,
    /// The cause, as in the rows of an export.
    pub cause: &'static str,
    /// Beginning of the first part on the calendar.
    pub start: UnixNanos,
    /// End of the last part.
    pub end: UnixNanos,
    /// Length of all parts.
    pub unknown_ns: u128,
}

type Sums = BTreeMap<(String, String, Uuid, Uuid), TenantSum>;
type Unknowns = BTreeMap<(String, String, &'static str, Option<UnixNanos>), UnknownSum>;

/// Sums up the requested entries.
///
/// # Errors
/// As [`super::export`]; and if there are more than `tenants_max` sums, or `go_on` returns false.
pub fn summary(
    store: &mut dyn Store,
    request: &Request,
    tenants_max: usize,
    go_on: &dyn Fn() -> bool,
) -> Result<Summary, ExportError> {
    let (mut sums, mut unknowns) = (Sums::new(), Unknowns::new());
    let mut take = |gpu: &GpuIdentity, part: Part<'_>| {
        if !go_on() {
            return Err(ExportError::GivenUp);
        }
        match part {
            Part::Unknown(part) => {
                // Before and after the ledger are two stretches, and no sum.
                let at = Some(part.start).filter(|_| part.cause == UNRECORDED);
                let key = (gpu.node.clone(), gpu.gpu.clone(), part.cause, at);
                let sum = unknowns.entry(key).or_insert_with(|| UnknownSum {
                    gpu: gpu.clone(),
                    cause: part.cause,
                    start: part.start,
                    end: part.end,
                    unknown_ns: 0,
                });
                sum.end = part.end;
                sum.unknown_ns += part.unknown_ns;
            }
            Part::Window(_, tenants) => add(&mut sums, request, gpu, tenants),
        }
        if sums.len() > tenants_max {
            return Err(ExportError::TooMany { max: tenants_max });
        }
        Ok(())
    };
    let entries = read(store, request, &mut take, &mut |_| {})?;
    Ok(Summary {
        tenants: sums.into_values().collect(),
        entries,
        unknown_ns: unknowns.values().map(|sum| sum.unknown_ns).sum(),
        unknown: unknowns.into_values().collect(),
    })
}

fn add(sums: &mut Sums, request: &Request, gpu: &GpuIdentity, tenants: &[TenantRecord]) {
    for record in tenants {
        let TenantIdentity { id, name, .. } = &record.tenant;
        if !request.wants(*id, name) {
            continue;
        }
        let resource = resource_id(&gpu.node, &record.tenant);
        let sum = sums
            .entry((gpu.node.clone(), gpu.gpu.clone(), *id, resource))
            .or_insert_with(|| TenantSum {
                gpu: gpu.clone(),
                tenant: record.tenant.clone(),
                resource,
                windows: 0,
                engine_ns: 0,
                estimated_ns: 0,
                error_bound_ns: 0,
                copy_ns: 0,
                copy_bytes: Some(0),
                held_ns: 0,
                waiting_ns: 0,
                memory_byte_ns: Some(0),
            });
        if sum.tenant.metadata != record.tenant.metadata {
            sum.tenant.metadata = record.tenant.metadata.clone();
        }
        sum.windows += 1;
        sum.engine_ns += u128::from(record.engine_ns.0);
        sum.estimated_ns += u128::from(record.estimated_ns.0);
        sum.error_bound_ns += u128::from(record.error_bound_ns.0);
        sum.copy_ns += u128::from(record.copy_ns.0);
        let bytes = sum.copy_bytes.zip(record.copy_bytes);
        sum.copy_bytes = bytes.map(|(sum, more)| sum + u128::from(more));
        sum.held_ns += u128::from(record.held_ns.0);
        sum.waiting_ns += u128::from(record.waiting_ns.0);
        sum.memory_byte_ns = sum
            .memory_byte_ns
            .zip(record.memory_byte_ns)
            .and_then(|(sum, more)| sum.checked_add(more));
    }
}
