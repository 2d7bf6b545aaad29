//! Exports of the ledger: events for metering systems, rows for spreadsheets, a bill in FOCUS.
//!
//! An export covers its request in full, or is refused: each GPU's entries have to reach from the
//! request's beginning to its end, and the ledger has to know the tenant. A request may accept what
//! is missing. Time without a record is rows of the export, whatever the tenant. Its content
//! depends on the ledger and the price list alone. A repeated export is equal to the last byte.

mod calendar;
mod container;
mod error;
mod events;
mod focus;
#[cfg(feature = "parquet")]
mod parquet;
mod prices;
mod rows;
mod schema;
mod summary;
mod table;
mod unknown;

pub use calendar::{day_of, hour_of, month_of, parse_date, parse_time, show_time};
pub use container::Container;
pub use error::ExportError;
pub use events::schema as events_schema;
pub use focus::{FocusVersion, columns as focus_columns};
pub use prices::{PriceList, PriceListError};
pub use schema::schema as focus_schema;
pub use summary::{Summary, TenantSum, UnknownSum, summary};
pub use table::Cell;
pub use unknown::{UNOBSERVED, UNRECORDED};

use crate::audit::Audit;
use crate::record::{Body, Entry, GpuIdentity, TenantRecord, UnixNanos};
use crate::store::{Kept, Selection, Store, StoreError};
use std::io::Write;
use unknown::Unknown;
use uuid::Uuid;

/// Format of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// CloudEvents, one JSON object a line: a tenant's window, a GPU's conservation, a gap.
    Events,
    /// A row for each tenant's window.
    Rows(Container),
    /// FOCUS: a row for each tenant, GPU and hour. Needs a price list.
    Focus(FocusVersion, Container),
}

/// The part of the ledger that an export covers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// Windows that begin at or after this; for FOCUS a full hour.
    pub from: UnixNanos,
    /// Windows that begin before this; for FOCUS a full hour. All time before it has to be closed.
    pub to: UnixNanos,
    /// Only this node.
    pub node: Option<String>,
    /// Only this GPU, by its identity within its node.
    pub gpu: Option<String>,
    /// Only this tenant, by its name or its id; and all time without a record.
    pub tenant: Option<String>,
    /// Export what is there, also where the ledger does not cover the request or does not know the
    /// tenant. Time outside of the ledger is a row of the cause [`UNRECORDED`].
    pub allow_gaps: bool,
    /// The present, where it is known: time after it is not without a record.
    pub now: Option<UnixNanos>,
}

/// Amounts that an export wrote.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exported {
    /// Events or rows.
    pub rows: u64,
    /// Entries of the ledger that were read.
    pub entries: u64,
    /// Engine time in all rows.
    pub engine_ns: u128,
    /// Time without a record in all rows.
    pub unknown_ns: u128,
}

/// Receives the progress of an export, in thousandths.
pub type Progress<'a> = dyn FnMut(u64) + 'a;

/// Takes entries and writes rows.
trait Writer {
    /// A window that begins within the request.
    fn window(
        &mut self,
        gpu: &GpuIdentity,
        entry: &Entry,
        tenants: &[TenantRecord],
    ) -> Result<(), ExportError>;
    /// Time without a record. Of a window it comes before the window.
    fn unknown(&mut self, gpu: &GpuIdentity, unknown: Unknown<'_>) -> Result<(), ExportError>;
    /// Writes the rest, and the end of the file.
    fn finish(self: Box<Self>) -> Result<Exported, ExportError>;
}

impl Request {
    fn selection(&self) -> Selection {
        Selection {
            from: Some(self.from),
            to: Some(self.to),
            node: self.node.clone(),
            gpu: self.gpu.clone(),
            // A gap may lie around the beginning.
            overlapping: true,
        }
    }

    /// Whether the request includes a tenant.
    fn wants(&self, id: Uuid, name: &str) -> bool {
        let own = |requested: &String| requested == name || *requested == id.to_string();
        self.tenant.as_ref().is_none_or(own)
    }
}

/// The selected GPUs. Refuses a request that is not covered in full.
fn covered(kept: &[Kept], request: &Request) -> Result<Vec<Kept>, ExportError> {
    if request.from >= request.to {
        return Err(ExportError::Empty);
    }
    let selection = request.selection();
    let chosen: Vec<Kept> = kept
        .iter()
        .filter(|kept| selection.has(&kept.gpu))
        .cloned()
        .collect();
    if chosen.is_empty() {
        return Err(ExportError::NoGpu);
    }
    for kept in &chosen {
        let GpuIdentity { node, gpu, .. } = kept.gpu.clone();
        if request.allow_gaps {
            continue;
        }
        if kept.from > request.from {
            return Err(ExportError::Discarded {
                node,
                gpu,
                from: kept.from,
            });
        }
        if kept.first > request.from {
            let from = kept.first;
            return Err(ExportError::NotStarted { node, gpu, from });
        }
        if kept.tail.end < request.to {
            return Err(ExportError::NotClosed {
                node,
                gpu,
                until: kept.tail.end,
            });
        }
    }
    Ok(chosen)
}

fn writer<'a>(
    format: Format,
    request: &'a Request,
    prices: Option<&'a PriceList>,
    out: &'a mut (dyn Write + Send),
) -> Result<Box<dyn Writer + 'a>, ExportError> {
    match format {
        Format::Events => Ok(Box::new(events::Events::new(request, out))),
        Format::Rows(container) => Ok(Box::new(rows::Rows::new(
            request,
            container.open(&rows::COLUMNS, out)?,
        ))),
        Format::Focus(version, container) => {
            let prices = prices.ok_or(ExportError::NoPrices)?;
            for at in [request.from, request.to] {
                if hour_of(at) != at {
                    return Err(ExportError::NotAnHour { at });
                }
            }
            let columns = focus::columns(version);
            Ok(Box::new(focus::Focus::new(
                request,
                version,
                prices,
                container.open(&columns, out)?,
            )))
        }
    }
}

