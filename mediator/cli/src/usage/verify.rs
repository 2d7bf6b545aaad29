//! `turnstile usage verify`: checks that a ledger is complete, balanced and unchanged.
//!
//! In goes a ledger; out come a report for each GPU, and whether all are sound. The subcommand
//! calls this.

use indicatif::ProgressBar;
use serde::Serialize;
use turnstile_accounting::audit::{Audit, Report};
use turnstile_accounting::export::show_time;
use turnstile_accounting::record::GpuIdentity;
use turnstile_accounting::store::{Kept, Selection, Store};
use turnstile_figures::output::OutputArgs;

use super::bar;
use crate::ledger::Source;

#[derive(clap::Args, Debug)]
pub(super) struct VerifyArgs {
    #[command(flatten)]
    output: OutputArgs,
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

pub(super) fn run_verify(source: &Source, args: &VerifyArgs) -> anyhow::Result<bool> {
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
    args.output.print(&verified, |verified| print(verified))?;
    Ok(verified.iter().all(|verified| verified.report.broken == 0))
}

fn print(verified: &[Verified]) {
    for Verified {
        gpu,
        closed_until,
        report,
        ..
    } in verified
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
