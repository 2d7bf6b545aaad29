//! The script that makes packages, with this crate's program for the RPM package.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

const PACKAGE: &str = env!("CARGO_BIN_EXE_turnstile-package");

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{command:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_script_makes_both_packages_of_the_guest() {
    if Command::new("dpkg-deb").arg("--version").output().is_err() {
        println!("SKIPPED: dpkg-deb is not installed");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    // A program that answers as the guest's does.
    let guest = folder.path().join("turnstile-guest");
    fs::copy(PACKAGE, &guest).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("build");
    let mut build = Command::new(script);
    build.env("PACKAGE_RPM", PACKAGE).arg(&guest);
    let printed = run(build.arg(folder.path().join("out")));
    let [deb, rpm] = printed.lines().collect::<Vec<_>>()[..] else {
        panic!("{printed}");
    };
    let version = env!("CARGO_PKG_VERSION");
    assert!(
        deb.contains(&format!("/turnstile-guest_{version}_")),
        "{deb}"
    );
    assert!(
        rpm.contains(&format!("/turnstile-guest-{version}-1.")),
        "{rpm}"
    );
    let listing = run(Command::new("dpkg-deb").arg("--contents").arg(deb));
    let files = listing.lines().filter(|line| line.starts_with('-'));
    let of_deb: BTreeSet<String> = files
        .filter_map(|line| line.split_whitespace().next_back())
        .map(|path| path.trim_start_matches('.').to_owned())
        .collect();
    let package = rpm::Package::open(rpm).unwrap();
    let entries = package.metadata.get_file_entries().unwrap();
    let paths = entries
        .iter()
        .map(|entry| entry.path().display().to_string());
    assert_eq!(paths.collect::<BTreeSet<String>>(), of_deb);
    assert!(of_deb.contains("/usr/bin/turnstile-guest"), "{of_deb:?}");
    assert_eq!(package.metadata.get_version().unwrap(), version);
    assert!(package.metadata.get_post_install_script().is_err());
}

/// Name and version.
type Crate = (String, String);

/// The crates that cargo links into the program of a crate, without those of the workspace.
fn linked(name: &str) -> BTreeSet<Crate> {
    let mut tree = Command::new(env!("CARGO"));
    tree.args(["tree", "--offline", "--locked", "--edges", "normal"]);
    tree.args(["--prefix", "none", "--no-dedupe", "--package", name]);
    let text = run(tree.args(["--target", "x86_64-unknown-linux-gnu"]));
    let crates = text.lines().filter_map(|line| {
        let mut words = line.split(' ');
        let name = words.next()?.to_owned();
        let version = words.next()?.strip_prefix('v')?.to_owned();
        (!name.starts_with("turnstile")).then_some((name, version))
    });
    crates.collect()
}

#[test]
fn bills_of_materials_name_all_that_is_linked() {
    let tool = Command::new(env!("CARGO"))
        .args(["cyclonedx", "--version"])
        .output();
    if !tool.is_ok_and(|output| output.status.success()) {
        println!("SKIPPED: cargo-cyclonedx is not installed");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let version = "1.2.0-34-g0123456789ab";
    let write = |out: &str| {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("sbom");
        let out = folder.path().join(out);
        let printed = run(Command::new(script).arg(version).arg(&out));
        assert_eq!(printed.lines().count(), 4, "{printed}");
        out
    };
    let (first, again) = (write("first"), write("again"));
    for (name, of, others) in [
        ("turnstile", "turnstile-cli", ["rusqlite", "parquet"]),
        (
            "turnstile-guest",
            "turnstile-guest-linux",
            ["vfio-ioctls", "libc"],
        ),
    ] {
        let file = format!("{name}_{version}.cdx.json");
        let text = fs::read_to_string(first.join(&file)).unwrap();
        assert_eq!(text, fs::read_to_string(again.join(&file)).unwrap());
        assert!(!text.contains(concat!(env!("CARGO_MANIFEST_DIR"), "/")));
        assert!(!text.contains("path+file:///tmp"), "a path of this machine");
        let bill: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(bill["bomFormat"], "CycloneDX");
        assert_eq!(bill["metadata"]["component"]["name"], name);
        assert_eq!(bill["metadata"]["component"]["version"], version);
        let components = bill["components"].as_array().unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let named: BTreeSet<Crate> = components
            .iter()
            .map(|one| (text(&one["name"]), text(&one["version"])))
            .collect();
        let missing: Vec<Crate> = linked(of).difference(&named).cloned().collect();
        assert!(missing.is_empty(), "{name}: {missing:?}");
        for other in others {
            assert!(named.iter().any(|(name, _)| name == other), "{other}");
        }
        let of_tests = |(name, _): &&Crate| ["proptest", "criterion"].contains(&&**name);
        assert_eq!(named.iter().find(of_tests), None);
        for one in components {
            assert!(
                one["purl"].is_string() && one["licenses"].is_array(),
                "{one}"
            );
        }
    }
}
