//! Whole programs under the library, with a driver without a GPU (libcuda.c): how they find the
//! driver's functions, the answers that they get, and moves of their memory that they do not
//! notice.

#[path = "../../cli/tests/common/library.rs"]
mod library;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use library::library;
use rustix::fs::MemfdFlags;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use turnstile_preload_wire::descriptors;
use turnstile_preload_wire::{Denial, FRAME_BYTES, Pin, ToDaemon, ToLibrary, VARIABLE, VERSION};

/// TIMEOUT: programs of milliseconds on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

fn compile(arguments: &[&str]) {
    let status = Command::new("cc")
        .args(["-O1", "-Wall", "-Werror"])
        .args(arguments)
        .status();
    assert!(status.unwrap().success(), "{arguments:?}");
}

/// The program. It finds the driver in `folder`, and the library finds the test in `folder/memory`.
fn program(folder: &Path, linked: bool) -> Command {
    let source = |name: &str| format!("{}/tests/{name}", env!("CARGO_MANIFEST_DIR"));
    let driver = folder.join("libcuda.so.1");
    let driver = driver.to_str().unwrap();
    let soname = "-Wl,-soname,libcuda.so.1";
    compile(&[
        "-shared",
        "-fPIC",
        "-Wl,-Bsymbolic",
        soname,
        "-o",
        driver,
        &source("libcuda.c"),
    ]);
    let program = folder.join("tenant");
    let out = program.to_str().unwrap();
    // Old ways of declaring functions, as no function is called by its name.
    let mut arguments = vec!["-std=gnu11", "-Wno-deprecated-non-prototype", "-o", out];
    let text = source("tenant.c");
    arguments.push(&text);
    if linked {
        arguments.extend(["-DLINKED", driver]);
    }
    compile(&arguments);
    let mut command = Command::new(program);
    command
        .env("LD_PRELOAD", library())
        .env("LD_LIBRARY_PATH", folder)
        .env(VARIABLE, folder.join("memory"));
    command
}

fn listen(folder: &Path) -> OwnedFd {
    let flags = SocketFlags::CLOEXEC;
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    let address = SocketAddrUnix::new(folder.join("memory")).unwrap();
    rustix::net::bind(&socket, &address).unwrap();
    rustix::net::listen(&socket, 8).unwrap();
    socket
}

/// A daemon with one program.
struct Daemon {
    socket: OwnedFd,
    limit_bytes: u64,
    /// Chunks with their bytes and memory.
    chunks: BTreeMap<u64, (u64, Option<OwnedFd>)>,
    granted: BTreeMap<u64, u64>,
    pinned: BTreeMap<Pin, u64>,
}

impl Daemon {
    fn accept(listener: &OwnedFd, limit_bytes: u64) -> Self {
        let socket = rustix::net::accept(listener).unwrap();
        let wait = Some(LIMIT);
        let timeout = rustix::net::sockopt::Timeout::Recv;
        rustix::net::sockopt::set_socket_timeout(&socket, timeout, wait).unwrap();
        let daemon = Self {
            socket,
            limit_bytes,
            chunks: BTreeMap::new(),
            granted: BTreeMap::new(),
            pinned: BTreeMap::new(),
        };
        let version = VERSION;
        assert_eq!(daemon.next().unwrap().0, ToDaemon::Hello { version });
        let limit_bytes = daemon.limit_bytes;
        daemon.send(
            ToLibrary::Welcome {
                version,
                limit_bytes,
            },
            None,
        );
        daemon
    }

    fn send(&self, message: ToLibrary, fd: Option<&OwnedFd>) {
        let fds: Vec<_> = fd.iter().map(|fd| fd.as_fd()).collect();
        let _ = descriptors::send(&self.socket, &message.encode(), &fds, SendFlags::empty());
    }

    /// The next frame; None at the program's end.
    fn next(&self) -> Option<(ToDaemon, Option<OwnedFd>)> {
        let mut frame = [0; FRAME_BYTES];
        let received = descriptors::receive(&self.socket, &mut frame, RecvFlags::empty());
        let (got, mut fds) = received.unwrap();
        if got == 0 {
            return None;
        }
        let message = ToDaemon::decode(&frame[..got], fds.len()).unwrap();
        Some((message, fds.pop()))
    }

