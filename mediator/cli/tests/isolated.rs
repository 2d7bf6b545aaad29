//! `turnstile run --isolated`, with the stand-in driver: the launcher, the confined device process,
//! and a program that does what libcuda does at its start.

#[path = "common/library.rs"]
mod library;

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const SOURCE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../nvidia-guest/preload/tests/starts.c"
);

fn isolated(folder: &Path, options: &[&str], command: &[&str]) -> Output {
    let library = library::named("libturnstile_isolated.so");
    Command::new(env!("CARGO_BIN_EXE_turnstile"))
        .args(["run", "--isolated", "--stand-in", "--preload"])
        .arg(library)
        .arg("--learn-only")
        .arg(folder.join("learnt"))
        .args(options)
        .arg("--")
        .args(command)
        .output()
        .unwrap()
}

#[test]
fn program_starts_submits_and_its_channels_are_the_device_processs() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("starts");
    let built = Command::new("cc")
        .arg("-w")
        .arg("-o")
        .arg(&program)
        .arg(SOURCE)
        .status();
    assert!(built.unwrap().success());
    let program = program.to_str().unwrap();
    let output = isolated(folder.path(), &[], &[program, "run"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}");
    let learnt = std::fs::read_to_string(folder.path().join("learnt")).unwrap();
    let made = learnt.lines().filter(|line| line.starts_with("+ "));
    let classes: Vec<&str> = made.filter_map(|line| line.split(' ').nth(4)).collect();
    assert_eq!(
        classes,
        ["80", "a06c", "c86f"],
        "a device, a group, a channel"
    );
    // The program's first memory of the GPU is 2 MiB.
    let output = isolated(
        folder.path(),
        &["--gpu-memory", "1048576"],
        &[program, "run"],
    );
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn status_is_the_commands_and_its_dev_has_no_node() {
    let folder = tempfile::tempdir().unwrap();
    let shell = "ls /dev | grep -q ^nvidia && exit 1; echo x > /dev/null && exit 7";
    let output = isolated(folder.path(), &[], &["sh", "-c", shell]);
    assert_eq!(output.status.code(), Some(7));
    let output = isolated(folder.path(), &[], &["no-such-command"]);
    assert_eq!(output.status.code(), Some(127));
}

/// TIMEOUT: a device process listens and ends within some 10 ms.
const LIMIT: Duration = Duration::from_secs(20);

fn until<T>(what: &str, mut is: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(value) = is() {
            return value;
        }
        assert!(begun.elapsed() < LIMIT, "not {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The device of a VM, served on this socket.
fn vm(folder: &Path, socket: &Path) -> Child {
    Command::new(env!("CARGO_BIN_EXE_turnstile"))
        .args(["cuda-vm", "--stand-in", "--learn-only"])
        .arg(folder.join("learnt"))
        .arg(socket)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn vms_device_ends_with_its_vmm_and_its_socket_has_one_server() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("vm1.sock");
    let mut first = vm(folder.path(), &socket);
    until("served", || socket.exists().then_some(()));
    let second = vm(folder.path(), &socket).wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(text.contains("is served already"), "{text}");
    assert_eq!(second.status.code(), Some(125));
    let vmm = UnixStream::connect(&socket).unwrap();
    until("taken from the folder", || (!socket.exists()).then_some(()));
    assert!(first.try_wait().unwrap().is_none());
    drop(vmm);
    let status = until("ended", || first.try_wait().unwrap());
    assert!(status.success(), "{status}");
}

#[test]
fn a_socket_that_was_left_behind_is_made_anew() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("vm1.sock");
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let mut device = vm(folder.path(), &socket);
    let vmm = until("served", || UnixStream::connect(&socket).ok());
    drop(vmm);
    let status = until("ended", || device.try_wait().unwrap());
    assert!(status.success(), "{status}");
}
