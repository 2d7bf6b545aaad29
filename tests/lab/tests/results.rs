//! The checked-in page of results against the lab, and the command with bad input.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use turnstile_lab::experiments::{EXPERIMENTS, Experiment};
use turnstile_lab::page::rows;
use turnstile_lab::result::Verdict;
use turnstile_lab::run::Run;
use turnstile_lab::seeds::Seeds;

/// Seeds of the experiments that take long: the first of the page's.
const LONG: [(&str, u64); 8] = [
    // One of each guide.
    ("adversary", 5),
    ("fleet", 1),
    ("literal", 2),
    ("loga-length", 2),
    ("loga-load", 2),
    ("share", 2),
    ("swap", 2),
    ("unfair", 2),
];
/// Experiments that run for minutes even with one seed, and the tests that cover them.
const COVERED: [(&str, &str); 4] = [
    (
        "corun",
        "corun::each_of_28_pairs_has_its_part_and_no_less_than_natively",
    ),
    (
        "loga-11-loop",
        "scheduling::throttles_beside_six_programs_get_their_part",
    ),
    ("loga-charged", "lab::what_drains_is_charged_to_its_owner"),
    (
        "launch-wait",
        "scheduling::pairs_between_commands_get_their_entitlement",
    ),
];

fn page() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/RESULTS.md");
    fs::read_to_string(path).unwrap()
}

/// Each built experiment has a section with the verdicts that it gives with few seeds.
#[test]
fn verdicts_are_those_of_the_page() {
    let page = rows(&page());
    let mut wrong = Vec::new();
    let covered = |row: &&Experiment| COVERED.iter().any(|(id, _)| *id == row.id);
    for row in EXPERIMENTS
        .iter()
        .filter(|row| row.run.is_some() && !covered(row))
    {
        let few = LONG.iter().find(|(id, _)| *id == row.id);
        let seeds = few.map_or(row.seeds, |(_, few)| row.seeds.min(*few));
        let run = Run::new(row, Seeds::from(seeds));
        let report = run.result.as_ref().unwrap().as_ref();
        let report = report.unwrap_or_else(|failure| panic!("{}: {failure}", row.id));
        let here: Vec<_> = page.keys().filter(|(id, _)| id == row.id).collect();
        if here.len() != report.quantities.len() {
            wrong.push(format!("{}: {} rows on the page", row.id, here.len()));
        }
        for one in &report.quantities {
            let ours = one.verdict.map_or("-", Verdict::name);
            let recorded = page.get(&(row.id.to_owned(), one.name.clone()));
            let recorded = recorded.map(|cells| cells[7].as_str());
            if recorded != Some(ours) {
                wrong.push(format!(
                    "{}, {}: {ours}, page: {recorded:?}",
                    row.id, one.name
                ));
            }
            let needs_reason = matches!(ours, "differs" | "not modelled");
            if needs_reason && one.reason.is_empty() {
                wrong.push(format!("{}, {}: no reason", row.id, one.name));
            }
        }
        if !run.agrees() {
            wrong.push(format!("{}: {}, not as in its row", row.id, run.verdict()));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_repeated_run_gives_the_same_bytes() {
    for id in ["unfair", "sm-even"] {
        let row = EXPERIMENTS.iter().find(|row| row.id == id).unwrap();
        let text = || Run::new(row, Seeds::new(7, 1).unwrap()).section();
        assert_eq!(text(), text(), "{id}");
    }
}

fn lab(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_turnstile-lab"));
    command.args(arguments).output().unwrap()
}

/// Status and a line that names the remedy; nothing half written.
#[test]
fn bad_input_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (file, json) = (path("file"), path("folder"));
    fs::write(&file, "").unwrap();
    fs::create_dir(&json).unwrap();
    let below = format!("{file}/below");
    let nowhere = path("none/x.json");
    let cases: [(&[&str], i32, &str); 9] = [
        (&["run", "nonsense"], 2, "turnstile-lab list"),
        (&["nonsense"], 2, "turnstile-lab list"),
        (&["run", "sm-take", "--seeds", "0"], 2, "1 or more"),
        (
            &["run", "sm-take", "--seed", "18446744073709551615"],
            2,
            "1 or more",
        ),
        (&["run"], 2, "--all"),
        (&["run", "--all", "sm-take"], 2, "cannot be used with"),
        (
            &["run", "sm-take", "--svg", &below],
            1,
            "folder that can be made",
        ),
        (
            &["run", "sm-take", "--json", &json],
            1,
            "file that can be made",
        ),
        (
            &["run", "sm-take", "--json", &nowhere],
            1,
            "file that can be made",
        ),
    ];
    for (arguments, status, words) in cases {
        let output = lab(arguments);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {text}");
        assert!(text.contains(words), "{arguments:?}: {text}");
        assert!(output.stdout.is_empty(), "{arguments:?} has run something");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    assert_eq!(fs::read_dir(&json).unwrap().count(), 0);
}

#[test]
fn files_are_written_and_old_forms_work() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("all.json");
    let (json, svg) = (json.to_str().unwrap(), folder.path().to_str().unwrap());
    let output = lab(&[
        "sm-take", "--seeds", "3", "--json", json, "--svg", svg, "--check",
    ]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let all: serde_json::Value = serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap();
    assert_eq!(all[0]["id"], "sm-take");
    assert!(all[0]["report"]["quantities"][0]["ours"]["mean"].is_number());
    let chart = fs::read_to_string(folder.path().join("sm-take.svg")).unwrap();
    assert!(chart.starts_with("<svg") && !chart.contains("NaN"));
    let listed = String::from_utf8(lab(&["list"]).stdout).unwrap();
    assert_eq!(listed.lines().count(), EXPERIMENTS.len() + 1);
}
