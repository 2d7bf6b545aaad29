//! A daemon over two software GPUs of different sizes, with VMs as processes.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Output;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use common::{Process, serve, turnstile, until, vm};
use rustix::process::Signal;
use serde_json::Value;
use turnstile_vmm::abi::{ErrorCode, Request as Mailbox, regs};
use turnstile_vmm::attach::{Attached, NoRoutes, Request, Welcome, interrupts, sealed_memory};
use turnstile_vmm::gate::ThreadMap;

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

/// Whether `usage verify` finds the ledger sound, and what it prints.
fn verified(folder: &Path) -> (bool, String) {
    let verified = turnstile()
        .args(["usage", "verify", "--ledger"])
        .arg(folder.join("ledger"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&verified.stdout).into_owned();
    (verified.status.success(), text)
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
    let (_, text) = verified(folder);
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

/// A guest that is without work at times.
const PAUSES: [&str; 7] = [
    "--load-only",
    "--burst",
    "4",
    "--pause-us",
    "30000",
    "--kernel-us",
    "200",
];

#[test]
fn removed_gpu_ends_its_vms_and_takes_them_again_once_it_is_opened() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let daemon = begin(folder, "");
    let args = [&["--reconnect"], &PAUSES[..]].concat();
    let _vms: Vec<Process> = ["a", "b", "c", "d"]
        .map(|name| vm(folder, name, &args))
        .into();
    let before = all(folder, 4);
    let numbers = |gpu: &str| -> BTreeMap<String, u64> {
        let vms = json(folder, &["vm", "list"]);
        let of = vms.as_array().unwrap().iter().filter(|vm| vm["gpu"] == gpu);
        let name = |vm: &Value| vm["name"].as_str().unwrap().to_owned();
        of.map(|vm| (name(vm), vm["number"].as_u64().unwrap()))
            .collect()
    };
    let stay = numbers("software-0");
    let removed = json(folder, &["gpu", "remove", "software-1"]);
    assert_eq!(removed["removed"], true);
    assert!(removed["silent"].is_null(), "{removed}");
    let after = until("all on the other GPU", || {
        let places = places(folder);
        let other = places.values().all(|gpu| gpu == "software-0");
        (places.len() == 4 && other).then_some(places)
    });
    assert_ne!(before, after);
    let now = numbers("software-0");
    for (name, number) in stay {
        assert_eq!(now[&name], number, "{name} was not touched");
    }
    let list = run(folder, &["gpu", "list"]);
    let list = String::from_utf8_lossy(&list.stdout).into_owned();
    assert!(list.contains("removed"), "{list}");
    // It holds over a restart.
    daemon.signal(Signal::TERM);
    drop(daemon);
    let _daemon = begin(folder, "");
    let again = until("the daemon", || {
        let output = run(folder, &["gpu", "get", "software-1", "-o", "json"]);
        serde_json::from_slice::<Value>(&output.stdout).ok()
    });
    assert_eq!(again["removed"], true);
    until("all on the other GPU", || {
        let places = places(folder);
        let other = places.values().all(|gpu| gpu == "software-0");
        (places.len() == 4 && other).then_some(())
    });
    let opened = json(folder, &["gpu", "uncordon", "software-1"]);
    assert_eq!(
        (&opened["removed"], &opened["cordoned"]),
        (&false.into(), &false.into())
    );
    until("its answer", || {
        let gpu = json(folder, &["gpu", "get", "software-1"]);
        gpu["silent"].is_null().then_some(())
    });
    let _fifth = vm(folder, "e", &PAUSES);
    assert_eq!(all(folder, 5)["e"], "software-1");
}

/// The VMs that wait, in line.
fn line(folder: &Path) -> Vec<String> {
    let vms = json(folder, &["vm", "list"]);
    let waiting = vms.as_array().unwrap().iter();
    let waiting = waiting.filter(|vm| vm["waiting"].is_object());
    let mut line: Vec<(u64, String)> = waiting
        .map(|vm| {
            let reason = vm["waiting"]["reason"].as_str().unwrap();
            assert!(reason.contains("No GPU has room"), "{reason}");
            assert_eq!(vm["connected"], false);
            let place = vm["waiting"]["place"].as_u64().unwrap();
            (place, vm["name"].as_str().unwrap().to_owned())
        })
        .collect();
    line.sort();
    line.into_iter().map(|(_, name)| name).collect()
}

#[test]
fn vm_that_fits_nowhere_waits_in_line_until_there_is_room() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let _daemon = begin(folder, "[scheduling]\nqueue = 4\n");
    let large = [&["--gpu-memory-mib", "400"], &PAUSES[..]].concat();
    let in_line = |names: &[&str]| until("the line", || (line(folder) == names).then_some(()));
    let mut first = vm(folder, "first", &large);
    assert_eq!(all(folder, 1)["first"], "software-1");
    let mut second = vm(folder, "second", &large);
    in_line(&["second"]);
    let _third = vm(folder, "third", &large);
    in_line(&["second", "third"]);
    // Two of four places are one account's, and a name is taken in the line too.
    for name in ["fourth", "third"] {
        let refused = turnstile()
            .args(["vmm", "--native", "--name", name, "--socket"])
            .arg(folder.join("vmm.sock"))
            .args(["--gpu-memory-mib", "400"])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&refused.stderr).into_owned();
        let reason = text.contains("No GPU has room") || text.contains("connected already");
        assert!(!refused.status.success() && reason, "{text}");
    }
    let table = run(folder, &["vm", "list"]);
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    assert!(
        table.contains("waiting 1") && table.contains("third is 2 in line"),
        "{table}"
    );
    let top = run(
        folder,
        &["top", "--batch", "--count", "1", "--delay", "0.2"],
    );
    let top = String::from_utf8_lossy(&top.stdout).into_owned();
    assert!(top.contains("waiting: 1 second, 2 third (No GPU"), "{top}");
    // One that fits passes those that do not.
    let _small = vm(folder, "small", &PAUSES);
    assert!(all(folder, 2).contains_key("small"));
    second.signal(Signal::KILL);
    second.end(common::PATIENCE).expect("it ends");
    in_line(&["third"]);
    first.signal(Signal::KILL);
    first.end(common::PATIENCE).expect("it ends");
    until("the third", || places(folder).get("third").cloned());
    in_line(&[]);
}

