//! The sum of what each tenant used between two times.

use super::{ExportError, Request, read};
use crate::record::{Body, Entry, GpuIdentity, TenantIdentity};
use crate::store::Store;
use serde::Serialize;
use std::collections::BTreeMap;
use uuid::Uuid;

/// What one tenant used of one GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TenantSum {
    /// The GPU.
    pub gpu: GpuIdentity,
    /// The tenant.
    pub tenant: TenantIdentity,
    /// Windows in which it has a record.
    pub windows: u64,
    /// Time on the compute engines: what is billed.
    pub engine_ns: u128,
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
    /// By GPU and tenant's id.
    pub tenants: Vec<TenantSum>,
    /// Windows and gaps.
    pub entries: u64,
    /// Length of the gaps among them: time that was not accounted.
    pub gap_ns: u128,
}

type Sums = BTreeMap<(String, String, Uuid), TenantSum>;

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
    let (mut sums, mut gap_ns) = (Sums::new(), 0);
    let mut take = |gpu: &GpuIdentity, entry: &Entry| {
        if !go_on() {
            return Err(ExportError::GivenUp);
        }
        match &entry.body {
            Body::Gap { .. } => gap_ns += u128::from(entry.stretch.length_ns.0),
            Body::Window { .. } => add(&mut sums, request, gpu, entry),
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
        gap_ns,
    })
}

fn add(sums: &mut Sums, request: &Request, gpu: &GpuIdentity, entry: &Entry) {
    let Body::Window { tenants, .. } = &entry.body else {
        return;
    };
    for record in tenants {
        let TenantIdentity { id, name, .. } = &record.tenant;
        if !request.wants(*id, name) {
            continue;
        }
        let sum = sums
            .entry((gpu.node.clone(), gpu.gpu.clone(), *id))
            .or_insert_with(|| TenantSum {
                gpu: gpu.clone(),
                tenant: record.tenant.clone(),
                windows: 0,
                engine_ns: 0,
                copy_ns: 0,
                copy_bytes: Some(0),
                held_ns: 0,
                waiting_ns: 0,
                memory_byte_ns: Some(0),
            });
        sum.windows += 1;
        sum.engine_ns += u128::from(record.engine_ns.0);
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
