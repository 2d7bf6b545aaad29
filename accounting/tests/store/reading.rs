//! What a reading finds.

use turnstile_accounting::record::{Body, Entry, GpuIdentity, UnixNanos};
use turnstile_accounting::store::{Selection, Store};
use uuid::Uuid;

use super::common::{self, entries, gpu};
use super::{all, write};

/// Entries that another process discards while they are read are all found.
pub(crate) fn a_reading_is_of_one_moment(reader: &mut dyn Store, writer: &mut dyn Store) {
    let written = entries(1, 600);
    write(writer, &written);
    let mut found = Vec::new();
    let mut visit = |_: &GpuIdentity, entry| {
        if found.is_empty() {
            let end = UnixNanos(i64::MAX as u64);
            assert!(writer.retain(&gpu().node, end).unwrap().entries > 0);
        }
        found.push(entry);
        Ok(true)
    };
    reader.query(&Selection::default(), &mut visit).unwrap();
    assert_eq!(found, written);
    assert_eq!(all(reader).len(), 1, "the last one stays");
}

pub(crate) fn an_entry_around_the_beginning_is_found_by_its_interval(store: &mut dyn Store) {
    let written = entries(1, 600);
    write(store, &written);
    let mut found = |from: u64, overlapping: bool| {
        let selection = Selection {
            from: Some(UnixNanos(from)),
            to: Some(written[3].stretch.start),
            overlapping,
            ..Selection::default()
        };
        let mut seqs = Vec::new();
        let mut take = |_: &_, entry: Entry| {
            seqs.push(entry.stretch.seq);
            Ok(true)
        };
        store.query(&selection, &mut take).unwrap();
        seqs
    };
    let start = written[1].stretch.start.0;
    assert_eq!(found(start, true), [1, 2]);
    assert_eq!(found(start - 1, true), [0, 1, 2]);
    assert_eq!(found(start + 1, true), [1, 2]);
    assert_eq!(found(start + 1, false), [2]);
    assert_eq!(found(common::BEGIN - 1, true), [0, 1, 2]);
    assert!(store.knows("vm-a").unwrap() && !store.knows("vm-").unwrap());
    let Body::Window { tenants, .. } = &written[0].body else {
        panic!("a window")
    };
    let id = tenants[0].tenant.id;
    assert!(store.knows(&id.to_string()).unwrap());
    assert!(!store.knows(&Uuid::nil().to_string()).unwrap());
    let kept = store.gpus().unwrap();
    assert_eq!(kept[0].first, written[0].stretch.start);
}
