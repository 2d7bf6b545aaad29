//! The script that makes packages, with this crate's program for the RPM package.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

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
