//! `turnstile run --isolated`, with the stand-in driver: the launcher, the confined device process,
//! and a program that does what libcuda does at its start.

#[path = "common/library.rs"]
mod library;

use std::path::Path;
use std::process::{Command, Output};

const SOURCE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/nvidia-guest/preload/tests/starts.c"
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
    let made = learnt.lines().filter(|line| line.starts_with("+ ")).count();
    assert_eq!(made, 2, "a group and a channel: {learnt}");
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
