//! A ledger's file with changed bytes: opened, verified, exported and continued. SQLite reads the
//! pages, the project the rows; neither may panic.
use std::fs;
use std::sync::OnceLock;

use turnstile_accounting::Rollup;
use turnstile_accounting::audit::Audit;
use turnstile_accounting::export::{Container, Format, Request, export};
use turnstile_accounting::record::{GpuIdentity, TenantKind, UnixNanos};
use turnstile_accounting::rollup::{RollupConfig, Standing};
use turnstile_accounting::store::{Selection, SqliteStore, Store};
use turnstile_accounting::synthetic::{ENGINES, Synthetic};
use turnstile_accounting::{Nanos, TenantId};
use uuid::Uuid;

/// A small valid ledger, as bytes.
fn sound() -> &'static [u8] {
    static SOUND: OnceLock<Vec<u8>> = OnceLock::new();
    SOUND.get_or_init(|| {
        let events = Synthetic {
            seed: 1,
            tenants: 2,
            period_ns: Nanos::from_ms(100),
        };
        let gpu = GpuIdentity {
            node: "n".into(),
            gpu: "g".into(),
            model: "m".into(),
        };
        let config = RollupConfig {
            gpu: gpu.clone(),
            boot: Uuid::nil(),
            window_ns: Nanos::from_ms(1_000),
            engines: ENGINES.to_vec(),
        };
        let mut rollup = Rollup::new(config, None).unwrap();
        let (mut metered, mut entries) = (events.metered(), Vec::new());
        let standing = Standing {
            tenant: TenantId(1),
            name: "vm",
            kind: TenantKind::Vm,
            account: None,
            weight: 100,
            cap: None,
            held_total_ns: Nanos::ZERO,
            backlogged: true,
            memory_bytes: Some(1 << 30),
        };
        for period in 0..35 {
            let end = UnixNanos((period + 1) * 100_000_000);
            rollup
                .period(&[&metered.usage(period)], end, &[standing])
                .unwrap();
            rollup.take(&mut entries);
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger");
        let mut store = SqliteStore::create(&path).unwrap();
        for entry in &entries {
            store.put(&gpu, entry).unwrap();
        }
        drop(store);
        fs::read(&path).unwrap()
    })
}

/// Each five bytes of `bytes`: the position of a change, and the new byte.
///
/// # Panics
/// If the host provides no folder, or a reader panics.
pub fn ledger(bytes: &[u8]) {
    let mut file = sound().to_vec();
    for change in bytes.chunks_exact(5) {
        let at =
            u32::from_le_bytes([change[0], change[1], change[2], change[3]]) as usize % file.len();
        file[at] = change[4];
    }
    let folder = tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .unwrap();
    let path = folder.path().join("ledger");
    fs::write(&path, &file).unwrap();
    if let Ok(mut store) = SqliteStore::read(&path) {
        let Ok(kept) = store.gpus() else { return };
        for kept in &kept {
            let mut audit = Audit::new(&kept.gpu, Some(kept.anchor));
            let _ = store.query(&Selection::default(), &mut |_, entry| {
                audit.entry(&entry);
                Ok(true)
            });
            let _ = audit.finish();
        }
        let request = Request {
            to: UnixNanos(3_000_000_000),
            ..Request::default()
        };
        for format in [Format::Events, Format::Rows(Container::Csv)] {
            let _ = export(
                &mut store,
                format,
                &request,
                None,
                &mut Vec::new(),
                &mut |_| {},
            );
        }
    }
    if let Ok(mut store) = SqliteStore::create(&path) {
        let _ = store.retain("node", UnixNanos(2_000_000_000));
    }
}
