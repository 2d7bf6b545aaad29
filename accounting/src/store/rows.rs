//! Conversion between records and rows. Databases have signed 64-bit numbers; a value that is read
//! is checked before it is used.

use super::{Kept, Selection, StoreError};
use crate::audit::Anchor;
use crate::change::Change;
use crate::metadata::Metadata;
use crate::record::{
    Body, CapInForce, Digest, EngineRecord, Entry, GapCause, GpuIdentity, SignalSet, Stretch, Tail,
    TenantIdentity, TenantKind, TenantRecord, UnixNanos,
};
use crate::units::{EngineId, Moment, Nanos};
use std::sync::Arc;
use uuid::Uuid;

/// A row of either database, by column.
pub(super) trait Columns {
    fn number(&self, at: usize) -> Result<i64, StoreError>;
    fn number_or_null(&self, at: usize) -> Result<Option<i64>, StoreError>;
    fn flag(&self, at: usize) -> Result<bool, StoreError>;
    fn text(&self, at: usize) -> Result<String, StoreError>;
    fn text_or_null(&self, at: usize) -> Result<Option<String>, StoreError>;
    fn bytes(&self, at: usize) -> Result<Vec<u8>, StoreError>;
}

/// Columns that [`tail`] reads.
pub(super) const TAIL: &str = "seq, end_ns, digest";

/// A GPU's last entry.
pub(super) fn tail(row: &impl Columns) -> Result<Tail, StoreError> {
    Ok(Tail {
        seq: read("seq", row.number(0)?)?,
        end: UnixNanos(read("end_ns", row.number(1)?)?),
        digest: read_digest(&row.bytes(2)?)?,
    })
}

/// Columns that [`entry`] reads.
pub(super) const ENTRY: &str = "seq, boot, start_ns, end_ns, from_ns, length_ns, gap, digest";

/// An entry; `records` reads the records of the window with a number.
pub(super) fn entry(
    row: &impl Columns,
    records: impl FnOnce(i64) -> Result<(Vec<TenantRecord>, Vec<EngineRecord>), StoreError>,
) -> Result<Entry, StoreError> {
    let stretch = Stretch {
        seq: read("seq", row.number(0)?)?,
        boot: read_uuid("boot", &row.bytes(1)?)?,
        start: UnixNanos(read("start_ns", row.number(2)?)?),
        end: UnixNanos(read("end_ns", row.number(3)?)?),
        from: Moment(read("from_ns", row.number(4)?)?),
        length_ns: read_ns("length_ns", row.number(5)?)?,
    };
    let gap = row.text_or_null(6)?;
    let cause = gap.map(|cause| read_cause(&cause)).transpose()?;
    let digest = read_digest(&row.bytes(7)?)?;
    let body = match cause {
        Some(cause) => Body::Gap { cause },
        None => {
            let (tenants, engines) = records(stored("seq", stretch.seq)?)?;
            Body::Window { tenants, engines }
        }
    };
    Ok(Entry {
        stretch,
        body,
        digest,
    })
}

/// The columns of a record that tables of earlier versions lack, and the join that they need: the
/// account and the metadata.
pub(super) const fn later(version: i64) -> (&'static str, &'static str, &'static str) {
    // The type of a null is needed by PostgreSQL.
    const NONE: &str = "CAST(NULL AS text)";
    let account = if version > 1 { "t.account" } else { NONE };
    if version > 2 {
        let join = "LEFT JOIN metadata m ON m.metadata_key = u.metadata_key";
        return (account, "m.content", join);
    }
    (account, NONE, "")
}

/// Metadata in their stored form.
pub(super) fn stored_metadata(metadata: &Metadata) -> Result<String, StoreError> {
    serde_json::to_string(metadata).map_err(|error| damaged("metadata", error.to_string()))
}

fn read_metadata(text: Option<&str>) -> Result<Arc<Metadata>, StoreError> {
    let Some(text) = text else {
        return Ok(Arc::default());
    };
    let read = serde_json::from_str(text);
    read.map(Arc::new).map_err(|_| damaged("metadata", text))
}

