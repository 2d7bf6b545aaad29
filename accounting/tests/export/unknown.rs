//! Time without a record is in every export, and what the ledger does not cover is refused.

use super::*;
use turnstile_accounting::ids::entry_id;
use turnstile_accounting::record::Digest;

/// Rows of time without a record, by format: cause, beginning, end and nanoseconds.
fn unknown(store: &mut dyn Store, request: &Request) -> Vec<(String, String, String, u128)> {
    let (exported, bytes) = written(store, Format::Rows(Container::Csv), request).unwrap();
    let rows = csv_rows(&bytes);
    let unknown = rows.iter().filter(|row| row["kind"] == "unknown");
    let found: Vec<_> = unknown
        .map(|row| {
            assert_eq!((&*row["tenant"], &*row["engine_ns"]), ("", ""));
            let time = |name: &str| row[name].trim_end_matches(".000000000Z").to_owned();
            let ns: u128 = row["unknown_ns"].parse().unwrap();
            (
                row["unknown_cause"].clone(),
                time("window_start"),
                time("window_end"),
                ns,
            )
        })
        .collect();
    let sum = found.iter().map(|of| of.3).sum::<u128>();
    assert_eq!(exported.unknown_ns, sum);
    // The other formats have the same time.
    let (exported, bytes) = written(store, Format::Events, request).unwrap();
    assert_eq!(exported.unknown_ns, sum);
    let lines = std::str::from_utf8(&bytes).unwrap().lines();
    let events = lines
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .filter(|event| event["type"] == "dev.turnstile.gpu.unknown.v2");
    let events: Vec<u128> = events
        .map(|event| {
            event["data"]["unknown_ns"]
                .as_str()
                .unwrap()
                .parse()
                .unwrap()
        })
        .collect();
    assert_eq!(events, found.iter().map(|of| of.3).collect::<Vec<_>>());
    let sums = summary(store, request, 100, &|| true).unwrap();
    assert_eq!(sums.unknown_ns, sum);
    assert_eq!(
        sums.unknown.iter().map(|of| of.unknown_ns).sum::<u128>(),
        sum
    );
    let hours = [request.from, request.to]
        .iter()
        .all(|at| at.0 % HOUR_NS == 0);
    if hours {
        let bill = Format::Focus(FocusVersion::V1_4, Container::Csv);
        let (exported, bytes) = written(store, bill, request).unwrap();
        assert_eq!(exported.unknown_ns, sum);
        let rows = csv_rows(&bytes);
        let seconds = rows.iter().map(|row| &row["x_UnknownSeconds"]);
        let seconds = seconds.filter(|cell| !cell.is_empty());
        let billed: Decimal = seconds
            .map(|cell| Decimal::from_str_exact(cell).unwrap())
            .sum();
        let sum = i128::try_from(sum).unwrap();
        assert_eq!(billed, Decimal::from_i128_with_scale(sum, 9));
    }
    found
}

fn span(from_s: u64, to_s: u64) -> Request {
    Request {
        from: UnixNanos(BEGIN + from_s * SECOND_NS),
        to: UnixNanos(BEGIN + to_s * SECOND_NS),
        ..Request::default()
    }
}

fn row(cause: &str, start: &str, end: &str, length_s: u64) -> (String, String, String, u128) {
    let ns = u128::from(length_s * SECOND_NS);
    let date = |time: &str| format!("2026-11-20T{time}");
    (cause.into(), date(start), date(end), ns)
}

/// Two runs with a gap from 14:06:40 to 14:10:00.
#[test]
fn gap_is_a_row_of_every_format_also_of_a_span_within_it_and_of_one_tenant() {
    let mut store = ledger(&two_hours());
    let gap = row("down", "14:06:40", "14:10:00", 200);
    assert_eq!(unknown(&mut store, &request()), std::slice::from_ref(&gap));
    let one = Request {
        tenant: Some("vm-b".into()),
        ..request()
    };
    assert_eq!(unknown(&mut store, &one), [gap]);
    assert_eq!(
        unknown(&mut store, &span(4_020, 4_080)),
        [row("down", "14:07:00", "14:08:00", 60)],
        "no entry begins in it"
    );
    assert_eq!(unknown(&mut store, &span(0, 3_600)), []);
}

