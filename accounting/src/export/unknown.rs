//! Time of a GPU of which the ledger does not know the user: gaps, what no signal covers, and what
//! is outside of the ledger.
//!
//! In: entries in order, and the span of a request. Out: each part of the span without a record,
//! once, with its cause. Every format writes them.

use super::Request;
use super::calendar::{hour_after, hour_of};
use crate::ids::{entry_id, unknown_id};
use crate::record::{Body, EngineRecord, Entry, GpuIdentity, UnixNanos};
use uuid::Uuid;

/// Cause of the part of a window that no signal covers.
pub const UNOBSERVED: &str = "unobserved";
/// Cause of time before a ledger's first entry or after its last one.
pub const UNRECORDED: &str = "unrecorded";

/// Time without a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unknown<'a> {
    /// A gap's cause, or one of the above.
    pub(super) cause: &'static str,
    /// The gap, or the window; none outside of the ledger.
    pub(super) entry: Option<&'a Entry>,
    /// Beginning and end on the calendar, within the request. Of a window: its own.
    pub(super) start: UnixNanos,
    pub(super) end: UnixNanos,
    /// Its length; of a window, the time on all its compute engines.
    pub(super) unknown_ns: u128,
}

/// Time on compute engines that no signal covers.
pub(super) fn unobserved_ns(engines: &[EngineRecord]) -> u128 {
    let compute = engines.iter().filter(|engine| engine.compute);
    compute
        .map(|engine| u128::from(engine.unobserved_ns.0) + u128::from(engine.gap_ns.0))
        .sum()
}

impl<'a> Unknown<'a> {
    /// What an entry does not know of the time of a request, if anything.
    pub(super) fn of(request: &Request, entry: &'a Entry) -> Option<Self> {
        let stretch = &entry.stretch;
        let unknown = match &entry.body {
            Body::Gap { cause } => {
                let start = stretch.start.max(request.from);
                let end = stretch.end.min(request.to);
                // A gap's length is the GPU's clock's. Of a part of it the calendar knows alone.
                let whole = (start, end) == (stretch.start, stretch.end);
                let part = end.0.saturating_sub(start.0);
                Self {
                    cause: cause.as_str(),
                    entry: Some(entry),
                    start,
                    end,
                    unknown_ns: if whole { stretch.length_ns.0 } else { part }.into(),
                }
            }
            Body::Window { engines, .. } => Self {
                cause: UNOBSERVED,
                entry: Some(entry),
                start: stretch.start,
                end: stretch.end,
                unknown_ns: unobserved_ns(engines),
            },
        };
        (unknown.unknown_ns > 0).then_some(unknown)
    }

    /// Time outside of the ledger; none if there is none.
    pub(super) fn outside(start: UnixNanos, end: UnixNanos) -> Option<Self> {
        (start < end).then(|| Self {
            cause: UNRECORDED,
            entry: None,
            start,
            end,
            unknown_ns: u128::from(end.0 - start.0),
        })
    }

    /// Its id: a gap's is the entry's own.
    pub(super) fn id(&self, gpu: &GpuIdentity) -> Uuid {
        match self.entry {
            Some(entry) if self.cause != UNOBSERVED => entry_id(gpu, &entry.stretch),
            _ => unknown_id(self.cause, gpu, self.start),
        }
    }

    /// Its parts by the hour. A window belongs to the hour in which it begins.
    pub(super) fn by_hour(&self) -> Vec<(UnixNanos, u128)> {
        let first = hour_of(self.start);
        if self.cause == UNOBSERVED || self.end <= hour_after(first) {
            return vec![(first, self.unknown_ns)];
        }
        let mut parts = Vec::new();
        let mut at = self.start;
        while at < self.end {
            let hour = hour_of(at);
            let to = hour_after(hour).min(self.end);
            parts.push((hour, u128::from(to.0 - at.0)));
            at = to;
        }
        parts
    }
}
