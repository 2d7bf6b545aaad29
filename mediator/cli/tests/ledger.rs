//! The durable ledger as an operator uses it: written by `serve`, killed, continued, verified,
//! exported.

mod common;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output};

use common::{Process, turnstile, until};
use serde_json::Value;

fn serve(folder: &Path) -> Process {
    let ledger = folder.join("ledger");
    let ledger = ledger.to_str().unwrap();
    common::serve(
        folder,
        &[
            "--ledger",
            ledger,
            "--ledger-window-s",
            "1",
            "--node",
            "node-1",
            "--snapshot-at-end",
        ],
    )
}

fn vm(folder: &Path, name: &str) -> Process {
    common::vm(folder, name, &["--kernel-us", "500"])
}

fn usage(folder: &Path, args: &[&str]) -> Output {
    turnstile()
        .arg("usage")
        .arg("--ledger")
        .arg(folder.join("ledger"))
        .args(args)
        .output()
        .unwrap()
}

fn verify(folder: &Path) -> Option<Value> {
    let output = usage(folder, &["verify", "-o", "json"]);
    let gpus: Value = serde_json::from_slice(&output.stdout).ok()?;
    let gpu = gpus.get(0)?.clone();
    assert!(output.status.success(), "{gpu:#}");
    Some(gpu)
}

fn windows(folder: &Path) -> u64 {
    verify(folder).map_or(0, |gpu| gpu["windows"].as_u64().unwrap())
}

/// Two VMs that have run for two windows.
fn load(folder: &Path) -> [Process; 2] {
    until("the socket", || {
        folder.join("vmm.sock").exists().then_some(())
    });
    let vms = ["a", "b"].map(|name| vm(folder, name));
    let before = windows(folder);
    until("windows", || (windows(folder) >= before + 3).then_some(()));
    vms
}

/// Rows of tenants.
fn rows(csv: &[u8]) -> Vec<BTreeMap<String, String>> {
    let text = std::str::from_utf8(csv).unwrap();
    let mut lines = text
        .lines()
        .map(|line| line.split(',').map(str::to_owned).collect::<Vec<_>>());
    let names = lines.next().unwrap();
    lines
        .map(|cells| names.iter().cloned().zip(cells).collect())
        .filter(|row: &BTreeMap<String, String>| row["kind"] != "unknown")
        .collect()
}

#[test]
fn a_killed_daemon_goes_on_with_its_ledger_and_the_bill_is_what_was_charged() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();

    let killed = serve(folder);
    let vms = load(folder);
    drop(killed);
    drop(vms);
    // What a killed daemon leaves; the next one replaces it, and must not be taken for it.
    std::fs::remove_file(folder.join("vmm.sock")).unwrap();
    let left = verify(folder).expect("a ledger is left");
    assert_eq!(
        (left["broken"].as_u64(), left["gaps"].as_u64()),
        (Some(0), Some(0))
    );

    let mut second = serve(folder);
    let vms = load(folder);
    for mut vm in vms {
        drop(vm.0.stdin.take());
        assert!(vm.0.wait().unwrap().success());
    }
    let before = windows(folder);
    until("a window without VMs", || {
        (windows(folder) >= before + 2).then_some(())
    });
    let term = Command::new("kill")
        .arg(second.0.id().to_string())
        .status()
        .unwrap();
    assert!(term.success());
    let stdout = second.0.stdout.take().unwrap();
    let report: Value = serde_json::from_reader(stdout).unwrap();
    assert!(second.0.wait().unwrap().success());

    let sound = verify(folder).unwrap();
    assert_eq!(
        (sound["broken"].as_u64(), sound["gaps"].as_u64()),
        (Some(0), Some(1)),
        "{sound:#}"
    );
    let until = sound["closed_until"].as_str().unwrap().to_owned();
    let whole = [
        "export",
        "--format",
        "csv",
        "--from",
        "2020-01-01T00:00:00Z",
        "--to",
        &until,
    ];
    let refused = usage(folder, &whole);
    assert_eq!(
        refused.status.code(),
        Some(5),
        "it begins before the ledger"
    );
    assert!(
        refused.stdout.is_empty(),
        "nothing is printed of a refused export"
    );
    let csv = [
        "export",
        "--allow-gaps",
        "--format",
        "csv",
        "--from",
        "2020-01-01T00:00:00Z",
        "--to",
        &until,
    ];
    let output = usage(folder, &csv);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(usage(folder, &csv).stdout, output.stdout, "the same again");
    let rows = rows(&output.stdout);
    let second_boot = rows.last().unwrap()["boot_id"].clone();
    let own: Vec<_> = rows
        .iter()
        .filter(|row| row["boot_id"] == second_boot)
        .collect();
    assert!(own.len() < rows.len(), "both runs have rows");
    let billed: u64 = own
        .iter()
        .map(|row| row["engine_ns"].parse::<u64>().unwrap())
        .sum();
    let charged = report["engines"][0]["used_ns"].as_u64().unwrap();
    assert!(charged > 0);
    assert_eq!(
        billed, charged,
        "the bill is what the daemon charged, to the nanosecond"
    );
    for name in ["a", "b"] {
        let named = own.iter().filter(|row| row["tenant"] == name);
        let held: u64 = named.map(|row| row["memory_byte_ns"].len() as u64).sum();
        assert!(held > 0, "{name} had GPU memory");
    }
    let ids: std::collections::BTreeSet<_> = rows.iter().map(|row| &row["tenant_id"]).collect();
    assert_eq!(
        ids.len(),
        4,
        "VMs of two runs with the same names are not the same VMs"
    );
}

