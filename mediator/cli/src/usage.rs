//! `turnstile usage`: exports the ledger for billing, and checks it.
//!
//! Exit codes: 0 done; 1 failed, or found broken; 2 wrong usage; 3 no such ledger or GPU; 5 not
//! closed yet, or discarded; 6 not permitted.

mod export;
mod synthesise;
mod verify;

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Subcommand, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use turnstile_accounting::export::{
    ExportError, FocusVersion, focus_schema, parse_time, show_time,
};
use turnstile_accounting::record::UnixNanos;
use turnstile_accounting::store::{Selection, StoreError};
use turnstile_api::client::ClientError;
use turnstile_api::usage::Used;

use turnstile_figures::columns::table;

use super::admin::{Admin, escaped};
use super::ledger::Source;
use super::vm::gigabytes;
use export::{ExportArgs, run_export};
use synthesise::{SynthesiseArgs, run_synthesise};
use verify::{VerifyArgs, run_verify};

/// Arguments of `usage`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    source: Source,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Write what was used: all of it between two times, or nothing
    Export(ExportArgs),
    /// Check that nothing is missing, counted twice, out of balance or changed
    Verify(VerifyArgs),
    /// Query a running daemon for what each tenant used between two times
    Show(ShowArgs),
    /// Show every change of settings and its author, from the ledger
    Changes(ChangesArgs),
    /// Print what the columns of a bill in FOCUS are, as its schema
    Schema(SchemaArgs),
    /// Make a ledger out of a seed, to try exports on
    #[command(hide = true)]
    Synthesise(SynthesiseArgs),
}

#[derive(clap::Args, Debug)]
struct ShowArgs {
    #[command(flatten)]
    admin: Admin,
    /// Windows that begin at or after this time (RFC 3339)
    #[arg(long, value_parser = time)]
    from: UnixNanos,
    /// Windows that begin before this time; all of them have to be closed
    #[arg(long, value_parser = time)]
    to: UnixNanos,
    /// One tenant, by name or id
    #[arg(long)]
    tenant: Option<String>,
}

#[derive(clap::Args, Debug)]
struct ChangesArgs {
    /// From this time (RFC 3339)
    #[arg(long, value_parser = time)]
    from: Option<UnixNanos>,
    /// To this time
    #[arg(long, value_parser = time)]
    to: Option<UnixNanos>,
}

#[derive(clap::Args, Debug)]
struct SchemaArgs {
    /// Of which bills
    #[arg(long, value_enum, default_value_t = FocusArg::Focus14)]
    format: FocusArg,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FocusArg {
    /// FOCUS 1.2
    #[value(name = "focus-1.2")]
    Focus12,
    /// FOCUS 1.4
    #[value(name = "focus-1.4")]
    Focus14,
}

fn time(text: &str) -> Result<UnixNanos, String> {
    parse_time(text).ok_or_else(|| "not a time as in 2026-11-20T13:00:00Z".to_owned())
}

/// The exit code of an error, by its causes.
fn exit_code(error: &anyhow::Error) -> u8 {
    let of_store = |error: &StoreError| match error {
        StoreError::NotFound { .. } => 3,
        StoreError::Denied { .. } => 6,
        _ => 1,
    };
    for cause in error.chain() {
        if let Some(error) = cause.downcast_ref::<StoreError>() {
            return of_store(error);
        }
        if let Some(error) = cause.downcast_ref::<ExportError>() {
            return match error {
                ExportError::NotClosed { .. } | ExportError::Discarded { .. } => 5,
                ExportError::NoGpu => 3,
                ExportError::Empty | ExportError::NotAnHour { .. } | ExportError::NoPrices => 2,
                ExportError::Store(error) => of_store(error),
                _ => 1,
            };
        }
    }
    1
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let done = match &args.command {
        Command::Export(own) => run_export(&args.source, own).map(|()| true),
        Command::Verify(own) => run_verify(&args.source, own),
        Command::Show(own) => return own.admin.exit(run_show(own)),
        Command::Schema(own) => print_schema(own).map(|()| true),
        Command::Changes(own) => run_changes(&args.source, own).map(|()| true),
        Command::Synthesise(own) => run_synthesise(&args.source.ledger, own).map(|()| true),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("turnstile: {error:#}");
            ExitCode::from(exit_code(&error))
        }
    }
}

