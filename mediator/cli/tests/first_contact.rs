//! The first hour: the README's blocks as they are pasted, a build without the guests' target, the
//! daemon without options, and the form of errors.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::{PATIENCE, Process};

const TURNSTILE: &str = env!("CARGO_BIN_EXE_turnstile");

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// An executable script of this name.
fn script(folder: &Path, name: &str, text: &str) {
    let path = folder.join(name);
    fs::write(&path, format!("#!/bin/bash\n{text}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// A search path that begins with this folder.
fn path_with(folder: &Path) -> String {
    format!("{}:{}", folder.display(), std::env::var("PATH").unwrap())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The README's indented blocks, by heading.
fn blocks() -> Vec<(String, String)> {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let mut found: Vec<(String, String)> = Vec::new();
    let (mut heading, mut open) = (String::new(), false);
    for line in readme.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            title.clone_into(&mut heading);
        }
        match line.strip_prefix("    ").filter(|_| !heading.is_empty()) {
            Some(code) if !line.contains("alt=") => {
                if !open {
                    found.push((heading.clone(), String::new()));
                }
                let block = &mut found.last_mut().unwrap().1;
                block.push_str(code);
                block.push('\n');
                open = true;
            }
            _ => open = false,
        }
    }
    found
}

fn block(heading: &str) -> String {
    let found = blocks().into_iter().find(|(of, _)| of == heading);
    found.unwrap_or_else(|| panic!("{heading} has no block")).1
}

#[test]
fn readme_blocks_are_command_lines_with_options_that_exist() {
    let folder = tempfile::tempdir().unwrap();
    // Options are parsed before help is printed. What stands after `--` is another command's.
    let shim = format!(
        "before=(); for word; do [ \"$word\" = -- ] && break; before+=(\"$word\"); done\n\
         exec {TURNSTILE} \"${{before[@]}}\" --help"
    );
    script(folder.path(), "turnstile", &shim);
    script(
        folder.path(),
        "cargo",
        "while [ $# -gt 0 ]; do word=$1; shift; [ \"$word\" = -- ] && exec turnstile \"$@\"; done; true",
    );
    for other in ["qemu-system-x86_64", "cloud-hypervisor", "turnstile-guest"] {
        script(folder.path(), other, "exit 0");
    }
    let headings: Vec<String> = blocks().into_iter().map(|(heading, _)| heading).collect();
    assert!(headings.len() >= 5, "{headings:?}");
    for (heading, block) in blocks() {
        // The block sets the path itself.
        let block = block.replace("export PATH=", "export OTHER=");
        let output = Command::new("bash")
            .args(["-eu", "-c", &format!("{block}\nwait")])
            .env("PATH", path_with(folder.path()))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let error = text(&output.stderr);
        assert!(output.status.success(), "{heading}: {error}");
        assert!(error.is_empty(), "{heading}: {error}");
    }
}

#[test]
fn readme_block_that_watches_a_daemon_works_as_pasted() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    fs::create_dir(&run).unwrap();
    let bin = folder.path().join("bin");
    fs::create_dir(&bin).unwrap();
    // As the built binary, with an end for what waits for a key.
    let shim = format!(
        "case $1 in ui) exec timeout 2 {TURNSTILE} \"$@\";; *) exec {TURNSTILE} \"$@\";; esac"
    );
    script(&bin, "turnstile", &shim);
    let block = block("Watch it").replace("$PWD/target/release", bin.to_str().unwrap());
    let child = Command::new("bash")
        .args(["-c", &format!("{block}\nkill $(jobs -p)\nwait")])
        .current_dir(folder.path())
        .env("TURNSTILE_SOCKETS_VMM", run.join("vmm.sock"))
        .env("TURNSTILE_API_SOCKET", run.join("api.sock"))
        .env("TURNSTILE_GPU_KIND", "soft")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap();
    let output = child.wait_with_output().unwrap();
    let (out, error) = (text(&output.stdout), text(&output.stderr));
    assert!(out.contains("http://127.0.0.1:"), "{out}{error}");
    assert!(
        out.contains("interactive") && out.contains("ENTITLED"),
        "{out}{error}"
    );
    for line in ["Listening on", "Ledger: none is kept", "Configuration: "] {
        assert!(error.contains(line), "{line}: {error}");
    }
}

#[test]
fn without_the_guests_target_the_build_succeeds_and_names_the_command() {
    let folder = tempfile::tempdir().unwrap();
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    script(
        folder.path(),
        "rustc-without",
        &format!(
            "case \"$*\" in *target-libdir*x86_64-unknown-none*) echo /nowhere;; *) exec {rustc} \"$@\";; esac"
        ),
    );
    let output = Command::new(env!("CARGO"))
        .args(["build", "--offline", "--package", "turnstile-images"])
        .arg("--target-dir")
        .arg(folder.path().join("target"))
        .env("RUSTC", folder.path().join("rustc-without"))
        .current_dir(root())
        .output()
        .unwrap();
    let error = text(&output.stderr);
    assert!(output.status.success(), "{error}");
    assert!(
        error.contains("rustup target add x86_64-unknown-none"),
        "{error}"
    );
}

#[test]
fn checks_fail_where_their_tools_are_missing_unless_that_is_permitted() {
    let folder = tempfile::tempdir().unwrap();
    script(folder.path(), "cargo", "exit 101");
    script(
        folder.path(),
        "rustup",
        "echo x86_64-unknown-none; echo x86_64-unknown-linux-musl",
    );
    let audit = |permitted: &str| {
        Command::new(root().join(".ci/run"))
            .arg("audit")
            .env("PATH", path_with(folder.path()))
            .env("CI_ALLOW_MISSING", permitted)
            .output()
            .unwrap()
    };
    let refused = audit("0");
    assert!(!refused.status.success());
    assert!(text(&refused.stdout).contains("missing: cargo-deny is not installed"));
    let permitted = audit("1");
    assert!(permitted.status.success(), "{}", text(&permitted.stderr));
    assert!(text(&permitted.stdout).contains("missing: cargo-audit is not installed"));
}

fn turnstile(arguments: &[&str]) -> Output {
    Command::new(TURNSTILE)
        .args(arguments)
        .env("RUST_BACKTRACE", "1")
        .env_remove("TURNSTILE_BACKTRACE")
        .output()
        .unwrap()
}

#[test]
fn errors_have_one_form_and_a_status_of_the_table() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing").display().to_string();
    let config = folder.path().join("wrong.toml");
    fs::write(&config, "[gpu]\nkind = \"sfot\"\n[ledger]\nwindw_ms = 1\n").unwrap();
    let config = config.display().to_string();
    let cases: [(&[&str], i32); 11] = [
        (&["vm", "--api", &missing, "list"], 4),
        (&["top", "--api", &missing], 4),
        (&["ui", "--api", &missing], 1),
        (&["vmm", "--native", "--socket", &missing, "--name", "a"], 4),
        (&["run", "--socket", &missing, "--", "true"], 125),
        (&["usage", "--ledger", &missing, "verify"], 3),
        (&["serve", "--config", &config], 2),
        (&["config", "--config", &missing, "check"], 2),
        (&["vm", "set", "a", "--wieght", "3"], 2),
        (&["vm", "--api", &missing, "set", "a"], 2),
        (&["account", "--api", &missing, "set", "a"], 2),
    ];
    for (arguments, status) in cases {
        let output = turnstile(arguments);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {error}");
        assert!(
            !error.is_empty() && output.stdout.is_empty(),
            "{arguments:?}"
        );
        for line in error.lines() {
            let rest = line.strip_prefix("turnstile: ");
            let rest = rest.unwrap_or_else(|| panic!("{arguments:?}: {error}"));
            assert!(rest.contains("; "), "no remedy: {line}");
        }
        assert!(
            !error.contains("backtrace") && !error.contains("stack"),
            "{error}"
        );
    }
    let wrong = text(&turnstile(&["serve", "--config", &config]).stderr);
    assert_eq!(wrong.lines().count(), 2, "{wrong}");
    assert!(wrong.contains("did you mean soft?"), "{wrong}");
    let tip = text(&turnstile(&["vm", "set", "a", "--wieght", "3"]).stderr);
    assert!(
        tip.contains("--weight") && tip.contains("`turnstile vm set --help`"),
        "{tip}"
    );
}