#[test]
fn gap_over_hours_is_a_row_of_each_hour_of_a_bill() {
    let events = Synthetic {
        period_ns: Nanos::from_ms(1_000),
        ..common::EVENTS
    };
    let run = |boot, tail, periods| common::run_of(&events, boot, 60 * SECOND_NS, tail, periods);
    let mut entries = run(1, None, 0..1_000);
    // Until 16:10:00.
    let later = run(2, common::tail(&entries), 11_400..15_000);
    entries.extend(later);
    let mut store = ledger(&entries);
    let three = span(0, 4 * 3_600);
    let gap = row("down", "13:16:40", "16:10:00", 10_400);
    assert_eq!(unknown(&mut store, &three), [gap]);
    let bill = Format::Focus(FocusVersion::V1_2, Container::Csv);
    let seconds = |store: &mut SqliteStore, request: &Request| -> Vec<(String, String)> {
        let rows = csv_rows(&written(store, bill, request).unwrap().1);
        let unknown = rows.iter().filter(|row| row["ResourceType"] == "GPU");
        unknown
            .map(|row| {
                let hour = row["ChargePeriodStart"][11..13].to_owned();
                (hour, row["x_UnknownSeconds"].clone())
            })
            .collect()
    };
    let hour = |hour: &str, seconds: &str| (hour.to_owned(), seconds.to_owned());
    assert_eq!(
        seconds(&mut store, &three),
        [
            hour("13", "2600.0"),
            hour("14", "3600.0"),
            hour("15", "3600.0"),
            hour("16", "600.0")
        ]
    );
    assert_eq!(
        seconds(&mut store, &span(3_600, 7_200)),
        [hour("14", "3600.0")],
        "an hour within the gap is not an empty bill"
    );
}

#[test]
fn time_that_no_signal_covers_is_a_row_of_its_window() {
    let mut entries = common::run(1, 60 * SECOND_NS, None, 0..12_001);
    let mut digest = Digest::genesis(&gpu());
    for (index, entry) in entries.iter_mut().enumerate() {
        if let (Body::Window { engines, .. }, 1) = (&mut entry.body, index) {
            // Of the compute engine, which is billed, 7 s; of the copy engine 2 s.
            engines[0].idle_ns = Nanos(engines[0].idle_ns.0 - 7 * SECOND_NS);
            engines[0].unobserved_ns = Nanos(4 * SECOND_NS);
            engines[0].gap_ns = Nanos(3 * SECOND_NS);
            engines[1].idle_ns = Nanos(engines[1].idle_ns.0 - 2 * SECOND_NS);
            engines[1].unobserved_ns = Nanos(2 * SECOND_NS);
        }
        digest = digest.follow(&entry.stretch, &entry.body);
        entry.digest = digest;
    }
    let found = unknown(&mut ledger(&entries), &span(0, 120));
    assert_eq!(found, [row("unobserved", "13:01:00", "13:02:00", 7)]);
}

