//! Puts an entry behind another end of a ledger than the one that it was made for.
//!
//! In: the ledger's last entry, and an entry that was made to follow another one. Out: the entry
//! with the number, label, ids and digest that it has there, after a gap if time is missing between
//! the two. Lengths and amounts do not change. The store and the daemon's writer call it when a
//! ledger was overtaken by another writer, or is continued in another file.

use crate::ids::event_id;
use crate::record::{Body, Digest, Entry, GapCause, GpuIdentity, Stretch, Tail};
use crate::units::{Moment, Nanos};

impl Tail {
    /// The end of a ledger with this last entry.
    pub const fn of(entry: &Entry) -> Self {
        Self {
            seq: entry.stretch.seq,
            end: entry.stretch.end,
            digest: entry.digest,
        }
    }
}

/// The entry as it follows `tail`, or begins a ledger if there is none. It is unchanged if it was
/// made for this place. Otherwise a gap may precede it.
pub fn follow(gpu: &GpuIdentity, tail: Option<Tail>, entry: &Entry) -> Vec<Entry> {
    let mut entries = Vec::with_capacity(1);
    let mut tail = tail;
    let stretch = &entry.stretch;
    let starts = |tail: &Tail| tail.end < stretch.start;
    if let Some(end) = tail.filter(starts).map(|tail| tail.end) {
        let gap = Stretch {
            start: end,
            end: stretch.start,
            from: Moment(0),
            length_ns: Nanos(stretch.start.0 - end.0),
            ..*stretch
        };
        let cause = GapCause::Missed;
        let gap = sealed(gpu, tail, gap, Body::Gap { cause });
        tail = Some(Tail::of(&gap));
        entries.push(gap);
    }
    let start = tail.map_or(stretch.start, |tail| tail.end);
    let placed = Stretch {
        start,
        end: stretch.end.max(start),
        ..*stretch
    };
    entries.push(sealed(gpu, tail, placed, entry.body.clone()));
    entries
}

/// An entry with number, ids and digest of its place.
fn sealed(gpu: &GpuIdentity, tail: Option<Tail>, stretch: Stretch, mut body: Body) -> Entry {
    let stretch = Stretch {
        seq: tail.map_or(0, |tail| tail.seq + 1),
        ..stretch
    };
    if let Body::Window { tenants, .. } = &mut body {
        for record in tenants {
            record.id = event_id(gpu, record.tenant.id, &stretch);
        }
    }
    let before = tail.map_or_else(|| Digest::genesis(gpu), |tail| tail.digest);
    let digest = before.follow(&stretch, &body);
    Entry {
        stretch,
        body,
        digest,
    }
}
