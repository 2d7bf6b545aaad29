//! VMs with sockets of their own, as an operator declares them: a daemon over two software GPUs and
//! VMs as processes. `TURNSTILE_ROUNDS` is the number of lives in a row.

mod common;

use std::fs::{self, DirEntry};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Instant;

use common::{PATIENCE, Process, serve, turnstile, until};
use rustix::process::Signal;
use serde_json::Value;

const CARDS: &str = "[[card]]\nmemory_mib = 256\n[[card]]\nmemory_mib = 512\n";
const ID: &str = "6f1c2a9e-0d7b-4c55-9b1e-2f8f6f0a1b2c";

fn begin(folder: &Path) -> Process {
    begin_with(folder, "")
}

fn begin_with(folder: &Path, more: &str) -> Process {
    let config = folder.join("turnstile.toml");
    fs::write(&config, format!("{more}{CARDS}")).unwrap();
    let at = |name: &str| folder.join(name).display().to_string();
    let args = [
        "--config",
        &at("turnstile.toml"),
        "--ledger",
        &at("ledger"),
        "--state",
        &at("state.json"),
    ];
    let daemon = serve(folder, &args);
    // A daemon that was killed leaves its socket's file.
    until("the daemon", || {
        let answered = run(folder, &["vm", "list"]).status.success();
        answered.then_some(())
    });
    daemon
}

fn stop(mut daemon: Process) {
    daemon.signal(Signal::TERM);
    assert!(daemon.end(PATIENCE).expect("it ends").success());
}

fn run(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = turnstile();
    let command = command.args(arguments).arg("--api");
    command.arg(folder.join("api.sock")).output().unwrap()
}

fn json(folder: &Path, arguments: &[&str]) -> Value {
    let output = run(folder, &[arguments, &["-o", "json"]].concat());
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn done(folder: &Path, arguments: &[&str]) {
    let output = run(folder, arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
}

/// Why a command failed.
fn refused(folder: &Path, arguments: &[&str]) -> String {
    let output = run(folder, arguments);
    assert!(!output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn socket_of(vm: &Value) -> PathBuf {
    vm["attachment"]["socket"].as_str().unwrap().into()
}

/// Waits until a VM is in this state.
fn in_state(folder: &Path, name: &str, state: &str) -> Value {
    until(state, || {
        let vm = json(folder, &["vm", "get", name]);
        (vm["attachment"]["state"] == state).then_some(vm)
    })
}

fn vmm(socket: &Path, args: &[&str]) -> Process {
    let mut command = turnstile();
    command.args([
        "vmm",
        "--native",
        "--load-only",
        "--name",
        "any",
        "--socket",
    ]);
    command.arg(socket).args(args);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::null());
    Process(command.stderr(Stdio::null()).spawn().unwrap())
}

/// A VMM that is refused, and the reason.
fn refused_vmm(socket: &Path, args: &[&str]) -> String {
    let mut command = turnstile();
    let command = command.args(["vmm", "--native", "--name", "any", "--socket"]);
    let output = command.arg(socket).args(args).output().unwrap();
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// A guest with pauses: it is without work at times.
const PAUSES: [&str; 6] = ["--burst", "4", "--pause-us", "30000", "--kernel-us", "200"];
/// A guest that always has work queued.
const BUSY: [&str; 4] = ["--depth", "64", "--kernel-us", "5000"];

#[test]
fn vm_is_declared_attached_restarted_drained_and_removed() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let daemon = begin(folder);
    let create = [
        "vm",
        "create",
        "web",
        "--instance-id",
        ID,
        "--account",
        "gold",
        "--label",
        "a=b",
        "--weight",
        "300",
        "--gpu-memory-mib",
        "64",
        "--mode",
        "0640",
    ];
    let vm = json(folder, &create);
    let socket = socket_of(&vm);
    assert_eq!(socket, folder.join("vms").join(ID).join("vmm.sock"));
    assert_eq!(vm["attachment"]["state"], "ready");
    assert_eq!(vm["attachment"]["mode"], "0640");
    assert!(vm["gpu"].as_str().unwrap().starts_with("software-"), "{vm}");
    // The same again is the same VM; another body is a conflict, as is the name under another id.
    assert_eq!(socket_of(&json(folder, &create)), socket);
    let other = ["vm", "create", "web", "--instance-id", ID];
    assert!(refused(folder, &other).contains("another body"));
    assert!(refused(folder, &["vm", "create", "web"]).contains("web is declared"));
    // Its identity is the socket's, and its memory is bounded.
    assert!(refused_vmm(&socket, &["--gpu-memory-mib", "128"]).contains("were declared"));
    let public = turnstile()
        .args(["vmm", "--native", "--name", "web", "--socket"])
        .arg(folder.join("vmm.sock"))
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&public.stderr).contains("socket of its own"));
    let mut args = vec!["--reconnect", "--weight", "7"];
    args.extend(PAUSES);
    let mut guest = vmm(&socket, &args);
    let vm = in_state(folder, "web", "attached");
    assert_eq!(
        (&vm["name"], &vm["account"]),
        (&"web".into(), &"gold".into())
    );
    assert_eq!(vm["scheduling"]["weight"], 300);
    assert_eq!(vm["metadata"]["instance_id"], ID);
    until("its state in the file", || {
        let kept = fs::read_to_string(folder.join("state.json")).ok()?;
        kept.contains("\"attached\": true").then_some(())
    });
    stop(daemon);
    assert!(!socket.exists() && socket.parent().unwrap().is_dir());
    let _daemon = begin(folder);
    let again = in_state(folder, "web", "attached");
    assert_eq!(again["gpu"], vm["gpu"]);
    // Drained, it is placed anew, and its VMM may come back.
    done(folder, &["vm", "drain", "web"]);
    let drained = in_state(folder, "web", "attached");
    assert!(drained["number"].as_u64() > again["number"].as_u64());
    done(folder, &["vm", "delete", "web"]);
    until("no socket", || {
        (!socket.parent().unwrap().exists()).then_some(())
    });
    assert!(refused(folder, &["vm", "get", "web"]).contains("no tenant named"));
    guest.signal(Signal::KILL);
    guest.end(PATIENCE).expect("it ends");
    until("a state file without it", || {
        let kept = fs::read_to_string(folder.join("state.json")).ok()?;
        (!kept.contains("web")).then_some(())
    });
}

#[test]
fn vm_that_always_has_work_ends_by_force_alone() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let _daemon = begin(folder);
    let socket = socket_of(&json(folder, &["vm", "create", "busy"]));
    let mut guest = vmm(&socket, &BUSY);
    in_state(folder, "busy", "attached");
    until("its work", || {
        let vm = json(folder, &["vm", "get", "busy"]);
        (vm["usage"]["compute_ns"].as_u64()? > 0).then_some(())
    });
    let late = refused(folder, &["vm", "delete", "busy", "--timeout", "1"]);
    assert!(late.contains("still has work"), "{late}");
    assert_eq!(in_state(folder, "busy", "attached")["connected"], true);
    done(
        folder,
        &["vm", "delete", "busy", "--timeout", "0", "--force"],
    );
    until("no socket", || (!socket.exists()).then_some(()));
    assert!(!guest.end(PATIENCE).expect("its GPU is lost").success());
}