/// A tenant's record; the wide column is text.
pub(super) fn tenant_record(row: &impl Columns) -> Result<TenantRecord, StoreError> {
    let copied = row.number_or_null(8)?;
    Ok(TenantRecord {
        id: read_uuid("id", &row.bytes(0)?)?,
        tenant: TenantIdentity {
            id: read_uuid("tenant", &row.bytes(1)?)?,
            name: row.text(2)?,
            kind: read_kind(&row.text(3)?)?,
            account: row.text_or_null(18)?,
            metadata: read_metadata(row.text_or_null(19)?.as_deref())?,
        },
        engine_ns: read_ns("engine_ns", row.number(4)?)?,
        estimated_ns: read_ns("estimated_ns", row.number(5)?)?,
        fault_ns: read_ns("fault_ns", row.number(6)?)?,
        copy_ns: read_ns("copy_ns", row.number(7)?)?,
        copy_bytes: copied.map(|bytes| read("copy_bytes", bytes)).transpose()?,
        held_ns: read_ns("held_ns", row.number(9)?)?,
        waiting_ns: read_ns("waiting_ns", row.number(10)?)?,
        memory_byte_ns: read_wide("memory_byte_ns", row.text_or_null(11)?.as_deref())?,
        weight: read("weight", row.number(12)?)?,
        cap: read_cap(row.number_or_null(13)?, row.number_or_null(14)?)?,
        signals: read_signals(row.number(15)?)?,
        error_bound_ns: read_ns("error_bound_ns", row.number(16)?)?,
        turns: read("turns", row.number(17)?)?,
    })
}

/// Columns that [`engine_record`] reads.
pub(super) const ENGINE: &str = "engine, compute, used_ns, fault_ns, switching_ns, idle_ns, unobserved_ns, gap_ns, error_bound_ns";

/// An engine's record.
pub(super) fn engine_record(row: &impl Columns) -> Result<EngineRecord, StoreError> {
    Ok(EngineRecord {
        engine: EngineId(read("engine", row.number(0)?)?),
        compute: row.flag(1)?,
        used_ns: read_ns("used_ns", row.number(2)?)?,
        fault_ns: read_ns("fault_ns", row.number(3)?)?,
        switching_ns: read_ns("switching_ns", row.number(4)?)?,
        idle_ns: read_ns("idle_ns", row.number(5)?)?,
        unobserved_ns: read_ns("unobserved_ns", row.number(6)?)?,
        gap_ns: read_ns("gap_ns", row.number(7)?)?,
        error_bound_ns: read_ns("error_bound_ns", row.number(8)?)?,
    })
}

/// Query of all GPUs; [`kept`] reads its rows.
pub(super) const GPUS: &str = "SELECT gpu_key, node, gpu, model, anchor_seq, anchor_digest, kept_from_ns FROM gpu ORDER BY node, gpu";

/// A GPU, with its last entry and the beginning of its first one from `ends`. A GPU's row is
/// written in one transaction with its first entry.
pub(super) fn kept(
    row: &impl Columns,
    ends: impl FnOnce(i64) -> Result<(Option<Tail>, Option<i64>), StoreError>,
) -> Result<(i64, Kept), StoreError> {
    let key = row.number(0)?;
    let (Some(tail), Some(first)) = ends(key)? else {
        return Err(damaged("GPU without entries", key));
    };
    let first = UnixNanos(read("start_ns", first)?);
    let gpu = GpuIdentity {
        node: row.text(1)?,
        gpu: row.text(2)?,
        model: row.text(3)?,
    };
    let anchor = Anchor {
        seq: read("anchor_seq", row.number(4)?)?,
        digest: read_digest(&row.bytes(5)?)?,
    };
    let from = UnixNanos(read("kept_from_ns", row.number(6)?)?);
    let kept = Kept {
        gpu,
        tail,
        anchor,
        from,
        first,
    };
    Ok((key, kept))
}

/// Columns that [`change`] reads.
pub(super) const CHANGE: &str = "request, at_ns, node, boot, actor, tenant, part, old, new";

