//! Beside a daemon that shares its GPU between running VMs, as an operator uses it.

use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use turnstile_accounting::Nanos;
use turnstile_api::{Api, ApiConfig, StateFile};
use turnstile_daemon::config::{ApiSection, MetricsSection};
use turnstile_daemon::{Daemon, DaemonConfig, Settings};
use turnstile_policies::{Cap, Weight};
use turnstile_soft::{SoftConfig, SoftGpu};

use super::common::{self, PATIENCE, Process, serve, turnstile};
use super::http::{PATCH, send};

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

/// Measures shares until they are as they should be: a machine that builds at the same time starves
/// VMs now and then.
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

/// Reads what both were entitled to in the last second until it is right.
fn entitled(what: &str, folder: &Path, good: impl Fn(f64, f64) -> bool) {
    let begin = Instant::now();
    loop {
        let [a, b] = ["a", "b"].map(|name| {
            let (_, printed) = command(folder, &["vm", "get", name, "-o", "json"]);
            let vm: Value = serde_json::from_str(&printed).unwrap();
            vm["entitled_ratio"].as_f64().unwrap_or(0.0)
        });
        if good(a, b) {
            return;
        }
        assert!(
            begin.elapsed() < PATIENCE,
            "{what}: entitled to {a} and {b}"
        );
        // TIMEOUT: half of the time between two figures
        std::thread::sleep(Duration::from_millis(500));
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
    until("3 to 1", folder, |share| (share - 0.75).abs() < 0.03);
    entitled("3 to 1", folder, |a, b| (a / (a + b) - 0.75).abs() < 0.03);

    let (code, _) = command(folder, &["vm", "set", "a", "--quota", "20%"]);
    assert_eq!(code, 0);
    until("a cap", folder, |share| share < 0.3);
    // Of the whole second, not of the used time.
    entitled("a cap", folder, |a, b| (a - 0.2).abs() < 0.02 && b > a);
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
fn accounts_of_a_configuration_share_by_their_weights_and_claims_divide_them() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let config = folder.join("turnstile.toml");
    let text = "[[account]]\nname = \"ours\"\nmatch = [\"a*\"]\nweight_max = 500\n\
                [[account]]\nname = \"theirs\"\nmatch = [\"*\"]\n";
    std::fs::write(&config, text).unwrap();
    let _serving = serve(folder, &["--config", config.to_str().unwrap()]);
    // A weight of 10,000 divides the tenant's own account, which has no other tenant.
    let weights = ["100", "10000"];
    let _vms = [("a", weights[0]), ("b", weights[1])].map(|(name, weight)| {
        common::vm(folder, name, &["--kernel-us", "500", "--weight", weight])
    });
    until("equal accounts", folder, |share| (share - 0.5).abs() < 0.03);
    let vms = list(folder);
    assert_eq!(
        (&vms[0]["account"], &vms[1]["account"]),
        (&"ours".into(), &"theirs".into())
    );

    let set = ["account", "set", "ours", "--weight", "300", "-o", "json"];
    let (code, printed) = command(folder, &set);
    let account: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!((code, &account["weight"]), (0, &Value::from(300)));
    until("3 to 1", folder, |share| (share - 0.75).abs() < 0.03);
    assert_eq!(
        command(folder, &["account", "forget", "ours"]).0,
        5,
        "it has a tenant"
    );
    assert_eq!(
        command(folder, &["account", "set", "none", "--weight", "7"]).0,
        3
    );
    let new = ["account", "set", "none", "--weight", "7", "--new"];
    assert_eq!(command(folder, &new).0, 0);
    assert_eq!(command(folder, &["account", "forget", "none"]).0, 0);
    assert_eq!(command(folder, &["account", "get", "none"]).0, 3);
    let (code, printed) = command(folder, &["account", "list"]);
    assert!(code == 0 && printed.contains("configuration"), "{printed}");
    let refused = turnstile()
        .args([
            "vmm", "--native", "--name", "a2", "--weight", "501", "--socket",
        ])
        .arg(folder.join("vmm.sock"))
        .output()
        .unwrap();
    let messages = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success());
    assert!(
        messages.contains("Weight 501 is beyond the 500"),
        "{messages}"
    );
}