/// A bar in thousandths, on standard error, if that is a terminal.
fn bar(what: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {wide_bar} {percent} % {eta}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(1_000).with_style(style).with_message(what)
}

fn run_show(args: &ShowArgs) -> Result<(), ClientError> {
    let mut path = format!(
        "/v1/usage?from={}&to={}",
        show_time(args.from),
        show_time(args.to)
    );
    if let Some(tenant) = &args.tenant {
        path.push_str(&format!("&vm={}", escaped(tenant)));
    }
    let used: Used = args.admin.client().get(&path)?;
    args.admin.show(&used, |used| {
        let rows: Vec<Vec<String>> = used
            .items
            .iter()
            .map(|sum| {
                let seconds = |ns: u64| format!("{:.3}", ns as f64 / 1e9);
                let mib = |bytes: u64| format!("{}", bytes.div_ceil(1 << 20));
                vec![
                    sum.name.clone(),
                    sum.kind.clone(),
                    sum.account.clone().unwrap_or_else(|| "-".into()),
                    sum.gpu.clone(),
                    seconds(sum.engine_ns),
                    seconds(sum.copy_ns),
                    gigabytes(sum.copy_bytes),
                    seconds(sum.held_ns),
                    seconds(sum.waiting_ns),
                    sum.pinned_bytes.map_or("-".into(), mib),
                ]
            })
            .collect();
        let head = [
            "NAME",
            "KIND",
            "ACCOUNT",
            "GPU",
            "GPU-SEC",
            "COPY-SEC",
            "COPY-GB",
            "HELD-SEC",
            "WAIT-SEC",
            "PINNED-MIB",
        ];
        table(&head, &rows);
    });
    Ok(())
}

fn run_changes(source: &Source, args: &ChangesArgs) -> anyhow::Result<()> {
    let mut store = source.open()?;
    let selection = Selection {
        from: args.from,
        to: args.to,
        ..Selection::default()
    };
    let mut out = BufWriter::new(io::stdout());
    store.changes(&selection, &mut |change| {
        let line = serde_json::to_string(&change).unwrap_or_default();
        writeln!(out, "{line}").map_err(StoreError::Output)?;
        Ok(true)
    })?;
    out.flush().context("Writing to standard output failed")
}

fn print_schema(args: &SchemaArgs) -> anyhow::Result<()> {
    let version = match args.format {
        FocusArg::Focus12 => FocusVersion::V1_2,
        FocusArg::Focus14 => FocusVersion::V1_4,
    };
    println!("{}", serde_json::to_string_pretty(&focus_schema(version))?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn every_refusal_has_its_exit_code() {
        let code = |error: ExportError| exit_code(&anyhow::Error::new(error).context("more"));
        let path = PathBuf::from("ledger");
        assert_eq!(code(ExportError::NoPrices), 2);
        assert_eq!(code(ExportError::NoGpu), 3);
        assert_eq!(
            code(ExportError::NotClosed {
                node: String::new(),
                gpu: String::new(),
                until: UnixNanos(0)
            }),
            5
        );
        assert_eq!(
            code(ExportError::Store(StoreError::Denied {
                path: path.clone()
            })),
            6
        );
        assert_eq!(exit_code(&StoreError::NotFound { path }.into()), 3);
        assert_eq!(exit_code(&StoreError::Order.into()), 1);
        assert_eq!(exit_code(&anyhow::anyhow!("something else")), 1);
    }
}
