//! The version of a program: the git tag, and how far the source is from it.
//!
//! - In: the folder of a crate, in a checkout or without one. Out: `1.2.0` at the tag `v1.2.0`,
//!   `1.2.0-34-g0123456789ab` 34 commits later; none without git or without a tag.
//! - Invariants: a checkout of another project around the source is not read. Two clones give the
//!   same text, as hashes have [`HASH_DIGITS`] digits.
//! - Callers: the build scripts of programs, and a test.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Digits of a hash: git's own number grows with a clone's objects.
const HASH_DIGITS: &str = "12";

/// Sets `TURNSTILE_VERSION` for the crate in `folder`, `cargo` where there is no tag. Cargo
/// reads it again after a commit, a checkout or a tag.
pub(crate) fn set(folder: &Path, below: &str, cargo: &str) {
    let version = described(folder, below);
    let version = version.as_deref().unwrap_or(cargo);
    println!("cargo::rustc-env=TURNSTILE_VERSION={version}");
    // Without one path cargo would watch the whole crate.
    println!("cargo::rerun-if-changed=build.rs");
    for path in watched(folder, below) {
        println!("cargo::rerun-if-changed={}", path.display());
    }
}

/// The version of the checkout that has `folder` at `below`.
pub(crate) fn described(folder: &Path, below: &str) -> Option<String> {
    if !is_own(folder, below) {
        return None;
    }
    let abbrev = format!("--abbrev={HASH_DIGITS}");
    let tag = git(
        folder,
        &["describe", "--tags", &abbrev, "--match", "v[0-9]*"],
    )?;
    Some(tag.strip_prefix('v')?.to_owned())
}

/// Files of git that change with the version.
pub(crate) fn watched(folder: &Path, below: &str) -> Vec<PathBuf> {
    if !is_own(folder, below) {
        return Vec::new();
    }
    let names = ["HEAD", "logs/HEAD", "packed-refs", "refs/tags"];
    let paths = names.iter().filter_map(|name| {
        let path = git(folder, &["rev-parse", "--git-path", name])?;
        Some(folder.join(path))
    });
    paths.filter(|path| path.exists()).collect()
}

/// Whether the checkout around `folder` is this project's.
fn is_own(folder: &Path, below: &str) -> bool {
    git(folder, &["rev-parse", "--show-prefix"])
        .is_some_and(|prefix| prefix.trim_matches('/') == below)
}

fn git(folder: &Path, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new("git");
    // What git sets for a hook's programs names another checkout.
    command.env_remove("GIT_DIR").env_remove("GIT_WORK_TREE");
    let output = command
        .arg("-C")
        .arg(folder)
        .args(arguments)
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