#[test]
fn bytes_in_the_ledger_are_those_that_guests_copied() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut daemon = serve(folder);
    let sizes = [("a", 64_u64), ("b", 1_024)];
    let vms = sizes.map(|(name, kib)| {
        let kib = kib.to_string();
        common::vm_that_reports(folder, name, &["--copy-kib", &kib, "--depth", "4"])
    });
    until("windows", || (windows(folder) >= 3).then_some(()));
    let copies = vms.map(|mut vm| {
        drop(vm.0.stdin.take());
        let mut output = String::new();
        let mut stdout = vm.0.stdout.take().unwrap();
        stdout.read_to_string(&mut output).unwrap();
        let last = output.lines().last().unwrap();
        let report: Value = serde_json::from_str(last).unwrap();
        assert!(vm.0.wait().unwrap().success(), "{output}");
        // One doorbell for each copy.
        report["doorbells"].as_u64().unwrap()
    });
    let before = windows(folder);
    until("a window without VMs", || {
        (windows(folder) >= before + 2).then_some(())
    });
    daemon.signal(rustix::process::Signal::TERM);
    let mut output = String::new();
    let mut stdout = daemon.0.stdout.take().unwrap();
    stdout.read_to_string(&mut output).unwrap();
    assert!(daemon.0.wait().unwrap().success());
    let report: Value = serde_json::from_str(&output).unwrap();
    let closed = verify(folder).unwrap()["closed_until"].clone();
    let from = ["--from", "2020-01-01T00:00:00Z", "--to"];
    let export = ["export", "--allow-gaps", "--format", "csv"];
    let export = export.into_iter().chain(from);
    let export: Vec<&str> = export.chain(closed.as_str()).collect();
    let rows = rows(&usage(folder, &export).stdout);
    let of = |name: &str| {
        let own = rows.iter().filter(|row| row["tenant"] == name);
        let bytes = own.map(|row| row["copy_bytes"].parse::<u64>().unwrap());
        bytes.sum::<u64>()
    };
    let charged = report["accounts"][0]["copy_bytes"].as_u64();
    assert_eq!(charged, Some(of("a") + of("b")), "{report:#}");
    // Beside its load each guest copies the same, as it verifies the GPU and its last copy.
    let beside = [0, 1].map(|place| {
        let (name, kib) = sizes[place];
        assert!(copies[place] > 0);
        of(name).checked_sub(copies[place] * (kib << 10)).unwrap()
    });
    assert!(beside[0] > 0);
    assert_eq!(beside[0], beside[1], "{copies:?}");
}

