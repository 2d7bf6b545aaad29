//! Programs with the library, a device process's threads, and the stand-in driver.

use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use turnstile_nvidia_guest::check::Limits;
use turnstile_nvidia_guest::device::{Options, StandIn, serve};
use turnstile_nvidia_guest::proto::VARIABLE;

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/starts.c");
/// TIMEOUT: what takes milliseconds, on a machine that does much else.
const LIMIT: Duration = Duration::from_secs(20);

/// The library beside the tests, or above them.
fn library() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let found = own
        .ancestors()
        .skip(1)
        .take(2)
        .map(|folder| folder.join("libturnstile_isolated.so"));
    found
        .into_iter()
        .find(|path| path.is_file())
        .expect("cargo builds the library with its tests")
}

fn program(folder: &Path) -> PathBuf {
    let program = folder.join("starts");
    let built = Command::new("cc")
        .arg("-w")
        .arg("-o")
        .arg(&program)
        .arg(SOURCE)
        .status();
    assert!(built.unwrap().success());
    program
}

/// A program that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// A VM: its device process as a thread.
struct Vm {
    socket: PathBuf,
    life: Option<UnixStream>,
    lines: UnixDatagram,
    serving: JoinHandle<()>,
}

impl Vm {
    fn new(folder: &Path, name: &str, driver: &Arc<StandIn>, limits: Limits) -> Self {
        let socket = folder.join(name);
        let listener = UnixListener::bind(&socket).unwrap();
        let (life, theirs) = UnixStream::pair().unwrap();
        let (report, lines) = UnixDatagram::pair().unwrap();
        lines.set_nonblocking(true).unwrap();
        let driver = Arc::new(Arc::clone(driver));
        let options = Options {
            memory: None,
            version: "580.159.04".into(),
            limits,
            report: Some(report),
            confined: false,
        };
        let serving =
            thread::spawn(move || serve(&listener, &theirs.as_fd(), driver, options).unwrap());
        Self {
            socket,
            life: Some(life),
            lines,
            serving,
        }
    }

    fn command(&self, program: &Path, words: &[&str]) -> Command {
        let mut command = Command::new(program);
        command
            .args(words)
            .env("LD_PRELOAD", library())
            .env(VARIABLE, &self.socket);
        command
    }

    fn start(&self, program: &Path) -> Running {
        let mut child = self
            .command(program, &["hold"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let running = Running(child);
        assert_eq!(line, "started\n");
        running
    }

    fn line(&self) -> Option<String> {
        let mut bytes = [0; 128];
        let got = self.lines.recv(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes[..got]).into_owned())
    }

    /// Ends as with its launcher.
    fn end(mut self) {
        self.life.take();
        self.serving.join().unwrap();
    }
}

fn until(what: &str, mut so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !so() {
        assert!(begun.elapsed() < LIMIT, "not {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn program_without_a_node_starts_submits_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (program, driver) = (program(folder.path()), StandIn::new().unwrap());
    let vm = Vm::new(folder.path(), "vm", &driver, Limits::default());
    let status = vm.command(&program, &["run"]).status().unwrap();
    assert!(status.success());
    until("freed", || driver.count() == (0, 0));
    assert_eq!(driver.rings(), 1);
    let own = std::process::id();
    let lines: Vec<String> = std::iter::from_fn(|| vm.line()).collect();
    let has = |start: &str| lines.iter().any(|line| line.starts_with(start));
    assert!(
        has("+ ")
            && lines
                .iter()
                .any(|line| line.contains("5c000007 c86f 5c000006 0")),
        "{lines:?}"
    );
    assert!(
        has(&format!("+ {own} ")) && has(&format!("- {own} ")),
        "{lines:?}"
    );
    vm.end();
}

#[test]
fn killed_program_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (program, driver) = (program(folder.path()), StandIn::new().unwrap());
    let vm = Vm::new(folder.path(), "vm", &driver, Limits::default());
    for _ in 0..5 {
        let mut child = vm.start(&program);
        assert!(driver.count().0 > 5);
        // The driver has the program's file itself, which other processes have too.
        let number = child.0.id();
        assert!(maps_shared_file(number));
        child.0.kill().unwrap();
        until("freed", || driver.count() == (0, 0));
        until("unmapped", || !maps_shared_file(number));
    }
    vm.end();
}

/// Whether the device process, which is this one, maps the file that this `starts` shares.
fn maps_shared_file(number: u32) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.contains(&format!("/dev/shm/turnstile-starts-{number} "))
}

#[test]
fn a_client_of_another_vm_is_refused_before_the_driver() {
    let folder = tempfile::tempdir().unwrap();
    let (program, driver) = (program(folder.path()), StandIn::new().unwrap());
    let victim = Vm::new(folder.path(), "one", &driver, Limits::default());
    let attacker = Vm::new(folder.path(), "two", &driver, Limits::default());
    let child = victim.start(&program);
    // The program's child had a client of its own.
    until("one client", || driver.count().1 == 1);
    let client = format!("{:x}", driver.any_client().unwrap());
    let before = driver.count();
    let status = attacker
        .command(&program, &["foreign", &client])
        .status()
        .unwrap();
    assert!(status.success());
    until("the attacker is gone", || driver.count() == before);
    drop(child);
    victim.end();
    attacker.end();
}

#[test]
fn limits_are_the_vms_and_hold() {
    let folder = tempfile::tempdir().unwrap();
    let (program, driver) = (program(folder.path()), StandIn::new().unwrap());
    let limits = Limits {
        gpu_bytes: Some(1 << 20),
        ..Limits::default()
    };
    let vm = Vm::new(folder.path(), "vm", &driver, limits);
    // The program's first memory of the GPU is 2 MiB.
    let output = vm.command(&program, &["run"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && text.contains("params) == 0"),
        "{text}"
    );
    vm.end();
}

#[test]
fn device_process_serves_on_until_its_last_program_ends() {
    let folder = tempfile::tempdir().unwrap();
    let (program, driver) = (program(folder.path()), StandIn::new().unwrap());
    let mut vm = Vm::new(folder.path(), "vm", &driver, Limits::default());
    let child = vm.start(&program);
    vm.life.take();
    let status = vm.command(&program, &["run"]).status().unwrap();
    assert!(status.success(), "a launcher that is gone");
    drop(child);
    vm.serving.join().unwrap();
    assert_eq!(driver.count(), (0, 0));
}

#[test]
fn device_process_ends_after_programs_that_end_meanwhile() {
    let folder = tempfile::tempdir().unwrap();
    for round in 0..200 {
        let driver = StandIn::new().unwrap();
        let name = round.to_string();
        let vm = Vm::new(folder.path(), &name, &driver, Limits::default());
        let program = UnixStream::connect(&vm.socket).unwrap();
        drop(program);
        vm.end();
    }
}
