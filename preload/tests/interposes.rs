//! The library in a program whose calls "succeed": a filter answers them in the driver's stead.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Makes the driver's calls on `/dev/null` under a filter that lets them return 0 without being made.
const SOURCE: &str = r#"
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <unistd.h>
int main(void) {
    struct sock_filter filter[] = {
        {BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(struct seccomp_data, args[1])},
        {BPF_ALU | BPF_AND | BPF_K, 0, 0, 0xff00},
        {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, 'F' << 8},
        {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO},
        {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW}};
    struct sock_fprog program = {5, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
        return 99;
    clearenv();
    for (int fd = 3; fd < 64; fd++)
        close(fd);
    int null = open("/dev/null", O_RDWR);
    uint32_t group[8] = {0, 0, 0, 9};
    uint64_t at = (uint64_t)(uintptr_t)group;
    uint32_t make[8] = {0xc1d00001, 1, 0x10, 0xa06c, (uint32_t)at, (uint32_t)(at >> 32)};
    uint32_t channel[12] = {0xc1d00001, 0x10, 0x11, 0xc86f};
    uint32_t control[8] = {0};
    uint32_t end[4] = {0xc1d00001, 1, 0x10, 0};
    errno = 77;
    int bad = ioctl(null, 0xc020462bul, make) || ioctl(null, 0xc030462bul, channel)
        || ioctl(null, 0xc020462aul, control) || ioctl(null, 0xc0104629ul, end);
    if (bad || errno != 77)
        return 98;
    /* Others go through with their own error. */
    return ioctl(null, TIOCGWINSZ, group) == -1 && errno == ENOTTY ? 5 : 97;
}
"#;

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
    let (source, program) = (folder.join("p.c"), folder.join("p"));
    fs::write(&source, SOURCE).unwrap();
    let built = Command::new("cc")
        .arg("-o")
        .args([&program, &source])
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
fn nobody_who_listens_does_no_harm() {
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
