//! Launchers with false reports.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command};

use rustix::process::{Pid, PidfdFlags, getppid, pidfd_open};
use turnstile_vmm::wire::{
    CHANGES_MAX, FrameReader, ObjectChange, PROTOCOL, ProgramObject, Read, ToDaemon, ToVmm, send,
};

use super::{Bench, until};

struct Launcher {
    stream: UnixStream,
    reader: FrameReader,
}

impl Launcher {
    /// This process as the root of a program.
    fn admitted(bench: &Bench) -> Self {
        let mut this = Self {
            stream: UnixStream::connect(bench.socket()).unwrap(),
            reader: FrameReader::new(),
        };
        this.send(&ToDaemon::program("strange"), Vec::new());
        assert!(matches!(this.receive(), Some(ToVmm::Admitted { .. })));
        this
    }

    fn send(&self, message: &ToDaemon, fds: Vec<OwnedFd>) {
        send(&self.stream, message, fds).unwrap();
    }

    /// The daemon's next message, or None if it closed the connection.
    fn receive(&mut self) -> Option<ToVmm> {
        match self.reader.read(&self.stream) {
            Ok(Read::Frame(frame)) => Some(frame.message),
            _ => None,
        }
    }

    fn refused(&mut self, pid: u32, fd: OwnedFd) -> String {
        self.send(&ToDaemon::Process { pid }, vec![fd]);
        match self.receive() {
            Some(ToVmm::ProcessRefused { pid: of, text }) if of == pid => text,
            other => panic!("{other:?}"),
        }
    }
}

fn pidfd(pid: Pid) -> OwnedFd {
    pidfd_open(pid, PidfdFlags::empty()).unwrap()
}

fn made(handle: u32) -> ObjectChange {
    ObjectChange::Made(ProgramObject {
        client: 1,
        handle,
        class: 0xc86f,
        parent: 2,
        engine: 0,
        userd: None,
    })
}

/// A child that ends with the test.
struct Sleeper(Child);

impl Sleeper {
    fn new() -> Self {
        Self(Command::new("sleep").arg("600").spawn().unwrap())
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn process_that_does_not_descend_from_the_launcher_is_refused() {
    let bench = Bench::new();
    let mut launcher = Launcher::admitted(&bench);
    let text = launcher.refused(7, pidfd(getppid().unwrap()));
    assert!(text.contains("does not descend"), "{text}");
    let text = launcher.refused(8, File::open("/dev/null").unwrap().into());
    assert!(text.contains("names no process"), "{text}");
    let mut child = Sleeper::new();
    let exited = pidfd(Pid::from_child(&child.0));
    child.0.kill().unwrap();
    child.0.wait().unwrap();
    launcher.refused(9, exited);
    // Reports about refused processes are not passed on.
    for pid in [7, 8, 9, 10] {
        let changes = vec![made(1)];
        launcher.send(&ToDaemon::Objects { pid, changes }, Vec::new());
    }
    let child = Sleeper::new();
    let pid = 11;
    launcher.send(
        &ToDaemon::Process { pid },
        vec![pidfd(Pid::from_child(&child.0))],
    );
    let changes = vec![made(2)];
    launcher.send(&ToDaemon::Objects { pid, changes }, Vec::new());
    until("the child's object", || !bench.gpu.made().is_empty());
    assert_eq!(bench.gpu.made(), [(child.0.id(), 1, 2)]);
}

#[test]
fn launcher_that_breaks_the_protocol_is_disconnected() {
    let bench = Bench::new();
    let child = Sleeper::new();
    let own = || pidfd(Pid::from_child(&child.0));
    let process = |pid| ToDaemon::Process { pid };
    let objects = |count| ToDaemon::Objects {
        pid: 1,
        changes: vec![made(1); count],
    };
    let mailbox = ToDaemon::Mailbox {
        id: 1,
        op: 1,
        args: [0; turnstile_abi::MAILBOX_ARGS],
    };
    let again = ToDaemon::program("again");
    let rules: [Vec<(ToDaemon, Vec<OwnedFd>)>; 6] = [
        vec![(process(1), vec![])],
        vec![(process(1), vec![own(), own()])],
        vec![(process(1), vec![own()]), (process(2), vec![own()])],
        vec![
            (process(1), vec![own()]),
            (objects(CHANGES_MAX + 1), vec![]),
        ],
        vec![(mailbox, vec![])],
        vec![(again, vec![])],
    ];
    for messages in rules {
        let mut launcher = Launcher::admitted(&bench);
        let text = format!("{messages:?}");
        for (message, fds) in messages {
            launcher.send(&message, fds);
        }
        assert_eq!(launcher.receive(), None, "{text}");
        until("it has left", || {
            bench
                .daemon
                .as_ref()
                .unwrap()
                .host()
                .snapshot()
                .tenants
                .is_empty()
        });
    }
}

#[test]
fn message_before_greeting_and_newer_protocol_are_refused() {
    let bench = Bench::new();
    for message in [ToDaemon::Exited { pid: 1 }, ToDaemon::Process { pid: 1 }] {
        let mut launcher = Launcher {
            stream: UnixStream::connect(bench.socket()).unwrap(),
            reader: FrameReader::new(),
        };
        launcher.send(&message, Vec::new());
        let reply = launcher.receive();
        assert!(matches!(reply, Some(ToVmm::Refused { .. })), "{reply:?}");
        assert_eq!(launcher.receive(), None);
    }
    let mut launcher = Launcher {
        stream: UnixStream::connect(bench.socket()).unwrap(),
        reader: FrameReader::new(),
    };
    let mut newer = ToDaemon::program("x");
    newer.set_protocol(PROTOCOL + 1);
    launcher.send(&newer, Vec::new());
    assert!(
        matches!(launcher.receive(), Some(ToVmm::Refused { text }) if text.contains("protocol"))
    );
}
