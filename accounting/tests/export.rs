//! Exports: equal each time, complete or refused, and the rows add up to the ledger's sum.
#![cfg(feature = "export")]

#[path = "export/bill.rs"]
mod bill;
mod common;
#[path = "export/fleet.rs"]
mod fleet;
#[path = "export/identity.rs"]
mod identity;
#[path = "export/unknown.rs"]
mod unknown;
#[path = "export/vocabulary.rs"]
mod vocabulary;

use common::{BEGIN, SECOND_NS, gpu};
use rust_decimal::Decimal;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;
use turnstile_accounting::Nanos;
use turnstile_accounting::export::{
    Container, ExportError, Exported, FocusVersion, Format, PriceList, Request, export, summary,
};
use turnstile_accounting::record::{Body, Entry, GpuIdentity, TenantRecord, UnixNanos};
use turnstile_accounting::store::{SqliteStore, Store};
use turnstile_accounting::synthetic::Synthetic;

const PRICES: &str = include_str!("prices.toml");
const HOUR_NS: u64 = 3_600 * SECOND_NS;

fn ledger(entries: &[Entry]) -> SqliteStore {
    let mut store = SqliteStore::in_memory().unwrap();
    for entry in entries {
        store.put(&gpu(), entry).unwrap();
    }
    store
}

/// Somewhat more than two hours of synthetic use in windows of a minute, made once.
fn two_hours() -> Vec<Entry> {
    static ENTRIES: LazyLock<Vec<Entry>> = LazyLock::new(|| {
        let events = Synthetic {
            period_ns: Nanos::from_ms(100),
            ..common::EVENTS
        };
        let run =
            |boot, tail, periods| common::run_of(&events, boot, 60 * SECOND_NS, tail, periods);
        let mut all = run(1, None, 0..40_000);
        let behind = common::tail(&all);
        all.extend(run(2, behind, 42_000..74_000));
        all
    });
    ENTRIES.clone()
}

fn request() -> Request {
    Request {
        from: UnixNanos(BEGIN),
        to: UnixNanos(BEGIN + 2 * HOUR_NS),
        ..Request::default()
    }
}

fn written(
    store: &mut dyn Store,
    format: Format,
    request: &Request,
) -> Result<(Exported, Vec<u8>), ExportError> {
    let prices = PriceList::from_toml(PRICES).unwrap();
    let mut out = Vec::new();
    let exported = export(store, format, request, Some(&prices), &mut out, &mut |_| {})?;
    Ok((exported, out))
}

fn csv_rows(bytes: &[u8]) -> Vec<BTreeMap<String, String>> {
    csv::Reader::from_reader(bytes)
        .deserialize()
        .map(|row| row.unwrap())
        .collect()
}

/// Records in the ledger of windows that begin in the request.
fn records<'a>(
    entries: &'a [Entry],
    request: &Request,
) -> impl Iterator<Item = &'a TenantRecord> + use<'a> {
    let range = request.from..request.to;
    let chosen = entries
        .iter()
        .filter(move |e| range.contains(&e.stretch.start));
    chosen.flat_map(|entry| match &entry.body {
        Body::Window { tenants, .. } => &tenants[..],
        Body::Gap { .. } => &[],
    })
}

/// Engine time in the ledger of windows that begin in the request.
fn ledger_ns(entries: &[Entry], request: &Request) -> u128 {
    let all = records(entries, request);
    all.map(|record| u128::from(record.engine_ns.0)).sum()
}

fn formats() -> Vec<Format> {
    let mut containers = vec![Container::Csv];
    if cfg!(feature = "parquet") {
        containers.push(Container::Parquet);
    }
    let mut formats = vec![Format::Events];
    for container in containers {
        formats.push(Format::Rows(container));
        formats.push(Format::Focus(FocusVersion::V1_2, container));
        formats.push(Format::Focus(FocusVersion::V1_4, container));
    }
    formats
}

#[test]
fn rows_add_up_to_the_ledger_and_come_out_the_same_again() {
    let entries = two_hours();
    let (mut store, mut again) = (ledger(&entries), ledger(&entries));
    let expected = ledger_ns(&entries, &request());
    assert!(expected > 0);
    for format in formats() {
        let (exported, bytes) = written(&mut store, format, &request()).unwrap();
        assert_eq!(exported.engine_ns, expected, "{format:?}");
        assert_eq!(
            written(&mut store, format, &request()).unwrap().1,
            bytes,
            "{format:?}"
        );
        assert_eq!(
            written(&mut again, format, &request()).unwrap().1,
            bytes,
            "{format:?}"
        );
    }
}

