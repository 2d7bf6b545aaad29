//! The layers of the house, as facts of the crates' manifests and of their imports.
//!
//! In: `cargo metadata`, and the modules' `use` paths. Out: a failure that prints the broken rule.
//! Dependencies of tests do not count: a test may reach any layer.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Circles of imports between modules of one crate. There is one: the policies' table of rules
/// and its rules.
const CIRCLES_MAX: usize = 2;

/// What a rule permits to the crates that it is about.
enum Permits {
    /// These dependencies on crates of the workspace, and no others.
    Uses(&'static [&'static str]),
    /// All dependencies but these.
    AllBut(&'static [&'static str]),
    /// These crates may depend on it, and no others.
    UsedBy(&'static [&'static str]),
}

/// A rule of layering. A name that ends in `*` stands for all crates that begin with it.
struct Rule {
    text: &'static str,
    of: &'static [&'static str],
    permits: Permits,
}

const BACKENDS: &[&str] = &["nvidia*", "soft", "vfio"];

const RULES: [Rule; 16] = [
    Rule {
        text: "the device contract is below all",
        of: &["abi"],
        permits: Permits::Uses(&[]),
    },
    Rule {
        text: "accounting is pure and names no crate of the workspace",
        of: &["accounting"],
        permits: Permits::Uses(&[]),
    },
    Rule {
        text: "policies depend on accounting alone",
        of: &["policies"],
        permits: Permits::Uses(&["accounting"]),
    },
    Rule {
        text: "the interpreter of PTX knows no GPU",
        of: &["ptx"],
        permits: Permits::Uses(&[]),
    },
    Rule {
        text: "what a VMM embeds knows the contract alone, and not the guest",
        of: &["vmm"],
        permits: Permits::Uses(&["abi"]),
    },
    Rule {
        text: "what runs in a guest knows the contract alone",
        of: &["guest"],
        permits: Permits::Uses(&["abi"]),
    },
    Rule {
        text: "the trait of GPUs knows no backend",
        of: &["gpu"],
        permits: Permits::Uses(&["abi", "accounting", "host", "vmm"]),
    },
    Rule {
        text: "the loop knows the trait alone",
        of: &["mediation"],
        permits: Permits::Uses(&["accounting", "gpu", "policies", "vmm"]),
    },
    Rule {
        text: "backends are leaves: they know no policy and nothing above",
        of: BACKENDS,
        permits: Permits::AllBut(&["api", "bench", "cli", "daemon", "mediation", "policies"]),
    },
    Rule {
        text: "the command and the bench alone name a backend; the simulated PCI GPU is a software GPU",
        of: BACKENDS,
        permits: Permits::UsedBy(&["bench", "cli", "lab", "nvidia*", "tests", "vfio"]),
    },
    Rule {
        text: "the daemon knows the trait and the loop, and nothing above",
        of: &["daemon"],
        permits: Permits::Uses(&[
            "abi",
            "accounting",
            "gpu",
            "host",
            "mediation",
            "policies",
            "vmm",
        ]),
    },
    Rule {
        text: "the API is above the daemon, and names neither the command nor the bench",
        of: &["api"],
        permits: Permits::Uses(&[
            "abi",
            "accounting",
            "daemon",
            "host",
            "mediation",
            "policies",
            "vmm",
        ]),
    },
    Rule {
        text: "the driver of Kubernetes is a client of the API",
        of: &["dra"],
        permits: Permits::Uses(&["api"]),
    },
    Rule {
        text: "nothing depends on the driver of Kubernetes",
        of: &["dra"],
        permits: Permits::UsedBy(&[]),
    },
    Rule {
        text: "nothing of the product depends on the bench but the command, and nothing on the tests",
        of: &["bench", "cli", "tests"],
        permits: Permits::UsedBy(&["cli"]),
    },
    Rule {
        text: "the product does not depend on the lab",
        of: &["lab"],
        permits: Permits::UsedBy(&["tests"]),
    },
];

/// Dependencies of each crate on crates of the workspace, by name without `turnstile-`.
type Dependencies = BTreeMap<String, BTreeSet<String>>;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_owned()
}

