//! Properties of every store, checked for SQLite and for a PostgreSQL server from the
//! distribution's packages.
#![cfg(feature = "store")]

#[path = "store/backup.rs"]
mod backup;
mod common;
#[path = "store/file.rs"]
mod file;
#[path = "store/reading.rs"]
mod reading;
#[path = "store/versions.rs"]
mod versions;
#[path = "store/writer.rs"]
mod writer;

use common::{entries, gpu};
use reading::{a_reading_is_of_one_moment, an_entry_around_the_beginning_is_found_by_its_interval};
use std::sync::Arc;
use turnstile_accounting::audit::Audit;
use turnstile_accounting::change::Change;
use turnstile_accounting::record::{
    Body, Digest, Entry, GpuIdentity, Tail, TenantRecord, UnixNanos,
};
use turnstile_accounting::store::{Put, Selection, SqliteStore, Store, StoreError};
use uuid::Uuid;

/// Another GPU of the same node.
fn another() -> GpuIdentity {
    GpuIdentity {
        gpu: "GPU-9".into(),
        ..gpu()
    }
}

fn all(store: &mut dyn Store) -> Vec<Entry> {
    let mut found = Vec::new();
    store
        .query(&Selection::default(), &mut |_, entry| {
            found.push(entry);
            Ok(true)
        })
        .unwrap();
    found
}

fn write(store: &mut dyn Store, entries: &[Entry]) {
    for entry in entries {
        assert_eq!(store.put(&gpu(), entry).unwrap(), Put::Written);
    }
}

fn what_was_put_is_found(store: &mut dyn Store) {
    let written = entries(1, 600);
    assert!(
        written
            .iter()
            .any(|entry| matches!(entry.body, Body::Gap { .. }))
    );
    write(store, &written);
    assert_eq!(all(store), written);
    let kept = store.gpus().unwrap();
    assert_eq!(kept.len(), 1);
    assert_eq!(kept[0].gpu, gpu());
    assert_eq!(kept[0].tail, store.tail(&gpu()).unwrap().unwrap());
    let last = written.last().unwrap();
    assert_eq!(
        (kept[0].tail.seq, kept[0].tail.digest),
        (last.stretch.seq, last.digest)
    );
}

fn an_entry_counts_once(store: &mut dyn Store) {
    let written = entries(1, 600);
    write(store, &written[..2]);
    assert_eq!(store.put(&gpu(), &written[1]).unwrap(), Put::Known);
    for wrong in [0, 1, 3] {
        let refused = store.put(&gpu(), &{
            let mut entry = written[wrong].clone();
            entry.digest.0[0] ^= 1;
            entry
        });
        assert!(
            matches!(refused, Err(StoreError::Sequence { expected: 2, .. })),
            "{refused:?}"
        );
    }
    assert_eq!(all(store), written[..2]);
    write(store, &written[2..]);
    assert_eq!(all(store), written);
}

fn a_window_is_there_as_a_whole_or_not_at_all(store: &mut dyn Store) {
    let written = entries(1, 600);
    let Body::Window { tenants, engines } = &written[0].body else {
        panic!("a window comes first")
    };
    assert!(matches!(store.append(tenants), Err(StoreError::Order)));
    assert!(matches!(
        store.close_window(engines, &written[0].digest),
        Err(StoreError::Order)
    ));
    store.open_window(&gpu(), &written[0].stretch).unwrap();
    store.append(&tenants[..2]).unwrap();
    store.abandon();
    assert!(store.gpus().unwrap().is_empty());
    store.open_window(&gpu(), &written[0].stretch).unwrap();
    store.append(&tenants[..2]).unwrap();
    // The same record again violates a key, and the window is abandoned with it.
    assert!(store.append(&tenants[..1]).is_err());
    assert!(store.tail(&gpu()).unwrap().is_none());
    store.open_window(&gpu(), &written[0].stretch).unwrap();
    assert!(matches!(
        store.open_window(&gpu(), &written[0].stretch),
        Err(StoreError::Order)
    ));
    write(store, &written);
    assert_eq!(all(store), written);
}

