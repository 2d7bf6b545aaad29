//! A daemon over two software GPUs of different sizes, with VMs as processes.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Output;

use common::{Process, serve, turnstile, until, vm};
use rustix::process::Signal;
use serde_json::Value;

const CARDS: &str = "[[card]]\nmemory_mib = 256\n[[card]]\nmemory_mib = 512\n";

/// A daemon over both GPUs, with a ledger and a state file in `folder`.
fn begin(folder: &Path, more: &str) -> Process {
    let config = folder.join("turnstile.toml");
    std::fs::write(&config, format!("{more}{CARDS}")).unwrap();
    let at = |name: &str| folder.join(name).display().to_string();
    let args = [
        "--config",
        &at("turnstile.toml"),
        "--ledger",
        &at("ledger"),
        "--state",
        &at("state.json"),
    ];
    serve(folder, &args)
}

fn run(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = turnstile();
    let command = command
        .args(arguments)
        .arg("--api")
        .arg(folder.join("api.sock"));
    command.output().unwrap()
}

fn json(folder: &Path, arguments: &[&str]) -> Value {
    let output = run(folder, &[arguments, &["-o", "json"]].concat());
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The GPU of each tenant that is connected.
fn places(folder: &Path) -> BTreeMap<String, String> {
    let vms = json(folder, &["vm", "list"]);
    let connected = vms.as_array().unwrap().iter();
    let connected = connected.filter(|vm| vm["connected"] == true);
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    connected
        .map(|vm| (text(&vm["name"]), text(&vm["gpu"])))
        .collect()
}

fn all(folder: &Path, count: usize) -> BTreeMap<String, String> {
    until("the VMs", || {
        Some(places(folder)).filter(|vms| vms.len() == count)
    })
}

#[test]
fn vms_spread_over_gpus_and_one_ledger_has_them_all() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let daemon = begin(folder, "");
    let vms: Vec<Process> = ["a", "b", "c", "d"]
        .iter()
        .map(|name| vm(folder, name, &["--kernel-us", "300"]))
        .collect();
    let places = all(folder, 4);
    let on = |gpu: &str| places.values().filter(|one| *one == gpu).count();
    assert_eq!([on("software-0"), on("software-1")], [2, 2], "{places:?}");
    // A name is taken on whichever GPU.
    let mut second = vm(folder, "a", &[]);
    let status = second.end(common::PATIENCE).expect("it is refused");
    assert!(!status.success());
    // Weights and accounts reach the GPU of the tenant.
    let set = json(folder, &["vm", "set", "d", "--weight", "300"]);
    assert_eq!(set["scheduling"]["weight"], 300, "{set}");
    let used = |gpu: &Value| gpu["engines"][0]["used_ns"].as_u64().unwrap();
    let busy = until("work on both GPUs", || {
        let gpus = json(folder, &["gpu", "list"]);
        let gpus = gpus.as_array().unwrap().clone();
        gpus.iter()
            .all(|gpu| used(gpu) > 200_000_000)
            .then_some(gpus)
    });
    let sizes: BTreeSet<u64> = busy
        .iter()
        .map(|gpu| gpu["memory_bytes"].as_u64().unwrap())
        .collect();
    assert_eq!(sizes, BTreeSet::from([256 << 20, 512 << 20]));
    assert!(busy.iter().all(|gpu| gpu["conservation_error_ns"] == 0));
    for gpu in ["software-0", "software-1"] {
        let top = turnstile()
            .args(["top", "--batch", "-o", "json", "--gpu", gpu, "--api"])
            .arg(folder.join("api.sock"))
            .output()
            .unwrap();
        let view: Value = serde_json::from_slice(&top.stdout).unwrap();
        assert_eq!(view["gpu"], gpu);
        assert_eq!(view["tenants"].as_array().unwrap().len(), 2, "{view}");
    }
    drop(vms);
    daemon.signal(Signal::TERM);
    let mut daemon = daemon;
    assert!(daemon.end(common::PATIENCE).expect("it ends").success());
    let verified = turnstile()
        .args(["usage", "verify", "--ledger"])
        .arg(folder.join("ledger"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&verified.stdout);
    assert_eq!(text.matches("; sound").count(), 2, "{text}");
}

#[test]
fn a_vm_that_fits_nowhere_is_refused_with_what_is_free() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let _daemon = begin(folder, "");
    let large = ["--gpu-memory-mib", "400"];
    let mut first = vm(folder, "first", &large);
    assert_eq!(all(folder, 1)["first"], "software-1");
    let refused = turnstile()
        .args(["vmm", "--native", "--name", "second", "--socket"])
        .arg(folder.join("vmm.sock"))
        .args(large)
        .output()
        .unwrap();
    assert!(!refused.status.success());
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(
        text.contains("No GPU has room") && text.contains("software-1"),
        "{text}"
    );
    // Memory of a VM that has left is free again.
    first.signal(Signal::TERM);
    first.end(common::PATIENCE).expect("it ends");
    until("its end", || places(folder).is_empty().then_some(()));
    let _second = vm(folder, "second", &large);
    assert_eq!(all(folder, 1)["second"], "software-1");
}

#[test]
fn a_cordoned_gpu_takes_no_vm_until_it_is_uncordoned() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let _daemon = begin(folder, "");
    let cordoned = json(folder, &["gpu", "cordon", "software-0"]);
    assert_eq!(cordoned["cordoned"], true);
    let _vms: Vec<Process> = ["a", "b"].map(|name| vm(folder, name, &[])).into();
    let gpus = all(folder, 2);
    assert!(gpus.values().all(|gpu| gpu == "software-1"), "{gpus:?}");
    json(folder, &["gpu", "uncordon", "software-0"]);
    let _third = vm(folder, "c", &[]);
    assert_eq!(all(folder, 3)["c"], "software-0");
    assert!(
        !run(folder, &["gpu", "cordon", "software-7"])
            .status
            .success()
    );
}

#[test]
fn packed_vms_fill_the_gpu_with_the_least_room() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let _daemon = begin(folder, "[scheduling]\nplacement = \"pack\"\n");
    let mut vms = Vec::new();
    for (count, name) in (1..).zip(["a", "b", "c", "d", "e"]) {
        vms.push(vm(folder, name, &["--gpu-memory-mib", "64"]));
        all(folder, count);
    }
    let places = places(folder);
    assert_eq!(
        places.values().filter(|gpu| *gpu == "software-0").count(),
        4,
        "{places:?}"
    );
    assert_eq!(places["e"], "software-1");
}
