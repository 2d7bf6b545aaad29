//! Instance id, project and labels: from the VMM and an operator to the ledger, metrics, events and
//! bills, over a restart of the daemon.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Value, json};

use super::common::{Process, serve, turnstile, until, vm};
use super::http::{JSON, PATCH, get, send};

const ID: &str = "6f1c2a9e-0d7b-4c55-9b1e-2f8f6f0a1b2c";

fn start(folder: &Path) -> Process {
    let ledger = folder.join("ledger");
    let ledger = ledger.to_str().unwrap();
    let window = ["--ledger-window-s", "1", "--node", "node-1"];
    let serving = serve(folder, &[&["--ledger", ledger][..], &window].concat());
    until("the VMs' socket", || {
        folder.join("vmm.sock").exists().then_some(())
    });
    serving
}

/// Data of the records of VMs in the ledger.
fn records(folder: &Path) -> Vec<Value> {
    let output = turnstile()
        .args(["usage", "--ledger"])
        .arg(folder.join("ledger"))
        .args([
            "export",
            "--format",
            "ndjson",
            "--last",
            "1h",
            "--allow-gaps",
        ])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let events = text.lines().map(|line| serde_json::from_str(line).unwrap());
    events
        .filter(|event: &Value| event["type"] == "dev.turnstile.vm.gpu_usage.v2")
        .map(|event| event["data"].clone())
        .collect()
}

/// The values of a column in the records of a VM.
fn values(folder: &Path, vm: &str, column: &str) -> BTreeSet<String> {
    let own = records(folder)
        .into_iter()
        .filter(|data| data["tenant"] == vm);
    own.map(|data| data[column].as_str().unwrap_or("-").to_owned())
        .collect()
}

#[test]
fn what_a_vm_brings_and_an_operator_sets_reaches_ledger_metrics_and_events() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let api = folder.join("api.sock");
    let serving = start(folder);
    let brings = [
        "--kernel-us",
        "500",
        "--instance-id",
        ID,
        "--project",
        "shop",
        "--label",
        "pod=shop/web-7d9f",
        "--label",
        "tier=web",
    ];
    let web = vm(folder, "web", &brings);
    let _plain = vm(folder, "plain", &["--kernel-us", "500"]);
    let labels = json!({"pod": "shop/web-7d9f", "tier": "web"});
    let brought = json!({"instance_id": ID, "project": "shop", "labels": labels});
    until("the VM", || {
        let vm = get(&api, "/v1/vms/web");
        (vm.status == 200 && vm.json()["metadata"] == brought).then_some(())
    });
    let none = json!({"instance_id": null, "project": null, "labels": {}});
    until("the VM without metadata", || {
        let metadata = get(&api, "/v1/vms/plain/metadata");
        (metadata.status == 200 && metadata.json() == none).then_some(())
    });
    let events = get(&api, "/v1/events").json();
    let events = events["items"].as_array().unwrap();
    let connected = |name: &str| {
        let mut own = events
            .iter()
            .filter(|event| event["type"] == "vm_connected");
        own.find(|event| event["vm"] == name).unwrap()["metadata"].clone()
    };
    assert_eq!(
        (connected("web"), connected("plain")),
        (brought, Value::Null)
    );
    let text = r#"{"tier":"web","pod":"shop/web-7d9f"}"#;
    let sorted: Value = serde_json::from_str(text).unwrap();
    until("its labels in the ledger", || {
        values(folder, "web", "labels")
            .contains(&sorted.to_string())
            .then_some(())
    });
    assert_eq!(values(folder, "web", "instance_id"), [ID.to_owned()].into());
    assert_eq!(values(folder, "plain", "labels"), ["-".to_owned()].into());
    // What an operator sets is in force while the VM runs.
    let set = turnstile()
        .args([
            "vm",
            "set",
            "web",
            "--project",
            "bill me",
            "--label",
            "tier=batch",
            "-o",
            "json",
        ])
        .arg("--api")
        .arg(&api)
        .output()
        .unwrap();
    let set: Value = serde_json::from_slice(&set.stdout).unwrap();
    assert_eq!(set["metadata"]["project"], "bill me");
    assert_eq!(set["metadata"]["labels"]["tier"], "batch");
    assert_eq!(set["metadata"]["labels"]["pod"], "shop/web-7d9f");
    let metrics = get(&api, "/metrics").body;
    let info = metrics
        .lines()
        .find(|line| line.contains("name=\"web\""))
        .unwrap();
    for label in [
        format!("instance_id=\"{ID}\""),
        "project=\"bill me\"".into(),
        "label_pod=\"shop/web-7d9f\"".into(),
        "label_tier=\"batch\"".into(),
    ] {
        assert!(info.contains(&label), "{label}: {info}");
    }
    let labelled = metrics.lines().filter(|line| line.contains("label_tier"));
    assert_eq!(labelled.count(), 1, "one series");
    until("the operator's project in the ledger", || {
        values(folder, "web", "project")
            .contains("bill me")
            .then_some(())
    });
    let resources = values(folder, "web", "resource_id");
    assert_eq!(resources.len(), 1);
    // Over a restart, and under another name.
    drop(web);
    drop(serving);
    std::fs::remove_file(&api).unwrap();
    let _serving = start(folder);
    let _again = vm(folder, "web-2", &brings);
    until("the VM of another name in the ledger", || {
        (values(folder, "web-2", "resource_id") == resources).then_some(())
    });
}

#[test]
fn metadata_outside_the_limits_are_refused_alike_by_api_and_command() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let api = folder.join("api.sock");
    let _serving = serve(folder, &[]);
    let made = send(&api, "POST", "/v1/vms", JSON, r#"{"name":"a"}"#);
    assert_eq!(made.status, 201);
    let path = "/v1/vms/a/metadata";
    for (body, pointer) in [
        (r#"{"project":""}"#, "/project"),
        (r#"{"instance_id":"1"}"#, "/instance_id"),
        (r#"{"labels":{"-":"x"}}"#, "/labels"),
        (r#"{"labels":{"a":"\u0007"}}"#, "/labels"),
    ] {
        let refused = send(&api, "PATCH", path, PATCH, body);
        assert_eq!(
            refused.problem(422)["errors"][0]["pointer"],
            pointer,
            "{body}"
        );
    }
    let most: BTreeMap<String, String> = (0..32)
        .map(|n| (format!("{n:063}"), "\"".repeat(253)))
        .collect();
    let full = json!({ "labels": most });
    let set = send(&api, "PUT", path, JSON, &full.to_string());
    assert_eq!((set.status, &set.json()["labels"]), (200, &full["labels"]));
    let more = send(&api, "PATCH", path, PATCH, r#"{"labels":{"one":"more"}}"#);
    more.problem(422);
    let less = send(&api, "PATCH", path, PATCH, r#"{"labels":null}"#);
    assert_eq!(less.json()["labels"], json!({}));
    for (args, text) in [
        (["--name", "a b"], "--label KEY=VALUE"),
        (["--label", "a"], "KEY=VALUE"),
        (["--label", "a b=x"], "is no key of a label"),
        (["--instance-id", "7"], "a UUID"),
        (["--project", ""], "is no project"),
    ] {
        let mut command = turnstile();
        command
            .args(["vmm", "--native", "--socket"])
            .arg(folder.join("vmm.sock"));
        if args[0] != "--name" {
            command.args(["--name", "b"]);
        }
        let output = command.args(args).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && error.contains(text), "{error}");
    }
}