fn a_selection_goes_by_where_entries_begin(store: &mut dyn Store) {
    let written = entries(1, 600);
    write(store, &written);
    let selection = Selection {
        from: Some(written[1].stretch.start),
        to: Some(written[3].stretch.start),
        node: None,
        gpu: Some(gpu().gpu),
        overlapping: false,
    };
    let found = |store: &mut dyn Store, selection: &Selection, most: usize| {
        let mut found = Vec::new();
        let mut take = |of: &GpuIdentity, entry: Entry| {
            found.push((of.gpu.clone(), entry.stretch.seq));
            Ok(found.len() < most)
        };
        store.query(selection, &mut take).unwrap();
        found
    };
    let own = |seq| (gpu().gpu, seq);
    assert_eq!(found(store, &selection, 9), [own(1), own(2)]);
    for (node, gpu) in [(None, Some("GPU-9")), (Some("node-9"), None)] {
        let other = Selection {
            node: node.map(str::to_owned),
            gpu: gpu.map(str::to_owned),
            ..Selection::default()
        };
        assert!(found(store, &other, 9).is_empty());
    }
    let of_node = Selection {
        node: Some(gpu().node),
        ..Selection::default()
    };
    assert_eq!(found(store, &of_node, 99).len(), written.len());
    // A query that ends with one GPU does not go on with the next.
    assert!(store.tail(&another()).unwrap().is_none());
    let theirs = entries(7, 600);
    for entry in &theirs {
        assert_eq!(store.put(&another(), entry).unwrap(), Put::Written);
    }
    assert_eq!(
        store.tail(&another()).unwrap().unwrap(),
        Tail::of(theirs.last().unwrap())
    );
    let all_of = Selection::default();
    assert_eq!(
        found(store, &all_of, 99).len(),
        written.len() + theirs.len()
    );
    assert_eq!(found(store, &all_of, 2), [own(0), own(1)]);
    let refused = store.query(&Selection::default(), &mut |_, _| {
        Err(StoreError::Refused("no".into()))
    });
    assert!(matches!(refused, Err(StoreError::Refused(_))));
    let both = [written, theirs].concat();
    assert_eq!(
        all(store),
        both,
        "a query that ended early leaves nothing behind"
    );
}

fn what_is_discarded_leaves_a_ledger_that_is_sound(store: &mut dyn Store) {
    let written = entries(1, 900);
    write(store, &written);
    let before = written[2].stretch.end;
    assert_eq!(store.retain(&gpu().node, before).unwrap().entries, 3);
    assert_eq!(store.retain(&gpu().node, before).unwrap().entries, 0);
    let kept = store.gpus().unwrap().remove(0);
    assert_eq!((kept.anchor.seq, kept.from), (3, before));
    assert_eq!(kept.first, written[3].stretch.start);
    assert_eq!(kept.anchor.digest, written[2].digest);
    let left = all(store);
    assert_eq!(left, written[3..]);
    let mut audit = Audit::new(&kept.gpu, Some(kept.anchor));
    left.iter().for_each(|entry| audit.entry(entry));
    assert_eq!(audit.finish().broken, 0);
    let entries = store
        .retain(&gpu().node, UnixNanos(i64::MAX as u64))
        .unwrap()
        .entries;
    assert_eq!(
        entries as usize,
        left.len() - 1,
        "the last one stays, for its number"
    );
    assert_eq!(
        store.gpus().unwrap()[0].tail.seq,
        written.last().unwrap().stretch.seq
    );
}

fn changes_are_kept_once_and_as_long_as_entries(store: &mut dyn Store) {
    let written = entries(1, 600);
    write(store, &written);
    let change = |number: u128, at: UnixNanos| Change {
        request: Uuid::from_u128(number),
        at,
        node: gpu().node,
        boot: Uuid::from_u128(9),
        by: "uid:0 pid:7".into(),
        tenant: "vm-1".into(),
        part: "scheduling".into(),
        old: "null".into(),
        new: "{\"weight\":300}".into(),
    };
    let (begin, end) = (written[0].stretch.start, written[4].stretch.start);
    let noted = [change(2, begin), change(1, end)];
    for change in &noted {
        assert_eq!(store.note(change).unwrap(), Put::Written);
        assert_eq!(store.note(change).unwrap(), Put::Known);
    }
    let found = |store: &mut dyn Store, selection: Selection| {
        let mut found = Vec::new();
        let mut visit = |change| {
            found.push(change);
            Ok(true)
        };
        store.changes(&selection, &mut visit).unwrap();
        found
    };
    assert_eq!(found(store, Selection::default()), noted);
    let later = Selection {
        from: Some(end),
        ..Selection::default()
    };
    assert_eq!(found(store, later), noted[1..]);
    store.retain(&gpu().node, end).unwrap();
    assert_eq!(found(store, Selection::default()), noted[1..]);
}

