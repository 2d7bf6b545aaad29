//! Beside a daemon that shares its GPU between running VMs, as an operator uses it.

use std::path::Path;
use std::time::Instant;

use serde_json::Value;

use super::common::{self, PATIENCE, Process, serve, turnstile};

fn vm(folder: &Path, name: &str) -> Process {
    common::vm(folder, name, &["--kernel-us", "500"])
}

/// Runs a command against the daemon; its exit code and what it printed.
fn command(folder: &Path, args: &[&str]) -> (i32, String) {
    let output = turnstile()
        .args(args)
        .arg("--api")
        .arg(folder.join("api.sock"))
        .output()
        .unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    (output.status.code().unwrap(), printed)
}

fn list(folder: &Path) -> Value {
    let (code, printed) = command(folder, &["vm", "list", "-o", "json"]);
    assert_eq!(code, 0);
    serde_json::from_str(&printed).unwrap()
}

fn compute_ns(vms: &Value, name: &str) -> u64 {
    let vms = vms.as_array().unwrap();
    let vm = vms.iter().find(|vm| vm["name"] == name);
    vm.map_or(0, |vm| vm["usage"]["compute_ns"].as_u64().unwrap())
}

/// Part of both VMs' time that `a` has, in the time in which both together use `ns` more.
fn share(folder: &Path, ns: u64) -> f64 {
    let used = |vms: &Value| ["a", "b"].map(|name| compute_ns(vms, name));
    let before = used(&list(folder));
    let begin = Instant::now();
    loop {
        let now = used(&list(folder));
        let [a, b] = [now[0] - before[0], now[1] - before[1]];
        if a + b >= ns {
            return a as f64 / (a + b) as f64;
        }
        assert!(begin.elapsed() < PATIENCE, "the VMs do nothing");
    }
}

/// Asks for shares again until they are as they should be: a machine that builds at the same time starves VMs now and then.
fn until(what: &str, folder: &Path, good: impl Fn(f64) -> bool) {
    let begin = Instant::now();
    loop {
        let share = share(folder, 500_000_000);
        if good(share) {
            return;
        }
        assert!(begin.elapsed() < PATIENCE, "{what}: {share}");
    }
}

#[test]
fn weights_and_caps_change_shares_of_running_vms() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let _serving = serve(folder, &[]);
    let _vms = ["a", "b"].map(|name| vm(folder, name));
    until("equal weights", folder, |share| (share - 0.5).abs() < 0.03);

    let (code, printed) = command(folder, &["vm", "set", "a", "--weight", "300", "-o", "json"]);
    let vm: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!((code, &vm["scheduling"]["weight"]), (0, &Value::from(300)));
    assert_eq!(vm["entitled_ratio"], 0.75);
    until("3 to 1", folder, |share| (share - 0.75).abs() < 0.03);

    let (code, _) = command(folder, &["vm", "set", "a", "--quota", "20%"]);
    assert_eq!(code, 0);
    until("a cap", folder, |share| share < 0.3);
    let (code, printed) = command(folder, &["gpu", "list", "-o", "json"]);
    let gpus: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(
        (code, &gpus[0]["conservation_error_ns"]),
        (0, &Value::from(0))
    );

    let (code, _) = command(
        folder,
        &["vm", "set", "a", "--quota", "max", "--memory-max", "32"],
    );
    assert_eq!(code, 0);
    until("no cap", folder, |share| (share - 0.75).abs() < 0.03);
}

#[test]
fn commands_end_as_they_say() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    assert_eq!(command(folder, &["vm", "list"]).0, 4, "no daemon");
    let _serving = serve(folder, &[]);
    assert_eq!(command(folder, &["vm", "list"]).0, 0);
    assert_eq!(command(folder, &["vm", "get", "a"]).0, 3);
    assert_eq!(command(folder, &["vm", "set", "a", "--weight", "0"]).0, 2);
    assert_eq!(command(folder, &["vm", "set", "a", "--weight", "7"]).0, 3);
    assert_eq!(
        command(folder, &["vm", "set", "a", "--weight", "7", "--expect"]).0,
        0
    );
    // The memory of this GPU does not move.
    assert_eq!(
        command(folder, &["vm", "set", "a", "--memory-min", "2"]).0,
        5
    );
    assert_eq!(command(folder, &["vm", "forget", "a"]).0, 0);
    assert_eq!(command(folder, &["vm", "forget", "a"]).0, 3);
    assert_eq!(command(folder, &["gpu", "get", "x"]).0, 3);
    let output = turnstile().args(["completions", "bash"]).output().unwrap();
    assert!(output.status.success());
    assert!(
        String::from_utf8(output.stdout)
            .unwrap()
            .contains("_turnstile")
    );
}
