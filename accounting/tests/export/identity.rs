//! Instance ids, projects and labels in all exports, and what a resource is with them.

use super::common::metadata;
use super::*;
use std::sync::Arc;
use turnstile_accounting::Metadata;
use turnstile_accounting::export::Summary;
use turnstile_accounting::ids::resource_id;
use turnstile_accounting::record::Digest;

/// The same entries, with what `change` makes of each tenant of a name.
fn changed(name: &str, change: impl Fn(&Entry, &mut TenantRecord)) -> Vec<Entry> {
    let mut entries = two_hours();
    let mut digest = Digest::genesis(&gpu());
    for entry in &mut entries {
        let before = entry.clone();
        if let Body::Window { tenants, .. } = &mut entry.body {
            let own = tenants.iter_mut().filter(|of| of.tenant.name == name);
            own.for_each(|record| change(&before, record));
        }
        digest = digest.follow(&entry.stretch, &entry.body);
        entry.digest = digest;
    }
    entries
}

fn bill(entries: &[Entry]) -> Vec<BTreeMap<String, String>> {
    let focus = Format::Focus(FocusVersion::V1_4, Container::Csv);
    csv_rows(&written(&mut ledger(entries), focus, &request()).unwrap().1)
}

fn sums(entries: &[Entry]) -> Summary {
    summary(&mut ledger(entries), &request(), 100, &|| true).unwrap()
}

#[test]
fn every_export_has_instance_project_and_labels_of_a_tenant() {
    let entries = two_hours();
    let [instance, project] = metadata();
    let id = instance.instance_id().unwrap().to_string();
    let labels = serde_json::to_string(instance.labels()).unwrap();
    let named = project.project().unwrap();
    let own = |row: &BTreeMap<String, String>| {
        ["instance_id", "project", "labels"].map(|name| row[name].clone())
    };
    let (_, bytes) = written(
        &mut ledger(&entries),
        Format::Rows(Container::Csv),
        &request(),
    )
    .unwrap();
    let mut seen = BTreeSet::new();
    for row in csv_rows(&bytes) {
        let expected = match &*row["tenant"] {
            "vm-a" => [id.as_str(), "", labels.as_str()],
            "vm-b" => ["", named, ""],
            _ => ["", "", ""],
        };
        assert_eq!(own(&row), expected, "{}", row["tenant"]);
        seen.insert(row["tenant"].clone());
    }
    assert!(seen.len() >= 5, "{seen:?}");
    let (_, bytes) = written(&mut ledger(&entries), Format::Events, &request()).unwrap();
    let text = String::from_utf8(bytes).unwrap();
    let events = text.lines().map(|line| serde_json::from_str(line).unwrap());
    let events: Vec<serde_json::Value> = events.collect();
    let of = |name: &str| {
        events
            .iter()
            .find(|of| of["data"]["tenant"] == name)
            .unwrap()
    };
    assert_eq!(of("vm-a")["data"]["instance_id"], id.as_str());
    assert_eq!(of("vm-a")["data"]["labels"], labels.as_str());
    assert_eq!(of("vm-b")["data"]["project"], named);
    assert!(of("vm-c")["data"]["labels"].is_null());
    let sums = sums(&entries);
    let of = |name: &str| {
        sums.tenants
            .iter()
            .find(|of| of.tenant.name == name)
            .unwrap()
    };
    assert_eq!(of("vm-a").tenant.metadata, instance);
    assert_eq!(of("vm-b").tenant.metadata, project);
    for row in bill(&entries) {
        let resource = &row["ResourceId"];
        let tags = row["Tags"].as_str();
        match &*row["ResourceName"] {
            "vm-a" => {
                assert!(resource.starts_with("turnstile:/instance/"), "{resource}");
                assert_eq!(row["x_InstanceId"], id);
                assert_eq!(row["SubAccountId"], "proj-9", "the price list's");
                let tags: serde_json::Value = serde_json::from_str(tags).unwrap();
                let expected = serde_json::json!({
                    "app.kubernetes.io/name": "web", "pod": "shop/web-7d9f", "env": "prod", "urgent": true
                });
                assert_eq!(tags, expected);
            }
            "vm-b" => {
                assert_eq!(row["SubAccountId"], format!("silver/{named}"));
                assert_eq!((&*row["SubAccountName"], tags), (named, ""));
            }
            "vm-c" => assert_eq!((&*row["SubAccountId"], tags), ("gold", "")),
            _ => {}
        }
    }
}