#[test]
fn time_outside_of_the_ledger_and_unknown_tenants_are_refused_unless_gaps_are_allowed() {
    let entries = two_hours();
    let mut store = ledger(&entries);
    let early = Request {
        from: UnixNanos(BEGIN - HOUR_NS),
        ..request()
    };
    let late = span(0, 3 * 3_600);
    let mistyped = Request {
        tenant: Some("vm-bb".into()),
        ..request()
    };
    for format in formats() {
        let mut refused = |request: &Request| written(&mut store, format, request).unwrap_err();
        assert!(
            matches!(refused(&early), ExportError::NotStarted { from, .. } if from.0 == BEGIN),
            "{format:?}"
        );
        assert!(matches!(refused(&late), ExportError::NotClosed { .. }));
        assert!(
            matches!(refused(&mistyped), ExportError::NoTenant { tenant } if tenant == "vm-bb")
        );
    }
    for refused in [&early, &late, &mistyped] {
        assert!(summary(&mut store, refused, 100, &|| true).is_err());
    }
    let allowed = |request: Request| Request {
        allow_gaps: true,
        ..request
    };
    let gap = row("down", "14:06:40", "14:10:00", 200);
    let before = row("unrecorded", "12:00:00", "13:00:00", 3_600);
    assert_eq!(unknown(&mut store, &allowed(early)), [before, gap.clone()]);
    let end = entries.last().unwrap().stretch.end;
    assert_eq!(end.0, BEGIN + 7_400 * SECOND_NS);
    let after = row("unrecorded", "15:03:20", "16:00:00", 3_400);
    assert_eq!(unknown(&mut store, &allowed(late)), [gap.clone(), after]);
    let alone = std::slice::from_ref(&gap);
    assert_eq!(unknown(&mut store, &allowed(mistyped)), alone);
    // What is still to come is not without a record.
    let present = Request {
        now: Some(UnixNanos(end.0 + 60 * SECOND_NS)),
        ..allowed(span(0, 100 * 86_400))
    };
    let open = row("unrecorded", "15:03:20", "15:04:20", 60);
    assert_eq!(unknown(&mut store, &present), [gap, open]);
    let beside = allowed(span(20_000, 20_060));
    let none = row("unrecorded", "18:33:20", "18:34:20", 60);
    assert_eq!(unknown(&mut store, &beside), [none]);
    store
        .retain(&gpu().node, UnixNanos(BEGIN + HOUR_NS))
        .unwrap();
    let found = unknown(&mut store, &allowed(request()));
    assert_eq!(found[0], row("unrecorded", "13:00:00", "14:00:00", 3_600));
    // A tenant without entries in the span is known while the ledger has others of its run.
    let known = Request {
        tenant: Some("idle".into()),
        ..span(3_600, 7_200)
    };
    assert!(written(&mut store, Format::Events, &known).is_ok());
}

/// Rows name the entry that they are about, and each has an id of its own.
#[test]
fn row_of_unknown_time_names_its_entry_and_has_the_id_of_its_event() {
    let entries = fleet::resealed(two_hours(), |_, _| ());
    let mut store = ledger(&entries);
    let span = Request {
        from: UnixNanos(BEGIN - HOUR_NS),
        to: UnixNanos(BEGIN + 3 * HOUR_NS),
        allow_gaps: true,
        ..Request::default()
    };
    let (exported, bytes) = written(&mut store, Format::Rows(Container::Csv), &span).unwrap();
    let rows = csv_rows(&bytes);
    assert_eq!(exported.rows, rows.len() as u64);
    let unknown: Vec<_> = rows.iter().filter(|row| row["kind"] == "unknown").collect();
    let ids: BTreeSet<&str> = unknown.iter().map(|row| &*row["event_id"]).collect();
    assert_eq!(ids.len(), unknown.len());
    assert!(unknown.iter().all(|row| row["gpu_model"] == gpu().model));
    let causes: BTreeSet<&str> = unknown.iter().map(|row| &*row["unknown_cause"]).collect();
    assert_eq!(causes, ["down", "unobserved", "unrecorded"].into());
    for row in unknown
        .iter()
        .filter(|row| row["unknown_cause"] != "unrecorded")
    {
        let seq: usize = row["seq"].parse().unwrap();
        let stretch = &entries[seq].stretch;
        assert_eq!(row["boot_id"], stretch.boot.to_string());
        let own = entry_id(&gpu(), stretch).to_string();
        // A window's own id is that of its conservation.
        assert_eq!(row["event_id"] == own, row["unknown_cause"] == "down");
    }
    let (_, bytes) = written(&mut store, Format::Events, &span).unwrap();
    let lines = std::str::from_utf8(&bytes).unwrap().lines();
    let all: Vec<serde_json::Value> = lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let events: BTreeSet<&str> = all
        .iter()
        .filter(|event| event["type"] == "dev.turnstile.gpu.unknown.v2")
        .map(|event| event["id"].as_str().unwrap())
        .collect();
    assert_eq!(events, ids);
    let sums = summary(&mut store, &span, 100, &|| true).unwrap();
    let mut causes: Vec<_> = sums.unknown.iter().map(|sum| sum.cause).collect();
    causes.sort_unstable();
    assert_eq!(causes, ["down", "unobserved", "unrecorded", "unrecorded"]);
}
