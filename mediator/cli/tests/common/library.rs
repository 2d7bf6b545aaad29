//! Where cargo has built the library of `turnstile run`.

use std::path::PathBuf;

/// The library: beside the tests, or above them.
pub(crate) fn library() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let folders = own.ancestors().skip(1).take(2);
    folders
        .map(|folder| folder.join("libturnstile_preload.so"))
        .find(|path| path.is_file())
        .expect("cargo builds the library for the tests")
}
