//! `serve` with its ledger in a PostgreSQL server, killed and begun again.

mod common;
#[path = "../../../accounting/tests/common/server.rs"]
#[allow(unreachable_pub)]
mod server;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{PATIENCE, Process};
use turnstile_accounting::audit::{Audit, Report};
use turnstile_accounting::store::{PostgresStore, Selection, Store};

fn turnstile() -> Command {
    let mut command = common::turnstile();
    command.stdin(Stdio::piped()).stdout(Stdio::null());
    command
}

fn serve(folder: &Path, database: &str) -> Process {
    let child = turnstile()
        .args(["serve", "--config", "/dev/null", "--node", "n"])
        .arg("--set")
        .arg(format!("ledger.postgres={database}"))
        .args(["--set", "ledger.window_ms=100", "--socket"])
        .arg(folder.join("vmm.sock"))
        .spawn();
    Process(child.unwrap())
}

/// The whole ledger, checked.
fn report(database: &str) -> Report {
    let mut store = PostgresStore::connect(database).unwrap();
    let kept = store.gpus().unwrap();
    let Some(kept) = kept.first() else {
        return Report::default();
    };
    let mut audit = Audit::new(&kept.gpu, Some(kept.anchor));
    store
        .query(&Selection::default(), &mut |_, entry| {
            audit.entry(&entry);
            Ok(true)
        })
        .unwrap();
    audit.finish()
}

#[test]
fn a_server_keeps_the_ledger_over_kills() {
    let Some(server) = server::Server::or_skip() else {
        return;
    };
    let database = server.database("fleet");
    let folder = tempfile::tempdir().unwrap();
    let vm = turnstile()
        .args([
            "vmm",
            "--native",
            "--reconnect",
            "--load-only",
            "--name",
            "a",
            "--socket",
        ])
        .arg(folder.path().join("vmm.sock"))
        .stderr(Stdio::null())
        .spawn();
    let _vm = Process(vm.unwrap());
    let mut windows = 0;
    for run in 1..=4 {
        let mut daemon = serve(folder.path(), &database);
        let begin = Instant::now();
        while report(&database).windows < windows + 5 {
            let ended = daemon.0.try_wait().unwrap();
            assert!(
                ended.is_none() && begin.elapsed() < PATIENCE,
                "run {run}: {ended:?}"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        daemon.0.kill().unwrap();
        daemon.0.wait().unwrap();
        windows = report(&database).windows;
    }
    let report = report(&database);
    assert_eq!(report.broken, 0, "{:?}", report.findings);
    assert_eq!(report.gaps, 3, "one for each time without a daemon");
    assert!(report.engine_ns > 0, "nobody used anything");
    usage_reads_it(&database, report.engine_ns);
}

/// `turnstile usage` over the server: it verifies, exports the same twice, and agrees with the
/// audit to the nanosecond.
fn usage_reads_it(database: &str, engine_ns: u128) {
    let usage = |args: &[&str]| {
        common::turnstile()
            .args(["usage", "--postgres", database])
            .args(args)
            .output()
            .unwrap()
    };
    let verified = usage(&["verify", "-o", "json"]);
    let gpus: serde_json::Value = serde_json::from_slice(&verified.stdout).unwrap();
    assert!(verified.status.success(), "{gpus:#}");
    let until = gpus[0]["closed_until"].as_str().unwrap();
    let csv = [
        "export",
        "--allow-gaps",
        "--format",
        "csv",
        "--from",
        "2020-01-01T00:00:00Z",
        "--to",
        until,
    ];
    let bill = usage(&csv);
    let error = String::from_utf8_lossy(&bill.stderr);
    assert!(bill.status.success(), "{error}");
    assert!(
        error.contains(&format!("{engine_ns} ns of engine time")),
        "{error}"
    );
    assert_eq!(usage(&csv).stdout, bill.stdout, "the same again");
    assert!(usage(&["changes"]).status.success());
}

#[test]
fn a_password_does_not_stand_in_the_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let output = turnstile()
        .args(["serve", "--config", "/dev/null", "--socket"])
        .arg(folder.path().join("vmm.sock"))
        .args(["--set", "ledger.postgres=postgresql://u:secret@localhost/d"])
        .output()
        .unwrap();
    let messages = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    assert!(
        messages.contains("ledger.postgres_password_file"),
        "{messages}"
    );
    assert!(!messages.contains("secret"), "{messages}");
}
