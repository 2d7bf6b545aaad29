//! What a package installs: built, listed, installed into a folder, its units checked, and its
//! daemon started as they would.

mod common;
#[path = "common/library.rs"]
mod library;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{PATIENCE, Process};
use library::library;

const TURNSTILE: &str = env!("CARGO_BIN_EXE_turnstile");

fn package_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("package")
}

/// Whether a program is installed; prints a message if not.
fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok();
    if !found {
        println!("SKIPPED: {program} is not installed");
    }
    found
}

/// What a command printed; it has to succeed.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let error = text(&output.stderr);
    assert!(
        output.status.success(),
        "{command:?}: {error}{}",
        text(&output.stdout)
    );
    text(&output.stdout)
}

fn build(out: &Path) -> PathBuf {
    let mut build = Command::new(package_folder().join("build"));
    build
        .arg(TURNSTILE)
        .arg(out)
        .arg(library())
        .env("SOURCE_DATE_EPOCH", "1795179600");
    run(&mut build).trim().into()
}

#[test]
fn a_debian_package_has_what_an_operator_needs_and_installs() {
    if !has("dpkg-deb") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let package = build(&folder.path().join("out"));
    let listing = run(Command::new("dpkg-deb").arg("--contents").arg(&package));
    let wanted = [
        ("-rwxr-xr-x", "./usr/bin/turnstile"),
        ("-rw-r--r--", "./usr/lib/turnstile/libturnstile_isolated.so"),
        ("-rw-r--r--", "./usr/lib/turnstile/libturnstile_preload.so"),
        ("-rw-r--r--", "./etc/turnstile/turnstile.toml"),
        ("drwxr-xr-x", "./etc/turnstile/conf.d/"),
        ("-rw-r--r--", "./usr/lib/systemd/system/turnstile.service"),
        ("-rw-r--r--", "./usr/lib/systemd/system/turnstile.socket"),
        (
            "-rw-r--r--",
            "./usr/lib/systemd/system/turnstile-api.socket",
        ),
        ("-rw-r--r--", "./usr/lib/sysusers.d/turnstile.conf"),
        ("-rw-r--r--", "./usr/share/man/man1/turnstile.1.gz"),
        ("-rw-r--r--", "./usr/share/man/man1/turnstile-serve.1.gz"),
        (
            "-rw-r--r--",
            "./usr/share/bash-completion/completions/turnstile",
        ),
        (
            "-rw-r--r--",
            "./usr/share/zsh/vendor-completions/_turnstile",
        ),
        (
            "-rw-r--r--",
            "./usr/share/fish/vendor_completions.d/turnstile.fish",
        ),
        ("-rw-r--r--", "./usr/share/doc/turnstile/OPERATIONS.md"),
        ("-rw-r--r--", "./usr/share/doc/turnstile/API.md"),
        ("-rw-r--r--", "./usr/share/doc/turnstile/DEVICE.md"),
        (
            "-rw-r--r--",
            "./usr/share/doc/turnstile/monitoring/rules.yml",
        ),
        (
            "-rw-r--r--",
            "./usr/share/doc/turnstile/monitoring/grafana.json",
        ),
        (
            "-rw-r--r--",
            "./usr/share/doc/turnstile/examples/nvidia.conf",
        ),
    ];
    for (mode, path) in wanted {
        let line = listing
            .lines()
            .find(|line| line.split_whitespace().next_back() == Some(path));
        let line = line.unwrap_or_else(|| panic!("{path} is missing:\n{listing}"));
        assert!(
            line.starts_with(mode) && line.contains("root/root"),
            "{line}"
        );
    }
    let again = build(&folder.path().join("again"));
    assert_eq!(
        fs::read(&package).unwrap(),
        fs::read(again).unwrap(),
        "two builds differ"
    );

    let root = folder.path().join("root");
    fs::create_dir_all(root.join("var/lib/dpkg/updates")).unwrap();
    fs::create_dir_all(root.join("var/lib/dpkg/info")).unwrap();
    fs::write(root.join("var/lib/dpkg/status"), "").unwrap();
    let dpkg = || {
        let mut dpkg = Command::new("dpkg");
        dpkg.arg(format!("--root={}", root.display()))
            .args([
                "--force-script-chrootless",
                "--force-depends",
                "--force-not-root",
            ])
            .arg(format!("--log={}", folder.path().join("log").display()));
        dpkg
    };
    run(dpkg().arg("--install").arg(&package));
    let status = run(dpkg().args(["--status", "turnstile"]));
    assert!(status.contains("Status: install ok installed"), "{status}");
    assert!(
        status.contains("/etc/turnstile/turnstile.toml"),
        "no conffile: {status}"
    );
    let installed = root.join("usr/bin/turnstile");
    let config = root.join("etc/turnstile/turnstile.toml");
    run(Command::new(&installed)
        .arg("config")
        .arg("--config")
        .arg(&config)
        .arg("check"));
    units_are_sound(&root);
    // What an operator changed survives an upgrade, and a removal.
    fs::write(&config, "[ledger]\nkeep_days = 1\n").unwrap();
    run(dpkg().arg("--install").arg(&package));
    run(dpkg().args(["--remove", "turnstile"]));
    assert!(!installed.exists());
    assert_eq!(
        fs::read_to_string(&config).unwrap(),
        "[ledger]\nkeep_days = 1\n"
    );
}

