//! Between records and rows. Databases know signed 64-bit numbers; what is read is an allegation until it fits.

use super::{Selection, StoreError};
use crate::record::{CapInForce, Digest, GapCause, SignalSet, TenantKind, UnixNanos};
use crate::units::Nanos;
use uuid::Uuid;

/// A number as it is stored.
pub(super) fn stored(what: &'static str, value: u64) -> Result<i64, StoreError> {
    i64::try_from(value).map_err(|_| StoreError::Range {
        what,
        value: value.into(),
    })
}

/// A length of time as it is stored.
pub(super) fn stored_ns(what: &'static str, value: Nanos) -> Result<i64, StoreError> {
    stored(what, value.0)
}

/// From where to where a selection goes, as it is stored.
pub(super) fn bounds(selection: &Selection) -> (i64, i64) {
    let bound = |at: Option<UnixNanos>, none: i64| {
        at.map_or(none, |at| i64::try_from(at.0).unwrap_or(i64::MAX))
    };
    let (from, to) = (selection.from, selection.to);
    (bound(from, i64::MIN), bound(to, i64::MAX))
}

/// A damaged column.
pub(super) fn damaged(what: &'static str, found: impl std::fmt::Debug) -> StoreError {
    StoreError::Damaged {
        what,
        found: format!("{found:?}").chars().take(80).collect(),
    }
}

/// A number as it was written.
pub(super) fn read<N: TryFrom<i64>>(what: &'static str, value: i64) -> Result<N, StoreError> {
    N::try_from(value).map_err(|_| damaged(what, value))
}

/// A length of time as it was written.
pub(super) fn read_ns(what: &'static str, value: i64) -> Result<Nanos, StoreError> {
    read(what, value).map(Nanos)
}

pub(super) fn read_uuid(what: &'static str, bytes: &[u8]) -> Result<Uuid, StoreError> {
    Uuid::from_slice(bytes).map_err(|_| damaged(what, bytes))
}

pub(super) fn read_digest(bytes: &[u8]) -> Result<Digest, StoreError> {
    let digest = <[u8; 32]>::try_from(bytes);
    digest.map(Digest).map_err(|_| damaged("digest", bytes))
}

pub(super) fn read_kind(name: &str) -> Result<TenantKind, StoreError> {
    TenantKind::parse(name).ok_or_else(|| damaged("tenant kind", name))
}

pub(super) fn read_cause(name: &str) -> Result<GapCause, StoreError> {
    GapCause::parse(name).ok_or_else(|| damaged("gap cause", name))
}

pub(super) fn read_signals(bits: i64) -> Result<SignalSet, StoreError> {
    let bits = read("signals", bits)?;
    SignalSet::from_bits(bits).ok_or_else(|| damaged("signals", bits))
}

pub(super) fn read_cap(
    quota: Option<i64>,
    period: Option<i64>,
) -> Result<Option<CapInForce>, StoreError> {
    let cap = |(quota, period)| {
        Ok(CapInForce {
            quota_ns: read_ns("cap quota", quota)?,
            period_ns: read_ns("cap period", period)?,
        })
    };
    quota.zip(period).map(cap).transpose()
}

/// Byte-nanoseconds do not fit into a database's integers, and are kept as decimal text.
pub(super) fn read_wide(
    what: &'static str,
    text: Option<&str>,
) -> Result<Option<u128>, StoreError> {
    let wide = |text: &str| text.parse().map_err(|_| damaged(what, text));
    text.map(wide).transpose()
}