#[test]
fn daemon_without_options_makes_its_folder_and_is_found_by_its_user() {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let binary = folder.path().join("command");
    fs::copy(TURNSTILE, &binary).unwrap();
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: another user's daemon needs root");
        return;
    }
    let as_user = |arguments: &[&str]| {
        let mut command = Command::new(&binary);
        command
            .args(arguments)
            .uid(65_534)
            .gid(65_534)
            .current_dir("/")
            .env("XDG_RUNTIME_DIR", folder.path())
            .env("TURNSTILE_GPU_KIND", "soft")
            .env_remove("RUST_LOG");
        command
    };
    let log = folder.path().join("log");
    let daemon = as_user(&["serve", "--set", "safety.landlock=false"])
        .stderr(fs::File::create(&log).unwrap())
        .stdout(fs::File::create(folder.path().join("out")).unwrap())
        .spawn()
        .unwrap();
    let mut daemon = Process(daemon);
    let begin = Instant::now();
    while !as_user(&["vm", "list"]).output().unwrap().status.success() {
        assert!(
            begin.elapsed() < PATIENCE,
            "{}",
            fs::read_to_string(&log).unwrap()
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    let vm = as_user(&[
        "vmm",
        "--native",
        "--load-only",
        "--name",
        "web",
        "--seconds",
        "1",
    ]);
    let vm = { vm }.output().unwrap();
    assert!(vm.status.success(), "{}", text(&vm.stderr));
    daemon.signal(rustix::process::Signal::TERM);
    assert!(daemon.0.wait().unwrap().success());
    let log = fs::read_to_string(&log).unwrap();
    for part in [
        "GPU: Software GPU",
        "is web, account uid-65534",
        "web, has left",
        "Stopping",
    ] {
        assert!(log.contains(part), "{part}: {log}");
    }
    // Each line begins with its time.
    assert!(
        log.lines()
            .all(|line| line.starts_with("[20") && line.contains('Z')),
        "{log}"
    );
    let out = fs::read_to_string(folder.path().join("out")).unwrap();
    assert_eq!(out, "", "a snapshot is printed on request alone");
}

#[test]
fn doctor_fails_where_what_is_configured_cannot_work() {
    let folder = tempfile::tempdir().unwrap();
    let socket = format!("sockets.vmm={}/vmm.sock", folder.path().display());
    let ledger = folder.path().join("ledger");
    let path = format!("ledger.path={}", ledger.display());
    let examine = || {
        let set = [
            "--config",
            "/dev/null",
            "--set",
            &socket,
            "--set",
            &path,
            "--set",
            "gpu.kind=soft",
        ];
        turnstile(&[&["doctor"], &set[..]].concat())
    };
    let sound = examine();
    let out = text(&sound.stdout);
    assert!(sound.status.success(), "{out}");
    for part in [
        "Configuration",
        "Daemon",
        "Sockets",
        "Ledger",
        "Disk",
        "will be made",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
    fs::write(&ledger, "no ledger").unwrap();
    let broken = examine();
    let out = text(&broken.stdout);
    assert_eq!(broken.status.code(), Some(1), "{out}");
    assert!(
        out.lines()
            .any(|line| line.starts_with("Ledger") && line.contains("broken")),
        "{out}"
    );
    let wrong = turnstile(&["doctor", "--set", "ledger.windw_ms=1"]);
    assert_eq!(wrong.status.code(), Some(1));
    assert!(text(&wrong.stdout).contains("did you mean ledger.window_ms?"));
}

#[test]
fn set_commands_show_what_they_changed_and_change_something() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = folder.path().join("ledger").display().to_string();
    let windows = ["--ledger", &*ledger, "--ledger-window-s", "1"];
    let _daemon = common::serve(folder.path(), &windows);
    let api = folder.path().join("api.sock").display().to_string();
    let run = |arguments: &[&str]| {
        let output = turnstile(&[arguments, &["--api", &api]].concat());
        (
            output.status.code(),
            text(&output.stdout),
            text(&output.stderr),
        )
    };
    let cells = |out: &str, head: &str| {
        let mut lines = out.lines();
        let column = lines
            .next()
            .unwrap()
            .split_whitespace()
            .position(|cell| cell == head);
        let row = lines.next().unwrap().split_whitespace();
        row.clone()
            .nth(column.unwrap_or_else(|| panic!("{head}: {out}")))
            .unwrap()
            .to_owned()
    };
    let set = [
        "vm",
        "set",
        "web",
        "--expect",
        "--weight",
        "300",
        "--quota",
        "25%",
        "--memory-max",
        "32",
    ];
    let (status, out, error) = run(&set);
    assert_eq!(status, Some(0), "{error}");
    for (head, value) in [
        ("WEIGHT", "300"),
        ("CAP", "25.00%"),
        ("MEM-MAX", "32"),
        ("MEM-MIN", "0"),
        ("MEM-HIGH", "max"),
        ("LATENCY", "no"),
        ("GANG", "no"),
    ] {
        assert_eq!(cells(&out, head), value, "{out}");
    }
    let (status, _, error) = run(&["vm", "set", "web"]);
    assert_eq!(status, Some(2));
    assert!(
        error.starts_with("turnstile: nothing is to be set; "),
        "{error}"
    );
    let (_, out, _) = run(&["account", "set", "gold", "--new", "--memory-max", "64"]);
    assert_eq!(cells(&out, "MEM-MAX"), "64");
    let (_, out, _) = run(&["names", "vms"]);
    assert_eq!(out, "web\n");
    common::until("a window", || {
        run(&["usage", "show"]).0.filter(|status| *status == 0)
    });
    // A mistyped tenant is refused; one that has nothing in the ledger yet is not.
    let (status, out, error) = run(&["usage", "show", "--tenant", "wbe"]);
    assert_eq!((status, out.as_str()), (Some(3), ""), "{error}");
    let (status, _, error) = run(&["usage", "show", "--tenant", "web"]);
    assert_eq!(status, Some(0), "{error}");
}
