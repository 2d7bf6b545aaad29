//! The ledger's records as a table: one row for each tenant's window, without sums, complete.

use super::table::{Cell, Column, Kind, Table};
use super::{ExportError, Exported, Request, Writer, show_time};
use crate::record::{Body, Entry, GpuIdentity, TenantRecord};
use crate::units::Nanos;

/// The columns.
pub(super) const COLUMNS: [Column; 27] = [
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
];

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

fn cells(gpu: &GpuIdentity, entry: &Entry, record: &TenantRecord) -> [Cell; COLUMNS.len()] {
    let stretch = &entry.stretch;
    let ns = |length: Nanos| Cell::Integer(length.0);
    let optional = |number: Option<u64>| number.map_or(Cell::Null, Cell::Integer);
    [
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
    ]
}

impl Writer for Rows<'_> {
    fn entry(&mut self, gpu: &GpuIdentity, entry: &Entry) -> Result<(), ExportError> {
        let Body::Window { tenants, .. } = &entry.body else {
            return Ok(());
        };
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
