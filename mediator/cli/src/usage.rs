//! `turnstile usage`: exports the ledger for billing, and checks it.

mod export;
mod span;
mod synthesise;
mod verify;

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Subcommand, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use turnstile_accounting::export::{
    FocusVersion, UNRECORDED, events_schema, focus_schema, show_time,
};
use turnstile_accounting::record::UnixNanos;
use turnstile_accounting::store::{Selection, StoreError};
use turnstile_api::client::ClientError;
use turnstile_api::usage::{TenantUsed, Used};
use turnstile_api::vm::Vm;

use turnstile_figures::columns::table;

use super::admin::{Admin, escaped};
use super::exit::Exit;
use super::ledger::Source;
use super::vm::gigabytes;
use export::{ExportArgs, run_export};
use span::{Span, now, time};
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
    /// Show what each tenant used, by a running daemon: this hour unless another time is named
    Show(ShowArgs),
    /// Show every change of settings and its author, from the ledger
    Changes(ChangesArgs),
    /// Print what the columns of a bill in FOCUS, or the data of events are, as its schema
    Schema(SchemaArgs),
    /// Make a ledger out of a seed, to try exports on
    #[command(hide = true)]
    Synthesise(SynthesiseArgs),
}

#[derive(clap::Args, Debug)]
struct ShowArgs {
    #[command(flatten)]
    admin: Admin,
    #[command(flatten)]
    span: Span,
    /// One tenant, by name or id
    #[arg(long)]
    tenant: Option<String>,
}

#[derive(clap::Args, Debug)]
struct ChangesArgs {
    /// From this time
    #[arg(long, value_parser = time)]
    from: Option<UnixNanos>,
    /// To this time
    #[arg(long, value_parser = time)]
    to: Option<UnixNanos>,
}

#[derive(clap::Args, Debug)]
struct SchemaArgs {
    /// Of which bills, or of events
    #[arg(long, value_enum, default_value_t = SchemaArg::Focus14)]
    format: SchemaArg,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum SchemaArg {
    /// CloudEvents
    Ndjson,
    /// FOCUS 1.2
    #[value(name = "focus-1.2")]
    Focus12,
    /// FOCUS 1.4
    #[value(name = "focus-1.4")]
    Focus14,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let sound = match &args.command {
        Command::Export(own) => run_export(&args.source, own).map(|()| true),
        Command::Verify(own) => run_verify(&args.source, own),
        Command::Show(own) => return Ok(own.admin.exit(run_show(own))),
        Command::Schema(own) => print_schema(own).map(|()| true),
        Command::Changes(own) => run_changes(&args.source, own).map(|()| true),
        Command::Synthesise(own) => run_synthesise(&args.source.ledger, own).map(|()| true),
    }?;
    let exit = if sound { Exit::Done } else { Exit::Failed };
    Ok(exit.into())
}

/// Exit status of a refusal of what does not exist.
const NOT_FOUND: u8 = Exit::NotFound as u8;

/// A bar in thousandths, on standard error, if that is a terminal.
fn bar(what: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {wide_bar} {percent} % {eta}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(1_000).with_style(style).with_message(what)
}

fn run_show(args: &ShowArgs) -> anyhow::Result<()> {
    let (from, to) = args.span.shown(now());
    let client = args.admin.client();
    let mut path = format!("/v1/usage?from={}&to={}", show_time(from), show_time(to));
    if let Some(tenant) = &args.tenant {
        path.push_str(&format!("&vm={}", escaped(tenant)));
    }
    let used: Used = match client.get(&path) {
        // The ledger knows no such tenant. One that is connected is in it soon.
        Err(error) if error.exit_code() == NOT_FOUND && args.tenant.is_some() => {
            let name = args.tenant.as_deref().unwrap_or_default();
            let _: Vm = client.get(&format!("/v1/vms/{}", escaped(name)))?;
            client.get(&format!("{path}&allow_gaps=true"))?
        }
        // What is not there is shown below the table.
        Err(ClientError::Refused(_)) => client.get(&format!("{path}&allow_gaps=true"))?,
        used => used?,
    };
    Ok(args.admin.show(&used, show)?)
}

/// Prints what tenants used, the totals, and the time without a record.
fn show(used: &Used) {
    let seconds = |ns: u64| format!("{:.3}", ns as f64 / 1e9);
    let mib = |bytes: u64| format!("{}", bytes.div_ceil(1 << 20));
    let cells = |sum: &TenantUsed| {
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
    };
    let mut rows: Vec<Vec<String>> = used.items.iter().map(cells).collect();
    let total = |of: fn(&TenantUsed) -> u64| seconds(used.items.iter().map(of).sum());
    let known = |of: fn(&TenantUsed) -> Option<u64>| -> Option<u64> {
        let known: Vec<u64> = used.items.iter().filter_map(of).collect();
        (!known.is_empty()).then(|| known.iter().sum())
    };
    let none = || "-".to_owned();
    rows.push(vec![
        "TOTAL".into(),
        none(),
        none(),
        none(),
        total(|sum| sum.engine_ns),
        total(|sum| sum.copy_ns),
        gigabytes(known(|sum| sum.copy_bytes)),
        total(|sum| sum.held_ns),
        total(|sum| sum.waiting_ns),
        known(|sum| sum.pinned_bytes).map_or_else(none, mib),
    ]);
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
    println!("From {} to {}", used.from, used.to);
    for unknown in &used.unknown {
        let what = match unknown.cause.as_str() {
            UNRECORDED => "not in the ledger, or not closed yet",
            cause => cause,
        };
        println!(
            "{}: {} s without a record, {what}, from {} to {}",
            unknown.gpu,
            seconds(unknown.unknown_ns),
            unknown.start,
            unknown.end
        );
    }
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
    let schema = match args.format {
        SchemaArg::Ndjson => events_schema(),
        SchemaArg::Focus12 => focus_schema(FocusVersion::V1_2),
        SchemaArg::Focus14 => focus_schema(FocusVersion::V1_4),
    };
    println!("{}", serde_json::to_string_pretty(&schema)?);
    Ok(())
}