/// A daemon is killed: its open window is an entry of the next run, once, and only behind the entry
/// that it follows.
fn kept_window_is_adopted_where_it_was_not_closed(store: &mut dyn Store) {
    let written = entries(1, 600);
    let other = another();
    assert_eq!(store.adopt(&gpu()).unwrap(), 0);
    let genesis = Digest::genesis(&gpu());
    let cut = Entry {
        digest: Digest([0; 32]),
        ..written[0].clone()
    };
    store.keep(&gpu(), &genesis, &cut).unwrap();
    assert!(all(store).is_empty(), "no entry yet");
    assert_eq!(store.adopt(&other).unwrap(), 0);
    assert_eq!(store.adopt(&gpu()).unwrap(), 1);
    assert_eq!(all(store), written[..1], "sealed as if it was closed");
    assert_eq!(store.adopt(&gpu()).unwrap(), 0);
    // A later draft replaces the one before; a window that was closed makes it void.
    store.keep(&gpu(), &written[0].digest, &written[2]).unwrap();
    store.keep(&gpu(), &written[0].digest, &written[1]).unwrap();
    store.put(&gpu(), &written[1]).unwrap();
    assert_eq!(store.adopt(&gpu()).unwrap(), 0);
    store.keep(&gpu(), &written[1].digest, &written[2]).unwrap();
    assert_eq!(store.adopt(&gpu()).unwrap(), 1);
    write(store, &written[3..]);
    assert_eq!(all(store), written);
}

/// Checks all properties, each with an empty store from `make`.
fn owes(mut make: impl FnMut() -> Box<dyn Store>) {
    what_was_put_is_found(&mut *make());
    an_entry_counts_once(&mut *make());
    a_window_is_there_as_a_whole_or_not_at_all(&mut *make());
    a_selection_goes_by_where_entries_begin(&mut *make());
    what_is_discarded_leaves_a_ledger_that_is_sound(&mut *make());
    changes_are_kept_once_and_as_long_as_entries(&mut *make());
    kept_window_is_adopted_where_it_was_not_closed(&mut *make());
    an_entry_around_the_beginning_is_found_by_its_interval(&mut *make());
}

#[test]
fn sqlite_keeps_what_a_store_owes() {
    let folder = tempfile::tempdir().unwrap();
    let mut count = 0;
    owes(|| {
        count += 1;
        let path = folder.path().join(format!("{count}.ledger"));
        Box::new(SqliteStore::create(&path).unwrap())
    });
    owes(|| Box::new(SqliteStore::in_memory().unwrap()));
    let path = folder.path().join("shared.ledger");
    let mut writer = SqliteStore::create(&path).unwrap();
    a_reading_is_of_one_moment(&mut SqliteStore::read(&path).unwrap(), &mut writer);
}

#[test]
fn tenants_and_metadata_go_with_the_last_entry_of_their_run() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger");
    let mut written = entries(1, 600);
    let first = written[0].stretch.boot;
    let mut digest = Digest::genesis(&gpu());
    for entry in &mut written {
        if let Body::Window { tenants, .. } = &mut entry.body {
            let of_second =
                |of: &&mut TenantRecord| entry.stretch.boot != first && of.tenant.name == "vm-b";
            let unnamed = tenants.iter_mut().filter(of_second);
            unnamed.for_each(|record| record.tenant.metadata = Arc::default());
        }
        digest = digest.follow(&entry.stretch, &entry.body);
        entry.digest = digest;
    }
    let mut store = SqliteStore::create(&path).unwrap();
    write(&mut store, &written);
    let rows = || -> [i64; 2] {
        let connection = rusqlite::Connection::open(&path).unwrap();
        let count = |table: &str| {
            let text = format!("SELECT count(*) FROM {table}");
            connection.query_row(&text, [], |row| row.get(0)).unwrap()
        };
        ["tenant", "metadata"].map(count)
    };
    assert_eq!(
        rows(),
        [10, 2],
        "five of each run; one of both, one of the first"
    );
    let second_run = written
        .iter()
        .find(|e| e.stretch.boot != written[0].stretch.boot)
        .unwrap();
    store.retain(&gpu().node, second_run.stretch.start).unwrap();
    assert_eq!(rows(), [5, 1]);
    assert_eq!(all(&mut store), written[second_run.stretch.seq as usize..]);
}

#[cfg(feature = "postgres")]
mod postgres {
    use super::*;
    use common::server::Server;
    use turnstile_accounting::store::PostgresStore;