fn units_are_sound(root: &Path) {
    if !has("systemd-analyze") {
        return;
    }
    let unit = root.join("usr/lib/systemd/system/turnstile.service");
    let security = Command::new("systemd-analyze")
        .args(["security", "--offline=true", "--threshold=20"])
        .arg(&unit)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&security.stdout).into_owned();
    let level = text.lines().last().unwrap_or_default().to_owned();
    assert!(security.status.success(), "exposed more than 2.0: {text}");
    println!("{level}");
    let sockets = ["turnstile.socket", "turnstile-api.socket"];
    let verified = Command::new("systemd-analyze")
        .arg("verify")
        .arg(&unit)
        .args(sockets.map(|socket| unit.with_file_name(socket)))
        .output()
        .unwrap();
    // In a test folder the program is not at the unit's path, nor its pages where man searches.
    let said = String::from_utf8_lossy(&verified.stderr).into_owned();
    let meant = |line: &&str| {
        !line.contains("is not executable") && !line.contains("Command 'man ")
            // Other units of this machine.
            && line.contains("turnstile")
    };
    let wrong: Vec<&str> = said.lines().filter(meant).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_command_has_a_page_and_an_entry_in_the_completions() {
    let folder = tempfile::tempdir().unwrap();
    run(Command::new(TURNSTILE)
        .arg("manual")
        .arg("--folder")
        .arg(folder.path()));
    let help = run(Command::new(TURNSTILE).arg("--help"));
    let commands: BTreeSet<&str> = help
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .collect();
    assert!(commands.contains("serve"), "{help}");
    let bash = run(Command::new(TURNSTILE).args(["completions", "bash"]));
    for name in &commands {
        let page = folder.path().join(format!("turnstile-{name}.1"));
        let text = fs::read_to_string(&page).unwrap_or_else(|_| panic!("{name} has no page"));
        assert!(text.contains(".SH DESCRIPTION"), "{text}");
        assert!(
            bash.contains(&format!("turnstile,{name})")),
            "{name} is not completed"
        );
    }
}

/// A daemon under a service manager that listens here.
fn served(folder: &Path, watchdog: Option<Duration>) -> (Process, UnixDatagram) {
    let manager = UnixDatagram::bind(folder.join("notify")).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut command = Command::new(TURNSTILE);
    command
        .args(["serve", "--config", "/dev/null", "--socket"])
        .arg(folder.join("vmm.sock"))
        .env("NOTIFY_SOCKET", folder.join("notify"))
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    if let Some(limit) = watchdog {
        command.env("WATCHDOG_USEC", limit.as_micros().to_string());
    }
    (Process(command.spawn().unwrap()), manager)
}

fn next(manager: &UnixDatagram) -> String {
    let mut bytes = [0; 4096];
    let length = manager.recv(&mut bytes).expect("the daemon said nothing");
    String::from_utf8_lossy(&bytes[..length]).into_owned()
}

#[test]
fn service_manager_is_notified_of_ready_watchdog_and_stopping() {
    let folder = tempfile::tempdir().unwrap();
    let (mut daemon, manager) = served(folder.path(), Some(Duration::from_millis(300)));
    let said = next(&manager);
    assert!(
        said.contains("READY=1") && said.contains("STATUS=software GPU"),
        "{said}"
    );
    assert!(
        folder.path().join("vmm.sock").exists(),
        "ready, and does not listen"
    );
    for _ in 0..3 {
        assert!(next(&manager).contains("WATCHDOG=1"));
    }
    daemon.signal(rustix::process::Signal::TERM);
    while !next(&manager).contains("STOPPING=1") {}
    assert!(daemon.0.wait().unwrap().success());
}

#[test]
fn a_socket_of_the_service_manager_is_used_and_left_to_the_next_daemon() {
    // Its --version is systemd's.
    if !has("systemd-socket-activate") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("vmm.sock");
    let manager = UnixDatagram::bind(folder.path().join("notify")).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let activated = Command::new("systemd-socket-activate")
        .arg("--listen")
        .arg(&socket)
        .arg(format!(
            "--setenv=NOTIFY_SOCKET={}",
            folder.path().join("notify").display()
        ))
        .arg(TURNSTILE)
        .args(["serve", "--config", "/dev/null", "--socket"])
        .arg(&socket)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut daemon = Process(activated);
    let begin = std::time::Instant::now();
    // It becomes the daemon at the first connection, which is then answered.
    let stream = loop {
        match std::os::unix::net::UnixStream::connect(&socket) {
            Ok(stream) => break stream,
            Err(_) if begin.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(20)),
            Err(error) => panic!("{error}"),
        }
    };
    while !next(&manager).contains("READY=1") {}
    drop(stream);
    let vm = Command::new(TURNSTILE)
        .args([
            "vmm",
            "--native",
            "--load-only",
            "--name",
            "a",
            "--seconds",
            "1",
            "--socket",
        ])
        .arg(&socket)
        .output()
        .unwrap();
    assert!(
        vm.status.success(),
        "{}",
        String::from_utf8_lossy(&vm.stderr)
    );
    daemon.signal(rustix::process::Signal::TERM);
    assert!(daemon.0.wait().unwrap().success());
    assert!(socket.exists(), "the manager's socket is gone");
}
