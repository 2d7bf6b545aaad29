//! `turnstile bench programs` without a GPU: the command against a stand-in for Python.
//!
//! The stand-in follows the programs' protocol. Its rate is 100 steps a second divided by the
//! programs that work at the order to count. `memory` does not become ready, `graph` fails when it
//! begins, `decode` fails within its first window.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use common::{PATIENCE, Process, turnstile, until};
use rustix::process::Signal;
use serde_json::Value;

const STAND_IN: &str = r#"#!/bin/sh
name=$(basename "$1" .py)
folder=$(dirname "$1")
echo "{\"state\": \"loaded\", \"pid\": $$}"
echo $$ >> "$folder/pids"
while read -r order; do
    case $order-$name in
        begin-graph) echo "no memory for $name" >&2; exit 3 ;;
        begin-memory) ;;
        begin-*) echo '{"state": "ready", "rate": 100.0, "steps": 9, "seconds": 0.1}' ;;
        go-*) : > "$folder/works-$name" ;;
        count-decode) echo "lost the device" >&2; exit 4 ;;
        count-*) works=$(ls "$folder" | grep -c works-) ;;
        rest-*)
            rm -f "$folder/works-$name"
            echo "{\"state\": \"rested\", \"steps\": 9, \"rate\": $((100 / works)).0," \
                "\"p50_ms\": $((10 * works)).0, \"p99_ms\": $((20 * works)).0, \"least_2s\": null}" ;;
        stop-*) exit 0 ;;
    esac
done
"#;

/// A folder with the stand-in, which is also where it has its files.
fn stand_in() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("python");
    // By another process: this one may fork meanwhile, and a file open for writing cannot run.
    let write = "printf %s \"$1\" > \"$2\" && chmod 700 \"$2\"";
    let mut command = Command::new("sh");
    command.args(["-c", write, "sh", STAND_IN]).arg(&file);
    assert!(command.status().unwrap().success());
    (folder, file)
}

fn bench(folder: &Path, python: &Path, words: &[&str]) -> Command {
    let mut command = turnstile();
    command
        .args(["bench", "programs", "--modes", "native", "--python"])
        .arg(python)
        .arg("--programs")
        .arg(folder)
        .args(["--skip", "0.4", "--seconds", "0.4"])
        .args(words);
    command
}

/// Standard output and standard error.
fn texts(output: &Output) -> [String; 2] {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned())
}

/// The line of a table that begins with this row.
fn line<'a>(table: &'a str, row: &str) -> Option<&'a str> {
    let begins = |line: &&str| line.trim_start_matches("! ").trim_start().starts_with(row);
    table.lines().find(begins)
}

#[test]
fn rows_are_measured_against_programs_alone() {
    let (folder, python) = stand_in();
    let out = folder.path().join("out.json");
    let rows = [
        "--row",
        "train+small",
        "--row",
        "infer+loader",
        "--rounds",
        "2",
    ];
    let mut command = bench(folder.path(), &python, &rows);
    let output = command.arg("--out").arg(&out).output().unwrap();
    let [table, messages] = texts(&output);
    assert!(output.status.success(), "{table}{messages}");
    for row in ["train", "small", "infer", "loader"] {
        let line = line(&table, &format!("{row} ")).unwrap();
        assert!(line.contains(" 1.000  "), "{line}");
    }
    // Without weights, a row is in the order of the matrix.
    for row in ["train+small 1:1", "loader+infer 1:1"] {
        let line = line(&table, row).unwrap();
        assert!(
            line.contains("native  0.500 / 0.500  0.500 / 0.500  1.000  40.0 / 40.0"),
            "{line}"
        );
    }
    // Four programs alone and two rows, twice.
    assert!(messages.contains("[ 12 of 12, ") && messages.contains("native    train+small 1:1"));
    let report: Value = serde_json::from_slice(&fs::read(&out).unwrap()).unwrap();
    assert_eq!(report["runs"].as_array().unwrap().len(), 12);
    assert_eq!(report["lines"].as_array().unwrap().len(), 6);
    assert_eq!(report["lines"][5]["rounds"], 2);
    assert!(report["date"].as_str().unwrap().ends_with('Z'));
}

