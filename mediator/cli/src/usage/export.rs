//! `turnstile usage export`: writes what was used between two times, for billing.
//!
//! In go a ledger, two times and a format; out comes a complete file, or standard output. The
//! subcommand calls this.

use std::fs::File;
use std::io::{self, BufWriter, Seek, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::ValueEnum;
use turnstile_accounting::export::{Container, FocusVersion, Format, PriceList, Request, export};

use super::bar;
use super::span::{Span, now};
use crate::absent::absent;
use crate::ledger::Source;

#[derive(clap::Args, Debug)]
pub(super) struct ExportArgs {
    /// What to write
    #[arg(long, value_enum)]
    format: FormatArg,
    #[command(flatten)]
    span: Span,
    /// One tenant, by name or id
    #[arg(long)]
    tenant: Option<String>,
    /// Export what is there, though the ledger begins later, ends earlier or knows no such tenant
    #[arg(long)]
    allow_gaps: bool,
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

fn prices(path: &Path) -> anyhow::Result<PriceList> {
    PriceList::read(path).with_context(|| path.display().to_string())
}

pub(super) fn run_export(source: &Source, args: &ExportArgs) -> anyhow::Result<()> {
    anyhow::ensure!(
        cfg!(feature = "parquet") || !args.parquet,
        absent("--parquet", "parquet")
    );
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
    let Some((from, to)) = args.span.named(now()) else {
        let form = "--from and --to, --last, --day or --month";
        clap::Error::raw(
            clap::error::ErrorKind::MissingRequiredArgument,
            format!("An export needs a time: name {form}\n"),
        )
        .exit()
    };
    let request = Request {
        from,
        to,
        allow_gaps: args.allow_gaps,
        now: Some(now()),
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
            // Complete before its first byte is printed: the reader gets no part of a refused one.
            let mut out = BufWriter::new(tempfile::tempfile()?);
            let exported = write(&mut out)?;
            let mut file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
            file.rewind()?;
            let mut stdout = io::stdout().lock();
            io::copy(&mut file, &mut stdout)
                .and_then(|_| stdout.flush())
                .context("Writing to standard output failed")?;
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
        "turnstile: {} rows from {} entries, {} ns of engine time, {} ns without a record",
        exported.rows, exported.entries, exported.engine_ns, exported.unknown_ns
    );
    Ok(())
}