/// A change of a setting.
pub(super) fn change(row: &impl Columns) -> Result<Change, StoreError> {
    Ok(Change {
        request: read_uuid("request", &row.bytes(0)?)?,
        at: UnixNanos(read("at_ns", row.number(1)?)?),
        node: row.text(2)?,
        boot: read_uuid("boot", &row.bytes(3)?)?,
        by: row.text(4)?,
        tenant: row.text(5)?,
        part: row.text(6)?,
        old: row.text(7)?,
        new: row.text(8)?,
    })
}

/// Query of the beginning of a GPU's first entry.
pub(super) const FIRST: &str = "SELECT start_ns FROM entry WHERE gpu_key = $1 ORDER BY seq LIMIT 1";

/// Query of the beginning of a GPU's last entry that begins at or before a time.
pub(super) const BEGINS: &str = "SELECT start_ns FROM entry WHERE gpu_key = $1 AND start_ns <= $2 ORDER BY start_ns DESC LIMIT 1";

/// Query of whether there is a tenant of a name or an id.
pub(super) const KNOWS: &str = "SELECT count(*) > 0 FROM tenant WHERE name = $1 OR id = $2";

/// A number in its stored form.
pub(super) fn stored(what: &'static str, value: u64) -> Result<i64, StoreError> {
    i64::try_from(value).map_err(|_| StoreError::Range {
        what,
        value: value.into(),
    })
}

/// A length of time in its stored form.
pub(super) fn stored_ns(what: &'static str, value: Nanos) -> Result<i64, StoreError> {
    stored(what, value.0)
}

/// Both ends of a selection in their stored form.
pub(super) fn bounds(selection: &Selection) -> (i64, i64) {
    let bound = |at: Option<UnixNanos>, none: i64| {
        at.map_or(none, |at| i64::try_from(at.0).unwrap_or(i64::MAX))
    };
    let (from, to) = (selection.from, selection.to);
    (bound(from, i64::MIN), bound(to, i64::MAX))
}

/// The error of a damaged column.
pub(super) fn damaged(what: &'static str, found: impl std::fmt::Debug) -> StoreError {
    StoreError::Damaged {
        what,
        found: format!("{found:?}").chars().take(80).collect(),
    }
}

/// A number from its stored form.
fn read<N: TryFrom<i64>>(what: &'static str, value: i64) -> Result<N, StoreError> {
    N::try_from(value).map_err(|_| damaged(what, value))
}

/// A length of time from its stored form.
fn read_ns(what: &'static str, value: i64) -> Result<Nanos, StoreError> {
    read(what, value).map(Nanos)
}

fn read_uuid(what: &'static str, bytes: &[u8]) -> Result<Uuid, StoreError> {
    Uuid::from_slice(bytes).map_err(|_| damaged(what, bytes))
}

fn read_digest(bytes: &[u8]) -> Result<Digest, StoreError> {
    let digest = <[u8; 32]>::try_from(bytes);
    digest.map(Digest).map_err(|_| damaged("digest", bytes))
}

fn read_kind(name: &str) -> Result<TenantKind, StoreError> {
    TenantKind::parse(name).ok_or_else(|| damaged("tenant kind", name))
}

fn read_cause(name: &str) -> Result<GapCause, StoreError> {
    GapCause::parse(name).ok_or_else(|| damaged("gap cause", name))
}

fn read_signals(bits: i64) -> Result<SignalSet, StoreError> {
    let bits = read("signals", bits)?;
    SignalSet::from_bits(bits).ok_or_else(|| damaged("signals", bits))
}

fn read_cap(quota: Option<i64>, period: Option<i64>) -> Result<Option<CapInForce>, StoreError> {
    let cap = |(quota, period)| {
        Ok(CapInForce {
            quota_ns: read_ns("cap quota", quota)?,
            period_ns: read_ns("cap period", period)?,
        })
    };
    quota.zip(period).map(cap).transpose()
}

/// Byte-nanoseconds exceed a database's integers, and are stored as decimal text.
fn read_wide(what: &'static str, text: Option<&str>) -> Result<Option<u128>, StoreError> {
    let wide = |text: &str| text.parse().map_err(|_| damaged(what, text));
    text.map(wide).transpose()
}
