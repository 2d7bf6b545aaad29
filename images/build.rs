//! Builds the freestanding guest, which is for another target, with the cargo that builds this.

use std::env;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const TARGET: &str = "x86_64-unknown-none";

/// What the guest depends on, relative to this folder.
const SOURCES: &[&str] = &[
    "guest/Cargo.toml",
    "guest/Cargo.lock",
    "guest/src",
    "workload/Cargo.toml",
    "workload/src",
    "../guest-agent/Cargo.toml",
    "../guest-agent/src",
    "../vmm-plugin/abi/Cargo.toml",
    "../vmm-plugin/abi/src",
    "../Cargo.toml",
];

/// Static, at 1 MiB, pages of 4 KiB. Passed here and not by a `.cargo/config.toml`, which cargo
/// would look for from the folder that it was called in.
const RUSTFLAGS: &[&str] = &[
    "-Crelocation-model=static",
    "-Clink-arg=--image-base=0x100000",
    "-Clink-arg=-e_start",
    "-Clink-arg=-zmax-page-size=4096",
];

/// Flags of the guest: its own, and those by which the build around it hides paths.
fn flags() -> Vec<String> {
    let around = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    let maps = around.split('\u{1f}');
    let maps = maps.filter(|flag| flag.starts_with("--remap-path-prefix="));
    let own = RUSTFLAGS.iter().copied();
    own.chain(maps).map(str::to_owned).collect()
}

/// Set where cargo calls this program in place of rustc.
const WRAPS: &str = "TURNSTILE_GUEST_RUSTC";

/// Runs rustc without cargo's hash of a crate, which has the crate's absolute path in it where the
/// crate is outside of the guest's workspace. The guest is then the same bytes in every folder; all
/// of its crates have different names.
fn wrap() -> ! {
    let mut arguments = env::args_os().skip(1);
    let rustc = arguments.next().expect("cargo names rustc");
    let arguments = arguments.map(|argument| match argument.to_str() {
        Some(text) if text.starts_with("metadata=") => "metadata=guest".into(),
        _ => argument,
    });
    let error = Command::new(rustc).args(arguments).exec();
    panic!("rustc cannot be run: {error}");
}

fn main() {
    if env::var_os(WRAPS).is_some() {
        wrap();
    }
    let folder = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    for source in SOURCES {
        println!("cargo::rerun-if-changed={}", folder.join(source).display());
    }
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let libraries = Command::new(&rustc)
        .args(["--print", "target-libdir", "--target", TARGET])
        .output()
        .expect("rustc runs");
    let libraries = String::from_utf8_lossy(&libraries.stdout);
    let installed = Path::new(libraries.trim());
    // A target that is added later builds the guest. Until then the folder of all targets is
    // watched: a path that does not exist is stale at each build.
    let watched = installed.ancestors().find(|folder| folder.is_dir());
    if let Some(watched) = watched {
        println!("cargo::rerun-if-changed={}", watched.display());
    }
    let guest = if installed.is_dir() {
        build(&folder, &out)
    } else {
        println!(
            "cargo::warning=KVM guests are left out, threads stand in for them; to add them: rustup target add {TARGET}"
        );
        let none = out.join("no-guest");
        std::fs::write(&none, []).expect("OUT_DIR is writable");
        Some(none)
    };
    if let Some(guest) = guest {
        println!("cargo::rustc-env=TURNSTILE_GUEST_ELF={}", guest.display());
    }
}

/// Builds the guest; none, with an error for cargo, where it does not build.
fn build(folder: &Path, out: &Path) -> Option<PathBuf> {
    let target = out.join("guest");
    let mut cargo = Command::new(env::var_os("CARGO").expect("cargo sets it"));
    cargo
        .args([
            "build",
            "--release",
            "--locked",
            "--offline",
            "--bin",
            "guest",
        ])
        .args(["--target", TARGET])
        .arg("--manifest-path")
        .arg(folder.join("guest/Cargo.toml"))
        .arg("--target-dir")
        .arg(&target)
        .env("CARGO_ENCODED_RUSTFLAGS", flags().join("\u{1f}"));
    // What was meant for the build around this one.
    for name in [
        "RUSTFLAGS",
        "RUSTC_WRAPPER",
        "RUSTC_WORKSPACE_WRAPPER",
        "CARGO_BUILD_TARGET",
        "CARGO_TARGET_DIR",
        "CARGO_BUILD_RUSTFLAGS",
        "CARGO_TARGET_X86_64_UNKNOWN_NONE_RUSTFLAGS",
    ] {
        cargo.env_remove(name);
    }
    let own = env::current_exe().expect("a build script is a file");
    cargo.env("RUSTC_WRAPPER", own).env(WRAPS, "1");
    let status = cargo.status().expect("cargo runs");
    if !status.success() {
        println!(
            "cargo::error=The guest in {} does not build",
            folder.join("guest").display()
        );
        return None;
    }
    Some(target.join(TARGET).join("release/guest"))
}