#[test]
fn commands_end_with_their_documented_exit_status() {
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

#[test]
fn stored_settings_apply_before_the_api_starts_and_survive_a_patch() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let set = Settings {
        weight: Weight::new(300).ok(),
        cap: Cap::new(Nanos::from_ms(25), Nanos::from_ms(100)).ok(),
        ..Settings::default()
    };
    let config = DaemonConfig {
        settings: BTreeMap::from([("a".to_owned(), set.clone())]),
        ..DaemonConfig::new(folder.join("vmm.sock"))
    };
    let soft = Arc::new(SoftGpu::new(SoftConfig::default()).unwrap());
    let daemon = Daemon::start(config, soft).unwrap();
    let _vm = vm(folder, "a");
    let in_force = common::until("the VM", || {
        let snapshot = daemon.host().snapshot();
        let tenant = snapshot.tenants.first()?;
        Some((Weight::new(tenant.weight).ok(), tenant.cap))
    });
    assert_eq!(in_force, (set.weight, set.cap));
    let socket = folder.join("api.sock");
    let config = ApiConfig {
        section: ApiSection {
            socket: Some(socket.clone()),
            state: Some(folder.join("state.json")),
            ..ApiSection::default()
        },
        metrics: MetricsSection::default(),
        prices: None,
        ledger: None,
        version: "1.2.3-4-gabc".into(),
    };
    let _api = Api::start(config, daemon.fleet().clone()).unwrap();
    let path = "/v1/vms/a/scheduling";
    let patched = send(&socket, "PATCH", path, PATCH, "{\"weight\":7}");
    assert_eq!(patched.status, 200, "{patched:?}");
    let kept = StateFile::new(folder.join("state.json"))
        .load()
        .unwrap()
        .tenants;
    assert_eq!(
        (kept["a"].weight, kept["a"].cap),
        (Weight::new(7).ok(), set.cap)
    );
}

#[test]
fn daemon_with_a_broken_state_file_does_not_start() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state.json");
    std::fs::write(&state, "{").unwrap();
    let output = turnstile()
        .args(["serve", "--socket"])
        .arg(folder.path().join("vmm.sock"))
        .arg("--set")
        .arg(format!("api.state={}", state.display()))
        .output()
        .unwrap();
    assert!(!output.status.success());
    let messages = String::from_utf8_lossy(&output.stderr);
    assert!(
        messages.contains("state.json is no state file"),
        "{messages}"
    );
    assert!(!folder.path().join("vmm.sock").exists());
}

/// A daemon under limits of open files.
fn limited(folder: &Path, limits: &str) -> Process {
    let child = Command::new("sh")
        .args(["-c", &format!("{limits}; exec \"$@\""), "sh"])
        .arg(env!("CARGO_BIN_EXE_turnstile"))
        .args(["serve", "--socket"])
        .arg(folder.join("vmm.sock"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let process = Process(child);
    common::until("the socket", || {
        folder.join("api.sock").exists().then_some(())
    });
    process
}

#[test]
fn a_daemon_opens_as_many_files_as_it_is_allowed_to() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = limited(folder.path(), "ulimit -Sn 128; ulimit -Hn 512");
    let limits = format!("/proc/{}/limits", daemon.0.id());
    let limits = std::fs::read_to_string(limits).unwrap();
    let files = limits.lines().find(|line| line.starts_with("Max open"));
    let numbers: Vec<&str> = files.unwrap().split_whitespace().skip(3).take(2).collect();
    assert_eq!(numbers, ["512", "512"]);
}

#[test]
fn a_daemon_without_descriptors_waits_for_some() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = limited(folder.path(), "ulimit -n 96");
    let connect = |_| UnixStream::connect(folder.path().join("vmm.sock")).unwrap();
    let connections: Vec<UnixStream> = (0..100).map(connect).collect();
    thread::sleep(Duration::from_millis(300));
    let ticks = || {
        let stat = format!("/proc/{}/stat", daemon.0.id());
        let stat = std::fs::read_to_string(stat).unwrap();
        let after_name = stat.rsplit_once(')').unwrap().1;
        let fields: Vec<&str> = after_name.split_whitespace().collect();
        let ticks = |field: usize| fields[field].parse::<u64>().unwrap();
        ticks(11) + ticks(12)
    };
    let before = ticks();
    thread::sleep(Duration::from_secs(2));
    // Of 200: the rest of the daemon takes some.
    let used = ticks() - before;
    assert!(used < 30, "{used} hundredths of a second in two");
    drop(connections);
    let _vm = vm(folder.path(), "a");
    common::until("a VM", || {
        let vms = list(folder.path());
        (!vms.as_array().unwrap().is_empty()).then_some(())
    });
}
