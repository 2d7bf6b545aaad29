//! Ledgers of several GPUs, sums of tenants, and the progress of an export.

use super::*;
use turnstile_accounting::record::{Digest, UnixNanos};

/// Entries with other records, sealed anew behind each other.
pub(crate) fn resealed(
    mut entries: Vec<Entry>,
    change: impl Fn(u64, &mut TenantRecord),
) -> Vec<Entry> {
    let mut digest = Digest::genesis(&gpu());
    let mut number = 0;
    for entry in &mut entries {
        if let Body::Window { tenants, engines } = &mut entry.body {
            for record in tenants {
                number += 1;
                change(number, record);
            }
            // Each part of an engine's time differs from all others.
            for (record, unlike) in engines.iter_mut().zip(3..) {
                record.idle_ns -= Nanos(2 * unlike + 7);
                record.unobserved_ns += Nanos(unlike);
                record.gap_ns += Nanos(unlike + 7);
                record.error_bound_ns += Nanos(unlike + 100);
            }
        }
        digest = digest.follow(&entry.stretch, &entry.body);
        entry.digest = digest;
    }
    entries
}

/// Another GPU of the node, and one of another node.
fn others() -> [GpuIdentity; 2] {
    let second = GpuIdentity {
        gpu: "GPU-9".into(),
        ..gpu()
    };
    let other = GpuIdentity {
        node: "node-18".into(),
        ..gpu()
    };
    [second, other]
}

/// The ledger of three GPUs: two runs on the first one, and one run on each other.
fn fleet() -> (SqliteStore, Vec<(GpuIdentity, Vec<Entry>)>) {
    let mut store = SqliteStore::in_memory().unwrap();
    let mut all = vec![(gpu(), two_hours())];
    for (boot, identity) in (5..).step_by(2).zip(others()) {
        let events = Synthetic {
            period_ns: Nanos::from_ms(1_000),
            ..common::EVENTS
        };
        let periods = 0..7_500;
        let entries = common::run_of_gpu(&identity, &events, boot, 60 * SECOND_NS, periods);
        all.push((identity, entries));
    }
    for (identity, entries) in &all {
        for entry in entries {
            store.put(identity, entry).unwrap();
        }
    }
    (store, all)
}

#[test]
fn each_gpu_has_its_own_rows_once_and_the_progress_goes_over_all() {
    let (mut store, all) = fleet();
    let mut seen = Vec::new();
    let mut out = Vec::new();
    let csv = Format::Rows(Container::Csv);
    let mut progress = |done| seen.push(done);
    let exported = export(&mut store, csv, &request(), None, &mut out, &mut progress).unwrap();
    let rows = csv_rows(&out);
    let (mut entries, mut expected) = (0, Vec::new());
    for (index, (identity, own)) in all.iter().enumerate() {
        let named = |row: &&BTreeMap<String, String>| {
            (&*row["node"], &*row["gpu"]) == (&*identity.node, &*identity.gpu)
        };
        let rows = rows.iter().filter(named);
        let ns = rows.filter_map(|row| row["engine_ns"].parse::<u128>().ok());
        assert_eq!(ns.sum::<u128>(), ledger_ns(own, &request()), "{identity:?}");
        let within = own
            .iter()
            .map(|entry| entry.stretch.start)
            .filter(|start| (request().from..request().to).contains(start));
        for start in within {
            entries += 1;
            let part = (start.0 - BEGIN) * 1_000 / (2 * HOUR_NS);
            expected.push((index as u64 * 1_000 + part) / 3);
        }
    }
    expected.push(1_000);
    assert_eq!(exported.entries, entries);
    assert_eq!(seen, expected);
    // One node alone, one GPU alone.
    for (node, gpu, count) in [(Some("node-17"), None, 2), (None, Some("GPU-9"), 1)] {
        let some = Request {
            node: node.map(str::to_owned),
            gpu: gpu.map(str::to_owned),
            ..request()
        };
        let rows = csv_rows(&written(&mut store, csv, &some).unwrap().1);
        let gpus: BTreeSet<_> = rows.iter().map(|row| (&row["node"], &row["gpu"])).collect();
        assert_eq!(gpus.len(), count);
    }
}

#[test]
fn sums_are_those_of_the_records_field_by_field() {
    let entries = resealed(two_hours(), |number, record| {
        record.estimated_ns = Nanos(record.engine_ns.0 / 3);
        record.error_bound_ns = Nanos(number);
        record.held_ns = Nanos(3 * number);
        record.waiting_ns = Nanos(5 * number);
        record.memory_byte_ns = record.memory_byte_ns.map(|_| 7 * u128::from(number));
    });
    let sums = summary(&mut ledger(&entries), &request(), 100, &|| true).unwrap();
    let within = entries
        .iter()
        .filter(|entry| entry.stretch.start < request().to);
    assert_eq!(sums.entries, within.count() as u64);
    let mut counted = 0;
    for sum in &sums.tenants {
        let all = records(&entries, &request());
        let own: Vec<_> = all.filter(|one| one.tenant.id == sum.tenant.id).collect();
        let of = |field: fn(&TenantRecord) -> u64| -> u128 {
            own.iter().map(|one| u128::from(field(one))).sum()
        };
        assert_eq!(sum.windows, own.len() as u64);
        assert_eq!(sum.engine_ns, of(|one| one.engine_ns.0));
        assert_eq!(sum.estimated_ns, of(|one| one.estimated_ns.0));
        assert_eq!(sum.error_bound_ns, of(|one| one.error_bound_ns.0));
        assert_eq!(sum.copy_ns, of(|one| one.copy_ns.0));
        assert_eq!(sum.held_ns, of(|one| one.held_ns.0));
        assert_eq!(sum.waiting_ns, of(|one| one.waiting_ns.0));
        let bytes = own.iter().map(|one| one.copy_bytes.map(u128::from)).sum();
        assert_eq!(sum.copy_bytes, bytes, "{sum:?}");
        counted += usize::from(bytes.is_some());
        let memory: Option<u128> = own.iter().map(|one| one.memory_byte_ns).sum();
        assert_eq!(sum.memory_byte_ns, memory);
    }
    let tenants = sums.tenants.len();
    assert_eq!((counted, tenants), (5, 10), "the first run's GPU counts");
    // Tenants beyond a bound, and a reader that is gone.
    let mut store = ledger(&entries);
    assert!(summary(&mut store, &request(), 10, &|| true).is_ok());
    let most = summary(&mut store, &request(), 9, &|| true);
    assert!(matches!(most, Err(ExportError::TooMany { max: 9 })));
    let gone = summary(&mut store, &request(), 10, &|| false);
    assert!(matches!(gone, Err(ExportError::GivenUp)));
}

/// Retention goes on while an export reads.
#[test]
fn entries_that_are_discarded_while_an_export_reads_are_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger");
    let mut writer = SqliteStore::create(&path).unwrap();
    for entry in &two_hours() {
        writer.put(&gpu(), entry).unwrap();
    }
    let mut reader = SqliteStore::read(&path).unwrap();
    let mut calls = 0;
    let mut discard = |_| {
        calls += 1;
        if calls == 3 {
            let before = UnixNanos(BEGIN + HOUR_NS);
            assert!(writer.retain(&gpu().node, before).unwrap().entries > 0);
        }
    };
    let mut out = Vec::new();
    let csv = Format::Rows(Container::Csv);
    let refused = export(&mut reader, csv, &request(), None, &mut out, &mut discard);
    assert!(matches!(refused, Err(ExportError::Discarded { .. })));
}
