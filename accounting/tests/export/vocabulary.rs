//! One name for each quantity: in the ledger's tables, in the CSV, in events and in LEDGER.md.

use super::*;
use std::path::{Path, PathBuf};
use turnstile_accounting::export::events_schema;

const LEDGER: &str = include_str!("../../../docs/LEDGER.md");
const SQLITE: &str = include_str!("../../src/store/sqlite.sql");
const POSTGRES: &str = include_str!("../../src/store/postgres.sql");
const API: &str = include_str!("../../../docs/openapi.json");

/// The source that defines the metrics of tenants, which is in a crate that this one cannot see.
fn metrics() -> String {
    fn find(folder: &Path) -> Option<PathBuf> {
        let entries = std::fs::read_dir(folder).ok()?;
        let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        paths.sort();
        paths.iter().find_map(|path| match path.is_dir() {
            true => find(path),
            false => path.ends_with("metrics/tenants.rs").then(|| path.clone()),
        })
    }
    let mediator = Path::new(env!("CARGO_MANIFEST_DIR")).join("../mediator");
    std::fs::read_to_string(find(&mediator).unwrap()).unwrap()
}

/// The rows of the table under "Names of quantities": name, in the ledger, in CSV and events, in
/// the API, metric.
fn table() -> Vec<[&'static str; 5]> {
    let section = LEDGER.split("### Names of quantities").nth(1).unwrap();
    let section = section.split("\n##").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let cell = |index: usize| cells[index].trim_matches('`');
        [1, 2, 3, 4, 5].map(cell)
    })
    .collect()
}

/// Columns of the table `usage` of the ledger that are amounts.
fn columns(schema: &str) -> BTreeSet<&str> {
    let table = schema.split("CREATE TABLE usage (").nth(1).unwrap();
    let table = table.split("\n)").next().unwrap();
    let lines = table.lines().map(str::trim);
    let names = lines.filter_map(|line| line.split(' ').next());
    let keys = [
        "gpu_key",
        "seq",
        "tenant_key",
        "metadata_key",
        "id",
        "PRIMARY",
        ")",
        "--",
        "",
    ];
    names.filter(|name| !keys.contains(name)).collect()
}

#[test]
fn quantity_has_one_name_in_ledger_csv_events_and_metrics_as_documented() {
    let table = table();
    assert!(table.len() >= 14, "{table:?}");
    let marked = |column: usize| -> BTreeSet<&str> {
        let rows = table.iter().filter(|row| row[column] == "yes");
        rows.map(|row| row[0]).collect()
    };
    assert_eq!(marked(1), columns(SQLITE));
    assert_eq!(marked(1), columns(POSTGRES));
    let mut store = ledger(&two_hours());
    let (_, bytes) = written(&mut store, Format::Rows(Container::Csv), &request()).unwrap();
    let head = String::from_utf8(bytes).unwrap();
    let head: BTreeSet<&str> = head.lines().next().unwrap().split(',').collect();
    let labels = [
        "event_id",
        "node",
        "gpu",
        "gpu_model",
        "tenant_id",
        "tenant",
        "kind",
        "boot_id",
        "seq",
        "window_start",
        "window_end",
        "window_ns",
        "account",
        "resource_id",
        "unknown_cause",
        "instance_id",
        "project",
        "labels",
    ];
    let amounts: BTreeSet<&str> = head
        .into_iter()
        .filter(|name| !labels.contains(name))
        .collect();
    assert_eq!(marked(2), amounts);
    let schema = events_schema();
    let of = |kind: &str| {
        let properties = schema["$defs"][kind]["properties"].as_object();
        properties.unwrap().keys().cloned().collect::<BTreeSet<_>>()
    };
    let events: BTreeSet<String> = of("dev.turnstile.vm.gpu_usage.v2")
        .union(&of("dev.turnstile.gpu.unknown.v2"))
        .filter(|name| !labels.contains(&name.as_str()) && *name != "digest")
        .cloned()
        .collect();
    let amounts: BTreeSet<String> = amounts.into_iter().map(str::to_owned).collect();
    assert_eq!(events, amounts);
    let api: serde_json::Value = serde_json::from_str(API).unwrap();
    let of = |kind: &str| {
        let properties = &api["components"]["schemas"][kind]["properties"];
        let names = properties.as_object().unwrap().keys().cloned();
        // Labels, and what is not a sum over the span.
        let labels = [
            "id",
            "name",
            "kind",
            "account",
            "node",
            "gpu",
            "windows",
            "cause",
            "start",
            "end",
            "resource_id",
            "instance_id",
            "project",
            "labels",
            "pinned_bytes",
        ];
        names
            .filter(|name| !labels.contains(&name.as_str()))
            .collect::<BTreeSet<String>>()
    };
    let used: BTreeSet<String> = of("TenantUsed")
        .union(&of("UnknownTime"))
        .cloned()
        .collect();
    let documented: BTreeSet<String> = marked(3).into_iter().map(str::to_owned).collect();
    assert_eq!(documented, used);
    let metrics = metrics();
    let named: Vec<&str> = table
        .iter()
        .map(|row| row[4])
        .filter(|of| *of != "-")
        .collect();
    assert!(named.len() >= 4, "{named:?}");
    for metric in named {
        assert!(metrics.contains(&format!("\"{metric}\"")), "{metric}");
    }
}

