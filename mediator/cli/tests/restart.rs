//! VMs over restarts of the daemon: 8 VMs under load, orderly restarts and kills.
//! `TURNSTILE_RESTARTS` is the number of each.

mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use common::{Process, turnstile, until};
use rustix::process::Signal;
use serde_json::Value;

const VMS: usize = 8;
/// Time within which each VM is a tenant again, from the daemon's first answer.
const BACK_WITHIN: Duration = Duration::from_secs(1);
/// From one restart to the next: the guests have begun their load meanwhile.
const LOAD: Duration = Duration::from_millis(300);

fn serve(folder: &Path) -> Process {
    let child = turnstile()
        .args([
            "serve",
            "--config",
            "/dev/null",
            "--set",
            "gpu.kind=soft",
            "--socket",
        ])
        .arg(folder.join("vmm.sock"))
        .arg("--state")
        .arg(folder.join("state.json"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    Process(child)
}

fn admin(folder: &Path, arguments: &[&str]) -> Option<Value> {
    let output = turnstile()
        .args(arguments)
        .arg("--api")
        .arg(folder.join("api.sock"))
        .args(["-o", "json"])
        .output()
        .unwrap();
    let answered = output.status.success();
    answered.then(|| serde_json::from_slice(&output.stdout).unwrap())
}

/// Tenants that are connected: weight, and the limit of their memory that was set.
fn connected(folder: &Path) -> Option<BTreeMap<String, (u64, Value)>> {
    let vms = admin(folder, &["vm", "list"])?;
    let vms = vms.as_array().unwrap().iter();
    let connected = vms.filter(|vm| vm["connected"] == true);
    let of = |vm: &Value| {
        let weight = vm["scheduling"]["weight"].as_u64().unwrap();
        let name = vm["name"].as_str().unwrap().to_owned();
        (name, (weight, vm["limits"]["max_bytes"].clone()))
    };
    Some(connected.map(of).collect())
}

fn all(folder: &Path) -> Option<BTreeMap<String, (u64, Value)>> {
    connected(folder).filter(|vms| vms.len() == VMS)
}

#[test]
fn vms_are_back_within_a_second_of_each_restart_with_what_was_set() {
    let restarts = std::env::var("TURNSTILE_RESTARTS").map_or(4, |n| n.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let kvm =
        turnstile_vmm::vmm::kvm_available().is_ok() && turnstile_images::guest_built().is_ok();
    let mut daemon = serve(folder);
    until("the daemon", || connected(folder));
    let mut vms: Vec<Process> = (0..VMS)
        .map(|index| {
            let weight = (100 * (index + 1)).to_string();
            let mut vm = turnstile();
            vm.args(["vmm", "--load-only", "--reconnect", "--seconds", "86400"])
                .args([
                    "--name",
                    &format!("vm-{index}"),
                    "--weight",
                    &weight,
                    "--socket",
                ])
                .arg(folder.join("vmm.sock"))
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            if index % 2 == 0 || !kvm {
                vm.arg("--native");
            }
            Process(vm.spawn().unwrap())
        })
        .collect();
    until("the VMs", || all(folder));
    admin(folder, &["vm", "set", "vm-1", "--weight", "777"]).unwrap();
    admin(folder, &["vm", "set", "vm-2", "--memory-max", "32"]).unwrap();
    let before = until("the VMs", || all(folder));
    assert_eq!(before["vm-0"], (100, Value::Null));
    assert_eq!(before["vm-1"].0, 777);
    assert_eq!(before["vm-2"].1, 32 << 20);
    let (mut longest, mut late) = ([Duration::ZERO; 2], 0);
    for number in 0..2 * restarts {
        std::thread::sleep(LOAD);
        let signal = [Signal::TERM, Signal::KILL][number % 2];
        daemon.signal(signal);
        daemon.0.wait().unwrap();
        daemon = serve(folder);
        until("the daemon", || connected(folder));
        let begin = Instant::now();
        let after = until("the VMs", || all(folder));
        let took = begin.elapsed();
        longest[number % 2] = longest[number % 2].max(took);
        late += usize::from(took > BACK_WITHIN);
        assert_eq!(after, before, "restart {number}");
        for vm in &mut vms {
            assert!(
                vm.0.try_wait().unwrap().is_none(),
                "restart {number}: a VM ended"
            );
        }
    }
    // Other processes of the machine may take the processors for a second.
    assert!(
        late <= restarts / 20,
        "{late} of {} were late: {longest:?}",
        2 * restarts
    );
    println!(
        "{restarts} orderly restarts, {restarts} kills of {VMS} VMs: the last is back after {} ms, {} ms; late: {late}",
        longest[0].as_millis(),
        longest[1].as_millis()
    );
}

#[test]
fn guest_that_ends_with_its_gpu_has_a_status_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let daemon = serve(folder);
    until("the daemon", || connected(folder));
    let mut vm = common::vm(folder, "a", &["--load-only", "--seconds", "600"]);
    until("the VM", || connected(folder).filter(|vms| vms.len() == 1));
    drop(daemon);
    let status = vm.end(common::PATIENCE).expect("the VM runs on");
    assert_eq!(status.code(), Some(7));
}
