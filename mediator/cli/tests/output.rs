//! What commands do with their output.

use std::io::pipe;
use std::process::Command;

use turnstile_policies::{PolicyRow, ROWS};

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