fn metadata() -> Value {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args([
            "metadata",
            "--offline",
            "--no-deps",
            "--format-version",
            "1",
        ])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

fn short(name: &str) -> &str {
    name.strip_prefix("turnstile-").unwrap_or(name)
}

fn dependencies(metadata: &Value) -> Dependencies {
    let packages = metadata["packages"].as_array().unwrap();
    let own: BTreeSet<&str> = packages
        .iter()
        .map(|package| package["name"].as_str().unwrap())
        .collect();
    let of = |package: &Value| {
        let all = package["dependencies"].as_array().unwrap().iter();
        all.filter(|dependency| dependency["kind"] != "dev")
            .map(|dependency| dependency["name"].as_str().unwrap())
            .filter(|name| own.contains(name))
            .map(|name| short(name).to_owned())
            .collect()
    };
    let named = |package: &Value| short(package["name"].as_str().unwrap()).to_owned();
    packages
        .iter()
        .map(|package| (named(package), of(package)))
        .collect()
}

fn fits(name: &str, patterns: &[&str]) -> bool {
    patterns
        .iter()
        .any(|pattern| match pattern.strip_suffix('*') {
            Some(begin) => name.starts_with(begin),
            None => name == *pattern,
        })
}

/// Dependencies that a rule forbids, each as `crate -> crate`.
fn broken(rule: &Rule, all: &Dependencies) -> Vec<String> {
    let edges = all
        .iter()
        .flat_map(|(from, to)| to.iter().map(move |to| (from.as_str(), to.as_str())));
    let forbidden = |&(from, to): &(&str, &str)| match rule.permits {
        Permits::Uses(permitted) => fits(from, rule.of) && !fits(to, permitted),
        Permits::AllBut(denied) => fits(from, rule.of) && fits(to, denied),
        Permits::UsedBy(permitted) => fits(to, rule.of) && !fits(from, permitted),
    };
    let arrow = |(from, to): (&str, &str)| format!("{}: {from} -> {to}", rule.text);
    edges.filter(forbidden).map(arrow).collect()
}

#[test]
fn crates_depend_downwards_alone() {
    let all = dependencies(&metadata());
    // A rule about a crate that is not there would hold whatever the others do.
    for name in RULES.iter().flat_map(|rule| rule.of) {
        assert!(all.keys().any(|known| fits(known, &[name])), "{name}");
    }
    let found: Vec<String> = RULES.iter().flat_map(|rule| broken(rule, &all)).collect();
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn a_forbidden_dependency_breaks_its_rule() {
    let all = dependencies(&metadata());
    for (from, to, text) in [
        ("daemon", "nvidia", "the command and the bench alone"),
        ("soft", "policies", "backends are leaves"),
        ("vmm", "guest", "what a VMM embeds"),
        (
            "api",
            "bench",
            "nothing of the product depends on the bench",
        ),
    ] {
        let mut all = all.clone();
        all.get_mut(from).unwrap().insert(to.to_owned());
        let found: Vec<String> = RULES.iter().flat_map(|rule| broken(rule, &all)).collect();
        assert!(found.iter().any(|row| row.starts_with(text)), "{found:#?}");
    }
}

/// Most crates that a VMM compiles for the device alone, `turnstile-vmm` among them.
const EMBEDDED_CRATES_MAX: usize = 39;

/// Crates that are compiled for a VMM that embeds these features.
fn embedded(features: &str) -> BTreeSet<String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut tree = Command::new(cargo);
    tree.args(["tree", "--offline", "--locked", "--edges", "normal,build"]);
    tree.args(["--prefix", "none", "--no-dedupe", "--package"]);
    tree.args(["turnstile-vmm", "--no-default-features", "--features"]);
    let output = tree.arg(features).current_dir(root()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    // A name and a version.
    let of = |line: &str| line.split(' ').take(2).collect::<Vec<_>>().join(" ");
    text.lines().map(of).collect()
}

#[test]
fn an_embedder_compiles_only_what_it_uses() {
    let device = embedded("device,gate");
    assert!(device.len() <= EMBEDDED_CRATES_MAX, "{device:#?}");
    let kvm = embedded("kvm");
    assert!(kvm.is_superset(&device));
    let has = |crates: &BTreeSet<String>, name: &str| {
        let begin = format!("{name} ");
        crates.iter().any(|one| one.starts_with(&begin))
    };
    for (name, in_device, in_kvm) in [
        ("turnstile-abi", true, true),
        ("kvm-ioctls", false, true),
        ("linux-loader", false, false),
    ] {
        let found = (has(&device, name), has(&kvm, name));
        assert_eq!(found, (in_device, in_kvm), "{name}");
    }
}

/// Methods of the trait of GPUs and of the small ones that it consists of: what a backend has to
/// think about.
const GPU_METHODS_MAX: usize = 25;

/// The supertraits of `name` in a source, and the number of its methods.
fn trait_of<'a>(text: &'a str, name: &str) -> Option<(Vec<&'a str>, usize)> {
    let head = format!("pub trait {name}:");
    let (_, rest) = text.split_once(&head)?;
    let (above, body) = rest.split_once('{')?;
    let body = &body[..body.find("\n}")?];
    let methods = body.lines().filter(|line| line.starts_with("    fn "));
    Some((above.split('+').map(str::trim).collect(), methods.count()))
}

#[test]
fn gpu_traits_have_few_methods() {
    let text = fs::read_to_string(root().join("mediator/gpu/src/lib.rs")).unwrap();
    let (parts, own) = trait_of(&text, "Gpu").unwrap();
    let parts = parts.iter().map(|part| trait_of(&text, part).unwrap().1);
    let methods: Vec<usize> = parts.chain([own]).collect();
    assert!(methods.len() > 4 && !methods.contains(&0), "{methods:?}");
    assert!(
        methods.iter().sum::<usize>() <= GPU_METHODS_MAX,
        "{methods:?}"
    );
}

/// A source without comments and without its tests, which are at the end.
fn code(text: &str) -> String {
    let end = text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len());
    let lines = text[..end].lines();
    let code = lines.map(|line| line.split("//").next().unwrap());
    code.collect::<Vec<_>>().join("\n")
}

