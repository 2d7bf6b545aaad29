//! What a package installs: built, listed, installed into a folder, its units checked, and its
//! daemon started as they would.

mod common;
#[path = "common/library.rs"]
mod library;
#[path = "common/rpm_package.rs"]
mod rpm_package;

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
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../package")
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
        // Parquet is no default of the tests' build.
        .env("PACKAGE_WITHOUT_PARTS", "1")
        .env("SOURCE_DATE_EPOCH", "1795179600");
    run(&mut build).trim().into()
}

/// Markdown files below a folder.
fn pages(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            pages(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "md") {
            found.push(path);
        }
    }
}

/// Links of the pages below a folder that lead to no file.
fn dead_links(folder: &Path) -> Vec<String> {
    let mut all = Vec::new();
    pages(folder, &mut all);
    assert!(!all.is_empty(), "{}", folder.display());
    let mut dead = Vec::new();
    for page in all {
        let text = fs::read_to_string(&page).unwrap();
        for (open, close) in [("](", ')'), ("src=\"", '"'), ("srcset=\"", '"')] {
            for part in text.split(open).skip(1) {
                let link = part.split(close).next().unwrap();
                let file = link.split('#').next().unwrap();
                if file.is_empty() || file.contains("://") || file.contains([' ', '\n']) {
                    continue;
                }
                if !page.parent().unwrap().join(file).exists() {
                    dead.push(format!("{}: {link}", page.display()));
                }
            }
        }
    }
    dead
}

#[test]
fn pages_of_packages_have_no_dead_links_and_guests_have_a_package_of_their_own() {
    if !has("dpkg-deb") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let unpacked = |package: &Path, name: &str| {
        let root = folder.path().join("unpacked").join(name);
        fs::create_dir_all(root.parent().unwrap()).unwrap();
        run(Command::new("dpkg-deb")
            .arg("--extract")
            .arg(package)
            .arg(&root));
        let doc = root.join("usr/share/doc").join(name);
        let none: Vec<String> = Vec::new();
        assert_eq!(dead_links(&doc), none);
        assert!(doc.join("changelog.gz").exists() && doc.join("copyright").exists());
        root
    };
    let root = unpacked(&build(&folder.path().join("out")), "turnstile");
    let doc = root.join("usr/share/doc/turnstile");
    assert!(doc.join("README.md").exists() && doc.join("pictures/dashboard-dark.png").exists());
    // A program that answers as the guest's does.
    let guest = folder.path().join("turnstile-guest");
    fs::copy(TURNSTILE, &guest).unwrap();
    let package = run(Command::new(package_folder().join("build"))
        .arg(&guest)
        .arg(folder.path().join("guest-out")));
    let package = PathBuf::from(package.trim());
    let root = unpacked(&package, "turnstile-guest");
    assert!(root.join("usr/bin/turnstile-guest").exists());
    assert!(!root.join("etc").exists());
    let control = run(Command::new("dpkg-deb").arg("--field").arg(&package));
    assert!(control.contains("Package: turnstile-guest"), "{control}");
    if !cfg!(feature = "parquet") {
        let refused = Command::new(package_folder().join("build"))
            .args([TURNSTILE.as_ref(), folder.path(), library().as_path()])
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(
            !refused.status.success() && error.contains("lacks parquet"),
            "{error}"
        );
    }
}

#[test]
fn manual_pages_have_all_sections_and_shells_complete_names_of_tenants() {
    let folder = tempfile::tempdir().unwrap();
    run(Command::new(TURNSTILE)
        .arg("manual")
        .arg("--folder")
        .arg(folder.path()));
    for page in [
        "turnstile",
        "turnstile-serve",
        "turnstile-vm-set",
        "turnstile-run",
    ] {
        let text = fs::read_to_string(folder.path().join(format!("{page}.1"))).unwrap();
        for section in ["FILES", "ENVIRONMENT", "\"EXIT STATUS\"", "EXAMPLES"] {
            assert!(
                text.contains(&format!(".SH {section}")),
                "{page}: {section}"
            );
        }
        assert!(text.contains("no daemon listens"), "{page}");
    }
    let bash = folder.path().join("completions");
    fs::write(
        &bash,
        run(Command::new(TURNSTILE).args(["completions", "bash"])),
    )
    .unwrap();
    let completed = |words: &str, current: &str, previous: &str| {
        let script = format!(
            "source {}; turnstile() {{ echo web-1; echo web-2; echo db; }}; COMP_WORDS=({words}); \
             _turnstile_names turnstile '{current}' {previous}; echo \"${{COMPREPLY[*]}}\"",
            bash.display()
        );
        run(Command::new("bash").args(["-c", &script]))
            .trim()
            .to_owned()
    };
    assert_eq!(completed("turnstile vm set we", "we", "set"), "web-1 web-2");
    assert_eq!(
        completed("turnstile account get ''", "", "get"),
        "web-1 web-2 db"
    );
    let zsh = run(Command::new(TURNSTILE).args(["completions", "zsh"]));
    assert_eq!(
        zsh.matches(":_turnstile_vms'").count(),
        5,
        "vm get, set, forget; usage show and export"
    );
    assert_eq!(zsh.matches(":_turnstile_accounts'").count(), 3);
    assert!(zsh.contains("\n_turnstile_vms() {"));
    let fish = run(Command::new(TURNSTILE).args(["completions", "fish"]));
    assert!(fish.contains("turnstile names vms"));
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
        (
            "-rw-r--r--",
            "./usr/lib/systemd/system/turnstile-cuda-vm@.service",
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
        (
            "-rw-r--r--",
            "./usr/share/doc/turnstile/examples/domain.xml",
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
    let shown = run(Command::new(TURNSTILE).arg("--version"));
    let version = shown.trim().rsplit(' ').next().unwrap();
    let form = |kind: &str| {
        let script = package_folder().join("versions");
        run(Command::new(script).args([kind, version]))
    };
    let field = |name: &str| run(Command::new("dpkg-deb").arg("-f").arg(&package).arg(name));
    assert_eq!(field("Version"), form("deb"));
    let again = build(&folder.path().join("again"));
    assert_eq!(
        fs::read(&package).unwrap(),
        fs::read(again).unwrap(),
        "two builds differ"
    );

    rpm_package::has_the_same(&package, &listing, form("rpm").trim());
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
    let others = [
        "turnstile.socket",
        "turnstile-api.socket",
        "turnstile-cuda-vm@.service",
    ];
    let verified = Command::new("systemd-analyze")
        .arg("verify")
        .arg(&unit)
        .args(others.map(|other| unit.with_file_name(other)))
        .output()
        .unwrap();
    // In a test folder the program is not at the unit's path, nor its pages where man searches.
    let text = String::from_utf8_lossy(&verified.stderr).into_owned();
    let meant = |line: &&str| {
        !line.contains("is not executable") && !line.contains("Command 'man ")
            // Other units of this machine.
            && line.contains("turnstile")
    };
    let wrong: Vec<&str> = text.lines().filter(meant).collect();
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
    let text = next(&manager);
    assert!(
        text.contains("READY=1") && text.contains("STATUS=software GPU"),
        "{text}"
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