#[test]
fn vm_without_room_waits_until_another_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let _daemon = begin(folder);
    let create = |name| ["vm", "create", name, "--gpu-memory-mib", "400"];
    assert_eq!(json(folder, &create("first"))["gpu"], "software-1");
    let second = json(folder, &create("second"));
    assert_eq!(second["attachment"]["state"], "waiting");
    assert!(second["gpu"].is_null());
    assert!(refused_vmm(&socket_of(&second), &[]).contains("is waiting"));
    assert!(
        refused(folder, &["vm", "create", "x", "--gpu-memory-mib", "4000"]).contains("4194304000")
    );
    done(folder, &["vm", "delete", "first"]);
    assert_eq!(in_state(folder, "second", "ready")["gpu"], "software-1");
}

#[test]
fn drained_gpu_has_no_vm_and_declared_ones_go_to_the_other() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let daemon = begin(folder);
    let on = |gpu| ["vm", "create", gpu, "--gpu", gpu];
    let fixed = json(folder, &on("software-0"));
    assert_eq!(fixed["gpu"], "software-0");
    let free = json(folder, &["vm", "create", "free"]);
    assert_eq!(free["gpu"], "software-1", "the GPU with fewer VMs");
    let mut args = vec!["--reconnect"];
    args.extend(PAUSES);
    let _guest = vmm(&socket_of(&free), &args);
    let before = in_state(folder, "free", "attached");
    let drained = json(folder, &["gpu", "drain", "software-1"]);
    assert_eq!(drained["cordoned"], true);
    let after = until("the VM on the other GPU", || {
        let vm = in_state(folder, "free", "attached");
        (vm["gpu"] == "software-0").then_some(vm)
    });
    assert_ne!(after["number"], before["number"]);
    done(folder, &["gpu", "drain", "software-0"]);
    in_state(folder, "software-0", "waiting");
    // It holds over a restart.
    stop(daemon);
    let _daemon = begin(folder);
    in_state(folder, "software-0", "waiting");
    done(folder, &["gpu", "uncordon", "software-0"]);
    in_state(folder, "software-0", "ready");
    in_state(folder, "free", "attached");
}

