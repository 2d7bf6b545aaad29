//! An hour of three VMs, in virtual time, as a bill: the daemon's loop over the software GPU, its
//! ledger, FOCUS.
//!
//! Time is simulated; the GPU, gates, guests, meters, mediation, policy, rollup, store and export
//! are the real ones. The 3,600 s take some seconds in a release build. The result is left in
//! `target/bill` for `.ci/focus`, which runs the official validator on it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use rust_decimal::Decimal;
use turnstile_accounting::audit::Audit;
use turnstile_accounting::export::{
    Container, FocusVersion, Format, PriceList, Request, export, parse_time,
};
use turnstile_accounting::record::{Body, Entry, GpuIdentity};
use turnstile_accounting::store::{SqliteStore, Store};
use turnstile_accounting::{Moment, Nanos};
use turnstile_lab::{BookKeeping, Lengths, Load, Participant, Setup, run_with_books};
use uuid::Uuid;

const HOUR_NS: u64 = 3_600_000_000_000;
const NAMES: [&str; 3] = ["batch", "interactive", "train"];

fn gpu() -> GpuIdentity {
    GpuIdentity {
        node: "node-17".into(),
        gpu: "software-0".into(),
        model: "Software GPU".into(),
    }
}

/// Entries of somewhat more than an hour, and the engine's own log of each tenant's time in all of
/// it.
fn demo_hour() -> (Vec<Entry>, Vec<Nanos>) {
    let kernels = [2_000, 500, 7_000].map(|us| Lengths::of(Nanos::from_us(us)));
    let participants: Vec<Participant> = [100, 100, 200]
        .into_iter()
        .zip(kernels)
        .map(|(weight, kernels)| Participant::new(weight, Load::saturating(kernels, 4)))
        .collect();
    let keeping = BookKeeping {
        gpu: gpu(),
        boot: Uuid::from_u128(17),
        begins: parse_time("2026-11-20T13:00:00Z").unwrap(),
        window_ns: Nanos(60_000_000_000),
        names: NAMES.map(str::to_owned).to_vec(),
    };
    // The last window of the hour closes with the first period after it.
    let setup = Setup::new(17, Moment(HOUR_NS + 10_000_000));
    let (outcome, entries) = run_with_books(setup, &participants, keeping).unwrap();
    (entries, outcome.service_ns)
}

/// Compute time of the windows that begin within the hour.
fn booked_ns(entries: &[Entry], within: &Request) -> i128 {
    let mut sum = 0;
    for entry in entries {
        let Body::Window { tenants, .. } = &entry.body else {
            panic!("a gap in a run without any: {entry:?}")
        };
        if (within.from..within.to).contains(&entry.stretch.start) {
            sum += tenants
                .iter()
                .map(|record| i128::from(record.engine_ns.0))
                .sum::<i128>();
        }
    }
    sum
}

#[test]
fn an_hour_of_three_vms_is_billed_to_the_nanosecond() {
    let (entries, service_ns) = demo_hour();
    let gpu = gpu();
    let mut audit = Audit::new(&gpu, None);
    entries.iter().for_each(|entry| audit.entry(entry));
    let report = audit.finish();
    assert_eq!(report.broken, 0, "{:?}", report.findings);
    // The sum of the ledger equals the engine's log, including the time after the hour.
    let all = Request {
        to: turnstile_accounting::record::UnixNanos(u64::MAX),
        ..Request::default()
    };
    let truth: i128 = service_ns.iter().map(|ns| i128::from(ns.0)).sum();
    assert_eq!(
        booked_ns(&entries, &all),
        truth,
        "the ledger is what the engine did"
    );

    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/bill");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let mut store = SqliteStore::create(&folder.join("ledger")).unwrap();
    for entry in &entries {
        store.put(&gpu, entry).unwrap();
    }
    let request = Request {
        from: parse_time("2026-11-20T13:00:00Z").unwrap(),
        to: parse_time("2026-11-20T14:00:00Z").unwrap(),
        ..Request::default()
    };
    let prices = include_str!("../../accounting/tests/prices.toml").replace("NVIDIA H200", "*");
    let prices = PriceList::from_toml(&prices).unwrap();
    for (version, name) in [
        (FocusVersion::V1_2, "focus-1.2.csv"),
        (FocusVersion::V1_4, "focus-1.4.csv"),
    ] {
        let format = Format::Focus(version, Container::Csv);
        let mut bill = Vec::new();
        let quiet = &mut |_| {};
        export(
            &mut store,
            format,
            &request,
            Some(&prices),
            &mut bill,
            quiet,
        )
        .unwrap();
        let mut again = Vec::new();
        export(
            &mut store,
            format,
            &request,
            Some(&prices),
            &mut again,
            quiet,
        )
        .unwrap();
        assert!(bill == again, "the same again");
        let quantity = check(&bill);
        assert_eq!(
            quantity,
            Decimal::from_i128_with_scale(booked_ns(&entries, &request), 9),
            "the rows add up to the ledger"
        );
        println!("{name}: {quantity} GPU-Seconds of 3600, products exact");
        fs::write(folder.join(name), bill).unwrap();
    }
}

/// Checks the rows of a bill; returns the GPU time in them.
fn check(bill: &[u8]) -> Decimal {
    let mut rows = csv::Reader::from_reader(bill);
    let mut quantities = BTreeMap::new();
    for row in rows.deserialize::<BTreeMap<String, String>>() {
        let row = row.unwrap();
        let number = |name: &str| Decimal::from_str_exact(&row[name]).unwrap();
        let quantity = number("ConsumedQuantity");
        assert_eq!(number("ListCost"), quantity * number("ListUnitPrice"));
        let contracted = quantity * number("ContractedUnitPrice");
        assert_eq!(number("ContractedCost"), contracted);
        assert_eq!(
            (number("BilledCost"), number("EffectiveCost")),
            (contracted, contracted)
        );
        let (name, unit) = (row["ResourceName"].clone(), row["ConsumedUnit"].clone());
        assert!(
            quantities.insert((name, unit), quantity).is_none(),
            "one row for each"
        );
    }
    for name in ["batch", "interactive", "train"] {
        let copied = quantities.remove(&(name.to_owned(), "GB".to_owned()));
        assert_eq!(copied, Some(Decimal::ZERO), "none of them copies");
    }
    let quantities: BTreeMap<String, Decimal> = quantities
        .into_iter()
        .map(|((name, _), quantity)| (name, quantity))
        .collect();
    let of = |name: &str| quantities[name];
    let sum: Decimal = quantities.values().sum();
    // Weights 1:1:2, to half a percentage point of the hour.
    let near = |part: Decimal, percent: i64| {
        let off = part / sum * Decimal::from(100) - Decimal::from(percent);
        off.abs() < Decimal::new(5, 1)
    };
    assert!(near(of("batch"), 25) && near(of("interactive"), 25) && near(of("train"), 50));
    assert!(sum > Decimal::from(3_590), "the engine was busy: {sum}");
    sum
}