    fn used(&self) -> u64 {
        let made: u64 = self.chunks.values().map(|(bytes, _)| bytes).sum();
        made + self.granted.values().sum::<u64>()
    }

    /// Serves one frame, and returns it; an error at the program's end.
    fn serve(&mut self) -> Result<ToDaemon, ()> {
        let (message, fd) = self.next().ok_or(())?;
        match message {
            ToDaemon::Ask { chunk, bytes } => {
                if self.used() + bytes > self.limit_bytes {
                    let reason = Denial::Limit;
                    self.send(ToLibrary::Denied { chunk, reason }, None);
                } else {
                    assert!(self.granted.insert(chunk, bytes).is_none());
                    self.send(ToLibrary::Granted { chunk }, None);
                }
            }
            ToDaemon::Made { chunk, bytes } => {
                self.granted.remove(&chunk);
                let size = rustix::fs::fstat(fd.as_ref().unwrap()).unwrap().st_size;
                assert_eq!(size as u64, bytes);
                assert!(self.chunks.insert(chunk, (bytes, fd)).is_none());
            }
            ToDaemon::Freed { chunk } | ToDaemon::Kept { chunk } => {
                assert!(self.chunks.remove(&chunk).is_some());
            }
            ToDaemon::Pinned { reason, bytes } => {
                self.pinned.insert(reason, bytes);
            }
            ToDaemon::Info { question } => self.send(
                ToLibrary::Memory {
                    question,
                    free_bytes: self.limit_bytes - self.used(),
                    total_bytes: self.limit_bytes,
                },
                None,
            ),
            ToDaemon::Released { .. } | ToDaemon::Restored { .. } => {}
            other => panic!("{other:?}"),
        }
        Ok(message)
    }

    fn serve_until(&mut self, what: ToDaemon) {
        while self.serve().unwrap() != what {}
    }

    /// Releases a chunk, and restores it from other memory with the same bytes.
    fn move_out_and_in(&mut self, chunk: u64) {
        self.send(ToLibrary::Release { chunk }, None);
        self.serve_until(ToDaemon::Released { chunk });
        let (bytes, fd) = self.chunks.remove(&chunk).unwrap();
        let mut from = File::from(fd.unwrap());
        let mut held = vec![0; bytes as usize];
        rustix::fs::seek(&from, rustix::fs::SeekFrom::Start(0)).unwrap();
        from.read_exact(&mut held).unwrap();
        drop(from);
        let other = rustix::fs::memfd_create("other", MemfdFlags::CLOEXEC).unwrap();
        let mut to = File::from(other);
        to.write_all(&held).unwrap();
        let fd = OwnedFd::from(to);
        self.send(ToLibrary::Restore { chunk }, Some(&fd));
        self.serve_until(ToDaemon::Restored { chunk });
        self.chunks.insert(chunk, (bytes, Some(fd)));
    }
}

fn ends(mut child: Child) -> i32 {
    let until = Instant::now() + LIMIT;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code().unwrap_or(-1);
        }
        assert!(Instant::now() < until, "it does not end");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Runs a program that finds the driver by `way`, and moves its memory a few times.