/// Descriptors and threads of a daemon. The API has a varying number of threads for files.
fn held(daemon: &Process) -> (usize, usize) {
    let entries = |what: &str| fs::read_dir(format!("/proc/{}/{what}", daemon.0.id())).unwrap();
    let stays = |task: io::Result<DirEntry>| {
        let name = task.and_then(|task| fs::read_to_string(task.path().join("comm")));
        name.is_ok_and(|name| name.trim_end() != "turnstile-apib")
    };
    (
        entries("fd").count(),
        entries("task").map(stays).filter(|stays| *stays).count(),
    )
}

/// A VM that is declared, attached, restarted with the daemon if `restart`, drained and deleted.
fn live(folder: &Path, mut restart: impl FnMut()) {
    let vm = json(folder, &["vm", "create", "a", "--gpu-memory-mib", "16"]);
    let mut args = vec!["--reconnect"];
    args.extend(PAUSES);
    let mut guest = vmm(&socket_of(&vm), &args);
    in_state(folder, "a", "attached");
    restart();
    in_state(folder, "a", "attached");
    done(folder, &["vm", "drain", "a"]);
    done(folder, &["vm", "delete", "a"]);
    guest.signal(Signal::KILL);
    guest.end(PATIENCE).expect("it ends");
}

#[test]
fn lives_in_a_row_leave_nothing() {
    let rounds = std::env::var("TURNSTILE_ROUNDS").map_or(5, |n| n.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut daemon = Some(begin(folder));
    let begun = Instant::now();
    for round in 0..rounds {
        live(folder, || {
            let mut before = daemon.take().unwrap();
            match round % 2 {
                0 => stop(before),
                _ => {
                    before.signal(Signal::KILL);
                    before.end(PATIENCE).expect("it ends");
                }
            }
            daemon = Some(begin(folder));
        });
        until("no socket", || {
            let left = fs::read_dir(folder.join("vms")).unwrap().count();
            (left == 0).then_some(())
        });
        assert_eq!(json(folder, &["vm", "list"]), Value::Array(Vec::new()));
    }
    let took = begun.elapsed() / rounds;
    // The lives so far were the only ones of their daemons. The next are in a row in one.
    let daemon = daemon.unwrap();
    live(folder, || {});
    let (fds, threads) = held(&daemon);
    for _ in 0..rounds {
        live(folder, || {});
    }
    let left = until("descriptors and threads of before", || {
        let now = held(&daemon);
        (now.0 <= fds && now.1 <= threads).then_some(now)
    });
    println!(
        "{rounds} lives with a restart, {} ms each; {rounds} more in one daemon: {} descriptors and {} threads, {fds} and {threads} before",
        took.as_millis(),
        left.0,
        left.1
    );
}

/// An administrator is root or the daemon's own user; `roles.rs` of the API refuses all others.
#[test]
fn socket_of_a_vm_gets_the_owner_group_and_mode_that_an_administrator_sets() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: only root gives a file to another user");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let own = ["--owner", "12345", "--group", "54321", "--mode", "0640"];
    let create = |name| [&["vm", "create", name][..], &own[..]].concat();
    let daemon = begin_with(folder, "[safety]\nkeep_capabilities = true\n");
    let vm = json(folder, &create("given"));
    let file = fs::metadata(socket_of(&vm)).unwrap();
    let found = (file.uid(), file.gid(), file.mode() & 0o7777);
    assert_eq!(found, (12_345, 54_321, 0o640));
    // A restart makes the socket anew.
    stop(daemon);
    let daemon = begin_with(folder, "[safety]\nkeep_capabilities = true\n");
    let vm = in_state(folder, "given", "ready");
    let file = fs::metadata(socket_of(&vm)).unwrap();
    assert_eq!((file.uid(), file.gid(), file.mode() & 0o7777), found);
    done(folder, &["vm", "delete", "given"]);
    stop(daemon);
    // A daemon over software GPUs has no such right by default, and makes no socket with another
    // owner than requested.
    let _daemon = begin(folder);
    let text = refused(folder, &create("kept"));
    assert!(text.contains("keep_capabilities"), "{text}");
}
