//! House rules, checked automatically.

use std::collections::{BTreeMap, BTreeSet};
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

/// Files with an inherent `impl` of one type: at most these many.
const ROOMS_MAX: usize = 2;

/// Types in more files, as home and name, and in how many: entries and numbers may only fall.
const ROOMS: &[(&str, usize)] = &[("mediator/daemon/src/fleet.rs Fleet", 4)];

/// The type of an inherent `impl` that begins on a line.
fn implemented(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("impl")?;
    let mut open = 0;
    let name = rest.trim_start_matches(|c: char| {
        open += i32::from(c == '<');
        let generic = open > 0;
        open -= i32::from(c == '>');
        generic
    });
    let path = name.strip_prefix(' ')?.split(['<', ' ', '{']).next()?;
    (!line.contains(" for ")).then(|| path.rsplit("::").next().unwrap_or(path))
}

/// Whether a file defines a type.
fn defines(text: &str, name: &str) -> bool {
    text.lines().any(|line| {
        let mut words = line.split([' ', '<', '(', ';', '{']);
        words.any(|word| word == "struct" || word == "enum") && words.next() == Some(name)
    })
}

/// The modules of a source file, the crate's first.
fn modules(path: &str) -> Vec<&str> {
    let path = path.trim_end_matches(".rs").trim_end_matches("/mod");
    path.split('/').collect()
}

/// The file that defines the type that `from` implements: itself, or the nearest by module.
fn home<'t>(from: &str, name: &str, texts: &'t BTreeMap<String, String>) -> Option<&'t str> {
    let krate = from.split("src/").next()?;
    let near = |path: &str| {
        let pairs = modules(path).into_iter().zip(modules(from));
        pairs.take_while(|(a, b)| a == b).count()
    };
    let homes = texts
        .iter()
        .filter(|(path, text)| path.starts_with(krate) && defines(text, name));
    let homes = homes.map(|(path, _)| path.as_str());
    homes.max_by_key(|path| (*path == from, near(path)))
}

#[test]
fn a_type_lives_in_few_files() {
    let is_test = |path: &str| {
        path.contains("/tests/") || path.ends_with("tests.rs") || path.ends_with("test.rs")
    };
    let texts: BTreeMap<String, String> = files(&[".rs"])
        .iter()
        .map(|path| (below(path), fs::read_to_string(path).unwrap()))
        .filter(|(path, _)| path.contains("src/") && !is_test(path))
        .collect();
    let mut rooms: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
    for (path, text) in &texts {
        for name in text.lines().filter_map(implemented) {
            if let Some(home) = home(path, name, &texts) {
                rooms.entry((home, name)).or_default().insert(path);
            }
        }
    }
    assert!(rooms.len() > 500, "only {} types found", rooms.len());
    let found: Vec<(String, usize)> = rooms
        .iter()
        .filter(|(_, files)| files.len() > ROOMS_MAX)
        .map(|((home, name), files)| (format!("{home} {name}"), files.len()))
        .collect();
    let listed: Vec<(String, usize)> = ROOMS.iter().map(|(n, c)| ((*n).to_owned(), *c)).collect();
    assert_eq!(
        found, listed,
        "left: found; right: the list, which may only fall"
    );
}

/// Fields of a type that need no reason.
const FIELDS_MAX: usize = 10;

/// The structures of a file with named fields: name, number of fields, whether a reason is above.
fn structures(text: &str) -> Vec<(&str, usize, bool)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let indent = line.len() - line.trim_start().len();
        let Some((before, rest)) = line.split_once("struct ").filter(|_| line.ends_with('{'))
        else {
            continue;
        };
        if !matches!(before.trim(), "" | "pub" | "pub(crate)") && !before.contains("pub(") {
            continue;
        }
        let is_field = |line: &&&str| {
            let code = line.trim_start();
            let own = line.len() - code.len() == indent + 4;
            own && !code.starts_with(['/', '#', ')']) && code.contains(": ")
        };
        let body = lines[at + 1..].iter();
        let body =
            body.take_while(|line| !line.starts_with(&" ".repeat(indent)) || line.trim() != "}");
        let fields = body.filter(is_field).count();
        let reasoned = at > 0 && lines[at - 1].trim_start().starts_with("// FIELDS: ");
        let name = rest.split([' ', '<']).next().unwrap_or(rest);
        found.push((name, fields, reasoned));
    }
    found
}

#[test]
fn a_type_with_many_fields_says_why() {
    let mut wrong = Vec::new();
    let mut many = 0;
    for path in files(&[".rs"]) {
        let name = below(&path);
        let test = name.contains("/tests/") || name.ends_with("tests.rs");
        if test || !name.contains("src/") {
            continue;
        }
        for (of, fields, reasoned) in structures(&fs::read_to_string(&path).unwrap()) {
            let of = format!("{name} {of}");
            many += usize::from(fields > FIELDS_MAX);
            if (fields > FIELDS_MAX) != reasoned {
                wrong.push(format!("{of}: {fields} fields"));
            }
        }
    }
    assert!(many > 20, "only {many} types with many fields found");
    none(wrong);
}
