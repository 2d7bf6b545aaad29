//! Bills: prices of all and full hours, FOCUS rules, and schemas with the bill's columns.

use super::*;
use common::NAMES;
use turnstile_accounting::export::focus_schema;
use turnstile_accounting::ids::resource_id;
use turnstile_accounting::record::{Digest, TenantKind};

#[test]
fn a_bill_needs_prices_of_all_and_full_hours() {
    let mut store = ledger(&two_hours());
    let focus = Format::Focus(FocusVersion::V1_4, Container::Csv);
    let mut attempt = |prices: Option<&PriceList>, request: &Request| {
        export(
            &mut store,
            focus,
            request,
            prices,
            &mut Vec::new(),
            &mut |_| {},
        )
    };
    assert!(matches!(
        attempt(None, &request()),
        Err(ExportError::NoPrices)
    ));
    let other = PriceList::from_toml(&PRICES.replace("NVIDIA H200", "NVIDIA H100")).unwrap();
    assert!(matches!(
        attempt(Some(&other), &request()),
        Err(ExportError::NoSku { .. })
    ));
    let prices = PriceList::from_toml(PRICES).unwrap();
    let half = Request {
        from: UnixNanos(BEGIN + HOUR_NS / 2),
        ..request()
    };
    assert!(matches!(
        attempt(Some(&prices), &half),
        Err(ExportError::NotAnHour { .. })
    ));
    let time_alone = PRICES.split("# Without one, bytes").next().unwrap();
    let time_alone = PriceList::from_toml(time_alone).unwrap();
    let bill = attempt(Some(&time_alone), &request()).unwrap();
    let whole = attempt(Some(&prices), &request()).unwrap();
    assert!(bill.rows < whole.rows, "without a price copies are no rows");
    assert_eq!(bill.engine_ns, whole.engine_ns);
    let odd =
        PriceList::from_toml(&PRICES.replace("0.00058", "0.00000000000000000000000001")).unwrap();
    assert!(matches!(
        attempt(Some(&odd), &request()),
        Err(ExportError::Inexact { .. })
    ));
}

#[test]
fn no_bill_has_the_time_of_processes_without_a_tenant() {
    let mut entries = two_hours();
    let focus = Format::Focus(FocusVersion::V1_4, Container::Csv);
    let (all, _) = written(&mut ledger(&entries), focus, &request()).unwrap();
    let mut digest = Digest::genesis(&gpu());
    for entry in &mut entries {
        if let Body::Window { tenants, .. } = &mut entry.body {
            for record in tenants.iter_mut().filter(|of| of.tenant.name == NAMES[0]) {
                record.tenant.kind = TenantKind::Untracked;
            }
        }
        digest = digest.follow(&entry.stretch, &entry.body);
        entry.digest = digest;
    }
    let (billed, bytes) = written(&mut ledger(&entries), focus, &request()).unwrap();
    assert!(billed.engine_ns < all.engine_ns);
    assert!(!String::from_utf8(bytes).unwrap().contains(NAMES[0]));
}

