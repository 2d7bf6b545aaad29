//! A ledger in a file: readers beside the writer, retention, files of other versions and of none.

use super::*;
use std::collections::BTreeMap;

#[test]
fn a_reader_sees_what_is_closed_while_another_writes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger");
    let written = entries(1, 600);
    let mut writer = SqliteStore::create(&path).unwrap();
    write(&mut writer, &written[..2]);
    let Body::Window { tenants, .. } = &written[2].body else {
        panic!("a window")
    };
    writer.open_window(&gpu(), &written[2].stretch).unwrap();
    writer.append(tenants).unwrap();
    let mut reader = SqliteStore::read(&path).unwrap();
    assert_eq!(all(&mut reader), written[..2]);
    writer.abandon();
    write(&mut writer, &written[2..]);
    assert_eq!(all(&mut reader), written);
    assert!(reader.put(&gpu(), &written[0]).is_err(), "it only reads");
}

/// The id of a tenant may be in entries of two runs.
#[test]
fn tenant_of_two_runs_goes_with_the_last_entry_of_the_later_one() {
    let mut written = entries(1, 600);
    let mut tenants_of = BTreeMap::new();
    let mut before = Digest::genesis(&gpu());
    for entry in &mut written {
        if let Body::Window { tenants, .. } = &mut entry.body {
            for record in tenants.iter_mut() {
                let name = record.tenant.name.clone();
                record.tenant.id = *tenants_of.entry(name).or_insert(record.tenant.id);
            }
            tenants.sort_unstable_by_key(|record| record.tenant.id);
        }
        before = before.follow(&entry.stretch, &entry.body);
        entry.digest = before;
    }
    let mut store = SqliteStore::in_memory().unwrap();
    write(&mut store, &written);
    assert_eq!(all(&mut store), written);
    let boots = written.iter().map(|entry| entry.stretch.boot);
    let second = boots
        .clone()
        .position(|boot| boot != written[0].stretch.boot);
    let second = second.unwrap();
    let begin = written[second].stretch.start;
    store.retain(&gpu().node, begin).unwrap();
    assert_eq!(all(&mut store), written[second..]);
}

#[test]
fn file_is_of_one_host_whatever_its_name_is() {
    let written = entries(1, 600);
    let mut store = SqliteStore::in_memory().unwrap();
    write(&mut store, &written);
    let retained = store.retain("renamed", written[2].stretch.end).unwrap();
    assert_eq!(retained.entries, 3);
}

/// What a query returns is of one moment, and a reader delays no writer.
#[test]
fn query_sees_no_entry_that_is_discarded_or_added_meanwhile() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger");
    let written = entries(1, 900);
    let mut writer = SqliteStore::create(&path).unwrap();
    write(&mut writer, &written[..4]);
    let theirs = entries(7, 600);
    for entry in &theirs[..2] {
        writer.put(&another(), entry).unwrap();
    }
    let mut reader = SqliteStore::read(&path).unwrap();
    let mut found = Vec::new();
    let mut take = |_: &_, entry| {
        if found.is_empty() {
            let all = UnixNanos(i64::MAX as u64);
            writer.retain(&gpu().node, all).unwrap();
            write(&mut writer, &written[4..]);
            writer.put(&another(), &theirs[2]).unwrap();
        }
        found.push(entry);
        Ok(true)
    };
    reader.query(&Selection::default(), &mut take).unwrap();
    assert_eq!(found, [&written[..4], &theirs[..2]].concat());
    assert_eq!(all(&mut reader), [&written[3..], &theirs[1..3]].concat());
}

#[test]
fn missing_foreign_or_empty_file_is_not_opened_as_a_ledger() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger");
    assert!(matches!(
        SqliteStore::read(&path),
        Err(StoreError::NotFound { .. })
    ));
    std::fs::write(
        &path,
        b"This is a text, and a long one, so that it might be taken for a header.",
    )
    .unwrap();
    assert!(SqliteStore::read(&path).is_err());
    assert!(SqliteStore::create(&path).is_err());
    std::fs::write(&path, b"").unwrap();
    assert!(matches!(
        SqliteStore::read(&path),
        Err(StoreError::Version { found: 0, .. })
    ));
}
