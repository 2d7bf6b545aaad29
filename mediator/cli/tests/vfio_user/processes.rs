//! `serve --vfio-user` as an operator runs it: beside a hostile VMM, and killed.

use std::fs::{self, File};
use std::io::Write;
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{self, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rustix::event::{EventfdFlags, eventfd};
use turnstile_abi::Platform;
use turnstile_abi::regs::{DEVICE_STATUS, device_status};
use turnstile_images::{Load, Outcome, Report, Workload};
use turnstile_vmm::vfio_user::Command;
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

use crate::ALONE;
use crate::common::{Process, turnstile, until};
use crate::guest::Guest;
use crate::messages::{payload, random, whole};

/// Length of a launch.
const KERNEL_US: u64 = 500;
/// Turns without a storm and beside one.
const TURNS: u32 = 3;

fn started(folder: &Path, log: &str, args: &[&str]) -> Process {
    let log = File::create(folder.join(log)).unwrap();
    let child = turnstile()
        .args(args)
        .stdout(Stdio::null())
        .stderr(log)
        .spawn();
    Process(child.unwrap())
}

fn serve(folder: &Path, vms: &[&str]) -> Process {
    let (socket, fronts) = (folder.join("vmm.sock"), folder.join("vm"));
    let mut args = vec!["serve", "--socket", socket.to_str().unwrap()];
    if !vms.is_empty() {
        args.extend(["--vfio-user", fronts.to_str().unwrap()]);
    }
    args.extend(vms.iter().flat_map(|vm| ["--vfio-user-vm", vm]));
    started(folder, "serve.log", &args)
}

fn connected(folder: &Path, vm: &str) -> Guest {
    let socket = folder.join(format!("vm/{vm}.sock"));
    until("the VM's socket", || socket.exists().then_some(()));
    Guest::new(&socket)
}

#[test]
fn declared_vm_of_a_stock_vmm_has_its_device_until_it_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let _daemon = serve(folder, &[]);
    let admin = |args: &[&str]| {
        let mut command = turnstile();
        let command = command.args(args).arg("--api").arg(folder.join("api.sock"));
        let output = command.output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        output.status.success().then_some(text)
    };
    until("the daemon", || admin(&["vm", "list"]));
    let made = admin(&["vm", "create", "web", "--attach", "vfio-user"]);
    let made = made.expect("it is declared");
    let socket = Path::new(made.trim_end());
    assert!(socket.ends_with("vfio-user.sock"), "{made}");
    let guest = Guest::new(socket);
    passed(&guest.run(Workload::Verify { rounds: 1 }));
    admin(&["vm", "delete", "web"]).expect("it is removed");
    until("no socket", || (!socket.exists()).then_some(()));
}

fn passed(report: &Report) {
    assert_eq!(report.outcome, Outcome::Passed, "{}", report.text());
    assert!(report.verified > 0 && report.failed == 0);
}

/// Share of the GPU's time that a VM gets alone, by its own count, in a load of `seconds`.
fn load(guest: &Guest, seconds: u64) -> f64 {
    let report = guest.run(Workload::Load(Load {
        duration_ns: seconds * 1_000_000_000,
        kernel_ns: KERNEL_US * 1_000,
        ..Load::default()
    }));
    passed(&report);
    (report.launches * KERNEL_US * 1_000) as f64 / report.elapsed_ns as f64
}