#[test]
fn events_have_the_fields_of_the_schema_that_they_name() {
    let schema = events_schema();
    let mut store = ledger(&two_hours());
    let (_, bytes) = written(&mut store, Format::Events, &request()).unwrap();
    let mut kinds = BTreeSet::new();
    for line in std::str::from_utf8(&bytes).unwrap().lines() {
        let event: serde_json::Value = serde_json::from_str(line).unwrap();
        let named = event["dataschema"].as_str().unwrap();
        let (address, place) = named.split_once('#').unwrap();
        assert_eq!(address, schema["$id"].as_str().unwrap());
        let own = schema.pointer(place).unwrap();
        let fields = event["data"].as_object().unwrap();
        let properties = own["properties"].as_object().unwrap();
        assert!(fields.keys().eq(properties.keys()), "{event}");
        let required: Vec<&String> = fields.keys().collect();
        assert_eq!(own["required"], serde_json::json!(required));
        for (name, value) in fields {
            let kinds = &properties[name]["type"];
            let kind = match value {
                serde_json::Value::Null => "null",
                serde_json::Value::String(_) => "string",
                _ => "array",
            };
            let listed = kinds
                .as_array()
                .is_some_and(|all| all.iter().any(|of| of == kind));
            assert!(listed || kinds == kind, "{name}: {value}");
        }
        kinds.insert(event["type"].clone().to_string());
    }
    assert_eq!(kinds.len(), 3);
}

/// An event of use has the columns of a record's row, one of conservation the engines as they are
/// in the ledger, and neither has time without a record.
#[test]
fn events_have_the_fields_of_their_kind_and_no_others() {
    let entries = fleet::resealed(two_hours(), |_, _| ());
    let mut store = ledger(&entries);
    let (_, bytes) = written(&mut store, Format::Rows(Container::Csv), &request()).unwrap();
    let head = String::from_utf8(bytes).unwrap();
    let others = ["event_id", "unknown_ns", "unknown_cause"];
    let columns = head.lines().next().unwrap().split(',');
    let columns: BTreeSet<&str> = columns.filter(|name| !others.contains(name)).collect();
    let (_, bytes) = written(&mut store, Format::Events, &request()).unwrap();
    let lines = std::str::from_utf8(&bytes).unwrap().lines();
    let events: Vec<serde_json::Value> = lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let of = |kind: &str| {
        let mut found = events.iter().filter(|event| event["type"] == kind);
        found.next().unwrap()["data"].as_object().unwrap()
    };
    let used = of("dev.turnstile.vm.gpu_usage.v2");
    assert!(used.keys().map(String::as_str).eq(columns.iter().copied()));
    let conserved = of("dev.turnstile.gpu.conservation.v2");
    for name in conserved.keys() {
        let own = ["engines", "digest"].contains(&&**name);
        assert!(own || columns.contains(&**name), "{name}");
        assert!(!name.starts_with("tenant") && name != "engine_ns", "{name}");
    }
    let Body::Window { engines, .. } = &entries[0].body else {
        panic!("a window comes first")
    };
    // In the schema numbers differ from texts.
    let schema = events_schema();
    let properties = |kind: &str| &schema["$defs"][kind]["properties"];
    let use_of = properties("dev.turnstile.vm.gpu_usage.v2");
    assert_eq!(use_of["engine_ns"]["pattern"], "^[0-9]+$");
    assert_eq!(use_of["memory_byte_ns"]["pattern"], "^[0-9]+$");
    assert!(use_of["node"].get("pattern").is_none());
    let engine = &properties("dev.turnstile.gpu.conservation.v2")["engines"]["items"];
    let kind = |name: &str| &engine["properties"][name]["type"];
    assert_eq!([kind("engine"), kind("compute")], ["integer", "boolean"]);
    assert_eq!(engine["properties"]["idle_ns"]["pattern"], "^[0-9]+$");
    let shown = conserved["engines"].as_array().unwrap();
    assert_eq!(shown.len(), engines.len());
    for (shown, record) in shown.iter().zip(engines) {
        let record = serde_json::to_value(record).unwrap();
        for (name, value) in shown.as_object().unwrap() {
            let text = serde_json::Value::String(record[name].to_string());
            assert!(*value == record[name] || *value == text, "{name}: {value}");
        }
    }
}
