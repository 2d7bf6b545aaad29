//! One writer for a file, and a writer after its file is removed, replaced or moved away.

use super::*;
use std::fs;
use std::path::Path;
use turnstile_accounting::audit::Finding;
use turnstile_accounting::record::Tail;
use turnstile_accounting::renumber::follow;

fn sound(path: &Path) -> (u64, u128) {
    let mut store = SqliteStore::read(path).unwrap();
    let kept = store.gpus().unwrap().remove(0);
    let mut audit = Audit::new(&kept.gpu, Some(kept.anchor));
    all(&mut store).iter().for_each(|entry| audit.entry(entry));
    let report = audit.finish();
    assert_eq!(report.broken, 0, "{:?}", report.findings);
    (report.gaps, report.engine_ns)
}

fn engine_ns(entries: &[Entry]) -> u128 {
    let windows = entries.iter().filter_map(|entry| match &entry.body {
        Body::Window { tenants, .. } => Some(tenants),
        Body::Gap { .. } => None,
    });
    windows
        .flatten()
        .map(|record| u128::from(record.engine_ns.0))
        .sum()
}

#[test]
fn second_writer_of_a_file_is_refused_under_each_of_its_names_until_the_first_ends() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger");
    let first = SqliteStore::create(&path).unwrap();
    let (link, hard) = (folder.path().join("link"), folder.path().join("hard"));
    std::os::unix::fs::symlink(&path, &link).unwrap();
    fs::hard_link(&path, &hard).unwrap();
    let moved = folder.path().join("moved");
    for name in [&path, &link, &hard] {
        let refused = SqliteStore::create(name).unwrap_err();
        assert!(matches!(refused, StoreError::Held { .. }), "{refused:?}");
    }
    let refused = SqliteStore::create(&path).unwrap_err().to_string();
    let own = format!("process {};", std::process::id());
    assert!(refused.contains(&own), "{refused}");
    assert!(refused.contains("--ledger"), "{refused}");
    // A writer that has just taken the lock has not written its number yet.
    let lock = folder.path().join("ledger-lock");
    let number = fs::read(&lock).unwrap();
    fs::write(&lock, b"").unwrap();
    let refused = SqliteStore::create(&path).unwrap_err().to_string();
    assert!(refused.contains("another process"), "{refused}");
    fs::write(&lock, number).unwrap();
    fs::rename(&path, &moved).unwrap();
    assert!(matches!(
        SqliteStore::create(&moved),
        Err(StoreError::Held { .. })
    ));
    // A file of the same name: its place belongs to the first writer.
    assert!(matches!(
        SqliteStore::create(&path),
        Err(StoreError::Held { .. })
    ));
    drop(first);
    SqliteStore::create(&path).unwrap();
    SqliteStore::create(&moved).unwrap();
}

#[test]
fn reader_of_the_same_process_takes_no_lock_from_the_writer() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger");
    let mut writer = SqliteStore::create(&path).unwrap();
    write(&mut writer, &entries(1, 600)[..1]);
    let locks = || fs::read_to_string("/proc/locks").unwrap();
    let own = |locks: String| -> Vec<String> {
        let pid = format!(" {} ", std::process::id());
        let inode = fs::metadata(&path).unwrap();
        let inode = format!(":{} ", std::os::unix::fs::MetadataExt::ino(&inode));
        let lines = locks.lines();
        let own = lines.filter(|line| line.contains(&pid) && line.contains(&inode));
        own.map(|line| line.split_once(": ").unwrap().1.to_owned())
            .collect()
    };
    let before = own(locks());
    assert!(before.iter().any(|line| line.contains("POSIX")));
    drop(SqliteStore::read(&path).unwrap());
    assert_eq!(own(locks()), before);
}

