//! The library as C programs link it.
#![allow(missing_docs)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The static library of the build that this test belongs to.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let deps = test.parent().unwrap();
    let built = |path: &Path| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        name.starts_with("libturnstile_guest_linux") && name.ends_with(".a")
    };
    let libraries = std::fs::read_dir(deps).unwrap().map(|e| e.unwrap().path());
    let newest = libraries
        .filter(|path| built(path))
        .max_by_key(|path| path.metadata().unwrap().modified().unwrap());
    newest.expect("the package's static library, built beside its tests")
}

/// Compiles with one compiler, or prints that it is missing.
fn compiled(compiler: &str, options: &[&str], out: &Path) -> bool {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let ran = Command::new(compiler)
        .args(options)
        .args(["-Wall", "-Wextra", "-Werror", "-I"])
        .arg(root.join("include"))
        .arg("-o")
        .arg(out)
        .arg(root.join("tests/header.c"))
        .args(["-x", "none"])
        .arg(library())
        .args(["-lpthread", "-ldl", "-lm", "-lgcc_s"])
        .output();
    match ran {
        Ok(Output { status, stderr, .. }) => {
            assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
            true
        }
        Err(error) => {
            println!("SKIPPED: {compiler}: {error}");
            false
        }
    }
}

#[test]
fn a_c_program_compiles_with_the_header_and_links_the_library() {
    let folder = tempfile::tempdir().unwrap();
    for (compiler, options) in [
        ("cc", ["-std=c11", "-xc"].as_slice()),
        ("c++", ["-std=c++17", "-xc++"].as_slice()),
    ] {
        let program = folder.path().join("program");
        if !compiled(compiler, options, &program) {
            continue;
        }
        let ran = Command::new(&program).output().unwrap();
        let output = String::from_utf8_lossy(&ran.stdout);
        // In a VM that has one, it is opened.
        let expected = output.trim() == "ENODEV EINVAL" || output.starts_with("device ");
        assert!(ran.status.success() && expected, "{compiler}: {ran:?}");
        println!("{compiler}: {}", output.trim());
    }
}