#[test]
fn programs_that_fail_are_reported_and_their_rows_left_out() {
    let (folder, python) = stand_in();
    let mut words = vec!["--ready-limit-s", "3"];
    for row in ["train+small", "train+graph", "train+memory", "train+decode"] {
        words.extend(["--row", row]);
    }
    let output = bench(folder.path(), &python, &words).output().unwrap();
    let [table, messages] = texts(&output);
    assert!(!output.status.success(), "{table}{messages}");
    for message in [
        "native graph: It ended before it was ready; its messages: no memory for graph",
        "native memory: It is not ready after 3 s; its messages: ",
        "native decode: It ended before it was at rest; its messages: lost the device",
        "native train+graph 1:1 is left out: graph has failed",
        "native train+memory 1:1 is left out: memory has failed",
        "native decode is left out: a program failed in it",
        "native train+decode 1:1 is left out: decode has failed",
        "3 programs or modes failed",
    ] {
        assert!(messages.contains(message), "{message} in {messages}");
    }
    assert!(line(&table, "train+small 1:1").is_some(), "{table}");
    for row in [
        "train+graph",
        "train+memory",
        "train+decode",
        "graph ",
        "decode ",
    ] {
        assert!(line(&table, row).is_none(), "{row} in {table}");
    }
}

#[test]
fn parts_of_the_matrix_join_to_one_table() {
    let (folder, python) = stand_in();
    let files = ["train+small", "train+loader"].map(|row| {
        let out = folder.path().join(format!("{row}.json"));
        let mut command = bench(
            folder.path(),
            &python,
            &["--row", row, "-o", "json", "--out"],
        );
        let output = command.arg(&out).output().unwrap();
        assert!(output.status.success(), "{:?}", texts(&output));
        let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(
            printed,
            serde_json::from_slice::<Value>(&fs::read(&out).unwrap()).unwrap()
        );
        out
    });
    let merge = |files: &[PathBuf]| {
        let mut command = turnstile();
        command.args(["bench", "programs", "--merge"]).args(files);
        command.output().unwrap()
    };
    let output = merge(&files);
    let [table, messages] = texts(&output);
    assert!(output.status.success(), "{messages}");
    let rows = [
        "train ",
        "small ",
        "loader ",
        "train+small 1:1",
        "train+loader 1:1",
    ];
    assert!(
        rows.iter().all(|row| line(&table, row).is_some()),
        "{table}"
    );
    let text = fs::read_to_string(&files[1]).unwrap();
    fs::write(
        &files[1],
        text.replace("\"seconds\": 0.4", "\"seconds\": 0.5"),
    )
    .unwrap();
    let output = merge(&files);
    assert!(!output.status.success() && texts(&output)[1].contains("measured otherwise"));
}

#[test]
fn a_mode_that_the_host_lacks_is_left_out() {
    let (folder, python) = stand_in();
    let mut command = bench(folder.path(), &python, &["--row", "train+small"]);
    // The later one of an option with several values adds to them.
    let output = command
        .args(["--modes", "mps"])
        .env("PATH", empty_path(folder.path()))
        .output();
    let output = output.unwrap();
    let [table, messages] = texts(&output);
    assert!(output.status.success(), "{table}{messages}");
    assert!(
        messages.contains("mps is left out: nvidia-cuda-mps-control cannot be run"),
        "{messages}"
    );
    assert!(line(&table, "train+small 1:1").is_some(), "{table}");
}

/// A search path of the stand-in's own commands: none of them is the vendor's.
fn empty_path(folder: &Path) -> PathBuf {
    let path = folder.join("path");
    fs::create_dir(&path).unwrap();
    let search = std::env::var_os("PATH").unwrap();
    for name in ["basename", "dirname", "grep", "ls", "rm"] {
        let mut files = std::env::split_paths(&search).map(|folder| folder.join(name));
        let file = files.find(|file| file.exists()).unwrap();
        std::os::unix::fs::symlink(file, path.join(name)).unwrap();
    }
    path
}

#[test]
fn an_interrupted_bench_shows_what_it_has_and_leaves_no_program() {
    let (folder, python) = stand_in();
    let out = folder.path().join("out.json");
    let words = ["--row", "train+small", "--rounds", "100"];
    let mut command = bench(folder.path(), &python, &words);
    command.arg("--out").arg(&out);
    let child = command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut bench = Process(child);
    let report = || serde_json::from_slice::<Value>(&fs::read(&out).ok()?).ok();
    until("the first row", || {
        (report()?["runs"].as_array()?.len() > 3).then_some(())
    });
    bench.signal(Signal::TERM);
    let status = bench.end(PATIENCE).expect("it ends");
    assert_eq!(status.code(), Some(1));
    let report = report().unwrap();
    assert_eq!(report["interrupted"], true);
    assert_eq!(report["failures"].as_array().unwrap().len(), 0);
    let pids = fs::read_to_string(folder.path().join("pids")).unwrap();
    assert_eq!(pids.lines().count(), 2);
    for pid in pids.lines() {
        until("the end of a program", || {
            (!Path::new("/proc").join(pid).exists()).then_some(())
        });
    }
}
