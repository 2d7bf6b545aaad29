//! `turnstile config`: the daemon's effective configuration, and whether it is valid.

use clap::{Subcommand, ValueEnum};
use serde::Serialize;
use turnstile_daemon::config::Origin;

use super::options::Files;

/// Arguments of `config`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    files: Files,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Print every key with its value, and where it comes from
    Show {
        /// Output format
        #[arg(short, long, value_enum, default_value_t = Output::Toml)]
        output: Output,
    },
    /// Check whether a daemon would accept it; exit status 2 if not
    Check,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Output {
    /// A file that `serve --config` reads
    Toml,
    /// An object: for each key its value and origin
    Json,
}

/// One key, for JSON.
#[derive(Serialize)]
struct Line<'a> {
    value: Option<&'a toml::Value>,
    origin: &'a Origin,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let effective = args.files.layers()?.finish()?;
    match args.command {
        Command::Show {
            output: Output::Toml,
        } => print!("{}", effective.to_toml()),
        Command::Show {
            output: Output::Json,
        } => {
            let lines: std::collections::BTreeMap<_, _> = effective
                .settings
                .iter()
                .map(|(key, setting)| {
                    let value = setting.value.as_ref();
                    let origin = &setting.origin;
                    (key, Line { value, origin })
                })
                .collect();
            println!("{}", serde_json::to_string_pretty(&lines)?);
        }
        Command::Check => match effective.files.len() {
            0 => println!("sound; no file was read"),
            _ => {
                let files = effective.files.iter().map(|path| path.to_string_lossy());
                println!("sound: {}", files.collect::<Vec<_>>().join(", "));
            }
        },
    }
    Ok(())
}
