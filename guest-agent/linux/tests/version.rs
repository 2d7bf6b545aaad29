//! The tool in the guest shows its version, by which it is packed.
#![allow(missing_docs)]

use std::process::Command;

#[test]
fn the_tool_shows_its_version() {
    for option in ["--version", "-V"] {
        let output = Command::new(env!("CARGO_BIN_EXE_turnstile-guest"))
            .arg(option)
            .output()
            .unwrap();
        let shown = String::from_utf8(output.stdout).unwrap();
        let version = shown.strip_prefix("turnstile-guest ").unwrap().trim_end();
        assert!(output.status.success());
        assert!(version.starts_with(|c: char| c.is_ascii_digit()), "{shown}");
    }
}
