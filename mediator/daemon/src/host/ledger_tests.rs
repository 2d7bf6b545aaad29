//! The durable ledger of a host: charges of periods, names, silence, changes.

use std::path::Path;
use std::time::{Duration, Instant};

use turnstile_accounting::record::{Body, Entry, GapCause, GpuIdentity, TenantKind, TenantRecord};
use turnstile_accounting::store::{Selection, SqliteStore, Store};
use turnstile_accounting::{Moment, Nanos};

use super::recorder::LedgerConfig;
use super::recording_gpu::{Call, GATES};
use super::test_bench::{Bench, PERIOD, usage};
use super::*;
use crate::journal::Changed;
use turnstile_gpu::Contexts;

const MS: u64 = 1_000_000;
/// TIMEOUT: of the writer on a busy disk.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn config(path: &Path, window_ms: u64) -> LedgerConfig {
    LedgerConfig {
        store: Arc::new(Mutex::new(Box::new(SqliteStore::create(path).unwrap()))),
        gpu: GpuIdentity {
            node: "node".into(),
            gpu: "gpu".into(),
            model: "model".into(),
        },
        window_ns: Nanos::from_ms(window_ms),
        keep_ns: None,
    }
}

pub(crate) fn entries(path: &Path) -> Vec<Entry> {
    let mut found = Vec::new();
    let mut store = SqliteStore::read(path).unwrap();
    let mut visit = |_: &_, entry| {
        found.push(entry);
        Ok(true)
    };
    store.query(&Selection::default(), &mut visit).unwrap();
    found
}

pub(crate) fn records(entries: &[Entry]) -> impl Iterator<Item = &TenantRecord> {
    entries.iter().flat_map(|entry| match &entry.body {
        Body::Window { tenants, .. } => &tenants[..],
        Body::Gap { .. } => &[],
    })
}

fn changed() -> Changed {
    Changed {
        by: "uid:0 pid:1".into(),
        request: Uuid::from_u128(5),
        part: "scheduling".into(),
        old: serde_json::Value::Null,
        new: serde_json::json!({"weight": 300}),
    }
}

