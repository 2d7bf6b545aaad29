//! `turnstile run` against real daemons over a GPU that records its calls. The programs make the
//! driver calls of a CUDA program, on a file that refuses them.

mod cards;
mod gpu;
#[path = "../common/library.rs"]
mod library;
mod movable;
mod moved;
mod moving;
mod strangers;

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use gpu::{FakeGpu, GpuCall};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use turnstile_accounting::TenantId;
use turnstile_daemon::{Daemon, DaemonConfig, TenantKind};
use turnstile_gpu::Gpu;
use turnstile_soft::{SoftConfig, SoftGpu};

const CLIENT: u32 = 0xc1d0_0019;

/// Waits until something holds. TIMEOUT: everything here takes milliseconds; a busy machine gets a
/// minute.
fn until(what: &str, holds: impl Fn() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < Duration::from_secs(60), "{what}");
        thread::sleep(Duration::from_millis(2));
    }
}

struct Bench {
    folder: TempDir,
    gpu: Arc<FakeGpu>,
    daemon: Option<Daemon>,
}

impl Bench {
    fn new() -> Self {
        // Shows the daemon's log where RUST_LOG selects it.
        let _ = env_logger::builder().is_test(true).try_init();
        let mut this = Self {
            folder: tempfile::tempdir().unwrap(),
            gpu: FakeGpu::new(),
            daemon: None,
        };
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/actor.c");
        let built = Command::new("cc")
            .arg("-o")
            .arg(this.path("actor"))
            .arg(source)
            .status();
        assert!(built.unwrap().success());
        this.restart();
        this
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn socket(&self) -> PathBuf {
        self.path("vmm.sock")
    }

    /// A new daemon over a new GPU, both without any state.
    fn restart(&mut self) {
        self.restart_over(FakeGpu::new());
    }

    fn restart_over(&mut self, gpu: Arc<FakeGpu>) {
        self.daemon = None;
        self.gpu = gpu;
        self.daemon = Some(start(&self.socket(), self.gpu.clone()));
    }

    fn run(&self, options: &[&str], command: &[&str]) -> Command {
        let mut run = Command::new(env!("CARGO_BIN_EXE_turnstile"));
        run.arg("run")
            .arg("--socket")
            .arg(self.socket())
            .args(options)
            .arg("--")
            .args(command);
        run.stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        run
    }

    fn end(&self, command: &[&str]) -> (Option<i32>, String) {
        let Output { status, stderr, .. } = self.run(&[], command).output().unwrap();
        (status.code(), String::from_utf8(stderr).unwrap())
    }

    /// The actor, which continues when `go` is called.
    fn actor(&self, options: &[&str], client: u32) -> Child {
        let (actor, go) = (self.path("actor"), self.path("go"));
        let (actor, go) = (actor.to_str().unwrap(), go.to_str().unwrap());
        self.run(options, &[actor, &format!("{client:x}"), go])
            .spawn()
            .unwrap()
    }

    fn go(&self) {
        File::create(self.path("go")).unwrap();
    }
}

fn start(socket: &Path, gpu: Arc<dyn Gpu>) -> Daemon {
    let policy = match gpu.capabilities().time_slices {
        true => "owed",
        false => turnstile_policies::DEFAULT_POLICY,
    };
    let mut config = DaemonConfig::new(socket);
    config.host.policy = policy.into();
    Daemon::start(config, gpu).unwrap()
}

fn kill(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

#[test]
fn program_is_a_tenant_and_its_objects_are_reported() {
    let bench = Bench::new();
    let mut actor = bench.actor(&["--name", "train", "--weight", "300"], CLIENT);
    until("two objects", || bench.gpu.made().len() == 2);
    let made = bench.gpu.made();
    let pid = made[0].0;
    assert_ne!(pid, actor.id(), "the command's own process");
    assert_eq!(made, [(pid, CLIENT, 0x10), (pid, CLIENT, 0x11)]);
    let snapshot = bench.daemon.as_ref().unwrap().host().snapshot();
    let [tenant] = &snapshot.tenants[..] else {
        panic!("{snapshot:?}");
    };
    assert_eq!((tenant.name.as_str(), tenant.weight), ("train", 300));
    assert_eq!(tenant.kind, TenantKind::Program { processes: 1 });
    let json = serde_json::to_value(&snapshot).unwrap();
    assert_eq!(json["tenants"][0]["kind"], "program");
    assert_eq!(json["untracked"][0]["name"], "init");
    bench.go();
    assert_eq!(actor.wait().unwrap().code(), Some(7));
    let tenant = TenantId(1);
    until("it has left", || {
        bench.gpu.calls().contains(&GpuCall::Left(tenant))
    });
    let calls = bench.gpu.calls();
    assert_eq!(calls[0], GpuCall::Program(tenant, actor.id()));
    until("no tenant", || {
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

#[test]
fn the_status_is_the_commands() {
    let bench = Bench::new();
    assert_eq!(bench.end(&["sh", "-c", "exit 3"]).0, Some(3));
    assert_eq!(bench.end(&["sh", "-c", "kill -9 $$"]).0, Some(128 + 9));
    assert_eq!(bench.end(&["/nonexistent"]).0, Some(127));
    assert_eq!(bench.end(&["/dev/null"]).0, Some(126));
}

#[test]
fn run_without_a_usable_daemon_fails_with_advice() {
    let mut bench = Bench::new();
    bench.daemon = None;
    let (code, text) = bench.end(&["true"]);
    assert_eq!(code, Some(125));
    assert!(
        text.contains("turnstile serve") && text.contains("--socket"),
        "{text}"
    );
    let soft: Arc<dyn Gpu> = Arc::new(SoftGpu::new(SoftConfig::default()).unwrap());
    bench.daemon = Some(start(&bench.socket(), soft));
    let (code, text) = bench.end(&["touch", bench.path("made").to_str().unwrap()]);
    assert_eq!(code, Some(125));
    assert!(text.contains("need an NVIDIA GPU"), "{text}");
    assert!(!bench.path("made").exists(), "the command did not run");
}

#[test]
fn signals_are_passed_on() {
    let bench = Bench::new();
    for (signal, name, code) in [
        (Signal::TERM, "TERM", 41),
        (Signal::INT, "INT", 42),
        (Signal::HUP, "HUP", 43),
        (Signal::USR1, "USR1", 44),
    ] {
        let script = format!("trap 'exit {code}' {name}; echo ready; while :; do sleep 0.02; done");
        // Signals may be ignored in the process that runs the tests (a shell does so for background
        // jobs), and shells keep that.
        let command = ["env", "--default-signal", "sh", "-c", &script];
        let mut run = bench.run(&[], &command).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(run.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert_eq!(line, "ready\n");
        kill(&run, signal);
        assert_eq!(run.wait().unwrap().code(), Some(code), "{name}");
    }
}

#[test]
fn what_the_command_leaves_behind_is_still_the_tenant() {
    let bench = Bench::new();
    let (actor, go) = (bench.path("actor"), bench.path("go"));
    let script = format!(
        "'{}' {CLIENT:x} '{}' & exit 5",
        actor.display(),
        go.display()
    );
    let mut run = bench.run(&[], &["sh", "-c", &script]).spawn().unwrap();
    until("an orphan's objects", || bench.gpu.made().len() == 2);
    assert!(run.try_wait().unwrap().is_none());
    bench.go();
    assert_eq!(run.wait().unwrap().code(), Some(5));
}

#[test]
fn restarted_daemon_receives_all_objects() {
    let mut bench = Bench::new();
    let mut actor = bench.actor(&[], CLIENT);
    until("two objects", || bench.gpu.made().len() == 2);
    let before = bench.gpu.made();
    bench.restart();
    until("two objects again", || bench.gpu.made().len() == 2);
    assert_eq!(bench.gpu.made(), before);
    // Without a daemon the program is not disturbed.
    bench.daemon = None;
    bench.go();
    assert_eq!(actor.wait().unwrap().code(), Some(7));
}

#[test]
fn a_launcher_that_is_killed_takes_no_program_with_it() {
    let bench = Bench::new();
    let (actor, go, mark) = (bench.path("actor"), bench.path("go"), bench.path("mark"));
    let script = format!(
        "'{}' {CLIENT:x} '{}'; echo $? >'{}.tmp'; mv '{}.tmp' '{}'",
        actor.display(),
        go.display(),
        mark.display(),
        mark.display(),
        mark.display()
    );
    let mut run = bench.run(&[], &["sh", "-c", &script]).spawn().unwrap();
    until("two objects", || bench.gpu.made().len() == 2);
    kill(&run, Signal::KILL);
    run.wait().unwrap();
    until("it has left", || {
        bench.gpu.calls().contains(&GpuCall::Left(TenantId(1)))
    });
    bench.go();
    until("the actor's end", || mark.exists());
    // Its last call was let through: the status is that of /dev/null's answer, not that of a filter
    // without a supervisor.
    assert_eq!(fs::read_to_string(mark).unwrap(), "7\n");
}

#[test]
fn a_program_within_a_program_is_no_tenant_of_its_own() {
    let bench = Bench::new();
    let (turnstile, socket) = (env!("CARGO_BIN_EXE_turnstile"), bench.socket());
    let socket = socket.to_str().unwrap();
    let inner = [
        turnstile, "run", "--weight", "9999", "--socket", socket, "--", "true",
    ];
    let output = bench.run(&["--name", "outer"], &inner).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("within outer"), "{text}");
}

#[test]
fn a_client_is_the_first_ones_that_names_it() {
    let bench = Bench::new();
    let mut first = bench.actor(&[], CLIENT);
    until("two objects", || bench.gpu.made().len() == 2);
    let made = bench.gpu.made();
    let (actor, client) = (bench.path("actor"), format!("{CLIENT:x}"));
    let (code, _) = bench.end(&[actor.to_str().unwrap(), &client]);
    assert_eq!(code, Some(7));
    // By then the daemon has handled all of its reports.
    until("it has left", || {
        bench.gpu.calls().contains(&GpuCall::Left(TenantId(2)))
    });
    assert_eq!(bench.gpu.made(), made);
    bench.go();
    assert_eq!(first.wait().unwrap().code(), Some(7));
    until("it has left", || {
        bench.gpu.calls().contains(&GpuCall::Left(TenantId(1)))
    });
    // The client is free again.
    let mut third = bench.actor(&[], CLIENT);
    assert_eq!(third.wait().unwrap().code(), Some(7));
}

#[test]
fn preload_library_reports_objects_where_the_kernel_cannot() {
    let bench = Bench::new();
    let own = std::env::current_exe().unwrap();
    let name = "libturnstile_preload.so";
    let folders = own.ancestors().skip(1).take(2);
    let Some(library) = folders
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
    else {
        eprintln!("SKIPPED: {name} was not built with these tests (cargo test --workspace does)");
        return;
    };
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../preload/tests/answered.c");
    let program = bench.path("answered");
    let built = Command::new("cc")
        .arg("-o")
        .arg(&program)
        .arg(source)
        .status();
    assert!(built.unwrap().success());
    let library = library.to_str().unwrap();
    let options = ["--learn", "preload", "--preload", library];
    let (program, go) = (program.to_str().unwrap(), bench.path("go"));
    let mut run = bench
        .run(&options, &[program, go.to_str().unwrap()])
        .spawn()
        .unwrap();
    until("two objects", || bench.gpu.made().len() == 2);
    let made = bench.gpu.made();
    let client = 0xc1d0_0001;
    let pid = made[0].0;
    assert_ne!(pid, run.id());
    assert_eq!(made, [(pid, client, 0x10), (pid, client, 0x11)]);
    bench.go();
    assert_eq!(run.wait().unwrap().code(), Some(5));
}

#[test]
fn a_library_that_is_not_there_is_named() {
    let bench = Bench::new();
    let options = ["--learn", "preload", "--preload", "/nonexistent/library.so"];
    let output = bench.run(&options, &["true"]).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        text.contains("/nonexistent/library.so is not there"),
        "{text}"
    );
}
