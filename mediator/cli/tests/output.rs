//! What commands do with their output.

mod common;

use std::io::pipe;
use std::process::{Command, Output};

use common::{serve, turnstile, until};
use serde_json::Value;
use turnstile_policies::{PolicyRow, ROWS};

fn printed(output: &Output) -> &str {
    assert!(output.status.success(), "{output:?}");
    std::str::from_utf8(&output.stdout).unwrap()
}

fn yaml(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap()
}

#[test]
fn yaml_of_a_command_has_the_values_of_its_json() {
    let run = |form: &str| {
        let arguments = ["config", "show", "-o", form];
        turnstile().args(arguments).output().unwrap()
    };
    let json: Value = serde_json::from_str(printed(&run("json"))).unwrap();
    assert!(json["ledger.window_ms"]["value"].is_u64(), "{json}");
    assert_eq!(yaml(printed(&run("yaml"))), json);
}

#[test]
fn yaml_of_a_daemon_has_the_values_of_its_json_and_a_refusal_is_a_problem() {
    let folder = tempfile::tempdir().unwrap();
    let _daemon = serve(folder.path(), &[]);
    let run = |arguments: &[&str]| {
        let mut command = turnstile();
        let command = command.args(arguments).arg("--api");
        let socket = folder.path().join("api.sock");
        command.arg(socket).output().unwrap()
    };
    until("the daemon", || {
        let answered = run(&["gpu", "list"]).status.success();
        answered.then_some(())
    });
    let expect = ["vm", "set", "no", "--expect", "--weight", "300"];
    printed(&run(&[&expect[..], &["--label", "on=12:30"]].concat()));
    let json = run(&["vm", "list", "-o", "json"]);
    let json: Value = serde_json::from_str(printed(&json)).unwrap();
    assert_eq!(json[0]["name"], "no", "{json}");
    assert_eq!(json[0]["metadata"]["labels"]["on"], "12:30", "{json}");
    let shown = run(&["vm", "list", "-o", "yaml"]);
    assert_eq!(yaml(printed(&shown)), json);
    // An interval of `top` is a document.
    let top = ["top", "-n", "2", "-d", "0.1", "-o", "yaml"];
    let top = run(&top);
    let documents: Vec<&str> = printed(&top).split("---\n").skip(1).collect();
    assert_eq!(documents.len(), 2);
    for document in documents {
        assert!(yaml(document)["interval_ns"].is_u64(), "{document}");
    }
    let refused = run(&["vm", "get", "absent", "-o", "yaml"]);
    assert_eq!(refused.status.code(), Some(3));
    let problem = yaml(std::str::from_utf8(&refused.stderr).unwrap());
    assert_eq!(problem["status"], 404, "{problem}");
}

#[test]
fn the_old_spelling_of_json_works_and_names_the_new_one() {
    // The daemon is none, so that two runs find the same.
    let run = |form: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        let api = folder.path().join("api.sock");
        let set = format!("api.socket={}", api.display());
        let mut command = turnstile();
        command.args(["doctor", "--set", &set]).args(form);
        command.output().unwrap()
    };
    let names = |output: &Output| {
        let findings: Value = serde_json::from_slice(&output.stdout).unwrap();
        let findings = findings.as_array().unwrap().clone();
        let name = |finding: &Value| finding["feature"].as_str().unwrap().to_owned();
        findings.iter().map(name).collect::<Vec<_>>()
    };
    let (old, new) = (run(&["--json"]), run(&["-o", "json"]));
    assert_eq!(names(&old), names(&new));
    let said = |output: &Output| String::from_utf8_lossy(&output.stderr).contains("-o json");
    assert!(said(&old) && !said(&new), "{old:?} {new:?}");
}

#[test]
fn closed_output_pipe_ends_commands_without_a_panic() {
    for arguments in [&["config", "show"][..], &["doctor"]] {
        let (reader, writer) = pipe().unwrap();
        drop(reader);
        let output = Command::new(env!("CARGO_BIN_EXE_turnstile"))
            .args(arguments)
            .stdout(writer)
            .output()
            .unwrap();
        let messages = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(141), "{arguments:?}: {messages}");
        assert!(!messages.contains("panicked"), "{arguments:?}: {messages}");
    }
}

/// Policies that the lab compares are no choice for a daemon or a demo: one line names those that
/// are.
#[test]
fn policies_of_the_lab_are_refused_by_serve_and_demo() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("turnstile.toml");
    let offered = |row: &&PolicyRow| !row.lab;
    for row in ROWS.iter().filter(|row| row.lab) {
        let name = row.name;
        std::fs::write(&config, format!("[scheduling]\npolicy = \"{name}\"\n")).unwrap();
        let config = config.to_str().unwrap();
        for arguments in [
            &["demo", "--policy", name][..],
            &["serve", "--policy", name],
            &["serve", "--config", config],
        ] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_turnstile"));
            let output = command.args(arguments).output().unwrap();
            let text = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success(), "{arguments:?}: {text}");
            let naming = text.lines().filter(|line| {
                ROWS.iter()
                    .filter(offered)
                    .all(|row| line.contains(row.name))
            });
            assert_eq!(naming.count(), 1, "{arguments:?}: {text}");
        }
    }
}