/// Status line and body of a GET over the API's socket.
fn get(folder: &Path, path: &str) -> String {
    let mut stream = UnixStream::connect(folder.join("api.sock")).unwrap();
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn second_daemon_with_the_same_ledger_is_refused_and_the_first_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let first = serve(folder);
    let other = tempfile::tempdir().unwrap();
    let refused = turnstile()
        .args(["serve", "--socket"])
        .arg(other.path().join("vmm.sock"))
        .arg("--ledger")
        .arg(folder.join("ledger"))
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(1));
    let text = String::from_utf8(refused.stderr).unwrap();
    let holder = format!("process {};", first.0.id());
    assert!(
        text.contains(&holder) && text.contains("--ledger"),
        "{text}"
    );
    let socket = other.path().join("vmm.sock");
    assert!(!socket.exists(), "nothing was begun");
    let before = windows(folder);
    until("windows", || (windows(folder) >= before + 3).then_some(()));
    assert!(get(folder, "/readyz").starts_with("HTTP/1.1 200"));
}

#[test]
fn removed_ledger_is_reported_and_gets_all_when_a_file_is_there_and_the_report_agrees() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut daemon = serve(folder);
    let _vms = load(folder);
    let ledger = folder.join("ledger");
    let remove = || {
        for name in ["ledger", "ledger-wal", "ledger-shm", "ledger-lock"] {
            std::fs::remove_file(folder.join(name)).unwrap();
        }
    };
    let refused = || {
        let answer = get(folder, "/readyz");
        answer.starts_with("HTTP/1.1 503").then_some(answer)
    };
    remove();
    let answer = until("a refusal", refused);
    assert!(
        answer.contains("was removed or moved; put it back"),
        "{answer}"
    );
    std::fs::write(&ledger, b"").unwrap();
    until("readiness", || refused().is_none().then_some(()));
    let before = windows(folder);
    until("windows", || (windows(folder) >= before + 2).then_some(()));
    // Once more, and the daemon ends while the place is empty.
    remove();
    until("a refusal", refused);
    daemon.signal(rustix::process::Signal::TERM);
    let report: Value = serde_json::from_reader(daemon.0.stdout.take().unwrap()).unwrap();
    assert!(daemon.0.wait().unwrap().success());
    let sound = verify(folder).unwrap();
    let zero = (Some(0), Some(0));
    assert_eq!((sound["broken"].as_u64(), sound["gaps"].as_u64()), zero);
    let charged = report["engines"][0]["used_ns"].as_u64().unwrap();
    assert!(charged > 0);
    assert_eq!(
        sound["engine_ns"].as_u64(),
        Some(charged),
        "the ledger has what the daemon reports at its end, with VMs that run"
    );
}

#[test]
fn refusals_have_their_exit_codes() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let code = |args: &[&str]| usage(folder, args).status.code().unwrap();
    let range = [
        "--from",
        "2026-11-20T13:00:00Z",
        "--to",
        "2026-11-20T14:00:00Z",
    ];
    let export = |more: &[&str]| -> i32 {
        let args: Vec<&str> = ["export"]
            .iter()
            .chain(more)
            .chain(&range)
            .copied()
            .collect();
        code(&args)
    };
    assert_eq!(code(&["verify"]), 3, "no ledger");
    assert_eq!(export(&["--format", "csv"]), 3);
    assert_eq!(code(&["synthesise", "--hours", "1"]), 0);
    assert_eq!(code(&["verify"]), 0);
    assert_eq!(export(&["--format", "csv"]), 0);
    assert_eq!(export(&["--format", "csv", "--tenant", "vm-1"]), 0);
    assert_eq!(export(&["--format", "csv", "--tenant", "vm-x"]), 3);
    assert_eq!(export(&["--format", "focus-1.4"]), 2, "no prices");
    assert_eq!(export(&["--format", "csv", "--gpu", "GPU-9"]), 3);
    assert_eq!(export(&["--format", "xml"]), 2);
    let beyond = [
        "export",
        "--format",
        "csv",
        "--from",
        "2026-11-20T13:00:00Z",
        "--to",
        "2026-11-20T15:00:00Z",
    ];
    assert_eq!(code(&beyond), 5, "not closed");
    let bill = folder.join("bill.csv");
    let output = [&beyond[..], &["--output", bill.to_str().unwrap()]].concat();
    assert_eq!(code(&output), 5);
    assert!(!bill.exists(), "no partial file");
    let mut left = std::fs::read_dir(folder).unwrap().flatten();
    assert!(left.all(|file| file.file_name().to_string_lossy().starts_with("ledger")));
}