/// A VM that is made anew under the same name, as another instance.
#[test]
fn instance_that_follows_another_under_its_name_is_another_resource() {
    let half = UnixNanos(BEGIN + HOUR_NS / 2);
    let next = Metadata::new(
        Some("6f1c2a9e-0d7b-4c55-9b1e-2f8f6f0a1b2d"),
        None,
        BTreeMap::new(),
    );
    let next = Arc::new(next.unwrap());
    let entries = changed("vm-a", |entry, record| {
        if entry.stretch.start >= half {
            record.tenant.metadata = next.clone();
        }
    });
    let expected: BTreeSet<String> = records(&entries, &request())
        .filter(|record| record.tenant.name == "vm-a")
        .map(|record| resource_id(&gpu().node, &record.tenant).to_string())
        .collect();
    assert_eq!(expected.len(), 2);
    let rows = bill(&entries);
    let own = rows.iter().filter(|row| row["ResourceName"] == "vm-a");
    let billed = own.map(|row| row["ResourceId"].rsplit('/').next().unwrap().to_owned());
    assert_eq!(billed.collect::<BTreeSet<_>>(), expected);
    let sums = sums(&entries);
    let own = sums.tenants.iter().filter(|of| of.tenant.name == "vm-a");
    let summed = own.map(|of| of.resource.to_string());
    assert_eq!(summed.collect::<BTreeSet<_>>(), expected);
}

#[test]
fn labels_that_change_within_an_hour_make_another_row_with_its_own_id_and_time() {
    let half = UnixNanos(BEGIN + HOUR_NS / 2);
    let label = |value: &str| {
        let labels = [("tier".to_owned(), value.to_owned())].into();
        Arc::new(Metadata::new(None, None, labels).unwrap())
    };
    let (web, batch) = (label("web"), label("batch"));
    let entries = changed("vm-c", |entry, record| {
        let first = entry.stretch.start < half;
        record.tenant.metadata = if first { web.clone() } else { batch.clone() };
    });
    let rows = bill(&entries);
    let own = rows.iter().filter(|row| {
        row["ResourceName"] == "vm-c"
            && row["ConsumedUnit"] == "GPU-Seconds"
            && row["ChargePeriodStart"] == "2026-11-20T13:00:00Z"
    });
    let own: Vec<_> = own.collect();
    let tags: BTreeSet<&str> = own.iter().map(|row| &*row["Tags"]).collect();
    assert_eq!(tags, ["{\"tier\":\"batch\"}", "{\"tier\":\"web\"}"].into());
    let ids: BTreeSet<&str> = own.iter().map(|row| &*row["x_UsageEventId"]).collect();
    let resources: BTreeSet<&str> = own.iter().map(|row| &*row["ResourceId"]).collect();
    assert_eq!((own.len(), ids.len(), resources.len()), (2, 2, 1));
    for row in own {
        let of = if row["Tags"].contains("web") {
            &web
        } else {
            &batch
        };
        let hour = UnixNanos(BEGIN + HOUR_NS);
        let part = Request {
            to: hour,
            ..request()
        };
        let used = records(&entries, &part).filter(|record| record.tenant.metadata == *of);
        let used = used.map(|record| i128::from(record.engine_ns.0)).sum();
        let used = Decimal::from_i128_with_scale(used, 9);
        assert_eq!(row["ConsumedQuantity"].parse::<Decimal>().unwrap(), used);
    }
}