/// Properties that the official validator does not check: exact products, forms of time, ids,
/// nulls, sums.
#[test]
fn a_bill_keeps_focus_rules_that_the_validator_does_not_check() {
    let entries = two_hours();
    let mut store = ledger(&entries);
    for version in [FocusVersion::V1_2, FocusVersion::V1_4] {
        let (exported, bytes) = written(
            &mut store,
            Format::Focus(version, Container::Csv),
            &request(),
        )
        .unwrap();
        let rows = csv_rows(&bytes);
        assert_eq!(rows.len() as u64, exported.rows);
        let text = String::from_utf8(bytes).unwrap();
        assert!(!text.contains("\"\"\r") && !text.contains("N/A") && !text.contains("null"));
        let number = |row: &BTreeMap<String, String>, name: &str| {
            let text = &row[name];
            assert!(
                text.contains('.') && !text.starts_with('+'),
                "{name} {text}"
            );
            Decimal::from_str_exact(text).unwrap()
        };
        let (mut ids, mut places) = (BTreeSet::new(), BTreeSet::new());
        let mut totals = BTreeMap::<&str, Decimal>::new();
        let mut unknown = Decimal::ZERO;
        for row in &rows {
            let quantity = number(row, "ConsumedQuantity");
            assert_eq!(row["PricingQuantity"], row["ConsumedQuantity"]);
            assert_eq!(
                number(row, "ListCost"),
                quantity * number(row, "ListUnitPrice")
            );
            assert_eq!(
                number(row, "ContractedCost"),
                quantity * number(row, "ContractedUnitPrice")
            );
            assert_eq!(row["BilledCost"], row["ContractedCost"]);
            assert_eq!(row["EffectiveCost"], row["ContractedCost"]);
            let (unit, beside) = (&*row["ConsumedUnit"], &*row["x_WaitSeconds"]);
            let (price, meter) = match unit {
                "GPU-Seconds" => ("0.00058", "GPU time"),
                _ => ("0.002", "GPU copies"),
            };
            assert_eq!(number(row, "ListUnitPrice").to_string(), price);
            assert_eq!(row["SkuMeter"], meter);
            assert_eq!(row["PricingUnit"], unit);
            let own = row["ResourceType"] == "GPU Share";
            assert_eq!(
                beside.is_empty(),
                unit == "GB" || !own,
                "waiting time stands once"
            );
            for name in [
                "ChargePeriodStart",
                "ChargePeriodEnd",
                "BillingPeriodStart",
                "BillingPeriodEnd",
            ] {
                let bytes = row[name].as_bytes();
                assert_eq!(
                    (bytes.len(), bytes[10], bytes[19]),
                    (20, b'T', b'Z'),
                    "{name} {}",
                    row[name]
                );
            }
            assert!(row["BillingPeriodStart"] <= row["ChargePeriodStart"]);
            assert!(row["ChargePeriodStart"] < row["ChargePeriodEnd"]);
            assert!(row["ChargePeriodEnd"] <= row["BillingPeriodEnd"]);
            assert_eq!(
                (row["ChargeClass"].as_str(), row["InvoiceId"].as_str()),
                ("", "")
            );
            assert_eq!(
                row["SubAccountId"].is_empty(),
                row["SubAccountName"].is_empty()
            );
            for json in ["SkuPriceDetails", "Tags"]
                .map(|name| &row[name])
                .into_iter()
                .filter(|j| !j.is_empty())
            {
                let object: BTreeMap<String, serde_json::Value> =
                    serde_json::from_str(json).unwrap();
                assert!(
                    object
                        .values()
                        .all(|value| !value.is_object() && !value.is_array())
                );
            }
            assert!(ids.insert(row["x_UsageEventId"].clone()), "an id twice");
            assert!(
                places.insert((&row["ResourceId"], &row["ChargePeriodStart"], unit)),
                "a charge twice"
            );
            if row["ResourceType"] == "GPU" {
                assert_eq!(row["ResourceName"], gpu().gpu);
                assert_eq!((&*row["BilledCost"], &*row["x_GpuWeight"]), ("0.0", ""));
                assert_eq!(row["x_UnknownCauses"], "down");
                unknown += number(row, "x_UnknownSeconds");
                continue;
            }
            assert_eq!(row["x_UnknownSeconds"], "");
            *totals.entry(unit).or_default() += quantity;
        }
        assert_eq!(unknown, Decimal::from(200), "the gap between the two runs");
        let ledger =
            Decimal::from_i128_with_scale(ledger_ns(&entries, &request()).try_into().unwrap(), 9);
        let counted = |record: &TenantRecord| Some(i128::from(record.copy_bytes?));
        let bytes = records(&entries, &request()).filter_map(counted).sum();
        let copied = Decimal::from_i128_with_scale(bytes, 9);
        let expected = [("GB", copied), ("GPU-Seconds", ledger)].into();
        assert_eq!(totals, expected, "to the nanosecond and to the byte");
        let counting: BTreeSet<_> = records(&entries, &request())
            .filter_map(|record| {
                let resource = resource_id(&gpu().node, &record.tenant);
                record.copy_bytes.and(Some(resource.to_string()))
            })
            .collect();
        let billed = rows.iter().filter(|row| row["ConsumedUnit"] == "GB");
        let billed = billed.map(|row| row["ResourceId"].rsplit('/').next().unwrap().to_owned());
        assert_eq!(
            billed.collect::<BTreeSet<_>>(),
            counting,
            "of those that are counted"
        );
        let first: BTreeSet<&str> = rows
            .iter()
            .filter(|row| row["ChargePeriodStart"] == "2026-11-20T13:00:00Z")
            .map(|row| row["ResourceName"].as_str())
            .collect();
        assert_eq!(first, NAMES.into(), "all tenants, the idle one too");
        assert!(rows.iter().any(|row| row["ConsumedQuantity"] == "0.0"));
    }
}