/// Names that follow `prefix` in a source: `prefix::name`, and each of `prefix::{name, ...}`.
fn imported(text: &str, prefix: &str) -> BTreeSet<String> {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    let mut names = BTreeSet::new();
    for (at, _) in text.match_indices(prefix) {
        let before = text[..at].chars().next_back();
        if before.is_some_and(|c| part(c) || c == ':') {
            continue;
        }
        let rest = &text[at + prefix.len()..];
        let list = match rest.strip_prefix('{') {
            Some(list) => &list[..list.find(';').unwrap_or(list.len())],
            None => &rest[..rest.find(|c| !part(c)).unwrap_or(rest.len())],
        };
        names.extend(list.split(|c| !part(c)).map(str::to_owned));
    }
    names
}

/// Rust files below a folder, without those of tests.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if name.contains("test") {
            continue;
        }
        if path.is_dir() {
            sources(&path, found);
        } else if name.ends_with(".rs") {
            found.push(path);
        }
    }
}

/// Imports between the top modules of a crate.
fn imports(src: &Path) -> BTreeMap<String, BTreeSet<String>> {
    let mut files = Vec::new();
    sources(src, &mut files);
    let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for file in &files {
        let below = file.strip_prefix(src).unwrap();
        let parts: Vec<_> = below.iter().map(|part| part.to_string_lossy()).collect();
        let top = parts[0].trim_end_matches(".rs").to_owned();
        if top == "lib" || top == "main" {
            continue;
        }
        let text = code(&fs::read_to_string(file).unwrap());
        let deep = parts.len() - usize::from(parts.last().unwrap() == "mod.rs");
        let root = "super::".repeat(deep);
        let mut names = imported(&text, "crate::");
        names.extend(imported(&text, &root));
        names.remove(&top);
        all.entry(top).or_default().extend(names);
    }
    let known: BTreeSet<String> = all.keys().cloned().collect();
    for names in all.values_mut() {
        names.retain(|name| known.contains(name));
    }
    all
}

/// Modules that import each other, directly or by way of others.
fn circles(imports: &BTreeMap<String, BTreeSet<String>>) -> BTreeSet<Vec<String>> {
    let reached = |from: &String| {
        let mut seen = BTreeSet::new();
        let mut open: Vec<&String> = imports[from].iter().collect();
        while let Some(next) = open.pop() {
            if seen.insert(next.clone()) {
                open.extend(&imports[next]);
            }
        }
        seen
    };
    let reached: BTreeMap<&String, BTreeSet<String>> =
        imports.keys().map(|from| (from, reached(from))).collect();
    let circle = |of: &String| {
        let both = reached[of]
            .iter()
            .filter(|other| reached[other].contains(of));
        both.cloned().collect::<Vec<String>>()
    };
    let circles = imports.keys().map(circle);
    circles.filter(|circle| circle.len() > 1).collect()
}

#[test]
fn modules_import_in_one_direction() {
    let metadata = metadata();
    let mut found = Vec::new();
    for package in metadata["packages"].as_array().unwrap() {
        let manifest = Path::new(package["manifest_path"].as_str().unwrap());
        let src = manifest.with_file_name("src");
        if src.is_dir() {
            let name = package["name"].as_str().unwrap();
            let circles = circles(&imports(&src));
            found.extend(
                circles
                    .iter()
                    .map(|circle| format!("{name}: {}", circle.join(", "))),
            );
        }
    }
    assert!(found.len() <= CIRCLES_MAX, "{found:#?}");
}

#[test]
fn a_circle_is_found_by_way_of_other_modules() {
    let names = imported(
        "use crate::b; use super::c::X; use crate::{d, e::Y};",
        "crate::",
    );
    assert!(["b", "d", "e"].iter().all(|name| names.contains(*name)));
    assert!(!names.contains("c"));
    let edges = [("a", "b"), ("b", "c"), ("c", "a"), ("d", "a")];
    let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (from, to) in edges {
        all.entry(from.into()).or_default().insert(to.into());
    }
    let circle = ["a", "b", "c"].map(str::to_owned).to_vec();
    assert_eq!(circles(&all), [circle].into());
}
