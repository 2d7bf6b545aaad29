//! The experiment lab on the command line: `cargo run --release -p turnstile-lab -- list`.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(turnstile_lab::command::main(std::env::args_os()))
}