/// Two runs of the daemon within an hour, and a weight that is changed in it.
#[test]
fn resource_has_a_row_for_each_weight_of_an_hour_over_restarts_of_the_daemon() {
    let mut entries = two_hours();
    let changed = UnixNanos(BEGIN + HOUR_NS / 2);
    let mut digest = Digest::genesis(&gpu());
    for entry in &mut entries {
        if let Body::Window { tenants, .. } = &mut entry.body {
            for record in tenants.iter_mut().filter(|of| of.tenant.name == "vm-b") {
                record.weight = if entry.stretch.start < changed {
                    40
                } else {
                    700
                };
            }
        }
        digest = digest.follow(&entry.stretch, &entry.body);
        entry.digest = digest;
    }
    let focus = Format::Focus(FocusVersion::V1_4, Container::Csv);
    let rows = csv_rows(&written(&mut ledger(&entries), focus, &request()).unwrap().1);
    let of = |hour: &str, name: &str| -> Vec<(String, Decimal)> {
        let own = rows.iter().filter(|row| {
            row["ChargePeriodStart"] == format!("2026-11-20T{hour}:00:00Z")
                && row["ResourceName"] == name
                && row["ConsumedUnit"] == "GPU-Seconds"
        });
        let cells = |row: &BTreeMap<String, String>| {
            let quantity = Decimal::from_str_exact(&row["ConsumedQuantity"]).unwrap();
            (row["x_GpuWeight"].clone(), quantity)
        };
        own.map(cells).collect()
    };
    let expected = |from: UnixNanos, to: UnixNanos, name: &str| {
        let part = Request {
            from,
            to,
            ..Request::default()
        };
        let own = records(&entries, &part).filter(|record| record.tenant.name == name);
        let ns = own.map(|record| i128::from(record.engine_ns.0)).sum();
        Decimal::from_i128_with_scale(ns, 9)
    };
    let (start, end) = (request().from, request().to);
    let hour = UnixNanos(BEGIN + HOUR_NS);
    assert_eq!(
        of("13", "vm-b"),
        [
            ("40".to_owned(), expected(start, changed, "vm-b")),
            ("700".to_owned(), expected(changed, hour, "vm-b")),
        ]
    );
    assert_eq!(
        of("14", "vm-b"),
        [("700".to_owned(), expected(hour, end, "vm-b"))],
        "one row over two runs"
    );
    assert_eq!(
        of("13", "vm-c"),
        [("300".to_owned(), expected(start, hour, "vm-c"))]
    );
    let resources: BTreeSet<_> = rows
        .iter()
        .filter(|row| row["ResourceName"] == "vm-b")
        .map(|row| &row["ResourceId"])
        .collect();
    assert_eq!(resources.len(), 1, "stable over the restart");
}

/// The price list of LEDGER.md, with as few keys as there can be: what FOCUS requires beside an id
/// is there. The official validator reads the same bill in `.ci/focus`.
#[test]
fn bill_by_the_documented_price_list_names_what_it_has_ids_of() {
    const LEDGER: &str = include_str!("../../../docs/LEDGER.md");
    let example = LEDGER.split("    [billing]").nth(1).unwrap();
    let example = example.split("\n\n").next().unwrap();
    let list = format!("[billing]{example}").replace("\n    ", "\n");
    let prices = PriceList::from_toml(&list).unwrap();
    let mut out = Vec::new();
    let format = Format::Focus(FocusVersion::V1_2, Container::Csv);
    let mut store = ledger(&two_hours());
    let bill = export(
        &mut store,
        format,
        &request(),
        Some(&prices),
        &mut out,
        &mut |_| {},
    );
    assert!(bill.unwrap().rows > 0);
    for row in csv_rows(&out) {
        assert_eq!(row["BillingAccountName"], "acct-0042");
        for (id, name) in [
            ("BillingAccountId", "BillingAccountName"),
            ("RegionId", "RegionName"),
            ("SubAccountId", "SubAccountName"),
            ("ResourceId", "ResourceName"),
        ] {
            assert_eq!(row[id].is_empty(), row[name].is_empty(), "{name}: {row:?}");
        }
    }
}

#[test]
fn a_schema_has_the_bills_columns_in_their_order() {
    let mut store = ledger(&two_hours());
    for version in [FocusVersion::V1_2, FocusVersion::V1_4] {
        let format = Format::Focus(version, Container::Csv);
        let (_, bytes) = written(&mut store, format, &request()).unwrap();
        let head = String::from_utf8(bytes).unwrap();
        let head = head.lines().next().unwrap();
        let schema = focus_schema(version);
        let definitions = schema["ColumnDefinition"].as_array().unwrap();
        let names: Vec<&str> = definitions
            .iter()
            .map(|column| column["ColumnName"].as_str().unwrap())
            .collect();
        assert_eq!(names.join(","), head.trim_end());
        let kind = |name| {
            let mut all = definitions.iter();
            all.find(|column| column["ColumnName"] == name).unwrap()["DataType"].clone()
        };
        assert_eq!(kind("ChargePeriodStart"), "DATETIME");
        assert_eq!(
            (kind("Tags"), kind("BilledCost")),
            ("JSON".into(), "DECIMAL".into())
        );
        assert_eq!(schema, focus_schema(version), "the same each time");
    }
}
