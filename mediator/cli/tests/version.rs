//! Where the version comes from, and its forms in packages.

use std::fs;
use std::path::Path;
use std::process::Command;

#[path = "../../package/version.rs"]
#[allow(dead_code, reason = "a part is for build scripts")]
mod version;

use version::{described, watched};

fn git(folder: &Path, arguments: &[&str]) {
    let name = ["-c", "user.name=t", "-c", "user.email=t@t.invalid"];
    let mut command = Command::new("git");
    let command = command.arg("-C").arg(folder).args(name).args(arguments);
    assert!(command.output().unwrap().status.success(), "{arguments:?}");
}

#[test]
fn the_version_is_the_tag_or_the_distance_from_it() {
    let checkout = tempfile::tempdir().unwrap();
    let root = checkout.path();
    let folder = root.join("mediator/cli");
    fs::create_dir_all(&folder).unwrap();
    let now = || described(&folder, "mediator/cli");
    assert_eq!(now(), None, "without git");
    git(root, &["init", "--quiet"]);
    let commit = || git(root, &["commit", "--quiet", "--allow-empty", "-m", "a: b"]);
    commit();
    assert_eq!(now(), None, "without a tag");
    assert!(watched(&folder, "mediator/cli").len() > 1);
    git(root, &["tag", "v1.2.0"]);
    assert_eq!(now().as_deref(), Some("1.2.0"));
    commit();
    git(root, &["tag", "not-a-version"]);
    let later = now().unwrap();
    let hash = later.strip_prefix("1.2.0-1-g").unwrap();
    assert!(hash.len() == 12 && hash.chars().all(|c| c.is_ascii_hexdigit()));
    git(root, &["tag", "-a", "-m", "candidate", "v1.3.0-rc.1"]);
    assert_eq!(now().as_deref(), Some("1.3.0-rc.1"));
    // A source archive that was unpacked within a checkout of another project.
    assert_eq!(described(&folder, "cli"), None);
    assert!(watched(&folder, "cli").is_empty());
}

#[test]
fn the_command_shows_the_version_of_its_source() {
    let output = Command::new(env!("CARGO_BIN_EXE_turnstile"))
        .arg("--version")
        .output()
        .unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    let own = described(Path::new(env!("CARGO_MANIFEST_DIR")), "mediator/cli");
    let cargo = env!("CARGO_PKG_VERSION").to_owned();
    // A source archive has no tag: there the version is cargo's, so that both have to be one.
    if let Some(tag) = own.as_ref().filter(|own| !own.contains("-g")) {
        assert_eq!(*tag, cargo);
    }
    let own = own.unwrap_or(cargo);
    assert_eq!(shown, format!("turnstile {own}\n"));
}

fn packaged(form: &str, version: &str) -> String {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../package/versions");
    let output = Command::new(script).args([form, version]).output().unwrap();
    assert!(output.status.success(), "{form} {version}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// In the order in which packages have to replace each other.
const VERSIONS: [[&str; 4]; 5] = [
    ["1.2.0-rc.1", "1.2.0~rc.1", "1.2.0~rc.1", "v1.2.0-rc.1"],
    [
        "1.2.0-rc.1-5-gab",
        "1.2.0~rc.1+5.gab",
        "1.2.0~rc.1^5.gab",
        "ab",
    ],
    ["1.2.0", "1.2.0", "1.2.0", "v1.2.0"],
    ["1.2.0-34-g01", "1.2.0+34.g01", "1.2.0^34.g01", "01"],
    ["1.2.1", "1.2.1", "1.2.1", "v1.2.1"],
];

#[test]
fn versions_of_packages_are_ordered_as_their_sources() {
    for [version, deb, rpm, source] in VERSIONS {
        assert_eq!(packaged("deb", version), deb);
        assert_eq!(packaged("rpm", version), rpm);
        assert_eq!(packaged("source", version), source);
    }
    for pair in VERSIONS.windows(2) {
        let arguments = ["--compare-versions", pair[0][1], "lt", pair[1][1]];
        let Ok(compared) = Command::new("dpkg").args(arguments).status() else {
            println!("SKIPPED: dpkg is not installed");
            return;
        };
        assert!(compared.success(), "{arguments:?}");
    }
}
