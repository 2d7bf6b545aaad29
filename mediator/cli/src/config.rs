//! `turnstile config`: the daemon's effective configuration, and whether it is valid.

use std::collections::BTreeMap;

use clap::{Subcommand, ValueEnum};
use serde::Serialize;
use turnstile_daemon::config::{Effective, Origin};
use turnstile_figures::output::{Output, OutputError};

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
        #[arg(short, long, value_enum, default_value_t = Form::Toml)]
        output: Form,
    },
    /// Check whether a daemon would accept it; exit status 2 if not
    Check,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Form {
    /// A file that `serve --config` reads
    Toml,
    /// An object: for each key its value and origin
    Json,
    /// The same in YAML
    Yaml,
}

/// One key, for JSON and YAML.
#[derive(Serialize)]
struct Line<'a> {
    value: Option<&'a toml::Value>,
    origin: &'a Origin,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let effective = args.files.layers()?.finish()?;
    match args.command {
        Command::Show { output } => match output {
            Form::Toml => print!("{}", effective.to_toml()),
            Form::Json => show(&effective, Output::Json)?,
            Form::Yaml => show(&effective, Output::Yaml)?,
        },
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

fn show(effective: &Effective, output: Output) -> Result<(), OutputError> {
    let lines = effective.settings.iter().map(|(key, setting)| {
        let value = setting.value.as_ref();
        let origin = &setting.origin;
        (key, Line { value, origin })
    });
    let lines: BTreeMap<_, _> = lines.collect();
    output.print(&lines, |_| ())
}