/// Writes one export.
///
/// # Errors
/// If the ledger does not cover the request in full or is damaged within it, or if the price list
/// lacks a price. Also if reading or writing fails. The content of `out` is then incomplete and has
/// to be discarded.
pub fn export(
    store: &mut dyn Store,
    format: Format,
    request: &Request,
    prices: Option<&PriceList>,
    out: &mut (dyn Write + Send),
    progress: &mut Progress<'_>,
) -> Result<Exported, ExportError> {
    let mut writer = writer(format, request, prices, out)?;
    let entries = read(
        store,
        request,
        &mut |gpu, part| match part {
            Part::Unknown(unknown) => writer.unknown(gpu, unknown),
            Part::Window(entry, tenants) => writer.window(gpu, entry, tenants),
        },
        progress,
    )?;
    let exported = writer.finish()?;
    progress(1_000);
    Ok(Exported {
        entries,
        ..exported
    })
}

/// A part of the time of a request.
#[derive(Clone, Copy)]
enum Part<'a> {
    /// Time without a record.
    Unknown(Unknown<'a>),
    /// A window that begins within the request, and its records.
    Window(&'a Entry, &'a [TenantRecord]),
}

/// Takes a part of the request; its entry passed the audit.
type Take<'a> = dyn FnMut(&GpuIdentity, Part<'_>) -> Result<(), ExportError> + 'a;

/// Passes on what an entry is to a request.
fn parts(
    request: &Request,
    gpu: &GpuIdentity,
    entry: &Entry,
    take: &mut Take<'_>,
) -> Result<(), ExportError> {
    let window = match &entry.body {
        Body::Window { tenants, .. } => Some(tenants),
        Body::Gap { .. } => None,
    };
    // A window belongs to the request in which it begins.
    if window.is_some() && entry.stretch.start < request.from {
        return Ok(());
    }
    if let Some(unknown) = Unknown::of(request, entry) {
        take(gpu, Part::Unknown(unknown))?;
    }
    window.map_or(Ok(()), |tenants| take(gpu, Part::Window(entry, tenants)))
}

/// Reads all requested entries in order; returns their number.
fn read(
    store: &mut dyn Store,
    request: &Request,
    take: &mut Take<'_>,
    progress: &mut Progress<'_>,
) -> Result<u64, ExportError> {
    if let (Some(tenant), false) = (&request.tenant, request.allow_gaps)
        && !store.knows(tenant)?
    {
        let tenant = tenant.clone();
        return Err(ExportError::NoTenant { tenant });
    }
    let chosen = covered(&store.gpus()?, request)?;
    let last = request.now.map_or(request.to, |now| now.min(request.to));
    let (mut entries, mut refused) = (0, None);
    let length = (request.to.0 - request.from.0).max(1);
    for (index, kept) in chosen.iter().enumerate() {
        if let Some(before) = Unknown::outside(request.from, kept.first.min(last)) {
            take(&kept.gpu, Part::Unknown(before))?;
        }
        let mut end = kept.first.max(request.from);
        let mut audit = Audit::within(&kept.gpu);
        let selection = Selection {
            node: Some(kept.gpu.node.clone()),
            gpu: Some(kept.gpu.gpu.clone()),
            ..request.selection()
        };
        store.query(&selection, &mut |gpu, entry| {
            entries += 1;
            audit.entry(&entry);
            let done = u128::from(entry.stretch.start.0.saturating_sub(request.from.0)) * 1_000
                / u128::from(length);
            // CAST: at most 1,000 for each GPU
            progress((index as u64 * 1_000 + done as u64) / chosen.len() as u64);
            let taken = match audit.first_finding() {
                Some(finding) => Err(ExportError::Damaged(finding.clone())),
                None => parts(request, gpu, &entry, take),
            };
            end = end.max(entry.stretch.end);
            refused = taken.err();
            Ok(refused.is_none())
        })?;
        if let Some(error) = refused {
            return Err(error);
        }
        if let Some(after) = Unknown::outside(end, last) {
            take(&kept.gpu, Part::Unknown(after))?;
        }
    }
    // Retention may have discarded entries between two queries.
    let left = covered(&store.gpus()?, request)?;
    let lacks = |(before, now): (&Kept, &Kept)| now.first > before.first.max(request.from);
    match chosen.iter().zip(&left).find(|both| lacks(*both)) {
        Some((_, now)) => Err(ExportError::Discarded {
            node: now.gpu.node.clone(),
            gpu: now.gpu.gpu.clone(),
            from: now.first,
        }),
        None => Ok(entries),
    }
}

impl From<StoreError> for ExportError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}
