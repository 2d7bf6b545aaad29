//! CUDA in guests, without a GPU: stock Linux guests in stock QEMU load the guest module and run
//! what libcuda does at its start, against the stand-in driver.

use std::fs;
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use turnstile_nvidia_guest::check::Limits;
use turnstile_nvidia_guest::device::{Options, StandIn, serve_machine};
use turnstile_tests::machine::{Ended, Lab, LabError, Machine};

use crate::{alone, lab};

/// TIMEOUT: a boot takes 3 s and the longest guest 15 s, on an idle machine.
const LIMIT: Duration = Duration::from_secs(180);
/// What all that a VM had is freed in.
const FREED: Duration = Duration::from_secs(1);

/// The two kernels' labs; prints the reason if there are none.
fn labs() -> Option<[Lab; 2]> {
    match lab()?.with_module() {
        Ok(labs) => Some(labs),
        Err(LabError::Skipped(reason)) => {
            println!("SKIPPED: {reason}");
            None
        }
        Err(failed) => panic!("{failed}"),
    }
}

fn until(what: &str, limit: Duration, mut is: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < limit, "not {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// A guest, and the device process's thread that serves it.
struct Vm {
    folder: TempDir,
    process: Ended,
    stream: UnixStream,
    serving: JoinHandle<()>,
}

impl Vm {
    /// Boots with these commands, after loading of the module.
    fn boot(lab: &Lab, driver: &Arc<StandIn>, limits: Limits, commands: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("device");
        let listener = UnixListener::bind(&socket).unwrap();
        let commands = format!(
            "insmod_/turnstile-nv.ko+{}",
            commands.join("+").replace(' ', "_")
        );
        let machine = Machine {
            initramfs: "initramfs.gz",
            processors: 2,
            memory_mib: 512,
            options: &[],
            append: "",
            commands: &commands,
            sockets: &[(3, &socket)],
            console: &folder.path().join("console"),
        };
        let process = lab.boot(&machine).unwrap();
        let (stream, _) = listener.accept().unwrap();
        let theirs = stream.try_clone().unwrap();
        let driver = Arc::new(Arc::clone(driver));
        let options = Options {
            memory: None,
            version: "580.159.04".into(),
            limits,
            report: None,
            confined: false,
        };
        let serving = thread::spawn(move || serve_machine(theirs, driver, options).unwrap());
        Self {
            folder,
            process,
            stream,
            serving,
        }
    }

    fn console(&self) -> String {
        let path: PathBuf = self.folder.path().join("console");
        String::from_utf8_lossy(&fs::read(path).unwrap()).into_owned()
    }

    fn until(&self, line: &str) {
        let is_there = || self.console().lines().any(|own| own.trim() == line);
        until(line, LIMIT, is_there);
    }

    /// Whether all commands succeed, and the guest ends.
    fn succeeds(mut self, commands: usize) {
        assert!(self.process.ends(LIMIT).is_some(), "{}", self.console());
        let console = self.console();
        let good = console
            .lines()
            .filter(|line| line.starts_with("LAB status 0 "))
            .count();
        assert_eq!(good, commands + 1, "{console}");
        let fault = ["BUG", "WARNING:", "Oops"]
            .iter()
            .find(|word| console.contains(**word));
        assert_eq!(fault, None, "{console}");
        for line in console
            .lines()
            .filter(|line| line.contains(": ") && line.contains(" ms"))
        {
            println!("{line}");
        }
        self.serving.join().unwrap();
    }
}

#[test]
fn module_carries_programs_on_both_kernels() {
    let _alone = alone();
    let Some(labs) = labs() else { return };
    for lab in labs {
        let driver = StandIn::new().unwrap();
        let limits = Limits {
            files: 64,
            pinned_bytes: 128 << 20,
            ..Limits::default()
        };
        let commands = [
            "starts run",
            "nodes loop 100",
            "nodes poll",
            "nodes fork",
            "nodes two",
            "nodes pins 10",
            "nodes withheld",
            "nodes kill 30",
            "nodes slow 8",
            "nodes limits 64 129",
            "rmmod turnstile-nv",
            "insmod /turnstile-nv.ko",
            "starts run",
        ];
        let vm = Vm::boot(&lab, &driver, limits, &commands);
        vm.succeeds(commands.len());
        assert_eq!(driver.count(), (0, 0));
        assert!(driver.rings() >= 250, "{}", driver.rings());
    }
}

#[test]
fn doorbell_stores_make_no_calls() {
    let _alone = alone();
    let Some([lab, _]) = labs() else { return };
    let calls = |turns: &str| {
        let driver = StandIn::new().unwrap();
        Vm::boot(&lab, &driver, Limits::default(), &[turns]).succeeds(1);
        driver.calls()
    };
    assert_eq!(calls("nodes loop 10"), calls("nodes loop 1000"));
}

#[test]
fn another_vms_clients_are_refused() {
    let _alone = alone();
    let Some([one, other]) = labs() else { return };
    let driver = StandIn::new().unwrap();
    let mut victim = Vm::boot(&one, &driver, Limits::default(), &["starts hold"]);
    victim.until("started");
    // The program's child had a client of its own.
    until("one client", FREED, || driver.count().1 == 1);
    let before = driver.count();
    let foreign = format!("starts foreign {:x}", driver.any_client().unwrap());
    Vm::boot(&other, &driver, Limits::default(), &[&foreign]).succeeds(1);
    assert_eq!(driver.count(), before);
    victim.process.child().kill().unwrap();
    until("freed with its VMM", FREED, || driver.count() == (0, 0));
    victim.serving.join().unwrap();
}

#[test]
fn vmm_that_is_killed_under_load_leaves_nothing() {
    let _alone = alone();
    let Some([lab, _]) = labs() else { return };
    let driver = StandIn::new().unwrap();
    for delay_ms in [0, 50, 300] {
        let mut vm = Vm::boot(
            &lab,
            &driver,
            Limits::default(),
            &["nodes pins 1", "nodes kill 10000"],
        );
        vm.until("ok pins");
        thread::sleep(Duration::from_millis(delay_ms));
        vm.process.child().kill().unwrap();
        until("freed with its VMM", FREED, || driver.count() == (0, 0));
        vm.serving.join().unwrap();
    }
}

#[test]
fn programs_notice_that_the_device_process_is_gone() {
    let _alone = alone();
    let Some(labs) = labs() else { return };
    for lab in labs {
        let driver = StandIn::new().unwrap();
        let vm = Vm::boot(
            &lab,
            &driver,
            Limits::default(),
            &["nodes gone", "rmmod turnstile-nv"],
        );
        vm.until("held");
        vm.stream.shutdown(Shutdown::Both).unwrap();
        vm.succeeds(2);
        assert_eq!(driver.count(), (0, 0));
    }
}