#[test]
fn ledger_has_what_periods_charged_with_weight_held_time_bytes_and_account() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger");
    let mut bench = Bench::new(GATES);
    assert!(bench.host.ledger_health().is_none() && bench.host.can_note());
    bench.gpu.reported().now = Moment(500 * MS);
    bench.host.open_ledger(config(&path, 3_600_000)).unwrap();
    let health = bench.host.ledger_health().unwrap();
    assert_eq!(health.window_ns, Nanos::from_ms(3_600_000));
    assert_eq!(health.behind_ns, Nanos::ZERO);
    assert_eq!(bench.host.ledger_reason(), None);
    assert!(bench.host.can_note());
    let (a, b) = (bench.open("a", 300), bench.open("b", 100));
    // One is being admitted: its worker executes before it is a tenant.
    let arriving = TenantId(3);
    let idle = TenantId(4);
    let starting = [("c".to_owned(), arriving), ("d".to_owned(), idle)];
    bench.host.lock().starting.extend(starting);
    bench.gpu.reported().held_bytes = vec![(a, 11), (b, 13)];
    bench.busy = vec![a, b];
    let mut first = usage(
        Moment(500 * MS),
        [&[(a, 7), (b, 1), (arriving, 2)], &[(b, 4)], &[]],
    );
    first.copied = Some([(b, 99)].into());
    bench.close(first);
    bench.period(&[(a, 3), (b, 4)]);
    bench.host.note("vm_set", "a", changed());
    let events = bench.host.journal().after(0, 100).0;
    let last = events.last().unwrap();
    assert_eq!((&*last.kind, &*last.vm), ("vm_set", "a"));
    assert_eq!(last.change, Some(changed()));
    let held: Vec<Nanos> = {
        let shown = bench.host.snapshot();
        shown.tenants.iter().map(|one| one.held_ns).collect()
    };
    assert!(held[0] + held[1] > Nanos::ZERO, "one was held");
    assert!(bench.host.close_ledger(), "nothing is lost");
    assert!(bench.host.ledger_health().is_none());
    let found = entries(&path);
    assert!(
        found
            .iter()
            .all(|entry| entry.stretch.boot == bench.host.boot())
    );
    let length: u64 = found.iter().map(|entry| entry.stretch.length_ns.0).sum();
    assert_eq!(length, 2 * PERIOD.0);
    let of = |name: &str| {
        let own: Vec<_> = records(&found)
            .filter(|one| one.tenant.name == name)
            .collect();
        let sum = |of: fn(&TenantRecord) -> u64| own.iter().map(|one| of(one)).sum::<u64>();
        let last = own.last().unwrap();
        let identity = (last.tenant.kind, last.tenant.account.clone(), last.weight);
        let times = [
            sum(|one| one.engine_ns.0),
            sum(|one| one.copy_ns.0),
            sum(|one| one.copy_bytes.unwrap()),
            sum(|one| one.held_ns.0),
            sum(|one| one.waiting_ns.0),
            sum(|one| u64::try_from(one.memory_byte_ns.unwrap_or(0)).unwrap()),
        ];
        (identity, times)
    };
    let account = Some("uid-1000".to_owned());
    let (kind, period) = (TenantKind::Vm, PERIOD.0);
    let times = [10 * MS, 0, 0, held[0].0, 10 * MS, 11 * 2 * period];
    assert_eq!(of("a"), ((kind, account.clone(), 300), times));
    let times = [5 * MS, 4 * MS, 99, held[1].0, 15 * MS, 13 * 2 * period];
    assert_eq!(of("b"), ((kind, account, 100), times));
    assert_eq!(of("c").1[0], 2 * MS);
    assert!(
        records(&found).all(|one| one.tenant.name != "d"),
        "it used nothing"
    );
    let mut noted = Vec::new();
    let mut visit = |change| {
        noted.push(change);
        Ok(true)
    };
    let mut store = SqliteStore::read(&path).unwrap();
    store.changes(&Selection::default(), &mut visit).unwrap();
    assert_eq!((noted.len(), &*noted[0].tenant), (1, "a"));
    assert_eq!(noted[0].new, "{\"weight\":300}");
}

#[test]
fn estimated_use_of_an_unobserved_part_is_in_the_ledger_beside_what_was_observed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger");
    let mut bench = Bench::new(GATES);
    bench.host.open_ledger(config(&path, 3_600_000)).unwrap();
    let (a, b) = (bench.open("a", 100), bench.open("b", 100));
    let estimated = turnstile_accounting::Usage {
        signals: turnstile_accounting::Signals::Extrapolated,
        ..usage(Moment(0), [&[(a, 6), (b, 1)], &[], &[]])
    };
    let observed = usage(Moment(0) + PERIOD, [&[(a, 2), (b, 3)], &[], &[]]);
    bench.gpu.reported().now = Moment(20 * MS);
    bench
        .host
        .period_end(Some(estimated), observed, None, &mut Vec::new());
    assert!(bench.host.close_ledger());
    let found = entries(&path);
    let of = |name: &str| {
        let own = records(&found).filter(|one| one.tenant.name == name);
        own.map(|one| (one.engine_ns.0 / MS, one.estimated_ns.0 / MS))
            .collect::<Vec<_>>()
    };
    assert_eq!((of("a"), of("b")), (vec![(8, 6)], vec![(4, 1)]));
}

