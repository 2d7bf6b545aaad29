//! A ledger made from a seed, for tests.
#![allow(dead_code)]

#[cfg(feature = "postgres")]
pub(crate) mod server;

use std::sync::Arc;
use turnstile_accounting::record::{CapInForce, Entry, GpuIdentity, Tail, TenantKind, UnixNanos};
use turnstile_accounting::rollup::{RollupConfig, Standing};
use turnstile_accounting::synthetic::{ENGINES, Synthetic};
use turnstile_accounting::{Metadata, Nanos, Rollup, TenantId};
use uuid::Uuid;

pub(crate) const SECOND_NS: u64 = 1_000_000_000;
/// 2026-11-20T13:00:00Z.
pub(crate) const BEGIN: u64 = 1_795_179_600 * SECOND_NS;
pub(crate) const NAMES: [&str; 5] = ["vm-a", "vm-b", "vm-c", "vm-d", "idle"];

pub(crate) const EVENTS: Synthetic = Synthetic {
    seed: 11,
    tenants: 4,
    period_ns: Nanos::from_ms(10),
};

pub(crate) fn gpu() -> GpuIdentity {
    GpuIdentity {
        node: "node-17".into(),
        gpu: "GPU-11111111-2222-3333-4444-555555555555".into(),
        model: "NVIDIA H200".into(),
    }
}

pub(crate) fn config(boot: u8, window_ns: u64) -> RollupConfig {
    RollupConfig {
        gpu: gpu(),
        boot: Uuid::from_bytes([boot; 16]),
        window_ns: Nanos(window_ns),
        engines: ENGINES.to_vec(),
    }
}

pub(crate) fn standings(period: u64) -> [Standing<'static>; 5] {
    std::array::from_fn(|index| Standing {
        tenant: TenantId(index as u32 + 1),
        name: NAMES[index],
        kind: if index == 3 {
            TenantKind::Program
        } else {
            TenantKind::Vm
        },
        account: (index < 4).then_some(["gold", "silver"][index % 2]),
        weight: 100 * (index as u32 + 1),
        cap: (index == 2).then_some(CapInForce {
            quota_ns: Nanos(25_000_000),
            period_ns: Nanos(100_000_000),
        }),
        held_total_ns: Nanos(period * 1_000),
        backlogged: index < 4,
        memory_bytes: (index != 3).then_some(140 << 30),
    })
}

/// Of `vm-a`, which is an instance with labels, and of `vm-b`, which is of a project.
pub(crate) fn metadata() -> [Arc<Metadata>; 2] {
    let instance = Some("6f1c2a9e-0d7b-4c55-9b1e-2f8f6f0a1b2c");
    let labels = [("app.kubernetes.io/name", "web"), ("pod", "shop/web-7d9f")];
    let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
    [
        Metadata::new(instance, None, labels.into()),
        Metadata::new(None, Some("shop, \"A\"".to_owned()), [].into()),
    ]
    .map(|metadata| Arc::new(metadata.unwrap()))
}

/// The end of a period on the calendar.
pub(crate) fn label(events: &Synthetic, period: u64) -> UnixNanos {
    UnixNanos(BEGIN + (period + 1) * events.period_ns.0)
}

/// A run of the daemon over some periods, after `tail`, with windows of `window_ns`. The GPU of an
/// even run does not count bytes.
pub(crate) fn run(
    boot: u8,
    window_ns: u64,
    tail: Option<Tail>,
    periods: std::ops::Range<u64>,
) -> Vec<Entry> {
    run_of(&EVENTS, boot, window_ns, tail, periods)
}

/// The same of other events.
pub(crate) fn run_of(
    events: &Synthetic,
    boot: u8,
    window_ns: u64,
    tail: Option<Tail>,
    periods: std::ops::Range<u64>,
) -> Vec<Entry> {
    let rollup = Rollup::new(config(boot, window_ns), tail).unwrap();
    fill(rollup, events, boot, periods)
}

/// A first run on another GPU.
pub(crate) fn run_of_gpu(
    gpu: &GpuIdentity,
    events: &Synthetic,
    boot: u8,
    window_ns: u64,
    periods: std::ops::Range<u64>,
) -> Vec<Entry> {
    let mut config = config(boot, window_ns);
    config.gpu = gpu.clone();
    fill(Rollup::new(config, None).unwrap(), events, boot, periods)
}

fn fill(
    mut rollup: Rollup,
    events: &Synthetic,
    boot: u8,
    periods: std::ops::Range<u64>,
) -> Vec<Entry> {
    let (mut metered, mut entries) = (events.metered(), Vec::new());
    let metadata = metadata();
    let described = [1, 2].map(TenantId).into_iter().zip(&metadata);
    for period in periods {
        let mut usage = metered.usage(period);
        usage.copied = usage.copied.filter(|_| boot % 2 == 1);
        rollup.describe(described.clone());
        rollup
            .period(&[&usage], label(events, period), &standings(period))
            .unwrap();
        rollup.take(&mut entries);
    }
    rollup.finish(&mut entries);
    entries
}

pub(crate) fn tail(entries: &[Entry]) -> Option<Tail> {
    entries.last().map(|last| Tail {
        seq: last.stretch.seq,
        end: last.stretch.end,
        digest: last.digest,
    })
}

/// Two runs with time between them: windows of a second, a gap, windows.
pub(crate) fn entries(boot: u8, periods: u64) -> Vec<Entry> {
    let mut all = run(boot, SECOND_NS, None, 0..periods / 2);
    let behind = tail(&all);
    all.extend(run(
        boot + 1,
        SECOND_NS,
        behind,
        periods / 2 + 500..periods + 500,
    ));
    all
}
