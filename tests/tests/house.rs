//! House rules, checked automatically.

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_owned()
}

/// Files of the repository with names that end in one of `endings`, as paths from the root.
fn files(endings: &[&str]) -> Vec<PathBuf> {
    fn walk(folder: &Path, endings: &[&str], found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                if name != "target" && name != ".git" {
                    walk(&path, endings, found);
                }
            } else if endings.iter().any(|ending| name.ends_with(ending)) {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(&root(), endings, &mut found);
    assert!(!found.is_empty());
    found
}

fn below(path: &Path) -> String {
    path.strip_prefix(root())
        .unwrap()
        .to_string_lossy()
        .into_owned()
}

/// Lines of all matching files for which `offends` holds, as path:line.
fn offences(endings: &[&str], offends: impl Fn(&str, &str) -> bool) -> Vec<String> {
    let this = file!();
    let mut found = Vec::new();
    for path in files(endings) {
        let name = below(&path);
        if this.ends_with(&name) {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        for (number, line) in text.lines().enumerate() {
            if offends(&name, line) {
                found.push(format!("{name}:{}", number + 1));
            }
        }
    }
    found
}

fn none(found: Vec<String>) {
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn unsafe_has_an_address() {
    none(offences(&[".rs"], |name, line| {
        let code = line.split("//").next().unwrap();
        let forms = ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern"];
        let permitted = name.contains("/sys/")
            || name.ends_with("/sys.rs")
            || name.starts_with("images/")
            || name.starts_with("tests/");
        !permitted && forms.iter().any(|word| code.contains(word))
    }));
}

#[test]
fn pure_crates_read_no_clock_and_take_no_lock() {
    let words = [
        "Instant::now",
        "SystemTime",
        "thread::",
        "Mutex",
        "RwLock",
        "std::fs",
        "std::net",
    ];
    none(offences(&[".rs"], |name, line| {
        let pure = name.starts_with("policies/src") || name.starts_with("accounting/src");
        let edge = name.contains("/store/") || name.contains("/export/");
        let code = line.split("//").next().unwrap();
        pure && !edge && words.iter().any(|word| code.contains(word))
    }));
}

#[test]
fn nothing_is_left_unfinished() {
    let words = [
        concat!("to", "do!"),
        concat!("unimpl", "emented!"),
        concat!("FIX", "ME"),
        concat!("X", "XX"),
    ];
    none(offences(&[".rs", ".md", ".toml"], |_, line| {
        words.iter().any(|word| line.contains(word))
    }));
}

#[test]
fn no_path_of_one_machine() {
    let words = [
        concat!("/ro", "ot/"),
        concat!("/ho", "me/"),
        concat!("/wo", "rk/"),
    ];
    none(offences(
        &[".rs", ".md", ".toml", ".sh", ".cu"],
        |_, line| words.iter().any(|word| line.contains(word)),
    ));
}

#[test]
fn versions_stand_in_the_root_manifest_alone() {
    none(offences(&["Cargo.toml"], |name, line| {
        let names_version = line.contains("version = \"") || line.contains("= \"^");
        // The freestanding guest has its own manifest, without a dependency from a registry; the
        // fuzz targets depend on the fuzzer.
        let own = name == "Cargo.toml"
            || name == "tests/fuzz/Cargo.toml"
            || (name == "images/guest/Cargo.toml"
                && line.contains("version = ")
                && !line.contains('{'));
        names_version && !own
    }));
}

#[test]
fn no_source_file_outgrows_its_reader() {
    let long: Vec<String> = files(&[".rs"])
        .iter()
        .filter_map(|path| {
            let lines = fs::read_to_string(path).unwrap().lines().count();
            (lines > 800).then(|| format!("{}: {lines} lines", below(path)))
        })
        .collect();
    none(long);
}

#[test]
fn every_refusal_is_in_the_device_contract() {
    let text = fs::read_to_string(root().join("docs/DEVICE.md")).unwrap();
    for code in turnstile_abi::ErrorCode::ALL {
        let row = format!("| {} | {code:?} | {} |", *code as u32, code.text());
        assert!(text.contains(&row), "docs/DEVICE.md lacks {row}");
    }
}