#[test]
fn silent_gpu_is_a_gap_of_its_length_and_its_vms_connect_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger");
    let mut bench = Bench::new(GATES);
    bench.host.open_ledger(config(&path, 20)).unwrap();
    let a = bench.open("a", 100);
    bench.period(&[(a, 7)]);
    assert_eq!(bench.host.silence(), None);
    bench.host.silent(Moment(0) + PERIOD, "its server is gone");
    assert_eq!(bench.host.silence().as_deref(), Some("its server is gone"));
    bench.gpu.reported().now = Moment(500 * MS);
    bench.gpu.reported().silent = Some("not yet".into());
    assert_eq!(bench.host.retake(), Err("not yet".into()));
    assert!(bench.host.silence().is_some());
    bench.take();
    bench.gpu.reported().now = Moment(700 * MS);
    bench.gpu.reported().silent = None;
    bench.host.retake().unwrap();
    assert_eq!(bench.host.silence(), None);
    let calls = bench.take();
    assert!(matches!(&calls[..], [Call::Sent(to, ToVmm::Refused { .. })] if *to == a));
    let kinds: Vec<_> = bench.host.journal().after(0, 100).0;
    let kinds: Vec<&str> = kinds.iter().map(|event| &*event.kind).collect();
    assert_eq!(kinds, ["vm_connected", "gpu_silent", "gpu_back"]);
    // Silent again until the end of the daemon: less than a window is a gap too.
    bench.period(&[(a, 1)]);
    bench.host.silent(Moment(710 * MS), "again");
    bench.gpu.reported().now = Moment(715 * MS);
    assert!(bench.host.close_ledger());
    let found = entries(&path);
    let cause = GapCause::Silent;
    let gaps = found
        .iter()
        .filter(|entry| entry.body == Body::Gap { cause });
    let lengths: Vec<_> = gaps.map(|gap| gap.stretch.length_ns.0 / MS).collect();
    assert_eq!(lengths.iter().sum::<u64>(), 690 + 5, "{lengths:?}");
    assert_eq!(lengths.last(), Some(&5));
    let engine: u64 = records(&found).map(|one| one.engine_ns.0).sum();
    assert_eq!(engine, 8 * MS);
}

#[test]
fn connection_of_a_vm_ends_when_the_gpu_was_reset_alone() {
    let mut bench = Bench::new(GATES);
    let a = bench.open("a", 100);
    for (taken_back, ends) in [(Contexts::Kept, false), (Contexts::Gone, true)] {
        bench.host.silent(Moment(0), "gone");
        bench.gpu.reported().taken_back = taken_back;
        bench.host.retake().unwrap();
        assert_eq!(bench.gpu.hung_up(a), ends, "{taken_back:?}");
    }
    assert_eq!(bench.host.ledger_reason(), None);
}

/// Held twice, and still held at the end.
#[test]
fn held_time_of_the_ledger_is_that_of_the_snapshot() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger");
    let mut bench = Bench::new(GATES);
    bench.host.open_ledger(config(&path, 3_600_000)).unwrap();
    let (a, b) = (bench.open("a", 100), bench.open("b", 100));
    bench.busy = vec![a, b];
    for used in [[(a, 9), (b, 1)], [(a, 0), (b, 10)], [(a, 10), (b, 0)]] {
        bench.period(&used);
    }
    bench.period(&[]);
    bench.period(&[]);
    let tenants = bench.host.snapshot().tenants;
    assert_eq!(tenants[0].tally.held_ahead, 2);
    let shown: u64 = tenants.iter().map(|one| one.held_ns.0).sum();
    assert!(bench.host.close_ledger());
    let found = entries(&path);
    let kept: u64 = records(&found).map(|one| one.held_ns.0).sum();
    assert_eq!(kept, shown);
}

#[test]
fn ledger_that_cannot_be_written_says_why_and_takes_no_changes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger");
    let mut bench = Bench::new(GATES);
    bench.host.open_ledger(config(&path, 20)).unwrap();
    let a = bench.open("a", 100);
    std::fs::remove_file(&path).unwrap();
    // A window ends at twice its length, whatever the calendar shows.
    for _ in 0..5 {
        bench.period(&[(a, 1)]);
    }
    let begin = Instant::now();
    let reason = loop {
        if let Some(reason) = bench.host.ledger_reason() {
            break reason;
        }
        assert!(begin.elapsed() < PATIENCE);
        std::thread::yield_now();
    };
    assert!(reason.contains("removed"), "{reason}");
    assert!(!bench.host.can_note());
    assert!(bench.host.ledger_health().unwrap().failing);
    assert!(bench.host.close_ledger(), "the file is made again");
}
