//! The ledger's records as a table: one row for each tenant's window, without sums, complete. Time
//! without a record is a row without a tenant.

use super::table::{Cell, Column, Kind, Table};
use super::unknown::Unknown;
use super::{ExportError, Exported, Request, Writer, show_time};
use crate::ids::resource_id;
use crate::record::{Entry, GpuIdentity, TenantIdentity, TenantRecord};
use crate::units::Nanos;

/// The columns.
pub(super) const COLUMNS: [Column; 34] = [
    ("event_id", Kind::Text),
    ("node", Kind::Text),
    ("gpu", Kind::Text),
    ("gpu_model", Kind::Text),
    ("tenant_id", Kind::Text),
    ("tenant", Kind::Text),
    ("kind", Kind::Text),
    ("boot_id", Kind::Text),
    ("seq", Kind::Integer),
    ("window_start", Kind::Text),
    ("window_end", Kind::Text),
    ("window_ns", Kind::Integer),
    ("engine_ns", Kind::Integer),
    ("observed_ns", Kind::Integer),
    ("estimated_ns", Kind::Integer),
    ("fault_ns", Kind::Integer),
    ("copy_ns", Kind::Integer),
    ("copy_bytes", Kind::Integer),
    ("held_ns", Kind::Integer),
    ("waiting_ns", Kind::Integer),
    ("memory_byte_ns", Kind::Text),
    ("weight", Kind::Integer),
    ("quota_ns", Kind::Integer),
    ("period_ns", Kind::Integer),
    ("signals", Kind::Text),
    ("error_bound_ns", Kind::Integer),
    ("turns", Kind::Integer),
    ("account", Kind::Text),
    ("resource_id", Kind::Text),
    ("unknown_ns", Kind::Integer),
    ("unknown_cause", Kind::Text),
    ("instance_id", Kind::Text),
    ("project", Kind::Text),
    ("labels", Kind::Text),
];

/// The value of `kind` in a row of time without a record.
const UNKNOWN: &str = "unknown";

pub(super) struct Rows<'a> {
    request: &'a Request,
    table: Box<dyn Table + 'a>,
    exported: Exported,
}

impl<'a> Rows<'a> {
    pub(super) fn new(request: &'a Request, table: Box<dyn Table + 'a>) -> Self {
        let exported = Exported::default();
        Self {
            request,
            table,
            exported,
        }
    }
}

/// The row of a tenant's window.
pub(super) fn cells(gpu: &GpuIdentity, entry: &Entry, record: &TenantRecord) -> Vec<Cell> {
    let stretch = &entry.stretch;
    let ns = |length: Nanos| Cell::Integer(length.0);
    let optional = |number: Option<u64>| number.map_or(Cell::Null, Cell::Integer);
    vec![
        Cell::text(record.id.to_string()),
        Cell::text(&gpu.node),
        Cell::text(&gpu.gpu),
        Cell::text(&gpu.model),
        Cell::text(record.tenant.id.to_string()),
        Cell::text(&record.tenant.name),
        Cell::text(record.tenant.kind.as_str()),
        Cell::text(stretch.boot.to_string()),
        Cell::Integer(stretch.seq),
        Cell::text(show_time(stretch.start)),
        Cell::text(show_time(stretch.end)),
        ns(stretch.length_ns),
        ns(record.engine_ns),
        ns(record.engine_ns.saturating_sub(record.estimated_ns)),
        ns(record.estimated_ns),
        ns(record.fault_ns),
        ns(record.copy_ns),
        optional(record.copy_bytes),
        ns(record.held_ns),
        ns(record.waiting_ns),
        record
            .memory_byte_ns
            .map_or(Cell::Null, |wide| Cell::text(wide.to_string())),
        Cell::Integer(record.weight.into()),
        optional(record.cap.map(|cap| cap.quota_ns.0)),
        optional(record.cap.map(|cap| cap.period_ns.0)),
        Cell::text(record.signals.to_string()),
        ns(record.error_bound_ns),
        Cell::Integer(record.turns),
        Cell::maybe(record.tenant.account.as_ref()),
        Cell::text(resource_id(&gpu.node, &record.tenant).to_string()),
        Cell::Null,
        Cell::Null,
        instance(&record.tenant),
        record
            .tenant
            .metadata
            .project()
            .map_or(Cell::Null, Cell::text),
        labels(&record.tenant),
    ]
}

/// The id of a tenant's instance.
pub(super) fn instance(tenant: &TenantIdentity) -> Cell {
    let id = tenant.metadata.instance_id();
    id.map_or(Cell::Null, |id| Cell::text(id.to_string()))
}

/// A tenant's labels as a flat JSON object, keys in order; null if it has none.
fn labels(tenant: &TenantIdentity) -> Cell {
    let labels = tenant.metadata.labels();
    if labels.is_empty() {
        return Cell::Null;
    }
    // PANIC: none; texts have a JSON each
    serde_json::to_string(labels).map_or(Cell::Null, Cell::text)
}

/// The row of time without a record.
pub(super) fn unknown_cells(gpu: &GpuIdentity, unknown: &Unknown<'_>) -> Vec<Cell> {
    let cell = |column: &Column| unknown_cell(gpu, unknown, column.0);
    COLUMNS.iter().map(cell).collect()
}

fn unknown_cell(gpu: &GpuIdentity, unknown: &Unknown<'_>, column: &str) -> Cell {
    let stretch = unknown.entry.map(|entry| &entry.stretch);
    // CAST: of a span of time within 64 bits, and the few engines of a window
    let unknown_ns = Cell::Integer(unknown.unknown_ns as u64);
    match column {
        "event_id" => Cell::text(unknown.id(gpu).to_string()),
        "node" => Cell::text(&gpu.node),
        "gpu" => Cell::text(&gpu.gpu),
        "gpu_model" => Cell::text(&gpu.model),
        "kind" => Cell::text(UNKNOWN),
        "boot_id" => stretch.map_or(Cell::Null, |of| Cell::text(of.boot.to_string())),
        "seq" => stretch.map_or(Cell::Null, |of| Cell::Integer(of.seq)),
        "window_start" => Cell::text(show_time(unknown.start)),
        "window_end" => Cell::text(show_time(unknown.end)),
        "window_ns" => stretch.map_or(Cell::Null, |of| Cell::Integer(of.length_ns.0)),
        "unknown_ns" => unknown_ns,
        "unknown_cause" => Cell::text(unknown.cause),
        _ => Cell::Null,
    }
}

impl Writer for Rows<'_> {
    fn unknown(&mut self, gpu: &GpuIdentity, unknown: Unknown<'_>) -> Result<(), ExportError> {
        self.table.row(&unknown_cells(gpu, &unknown))?;
        self.exported.rows += 1;
        self.exported.unknown_ns += unknown.unknown_ns;
        Ok(())
    }

    fn window(
        &mut self,
        gpu: &GpuIdentity,
        entry: &Entry,
        tenants: &[TenantRecord],
    ) -> Result<(), ExportError> {
        for record in tenants {
            if self.request.wants(record.tenant.id, &record.tenant.name) {
                self.table.row(&cells(gpu, entry, record))?;
                self.exported.rows += 1;
                self.exported.engine_ns += u128::from(record.engine_ns.0);
            }
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Exported, ExportError> {
        self.table.finish()?;
        Ok(self.exported)
    }
}
