//! `turnstile usage`: exports the ledger for billing, and checks it.
//!
//! Exit codes: 0 done; 1 failed, or found broken; 2 wrong usage; 3 no such ledger or GPU; 5 not
//! closed yet, or discarded; 6 not permitted.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Subcommand, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use turnstile_accounting::audit::{Audit, Report};
use turnstile_accounting::export::{
    Container, ExportError, FocusVersion, Format, PriceList, Request, export, focus_schema,
    parse_time, show_time,
};
use turnstile_accounting::record::{GpuIdentity, TenantKind, UnixNanos};
use turnstile_accounting::rollup::{RollupConfig, Standing};
use turnstile_accounting::store::{Kept, Selection, SqliteStore, Store, StoreError};
use turnstile_accounting::synthetic::{ENGINES, Synthetic};
use turnstile_accounting::{Nanos, Rollup, TenantId};
use turnstile_mediator::api::client::ClientError;
use turnstile_mediator::api::usage::Used;
use uuid::Uuid;

use super::admin::{Admin, escaped, table};
use super::ledger::Source;
use super::vm::gigabytes;

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
struct ExportArgs {
    /// What to write
    #[arg(long, value_enum)]
    format: FormatArg,
    /// Windows that begin at or after this time (RFC 3339); for FOCUS a full hour
    #[arg(long, value_parser = time)]
    from: UnixNanos,
    /// Windows that begin before this time; all of them have to be closed
    #[arg(long, value_parser = time)]
    to: UnixNanos,
    /// One tenant, by name or id
    #[arg(long)]
    tenant: Option<String>,
    /// One GPU
    #[arg(long)]
    gpu: Option<String>,
    /// One node, as `turnstile usage verify` names them; a host that was renamed is another one
    #[arg(long)]
    node: Option<String>,
    /// Price list, TOML or JSON; FOCUS needs one
    #[arg(long)]
    prices: Option<PathBuf>,
    /// File to write, which appears when it is complete; standard output unless named
    #[arg(long, short)]
    output: Option<PathBuf>,
    /// Parquet instead of CSV
    #[arg(long)]
    parquet: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FormatArg {
    /// CloudEvents 1.0, one JSON object a line
    Ndjson,
    /// One row for each tenant, GPU and window
    Csv,
    /// FOCUS 1.2: one row for each tenant, GPU and hour
    #[value(name = "focus-1.2")]
    Focus12,
    /// FOCUS 1.4
    #[value(name = "focus-1.4")]
    Focus14,
}

#[derive(clap::Args, Debug)]
struct VerifyArgs {
    /// JSON instead of text
    #[arg(long)]
    json: bool,
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

#[derive(clap::Args, Debug)]
struct SynthesiseArgs {
    /// Where the numbers come from
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// When it begins
    #[arg(long, value_parser = time, default_value = "2026-11-20T13:00:00Z")]
    from: UnixNanos,
    /// For how long
    #[arg(long, default_value_t = 1)]
    hours: u64,
    /// Tenants
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    tenants: u32,
    /// Length of a window
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    window_s: u64,
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

fn prices(path: &Path) -> anyhow::Result<PriceList> {
    PriceList::read(path).with_context(|| path.display().to_string())
}

fn run_export(source: &Source, args: &ExportArgs) -> anyhow::Result<()> {
    let container = if args.parquet {
        Container::Parquet
    } else {
        Container::Csv
    };
    let format = match args.format {
        FormatArg::Ndjson => {
            anyhow::ensure!(
                !args.parquet,
                "CloudEvents are written as NDJSON alone; leave --parquet out"
            );
            Format::Events
        }
        FormatArg::Csv => Format::Rows(container),
        FormatArg::Focus12 => Format::Focus(FocusVersion::V1_2, container),
        FormatArg::Focus14 => Format::Focus(FocusVersion::V1_4, container),
    };
    let request = Request {
        from: args.from,
        to: args.to,
        node: args.node.clone(),
        gpu: args.gpu.clone(),
        tenant: args.tenant.clone(),
    };
    let prices = args.prices.as_deref().map(prices).transpose()?;
    let mut store = source.open()?;
    let bar = bar("Exporting");
    let mut write = |out: &mut (dyn Write + Send)| {
        export(
            &mut *store,
            format,
            &request,
            prices.as_ref(),
            out,
            &mut |done| bar.set_position(done),
        )
    };
    let exported = match &args.output {
        None => {
            let mut out = BufWriter::new(io::stdout());
            let exported = write(&mut out)?;
            out.flush().context("Writing to standard output failed")?;
            exported
        }
        Some(path) => {
            // Beside the file, and renamed when it is complete: no reader finds half an export.
            let folder = path
                .parent()
                .filter(|folder| !folder.as_os_str().is_empty())
                .unwrap_or(Path::new("."));
            let file = tempfile::NamedTempFile::new_in(folder)
                .with_context(|| format!("Writing in {} failed", folder.display()))?;
            let mut out = BufWriter::new(file);
            let exported = write(&mut out)?;
            let file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
            file.as_file().sync_all()?;
            file.persist(path)
                .with_context(|| format!("Writing {} failed", path.display()))?;
            File::open(folder)?.sync_all()?;
            exported
        }
    };
    bar.finish_and_clear();
    eprintln!(
        "turnstile: {} rows from {} entries, {} ns of engine time",
        exported.rows, exported.entries, exported.engine_ns
    );
    Ok(())
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

/// Result of one GPU.
#[derive(Serialize)]
struct Verified {
    #[serde(flatten)]
    gpu: GpuIdentity,
    /// Beginning of what is kept, or none if all is.
    kept_from: Option<String>,
    closed_until: String,
    #[serde(flatten)]
    report: Report,
}

/// Verifies one GPU; again, if the oldest entries were discarded in between.
fn verify(store: &mut dyn Store, mut kept: Kept, bar: &ProgressBar) -> anyhow::Result<Verified> {
    let selection = Selection {
        node: Some(kept.gpu.node.clone()),
        gpu: Some(kept.gpu.gpu.clone()),
        ..Selection::default()
    };
    loop {
        let mut audit = Audit::new(&kept.gpu, Some(kept.anchor));
        let mut last = None;
        store.query(&selection, &mut |_, entry| {
            bar.inc(1);
            audit.entry(&entry);
            last = Some(entry.stretch.end);
            Ok(true)
        })?;
        let mut gpus = store.gpus()?.into_iter();
        match gpus.find(|now| now.gpu == kept.gpu) {
            Some(now) if now.anchor != kept.anchor => kept = now,
            _ => {
                return Ok(Verified {
                    kept_from: (kept.from.0 > 0).then(|| show_time(kept.from)),
                    closed_until: show_time(last.unwrap_or(kept.tail.end)),
                    report: audit.finish(),
                    gpu: kept.gpu,
                });
            }
        }
    }
}

fn run_verify(source: &Source, args: &VerifyArgs) -> anyhow::Result<bool> {
    let mut store = source.open()?;
    let kept = store.gpus()?;
    let bar = bar("Verifying");
    let mut verified = Vec::new();
    let total: u64 = kept
        .iter()
        .map(|kept| kept.tail.seq + 1 - kept.anchor.seq.min(kept.tail.seq))
        .sum();
    bar.set_length(total);
    for kept in kept {
        verified.push(verify(&mut *store, kept, &bar)?);
    }
    bar.finish_and_clear();
    if args.json {
        println!("{}", serde_json::to_string_pretty(&verified)?);
    } else {
        for Verified {
            gpu,
            closed_until,
            report,
            ..
        } in &verified
        {
            println!(
                "{} {} ({}): closed until {closed_until}; {} windows, {} records, {} gaps of {} ns; engine time {} ns; {}",
                gpu.node,
                gpu.gpu,
                gpu.model,
                report.windows,
                report.records,
                report.gaps,
                report.gap_ns,
                report.engine_ns,
                if report.broken == 0 {
                    "sound".into()
                } else {
                    format!("{} BROKEN", report.broken)
                }
            );
            for finding in &report.findings {
                println!("  {finding}");
            }
        }
    }
    Ok(verified.iter().all(|verified| verified.report.broken == 0))
}

/// Period of the events that are made up.
const PERIOD: Nanos = Nanos::from_ms(10);

fn run_synthesise(ledger: &Path, args: &SynthesiseArgs) -> anyhow::Result<()> {
    anyhow::ensure!(!ledger.exists(), "{} is there already", ledger.display());
    let config = RollupConfig {
        gpu: GpuIdentity {
            node: "demo".into(),
            gpu: format!("synthetic-{}", args.seed),
            model: "Synthetic GPU".into(),
        },
        boot: Uuid::from_u128(args.seed.into()),
        window_ns: Nanos(args.window_s * 1_000_000_000),
        engines: ENGINES.to_vec(),
    };
    let gpu = config.gpu.clone();
    let events = Synthetic {
        seed: args.seed,
        tenants: args.tenants,
        period_ns: PERIOD,
    };
    let names: Vec<String> = (1..=args.tenants)
        .map(|number| format!("vm-{number}"))
        .collect();
    let (mut rollup, mut metered) = (Rollup::new(config, None)?, events.metered());
    let (mut store, mut closed) = (SqliteStore::create(ledger)?, Vec::new());
    let periods = args.hours * 3_600 * 1_000_000_000 / PERIOD.0;
    let bar = bar("Making events");
    // One more, so that the last window reaches the end of the hour.
    for period in 0..=periods {
        let standings: Vec<Standing<'_>> = names
            .iter()
            .zip(1..)
            .map(|(name, number)| Standing {
                tenant: TenantId(number),
                name,
                kind: TenantKind::Vm,
                account: None,
                weight: 100,
                cap: None,
                held_total_ns: Nanos(period * 1_000),
                backlogged: true,
                memory_bytes: Some(1 << 30),
            })
            .collect();
        let end = UnixNanos(args.from.0 + (period + 1) * PERIOD.0);
        rollup.period(&[&metered.usage(period)], end, &standings)?;
        rollup.take(&mut closed);
        for entry in closed.drain(..) {
            store.put(&gpu, &entry)?;
        }
        bar.set_position(period * 1_000 / periods.max(1));
    }
    bar.finish_and_clear();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

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