#[test]
fn removed_file_is_an_error_until_a_file_is_there_that_then_gets_all() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger");
    let written = entries(1, 900);
    // An empty file, and a copy from before.
    for copied in [0, 2] {
        let mut store = SqliteStore::create(&path).unwrap();
        write(&mut store, &written[..copied]);
        let copy = folder.path().join("copy");
        if copied > 0 {
            let command = format!("VACUUM INTO '{}'", copy.display());
            let connection = rusqlite::Connection::open(&path).unwrap();
            connection.execute_batch(&command).unwrap();
        } else {
            fs::write(&copy, b"").unwrap();
        }
        write(&mut store, &written[copied..4]);
        for name in ["ledger", "ledger-wal", "ledger-shm"] {
            fs::remove_file(folder.path().join(name)).unwrap();
        }
        for _ in 0..2 {
            let refused = store.put(&gpu(), &written[4]);
            assert!(
                matches!(refused, Err(StoreError::Removed { .. })),
                "{refused:?}"
            );
            assert!(!path.exists());
        }
        fs::rename(&copy, &path).unwrap();
        write(&mut store, &written[4..]);
        drop(store);
        assert_eq!(all(&mut SqliteStore::read(&path).unwrap()), written);
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn file_that_is_moved_away_and_back_has_all() {
    let folder = tempfile::tempdir().unwrap();
    let (path, away) = (folder.path().join("ledger"), folder.path().join("away"));
    let written = entries(1, 600);
    let mut store = SqliteStore::create(&path).unwrap();
    write(&mut store, &written[..2]);
    fs::rename(&path, &away).unwrap();
    assert!(matches!(
        store.put(&gpu(), &written[2]),
        Err(StoreError::Removed { .. })
    ));
    fs::rename(&away, &path).unwrap();
    write(&mut store, &written[2..]);
    drop(store);
    assert_eq!(all(&mut SqliteStore::read(&path).unwrap()), written);
}

#[test]
fn place_that_cannot_be_looked_at_is_not_taken_for_an_empty_one() {
    let folder = tempfile::tempdir().unwrap();
    let (inner, away) = (folder.path().join("inner"), folder.path().join("away"));
    fs::create_dir(&inner).unwrap();
    let written = entries(1, 600);
    let mut store = SqliteStore::create(&inner.join("ledger")).unwrap();
    write(&mut store, &written[..2]);
    fs::rename(&inner, &away).unwrap();
    fs::write(&inner, b"a file").unwrap();
    let refused = store.put(&gpu(), &written[2]);
    assert!(matches!(refused, Err(StoreError::Output(_))), "{refused:?}");
}

#[test]
fn removed_file_is_made_again_when_the_daemon_ends() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger");
    let written = entries(1, 600);
    let mut store = SqliteStore::create(&path).unwrap();
    write(&mut store, &written[..3]);
    fs::remove_file(&path).unwrap();
    store.ending();
    write(&mut store, &written[3..]);
    drop(store);
    assert_eq!(all(&mut SqliteStore::read(&path).unwrap()), written);
}

#[test]
fn removed_log_of_the_file_loses_no_entry() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger");
    let written = entries(1, 600);
    let mut store = SqliteStore::create(&path).unwrap();
    write(&mut store, &written[..3]);
    for name in ["ledger-wal", "ledger-shm"] {
        fs::remove_file(folder.path().join(name)).unwrap();
    }
    write(&mut store, &written[3..4]);
    assert_eq!(all(&mut SqliteStore::read(&path).unwrap()), written[..4]);
    write(&mut store, &written[4..]);
    drop(store);
    assert_eq!(all(&mut SqliteStore::read(&path).unwrap()), written);
}

#[test]
fn other_ledger_in_the_place_goes_on_with_entries_after_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger");
    let (own, other) = (entries(1, 900), entries(5, 400));
    let mut store = SqliteStore::create(&path).unwrap();
    write(&mut store, &own);
    fs::remove_file(&path).unwrap();
    // Of an older version, which takes no lock.
    let foreign = folder.path().join("foreign");
    write(&mut SqliteStore::create(&foreign).unwrap(), &other);
    fs::rename(&foreign, &path).unwrap();
    let tail = store.tail(&gpu()).unwrap();
    drop(store);
    let after = other.last().unwrap().stretch.end;
    let later: Vec<Entry> = own
        .iter()
        .filter(|entry| entry.stretch.start >= after)
        .cloned()
        .collect();
    assert!(!later.is_empty() && later.len() < own.len());
    let found = all(&mut SqliteStore::read(&path).unwrap());
    assert_eq!(tail.unwrap().seq, found.last().unwrap().stretch.seq);
    assert_eq!(found[..other.len()], other);
    let (_, used) = sound(&path);
    assert_eq!(used, engine_ns(&other) + engine_ns(&later));
}