    /// Retention of one host discards no entries of another.
    fn others_keep_theirs(store: &mut dyn Store) {
        let other = GpuIdentity {
            node: "node-18".into(),
            ..gpu()
        };
        write(store, &entries(1, 600));
        for entry in &entries(7, 600) {
            assert_eq!(store.put(&other, entry).unwrap(), Put::Written);
        }
        let before = store.gpus().unwrap().remove(1);
        let retain = |store: &mut dyn Store| {
            let retained = store.retain(&gpu().node, UnixNanos(i64::MAX as u64));
            retained.unwrap().entries
        };
        assert!(retain(store) > 0);
        let after = store.gpus().unwrap().remove(1);
        assert_eq!(
            (&after.gpu, after.anchor, after.from),
            (&other, before.anchor, before.from)
        );
    }

    #[test]
    fn postgresql_keeps_what_a_store_owes() {
        let Some(server) = Server::or_skip() else {
            return;
        };
        let mut count = 0;
        owes(|| {
            count += 1;
            let database = server.database(&format!("ledger{count}"));
            Box::new(PostgresStore::connect(&database).unwrap())
        });
        let database = server.database("fleet");
        others_keep_theirs(&mut PostgresStore::connect(&database).unwrap());
        let database = server.database("read");
        let [mut reader, mut writer] = [(); 2].map(|()| PostgresStore::connect(&database).unwrap());
        a_reading_is_of_one_moment(&mut reader, &mut writer);
        let database = server.database("shared");
        let (mut one, mut other) = (
            PostgresStore::connect(&database).unwrap(),
            PostgresStore::connect(&database).unwrap(),
        );
        let written = entries(1, 600);
        write(&mut one, &written);
        assert_eq!(all(&mut other), written);
        let renamed = GpuIdentity {
            node: "node-18".into(),
            ..gpu()
        };
        one.claim(&gpu()).unwrap();
        let refused = other.claim(&gpu()).unwrap_err().to_string();
        let own = format!("turnstile process {} on ", std::process::id());
        assert!(refused.contains(&own), "{refused}");
        other.claim(&renamed).unwrap();
        let mut again = SqliteStore::in_memory().unwrap();
        write(&mut again, &written);
        assert_eq!(all(&mut again), all(&mut one), "both stores hold the same");
        drop(one);
        // The server ends the session of a lost connection a moment later.
        let begin = std::time::Instant::now();
        while let Err(error) = other.claim(&gpu()) {
            assert!(matches!(error, StoreError::Held { .. }), "{error:?}");
            assert!(
                begin.elapsed().as_secs() < 60,
                "a lock outlives its session"
            );
        }
    }

    /// A connection beside the store's.
    fn beside(database: &str) -> ::postgres::Client {
        ::postgres::Client::connect(database, ::postgres::NoTls).unwrap()
    }

    #[test]
    fn discarded_entries_leave_no_rows_and_a_lost_session_takes_its_locks_again() {
        let Some(server) = Server::or_skip() else {
            return;
        };
        let database = server.database("ledger");
        let mut store = PostgresStore::connect(&database).unwrap();
        store.claim(&gpu()).unwrap();
        let written = entries(1, 600);
        write(&mut store, &written);
        let mut client = beside(&database);
        let mut rows = |table: &str| -> i64 {
            let text = format!("SELECT count(DISTINCT seq) FROM {table}");
            client.query_one(&text, &[]).unwrap().get(0)
        };
        assert!(rows("entry") > 1 && rows("usage") > 1 && rows("engine") > 1);
        store
            .retain(&gpu().node, UnixNanos(i64::MAX as u64))
            .unwrap();
        assert_eq!(["entry", "usage", "engine"].map(&mut rows), [1; 3]);
        // The server ends the session: the next call begins another, with the locks of before.
        let others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                      WHERE datname = current_database() AND pid <> pg_backend_pid()";
        client.execute(others, &[]).unwrap();
        let begin = std::time::Instant::now();
        while store.gpus().is_err() {
            assert!(begin.elapsed().as_secs() < 60, "it does not connect again");
        }
        let mut second = PostgresStore::connect(&database).unwrap();
        let refused = second.claim(&gpu()).unwrap_err();
        assert!(matches!(refused, StoreError::Held { .. }), "{refused:?}");
        // A session that is about to end is waited for: a daemon that is started again.
        let ends = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(500));
            drop(store);
        });
        second.claim(&gpu()).unwrap();
        ends.join().unwrap();
    }
}
