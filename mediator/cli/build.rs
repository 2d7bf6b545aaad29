//! Sets the version that the program shows.

use std::env;
use std::path::PathBuf;

#[path = "../../mediator/package/version.rs"]
mod version;

fn main() {
    let folder = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    version::set(&folder, "mediator/cli", env!("CARGO_PKG_VERSION"));
}
