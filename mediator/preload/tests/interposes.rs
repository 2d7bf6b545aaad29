//! The library in a program with calls that all "succeed": a filter answers them instead of the
//! driver.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/answered.c");

fn library() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let name = "libturnstile_preload.so";
    // Beside the tests, or above them.
    let found = own
        .ancestors()
        .skip(1)
        .take(2)
        .map(|folder| folder.join(name));
    found
        .into_iter()
        .find(|path| path.is_file())
        .expect("cargo builds the library with its tests")
}

fn program(folder: &Path) -> Command {
    let program = folder.join("p");
    let built = Command::new("cc")
        .arg("-o")
        .arg(&program)
        .arg(SOURCE)
        .status();
    assert!(built.unwrap().success());
    let mut command = Command::new(program);
    command.env("LD_PRELOAD", library());
    command
}

fn expected(pid: u32) -> [String; 3] {
    [
        format!("+ {pid} c1d00001 10 a06c 1 9\n"),
        format!("+ {pid} c1d00001 11 c86f 10 0\n"),
        format!("- {pid} c1d00001 10\n"),
    ]
}

#[test]
fn a_file_gets_the_lines() {
    let folder = tempfile::tempdir().unwrap();
    let lines = folder.path().join("handles");
    let mut command = program(folder.path());
    let mut child = command.env("TURNSTILE_HANDLES", &lines).spawn().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(5));
    assert_eq!(
        fs::read_to_string(lines).unwrap(),
        expected(child.id()).concat()
    );
}

#[test]
fn a_socket_gets_a_line_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("handles");
    let socket = UnixDatagram::bind(&path).unwrap();
    // TIMEOUT: a program of milliseconds on a busy machine.
    socket
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let mut command = program(folder.path());
    let mut child = command.env("TURNSTILE_HANDLES", &path).spawn().unwrap();
    for line in expected(child.id()) {
        let mut bytes = [0; 256];
        let got = socket.recv(&mut bytes).unwrap();
        assert_eq!(std::str::from_utf8(&bytes[..got]).unwrap(), line);
    }
    assert_eq!(child.wait().unwrap().code(), Some(5));
}

#[test]
fn missing_listener_does_not_disturb_the_program() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = program(folder.path());
    assert_eq!(
        command.status().unwrap().code(),
        Some(5),
        "without the variable"
    );
    let path = folder.path().join("handles");
    drop(UnixDatagram::bind(&path).unwrap());
    let status = command.env("TURNSTILE_HANDLES", &path).status().unwrap();
    assert_eq!(status.code(), Some(5), "a socket that is closed");
    let nowhere = folder.path().join("missing/handles");
    let status = command.env("TURNSTILE_HANDLES", nowhere).status().unwrap();
    assert_eq!(status.code(), Some(5), "a place that is none");
}
