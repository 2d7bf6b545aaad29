//! A daemon and its VMs as processes, for the tests of the command.
#![allow(dead_code, reason = "each test uses what it needs")]

use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// TIMEOUT: for what takes a second, on a machine that builds at the same time.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// The command under test.
pub(crate) fn turnstile() -> Command {
    Command::new(env!("CARGO_BIN_EXE_turnstile"))
}

/// A process that does not outlive the test.
pub(crate) struct Process(pub(crate) Child);

impl Process {
    /// Waits for its end; none if it still runs after `within`.
    pub(crate) fn end(&mut self, within: Duration) -> Option<ExitStatus> {
        let begin = Instant::now();
        while begin.elapsed() < within {
            if let Some(status) = self.0.try_wait().unwrap() {
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        None
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A daemon with its sockets in `folder`.
pub(crate) fn serve(folder: &Path, args: &[&str]) -> Process {
    let child = turnstile()
        .arg("serve")
        .arg("--socket")
        .arg(folder.join("vmm.sock"))
        .args(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    until("the socket", || {
        folder.join("api.sock").exists().then_some(())
    });
    Process(child)
}

/// A VM of that daemon; a thread stands in for its guest.
pub(crate) fn vm(folder: &Path, name: &str, args: &[&str]) -> Process {
    spawn_vm(folder, name, args, Stdio::null())
}

/// The same; its standard output can be read.
pub(crate) fn vm_that_reports(folder: &Path, name: &str, args: &[&str]) -> Process {
    spawn_vm(folder, name, args, Stdio::piped())
}

fn spawn_vm(folder: &Path, name: &str, args: &[&str], stdout: Stdio) -> Process {
    let child = turnstile()
        .arg("vmm")
        .arg("--socket")
        .arg(folder.join("vmm.sock"))
        .args(["--native", "--name", name])
        .args(args)
        .stdin(Stdio::piped())
        .stdout(stdout)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    Process(child)
}

/// Repeats `poll` until there is an answer.
pub(crate) fn until<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(answer) = poll() {
            return answer;
        }
        assert!(begin.elapsed() < PATIENCE, "{what} never came");
        std::thread::sleep(Duration::from_millis(20));
    }
}