#[test]
fn entry_behind_another_end_keeps_its_amounts_and_leaves_no_hole() {
    let written = entries(1, 600);
    let tail = |entry: &Entry| Some(Tail::of(entry));
    assert_eq!(follow(&gpu(), None, &written[0]), written[..1]);
    assert_eq!(
        follow(&gpu(), tail(&written[0]), &written[1]),
        written[1..2]
    );
    // Two entries are missing: their time is a gap.
    let placed = follow(&gpu(), tail(&written[0]), &written[3]);
    let [gap, window] = &placed[..] else {
        panic!("a gap and the entry: {placed:?}")
    };
    assert!(matches!(gap.body, Body::Gap { .. }));
    assert_eq!(gap.stretch.start, written[0].stretch.end);
    assert_eq!(gap.stretch.end, written[3].stretch.start);
    assert_eq!((gap.stretch.seq, window.stretch.seq), (1, 2));
    assert_eq!(
        gap.stretch.length_ns.0,
        gap.stretch.end.0 - gap.stretch.start.0
    );
    // Behind a later end the label follows that end.
    let late = follow(&gpu(), tail(&written[3]), &written[1]);
    assert_eq!(late.len(), 1);
    assert_eq!(late[0].stretch.start, written[3].stretch.end);
    assert!(late[0].stretch.end >= late[0].stretch.start);
    assert_eq!(late[0].stretch.length_ns, written[1].stretch.length_ns);
    for chain in [
        [written[0].clone(), gap.clone(), window.clone()],
        [written[2].clone(), written[3].clone(), late[0].clone()],
    ] {
        let own = gpu();
        let mut audit = Audit::within(&own);
        chain.iter().for_each(|entry| audit.entry(entry));
        let report = audit.finish();
        // Behind itself an entry of one run cannot follow on the GPU's clock.
        let clock = |finding: &&Finding| !matches!(finding, Finding::Clock { .. });
        assert_eq!(report.findings.iter().find(clock), None);
    }
    let sum = |entry: &Entry| engine_ns(std::slice::from_ref(entry));
    assert_eq!(sum(window), sum(&written[3]));
    assert_eq!(sum(&late[0]), sum(&written[1]));
}

/// 256 tenants with work in each window of a minute, and the open window kept every 3 s.
#[test]
fn ledger_of_256_busy_tenants_grows_by_at_most_100_mb_a_day() {
    use turnstile_accounting::record::TenantKind;
    use turnstile_accounting::rollup::Standing;
    use turnstile_accounting::synthetic::Synthetic;
    use turnstile_accounting::{Nanos, Rollup, TenantId};
    const WINDOWS: u64 = 60;
    let events = Synthetic {
        seed: 4,
        tenants: 256,
        period_ns: Nanos::from_ms(1_000),
    };
    let mut config = common::config(1, 60 * common::SECOND_NS);
    config.boot = Uuid::from_u128(0x7f3a_9911_55aa_c0de_8421_9bd3_77e1_0f5c);
    let names: Vec<String> = (1..=256).map(|number| format!("tenant-{number}")).collect();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger");
    let mut rollup = Rollup::new(config, None).unwrap();
    let (mut metered, mut closed) = (events.metered(), Vec::new());
    let mut fill = |windows: std::ops::Range<u64>| -> u64 {
        let mut store = SqliteStore::create(&path).unwrap();
        for period in windows.start * 60..windows.end * 60 {
            let standings: Vec<Standing<'_>> = names
                .iter()
                .zip(1..)
                .map(|(name, number)| Standing {
                    tenant: TenantId(number),
                    name,
                    kind: TenantKind::Vm,
                    account: Some("uid-1000"),
                    weight: 100,
                    cap: None,
                    held_total_ns: Nanos(period * 937_000_123),
                    backlogged: true,
                    memory_bytes: Some(3 << 30),
                })
                .collect();
            let end = UnixNanos(common::BEGIN + (period + 1) * events.period_ns.0);
            rollup
                .period(&[&metered.usage(period)], end, &standings)
                .unwrap();
            if let (2, Some(window)) = (period % 3, rollup.draft()) {
                store.keep(&gpu(), &rollup.digest(), &window).unwrap();
            }
            rollup.take(&mut closed);
            for entry in closed.drain(..) {
                store.put(&gpu(), &entry).unwrap();
            }
        }
        drop(store);
        fs::metadata(&path).unwrap().len()
    };
    let first = fill(0..WINDOWS);
    let second = fill(WINDOWS..2 * WINDOWS);
    let a_day = (second - first) * 24 * 60 / WINDOWS;
    println!("256 busy tenants: {a_day} bytes a day");
    assert!(a_day <= 100_000_000, "{a_day}");
    let records = (WINDOWS * 256) as usize;
    let found = all(&mut SqliteStore::read(&path).unwrap());
    let stored = found.iter().map(|entry| match &entry.body {
        Body::Window { tenants, .. } => tenants.len(),
        Body::Gap { .. } => 0,
    });
    assert!(stored.sum::<usize>() >= 2 * records - 256);
}
