//! The admin API as its callers see it: over its sockets, beside a running daemon.

mod accounts;
#[path = "../common/mod.rs"]
mod common;
mod document;
mod http;
mod reload;
mod requests;
mod roles;
mod running;
mod tls;

use std::path::PathBuf;
use std::sync::Arc;

use turnstile_accounting::Nanos;
use turnstile_accounting::record::GpuIdentity;
use turnstile_accounting::store::SqliteStore;
use turnstile_mediator::api::{Api, ApiConfig, StateFile};
use turnstile_mediator::config::{ApiSection, MetricsSection};
use turnstile_mediator::daemon::{AccountsConfig, Daemon, DaemonConfig, LedgerConfig};
use turnstile_soft::{SoftConfig, SoftGpu};

/// A daemon with its API, in a folder of its own.
struct Bench {
    api: Option<Api>,
    daemon: Option<Daemon>,
    folder: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut ApiSection)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut bench = Self {
            api: None,
            daemon: None,
            folder,
        };
        bench.start(change);
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn socket(&self) -> PathBuf {
        self.path("api.sock")
    }

    fn start(&mut self, change: impl FnOnce(&mut ApiSection)) {
        self.stop();
        let mut section = ApiSection {
            socket: Some(self.socket()),
            read_only_socket: Some(self.path("api-ro.sock")),
            state: Some(self.path("state.json")),
            ..ApiSection::default()
        };
        change(&mut section);
        let gpu = GpuIdentity {
            node: "node-1".into(),
            gpu: "software-0".into(),
            model: "Software GPU".into(),
        };
        let ledger = LedgerConfig {
            store: Box::new(SqliteStore::create(&self.path("ledger")).unwrap()),
            gpu: gpu.clone(),
            window_ns: Nanos::from_ms(200),
            keep_ns: None,
        };
        let state = section.state.clone().map(StateFile::new);
        let kept = state.map(|state| state.load().unwrap()).unwrap_or_default();
        let config = DaemonConfig {
            settings: kept.tenants,
            accounts: AccountsConfig {
                made: kept.accounts,
                names: kept.names,
                ..AccountsConfig::default()
            },
            ..DaemonConfig::new(self.path("vmm.sock"))
        };
        let soft = Arc::new(SoftGpu::new(SoftConfig::default()).unwrap());
        let daemon = Daemon::with_ledger(config, soft, Some(ledger)).unwrap();
        let config = ApiConfig {
            section,
            metrics: MetricsSection::default(),
            prices: None,
            gpu,
            ledger: Some(self.path("ledger")),
        };
        self.api = Some(Api::start(config, daemon.host().clone()).unwrap());
        self.daemon = Some(daemon);
    }

    fn stop(&mut self) {
        self.api = None;
        self.daemon = None;
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.stop();
    }
}