#[test]
fn what_is_not_closed_or_not_kept_is_refused() {
    let entries = two_hours();
    let mut store = ledger(&entries);
    let end = entries.last().unwrap().stretch.end;
    let beyond = Request {
        to: UnixNanos(BEGIN + 3 * HOUR_NS),
        ..request()
    };
    for format in formats() {
        let refused = written(&mut store, format, &beyond);
        assert!(
            matches!(refused, Err(ExportError::NotClosed { until, .. }) if until == end),
            "{format:?}"
        );
    }
    let exactly = Request {
        to: end,
        ..request()
    };
    assert!(written(&mut store, Format::Events, &exactly).is_ok());
    // The host was renamed since, or another host has a GPU of the same identity.
    let other = GpuIdentity {
        node: "node-18".into(),
        ..gpu()
    };
    let renamed = common::run(7, 60 * SECOND_NS, None, 0..600);
    store.put(&other, &renamed[0]).unwrap();
    assert!(matches!(
        written(&mut store, Format::Events, &exactly),
        Err(ExportError::NotClosed { node, .. }) if node == other.node
    ));
    let own = Request {
        node: Some(gpu().node),
        ..exactly
    };
    assert!(written(&mut store, Format::Events, &own).is_ok());
    let unknown_tenant = Request {
        gpu: Some("GPU-9".into()),
        ..request()
    };
    assert!(matches!(
        written(&mut store, Format::Events, &unknown_tenant),
        Err(ExportError::NoGpu)
    ));
    let empty = Request {
        to: request().from,
        ..request()
    };
    assert!(matches!(
        written(&mut store, Format::Events, &empty),
        Err(ExportError::Empty)
    ));
    store
        .retain(&gpu().node, UnixNanos(BEGIN + HOUR_NS))
        .unwrap();
    assert!(matches!(
        written(&mut store, Format::Events, &request()),
        Err(ExportError::Discarded { .. })
    ));
}

#[test]
fn events_are_cloudevents_with_stable_ids_and_the_windows_end() {
    let entries = two_hours();
    let mut store = ledger(&entries);
    let (exported, bytes) = written(&mut store, Format::Events, &request()).unwrap();
    let (mut ids, mut gaps, mut sum) = (BTreeSet::new(), 0, 0_u128);
    for line in std::str::from_utf8(&bytes).unwrap().lines() {
        let event: serde_json::Value = serde_json::from_str(line).unwrap();
        let field = |name: &str| event[name].as_str().unwrap().to_owned();
        assert_eq!(
            (field("specversion").as_str(), field("source").as_str()),
            ("1.0", "/nodes/node-17")
        );
        let schema = format!("#/$defs/{}", field("type"));
        assert!(field("dataschema").ends_with(&schema));
        assert_eq!(event["time"], event["data"]["window_end"]);
        assert!(ids.insert((field("source"), field("id"))), "a pair twice");
        match field("type").as_str() {
            "dev.turnstile.vm.gpu_usage.v2" => {
                sum += event["data"]["engine_ns"]
                    .as_str()
                    .unwrap()
                    .parse::<u128>()
                    .unwrap();
            }
            "dev.turnstile.gpu.conservation.v2" => {
                let length: u128 = event["data"]["window_ns"]
                    .as_str()
                    .unwrap()
                    .parse()
                    .unwrap();
                for engine in event["data"]["engines"].as_array().unwrap() {
                    let part = |name: &str| engine[name].as_str().unwrap().parse::<u128>().unwrap();
                    let parts = [
                        "used_ns",
                        "fault_ns",
                        "switching_ns",
                        "idle_ns",
                        "unobserved_ns",
                        "gap_ns",
                    ];
                    assert_eq!(parts.into_iter().map(part).sum::<u128>(), length);
                }
            }
            "dev.turnstile.gpu.unknown.v2" => gaps += 1,
            other => panic!("{other}"),
        }
    }
    assert_eq!((ids.len() as u64, gaps), (exported.rows, 1));
    assert_eq!(sum, ledger_ns(&entries, &request()));
}