fn rss_bytes(process: u32) -> u64 {
    let statm = fs::read_to_string(format!("/proc/{process}/statm")).unwrap();
    let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

fn entries(process: u32, of: &str) -> usize {
    let listed = fs::read_dir(format!("/proc/{process}/{of}"));
    listed.unwrap().count()
}

/// Opens connections one after another, each with many random messages, until `stop`. Returns how
/// many messages and connections.
fn storm(socket: &Path, seed: u32, stop: &AtomicBool) -> (u64, u64) {
    let mut rng = SmallRng::seed_from_u64(seed.into());
    let gifts = [(); 2].map(|()| eventfd(0, EventfdFlags::NONBLOCK).unwrap());
    let (mut sent, mut connections) = (0, 0);
    while !stop.load(Ordering::Acquire) {
        let stream = UnixStream::connect(socket).unwrap();
        connections += 1;
        let reader = stream.try_clone().unwrap();
        let drain = thread::spawn(move || {
            let _ = std::io::copy(&mut &reader, &mut std::io::sink());
        });
        let version = whole(1, Command::Version, &payload(Command::Version));
        let mut goes_on = (&stream).write_all(&version).is_ok();
        let ends_after = sent + rng.random_range(20_000..60_000);
        while goes_on && !stop.load(Ordering::Acquire) {
            let bytes = random(&mut rng, sent > ends_after);
            let with = match rng.random_range(0..10) {
                0 => gifts.len(),
                1 => 1,
                _ => 0,
            };
            let fds = gifts.each_ref().map(AsRawFd::as_raw_fd);
            goes_on = stream.send_with_fds(&[&bytes[..]], &fds[..with]).is_ok();
            sent += u64::from(goes_on);
        }
        let _ = stream.shutdown(Shutdown::Write);
        drain.join().unwrap();
    }
    (sent, connections)
}

#[test]
fn a_hostile_vmm_disturbs_no_other_vm_of_a_running_daemon() {
    let _alone = ALONE.write();
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let daemon = serve(folder, &["good:100", "bad:100"]);
    let process = daemon.0.id();
    let good = connected(folder, "good");
    passed(&good.run(Workload::Verify { rounds: 1 }));
    let bad = folder.join("vm/bad.sock");
    let (mut calm, mut beside, mut sent, mut connections) = (0.0, 0.0, 0, 0);
    let mut memory = Vec::new();
    // Alternating, so that other load of this machine affects both alike.
    for turn in 0..TURNS {
        calm += load(&good, 1);
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let storm = scope.spawn(|| storm(&bad, turn, &stop));
            beside += load(&good, 2);
            passed(&good.run(Workload::Verify { rounds: 1 }));
            memory.push(rss_bytes(process));
            stop.store(true, Ordering::Release);
            let (more, of) = storm.join().unwrap();
            (sent, connections) = (sent + more, connections + of);
        });
    }
    // What allocators and threads keep is there after the first turn.
    let grown = memory[memory.len() - 1].saturating_sub(memory[0]);
    let text = fs::read_to_string(folder.join("serve.log")).unwrap();
    println!(
        "{sent} random messages over {connections} connections: the VM beside them got {:.1} % of the GPU, {:.1} % before; \
         the daemon grew by {} KiB and said {} bytes",
        100.0 * beside / f64::from(TURNS),
        100.0 * calm / f64::from(TURNS),
        grown >> 10,
        text.len()
    );
    assert!(sent > 10_000 && connections >= 2);
    // The only shared resource is the host's processors, on which this GPU runs and the storm is
    // made.
    assert!(beside > 0.6 * calm, "{beside} of {calm}");
    assert!(grown < 16 << 20, "memory grew by {grown} bytes");
    assert!(text.len() < 16 << 10, "{text}");
    assert!(!text.contains("panicked"), "{text}");
    // The socket of the hostile VMM serves the next one.
    let next = Guest::new(&bad);
    passed(&next.run(Workload::Verify { rounds: 1 }));
    let (threads, files) = (entries(process, "task"), entries(process, "fd"));
    drop(next);
    // What the session of one VMM has, threads and files, goes with it.
    until("the end of the session", || {
        (entries(process, "task") < threads && entries(process, "fd") < files).then_some(())
    });
    assert!(
        threads < 64 && files < 400,
        "{threads} threads, {files} files"
    );
}

#[test]
fn a_vm_of_a_front_of_its_own_goes_on_after_the_daemon_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let daemon = serve(folder, &[]);
    let (socket, fronts) = (folder.join("vmm.sock"), folder.join("vm"));
    until("the daemon's socket", || socket.exists().then_some(()));
    let _front = started(
        folder,
        "front.log",
        &[
            "vfio-user",
            "--socket",
            socket.to_str().unwrap(),
            "--folder",
            fronts.to_str().unwrap(),
            "--vm",
            "vm:100",
        ],
    );
    let guest = connected(folder, "vm");
    let status = || guest.reg_read32(DEVICE_STATUS);
    passed(&guest.run(Workload::Verify { rounds: 1 }));
    // The signal is KILL.
    drop(daemon);
    until("the device is lost", || {
        (status() == device_status::LOST).then_some(())
    });
    let _daemon = serve(folder, &[]);
    let since = Instant::now();
    until("the device is there again", || {
        (status() == device_status::READY).then_some(())
    });
    let took = since.elapsed();
    passed(&guest.run(Workload::Verify { rounds: 1 }));
    println!("the device was ready {took:?} after the daemon was started again");
    assert!(took < Duration::from_secs(30));
}

/// What Cloud Hypervisor gets: a file that it can open by its descriptor's number, and that no
/// process can shrink.
#[test]
fn a_command_is_given_memory_that_keeps_its_size() {
    let tries = "stat -Lc %s /proc/self/fd/9 && ! truncate -s 4096 /proc/self/fd/9 && ! truncate -s 1M /proc/self/fd/9 && echo kept";
    // The process that runs this test may have left the descriptor open.
    let sealed = |nine: &str, command: &[&str]| {
        process::Command::new("sh")
            .args(["-c", &format!("exec 9{nine}; exec \"$0\" \"$@\"")])
            .arg(turnstile().get_program())
            .args(["sealed-memory", "--size", "8K", "--"])
            .args(command)
            .output()
            .unwrap()
    };
    let output = sealed(">&-", &["sh", "-c", tries]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!((output.status.code(), &*text), (Some(0), "8192\nkept\n"));
    let output = sealed("</dev/null", &["sh", "-c", tries]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && text.contains("--fd names another"),
        "{text}"
    );
    let output = sealed(">&-", &["/nowhere/a-vmm"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && text.contains("/nowhere/a-vmm was not started"),
        "{text}"
    );
}
