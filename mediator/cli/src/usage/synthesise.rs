//! `turnstile usage synthesise`: makes a ledger out of a seed, to try exports on.
//!
//! In go a seed, a length of time and a number of tenants; out comes a new ledger. The subcommand
//! calls this.

use std::path::Path;

use turnstile_accounting::record::{GpuIdentity, TenantKind, UnixNanos};
use turnstile_accounting::rollup::{RollupConfig, Standing};
use turnstile_accounting::store::{SqliteStore, Store};
use turnstile_accounting::synthetic::{ENGINES, Synthetic};
use turnstile_accounting::{Nanos, Rollup, TenantId};
use uuid::Uuid;

use super::{bar, time};

#[derive(clap::Args, Debug)]
pub(super) struct SynthesiseArgs {
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

/// Period of the events that are made up.
const PERIOD: Nanos = Nanos::from_ms(10);

pub(super) fn run_synthesise(ledger: &Path, args: &SynthesiseArgs) -> anyhow::Result<()> {
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