fn moved(way: &str) {
    let folder = tempfile::tempdir().unwrap();
    let listener = listen(folder.path());
    let mut command = program(folder.path(), way == "linked");
    let child = command.arg(way).arg(folder.path()).spawn().unwrap();
    let mut daemon = Daemon::accept(&listener, 1 << 30);
    // The program makes its own mappings last before the first round.
    let until = Instant::now() + LIMIT;
    while !folder.path().join("round-0").exists() {
        assert!(Instant::now() < until);
        daemon.send(ToLibrary::Release { chunk: u64::MAX }, None);
        let none = ToDaemon::Failed {
            chunk: u64::MAX,
            result: 0,
        };
        while daemon.next_or_serve().expect("it lives") != none {}
    }
    let sizes: BTreeSet<u64> = daemon
        .chunks
        .values()
        .map(|(bytes, _)| *bytes >> 20)
        .collect();
    assert_eq!(sizes, [2, 4, 20].into());
    assert_eq!(daemon.pinned[&Pin::Array], 16 << 20);
    assert_eq!(daemon.pinned[&Pin::Managed], 0, "freed");
    assert_eq!(daemon.pinned[&Pin::Graph], 0, "freed");
    for round in 0..3 {
        let turn = folder.path().join(format!("round-{round}"));
        while !turn.exists() {
            assert!(Instant::now() < until);
            thread::sleep(Duration::from_millis(1));
        }
        let chunks: Vec<u64> = daemon.chunks.keys().copied().collect();
        chunks
            .into_iter()
            .for_each(|chunk| daemon.move_out_and_in(chunk));
        if round == 2 {
            fs::write(folder.path().join("stop"), "").unwrap();
        }
        fs::write(folder.path().join(format!("go-{round}")), "").unwrap();
    }
    while daemon.serve().is_ok() {}
    assert_eq!(ends(child), 5);
    assert_eq!(daemon.pinned[&Pin::Array], 0);
}

impl Daemon {
    /// As [`Self::serve`], but also takes failures.
    fn next_or_serve(&mut self) -> Option<ToDaemon> {
        let frame = rustix::net::recv(&self.socket, &mut [0_u8; FRAME_BYTES], RecvFlags::PEEK);
        let _ = frame.unwrap();
        let mut bytes = [0_u8; FRAME_BYTES];
        rustix::net::recv(&self.socket, &mut bytes, RecvFlags::PEEK).unwrap();
        if let Ok(failed @ ToDaemon::Failed { .. }) = ToDaemon::decode(&bytes, 0) {
            self.next();
            return Some(failed);
        }
        self.serve().ok()
    }
}

#[test]
fn a_linked_program_has_its_memory_moved() {
    moved("linked");
}

#[test]
fn a_program_that_resolves_names_has_its_memory_moved() {
    moved("dlsym");
}

#[test]
fn a_program_with_the_runtime_has_its_memory_moved() {
    moved("runtime");
}

#[test]
fn a_limit_is_what_the_program_sees_and_gets() {
    let folder = tempfile::tempdir().unwrap();
    let listener = listen(folder.path());
    let mut command = program(folder.path(), true);
    let child = command.args(["linked", "limits"]).spawn().unwrap();
    let mut daemon = Daemon::accept(&listener, 16 << 20);
    while daemon.serve().is_ok() {}
    assert_eq!(ends(child), 5);
}

#[test]
fn without_a_daemon_a_program_runs_all_the_same() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("stop"), "").unwrap();
    for way in ["linked", "dlsym", "runtime"] {
        let mut command = program(folder.path(), way == "linked");
        let child = command.arg(way).arg(folder.path()).spawn().unwrap();
        assert_eq!(ends(child), 5, "{way}");
    }
}

#[test]
fn restarted_daemon_receives_the_existing_chunks() {
    let folder = tempfile::tempdir().unwrap();
    let listener = listen(folder.path());
    let mut command = program(folder.path(), false);
    let child = command.arg("dlsym").arg(folder.path()).spawn().unwrap();
    let mut first = Daemon::accept(&listener, 1 << 30);
    while !folder.path().join("round-0").exists() {
        first.serve().unwrap();
        if first.pinned.get(&Pin::Graph) == Some(&0) {
            break;
        }
    }
    drop(first);
    let mut second = Daemon::accept(&listener, 1 << 30);
    let large = |daemon: &Daemon| daemon.chunks.values().any(|(bytes, _)| *bytes == 20 << 20);
    while !large(&second) {
        second.serve().unwrap();
    }
    let until = Instant::now() + LIMIT;
    while !folder.path().join("round-0").exists() {
        assert!(Instant::now() < until);
        thread::sleep(Duration::from_millis(1));
    }
    fs::write(folder.path().join("stop"), "").unwrap();
    while second.serve().is_ok() {}
    assert!(!large(&second), "freed");
    assert_eq!(ends(child), 5);
}
