//! Records per second that the ledger takes, with each window on the disk before the next one.
//!
//! `cargo bench -p turnstile-accounting --features store --bench ingest`; `TURNSTILE_LEDGER_DIR`
//! names a folder on the disk to be measured (default: the system's temporary folder).

use std::time::Instant;
use turnstile_accounting::record::{
    Body, Digest, EngineRecord, Entry, GpuIdentity, SignalSet, Stretch, TenantIdentity, TenantKind,
    TenantRecord, UnixNanos,
};
use turnstile_accounting::store::{SqliteStore, Store};
use turnstile_accounting::synthetic::ENGINES;
use turnstile_accounting::{Moment, Nanos, ids};
use uuid::Uuid;

const LENGTH_NS: u64 = 60_000_000_000;

fn entry(gpu: &GpuIdentity, seq: u64, tenants: &[TenantIdentity], before: Digest) -> Entry {
    let stretch = Stretch {
        seq,
        boot: Uuid::nil(),
        start: UnixNanos(seq * LENGTH_NS),
        end: UnixNanos((seq + 1) * LENGTH_NS),
        from: Moment(seq * LENGTH_NS),
        length_ns: Nanos(LENGTH_NS),
    };
    let share = Nanos(LENGTH_NS / tenants.len() as u64);
    let record = |tenant: &TenantIdentity| TenantRecord {
        id: ids::event_id(gpu, tenant.id, &stretch),
        tenant: tenant.clone(),
        engine_ns: share,
        estimated_ns: Nanos::ZERO,
        fault_ns: Nanos::ZERO,
        copy_ns: Nanos(seq % 1_000_000),
        copy_bytes: Some(seq << 20),
        held_ns: Nanos(seq * 1_000),
        waiting_ns: Nanos(seq * 3_000),
        memory_byte_ns: Some(u128::from(share.0) << 34),
        weight: 100,
        cap: None,
        signals: SignalSet::default(),
        error_bound_ns: Nanos(1_024),
        turns: seq,
    };
    let engine = |(engine, compute): (_, bool)| EngineRecord {
        used_ns: if compute {
            Nanos(share.0 * tenants.len() as u64)
        } else {
            Nanos::ZERO
        },
        idle_ns: Nanos(
            LENGTH_NS
                - if compute {
                    share.0 * tenants.len() as u64
                } else {
                    0
                },
        ),
        ..EngineRecord::empty(engine, compute)
    };
    let body = Body::Window {
        tenants: tenants.iter().map(record).collect(),
        engines: ENGINES.map(engine).to_vec(),
    };
    let digest = before.follow(&stretch, &body);
    Entry {
        stretch,
        body,
        digest,
    }
}

fn main() {
    let folder =
        std::env::var_os("TURNSTILE_LEDGER_DIR").map_or_else(std::env::temp_dir, Into::into);
    let folder = tempfile::tempdir_in(folder).expect("a folder to write to");
    let gpu = GpuIdentity {
        node: "bench".into(),
        gpu: "GPU-0".into(),
        model: "none".into(),
    };
    println!(
        "tenants per window | windows | made and sealed /s | written, records/s | closed windows/s"
    );
    for (count, windows) in [
        (1_u32, 2_000_u64),
        (16, 2_000),
        (64, 2_000),
        (256, 1_000),
        (4_096, 60),
    ] {
        let mut tenants: Vec<TenantIdentity> = (0..count)
            .map(|n| TenantIdentity {
                id: ids::tenant_id("bench", Uuid::nil(), turnstile_accounting::TenantId(n)),
                name: format!("vm-{n}"),
                kind: TenantKind::Vm,
                account: Some("bench".to_owned()),
                metadata: Default::default(),
            })
            .collect();
        tenants.sort_by_key(|tenant| tenant.id);
        let mut store =
            SqliteStore::create(&folder.path().join(format!("{count}.ledger"))).expect("a ledger");
        let mut digest = Digest::genesis(&gpu);
        let begin = Instant::now();
        let entries: Vec<Entry> = (0..windows)
            .map(|seq| {
                let made = entry(&gpu, seq, &tenants, digest);
                digest = made.digest;
                made
            })
            .collect();
        let made = begin.elapsed();
        let begin = Instant::now();
        for entry in &entries {
            store.put(&gpu, entry).expect("it is written");
        }
        let written = begin.elapsed();
        let records = (u64::from(count) * windows) as f64;
        println!(
            "{count} | {windows} | {:.0} | {:.0} | {:.0}",
            records / made.as_secs_f64(),
            records / written.as_secs_f64(),
            windows as f64 / written.as_secs_f64()
        );
    }
}
