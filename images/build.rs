//! Builds the freestanding guest, which is for another target, with the cargo that builds this.

use std::env;
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

fn main() {
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
    if !Path::new(libraries.trim()).is_dir() {
        println!(
            "cargo::error=The guest is built for {TARGET}, which is not installed: rustup target add {TARGET}"
        );
        return;
    }

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
        .env("CARGO_ENCODED_RUSTFLAGS", RUSTFLAGS.join("\u{1f}"));
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
    let status = cargo.status().expect("cargo runs");
    if !status.success() {
        println!(
            "cargo::error=The guest in {} does not build",
            folder.join("guest").display()
        );
        return;
    }
    let elf = target.join(TARGET).join("release/guest");
    println!("cargo::rustc-env=TURNSTILE_GUEST_ELF={}", elf.display());
}
