//! Where cargo has built the libraries of `turnstile run`.
#![allow(dead_code, reason = "each test uses one of the two")]

use std::path::PathBuf;

/// The library of movable memory: beside the tests, or above them.
pub(crate) fn library() -> PathBuf {
    named("libturnstile_preload.so")
}

/// A library by its name.
pub(crate) fn named(name: &str) -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let folders = own.ancestors().skip(1).take(2);
    folders
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
        .expect("cargo builds the library for the tests")
}