#[test]
fn one_tenant_is_found_by_name_or_id() {
    let mut store = ledger(&common::run(1, 60 * SECOND_NS, None, 0..12_001));
    let request = Request {
        from: UnixNanos(BEGIN),
        to: UnixNanos(BEGIN + 60 * SECOND_NS),
        tenant: Some("vm-b".into()),
        ..Request::default()
    };
    let csv = Format::Rows(Container::Csv);
    let rows = csv_rows(&written(&mut store, csv, &request).unwrap().1);
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0]["tenant"], "vm-b");
    let by_id = Request {
        tenant: Some(rows[0]["tenant_id"].clone()),
        ..request.clone()
    };
    assert_eq!(csv_rows(&written(&mut store, csv, &by_id).unwrap().1), rows);
    let (_, events) = written(&mut store, Format::Events, &request).unwrap();
    assert_eq!(
        events.iter().filter(|byte| **byte == b'\n').count(),
        1,
        "nothing of the others"
    );
}

#[test]
fn a_damaged_ledger_is_not_exported() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger");
    let mut store = SqliteStore::create(&path).unwrap();
    for entry in &two_hours() {
        store.put(&gpu(), entry).unwrap();
    }
    drop(store);
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection
        .execute(
            "UPDATE usage SET engine_ns = engine_ns + 1 WHERE seq = 70",
            [],
        )
        .unwrap();
    drop(connection);
    let refused = written(
        &mut SqliteStore::read(&path).unwrap(),
        Format::Events,
        &request(),
    );
    assert!(
        matches!(refused, Err(ExportError::Damaged(_))),
        "{refused:?}"
    );
}

#[cfg(not(feature = "parquet"))]
#[test]
fn without_the_feature_parquet_is_refused() {
    let mut store = ledger(&two_hours());
    let refused = written(&mut store, Format::Rows(Container::Parquet), &request());
    assert!(matches!(refused, Err(ExportError::NoParquet)));
}

#[cfg(feature = "parquet")]
#[test]
fn parquet_has_the_rows_of_the_csv() {
    use parquet::file::reader::{FileReader, SerializedFileReader};
    let mut store = ledger(&two_hours());
    let focus = |container| Format::Focus(FocusVersion::V1_2, container);
    let (exported, bytes) = written(&mut store, focus(Container::Parquet), &request()).unwrap();
    let rows = csv_rows(
        &written(&mut store, focus(Container::Csv), &request())
            .unwrap()
            .1,
    );
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bill.parquet");
    std::fs::write(&path, bytes).unwrap();
    let reader = SerializedFileReader::new(std::fs::File::open(&path).unwrap()).unwrap();
    let read: Vec<_> = reader
        .get_row_iter(None)
        .unwrap()
        .map(Result::unwrap)
        .collect();
    assert_eq!(read.len() as u64, exported.rows);
    for (row, expected) in read.iter().zip(&rows) {
        for (name, field) in row.get_column_iter() {
            use parquet::record::Field;
            let expected = &expected[name];
            match field {
                Field::Null => assert_eq!(expected, "", "{name}"),
                Field::Str(text) => assert_eq!(text, expected, "{name}"),
                Field::Long(number) => assert_eq!(&number.to_string(), expected, "{name}"),
                Field::Decimal(number) => {
                    let mantissa = i128::from_be_bytes(number.data().try_into().unwrap());
                    let value =
                        Decimal::from_i128_with_scale(mantissa, number.scale().try_into().unwrap());
                    assert_eq!(value, Decimal::from_str_exact(expected).unwrap(), "{name}");
                }
                other => panic!("{name}: {other:?}"),
            }
        }
    }
}

/// An output that accepts this number of bytes.
struct Short(usize);

impl std::io::Write for Short {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let left = self.0.checked_sub(bytes.len());
        self.0 = left.ok_or(std::io::ErrorKind::FileTooLarge)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn output_write_failure_is_an_output_error_in_every_format() {
    let mut store = ledger(&two_hours());
    // All of a short output may be in a buffer until its end.
    let minute = Request {
        to: UnixNanos(BEGIN + 60 * SECOND_NS),
        ..request()
    };
    let formats = [Format::Events, Format::Rows(Container::Csv)];
    let cases = [(0, &minute), (100, &minute), (30_000, &request())];
    for (format, (room, request)) in formats
        .into_iter()
        .flat_map(|format| cases.map(|case| (format, case)))
    {
        let mut out = Short(room);
        let no_progress = &mut |_| {};
        let refused = export(&mut store, format, request, None, &mut out, no_progress);
        assert!(
            matches!(&refused, Err(ExportError::Output(error)) if error.kind() == std::io::ErrorKind::FileTooLarge),
            "{format:?}: {refused:?}"
        );
    }
}