/// 24 VMs on four GPUs, and kill -9 of the daemon at any moment. `TURNSTILE_KILLS` is how often.
#[test]
fn one_ledger_of_four_gpus_is_sound_after_kills() {
    let kills = std::env::var("TURNSTILE_KILLS").map_or(3, |n| n.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let more = format!("{CARDS}[ledger]\nwindow_ms = 100\n");
    let answers = || run(folder, &["vm", "list"]).status.success();
    let start = || {
        let daemon = begin(folder, &more);
        // A daemon that was killed leaves its socket's file.
        until("the daemon", || answers().then_some(()));
        daemon
    };
    let mut daemon = start();
    let args = [&["--reconnect", "--gpu-memory-mib", "32"], &PAUSES[..]].concat();
    let mut vms: Vec<Process> = (0..24)
        .map(|number| vm(folder, &format!("vm-{number}"), &args))
        .collect();
    all(folder, 24);
    for kill in 0..kills {
        // Among connections of its VMs, and while all work.
        if kill % 2 == 0 {
            all(folder, 24);
        }
        std::thread::sleep(std::time::Duration::from_millis(37 * kill % 500));
        daemon.signal(Signal::KILL);
        daemon.end(common::PATIENCE).expect("it ends");
        daemon = start();
    }
    let places = all(folder, 24);
    let gpus: BTreeSet<&String> = places.values().collect();
    assert_eq!(gpus.len(), 4, "{places:?}");
    for vm in &mut vms {
        assert!(vm.0.try_wait().unwrap().is_none(), "each VM came back");
    }
    daemon.signal(Signal::TERM);
    assert!(daemon.end(common::PATIENCE).expect("it ends").success());
    let (is_sound, text) = verified(folder);
    assert!(is_sound, "{text}");
    assert_eq!(text.matches("; sound").count(), 4, "{text}");
    println!("{kills} kills: {text}");
}

/// A guest of this process, which drives its device's mailbox.
struct Guest {
    vm: Arc<Attached<ThreadMap, NoRoutes>>,
    control: JoinHandle<()>,
}

impl Guest {
    fn attach(folder: &Path, name: &str) -> Self {
        let memory = sealed_memory(c"guest", 1 << 20).unwrap();
        let request = Request {
            gpu_memory_bytes: Some(64 << 20),
            ..Request::new(folder.join("vmm.sock"), name, memory, 1 << 20)
        };
        let welcome = Welcome::request(request, &interrupts().unwrap()).unwrap();
        let map = ThreadMap::new(welcome.identity.channels);
        let (vm, control) = welcome.attach(map, NoRoutes);
        let control = thread::spawn(move || control.run().unwrap());
        Self { vm, control }
    }

    /// The first result of a request, or the refusal's code.
    fn ask(&self, request: &Mailbox) -> Result<u64, u32> {
        let (op, args) = request.encode();
        for (at, arg) in (regs::MAILBOX_ARG..).step_by(8).zip(args) {
            self.vm.gpu().regs_write(at, &arg.to_le_bytes());
        }
        let op = (op as u32).to_le_bytes();
        self.vm.gpu().regs_write(regs::MAILBOX_OP, &op);
        let word = |at| u32::from_le_bytes(self.vm.gpu().reg(at));
        let done = until("an answer", || {
            let status = word(regs::MAILBOX_STATUS);
            (status != regs::mailbox_status::BUSY).then_some(status)
        });
        match done {
            regs::mailbox_status::DONE => {
                Ok(u64::from_le_bytes(self.vm.gpu().reg(regs::MAILBOX_RESULT)))
            }
            _ => Err(word(regs::MAILBOX_ERROR)),
        }
    }

    fn begin(&self, memory_bytes: u64, blocks: u32) -> Result<u64, u32> {
        self.ask(&Mailbox::BeginTask {
            memory_bytes,
            threads: 64,
            blocks,
        })
    }

    fn leave(self) {
        self.vm.detach();
        self.control.join().unwrap();
    }
}

#[test]
fn task_of_a_vm_waits_for_another_on_its_gpu_and_ends_with_its_vm() {
    /// More blocks than the GPU holds: the task takes all of it.
    const ALL: u32 = 1 << 20;
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let _daemon = begin(folder, "[scheduling]\nplacement = \"exact\"\n");
    let [one, other] = ["one", "other"].map(|name| Guest::attach(folder, name));
    assert_eq!(all(folder, 2)["one"], all(folder, 2)["other"]);
    let first = one.begin(32 << 20, ALL).unwrap();
    // The answer comes at once: no vCPU waits for a task of another VM.
    assert_eq!(other.begin(0, 1), Err(ErrorCode::NoRoomNow as u32));
    let task = u32::try_from(first).unwrap();
    one.ask(&Mailbox::EndTask { task }).unwrap();
    let again = one.ask(&Mailbox::EndTask { task });
    assert_eq!(again, Err(ErrorCode::NoSuchTask as u32));
    other.begin(0, ALL).unwrap();
    assert_eq!(one.begin(0, 1), Err(ErrorCode::NoRoomNow as u32));
    // Never: more than the VM has, and a block that no SM holds.
    let never = other.begin(65 << 20, 1);
    assert_eq!(never, Err(ErrorCode::OutOfGpuMemory as u32));
    assert_eq!(one.begin(0, 0), Err(ErrorCode::BadArgument as u32));
    // A VM that leaves has no task any more.
    other.leave();
    until("its end", || one.begin(0, ALL).ok());
    one.leave();
}
