//! What commands do with their output.

use std::io::pipe;
use std::process::Command;

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
