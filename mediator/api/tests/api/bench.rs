//! A daemon with its API, for tests.
#![allow(dead_code, reason = "each test uses what it needs")]

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use turnstile_accounting::Nanos;
use turnstile_accounting::record::GpuIdentity;
use turnstile_accounting::store::SqliteStore;
use turnstile_api::{Api, ApiConfig, StateFile};
use turnstile_daemon::config::{ApiSection, MetricsSection};
use turnstile_daemon::{Daemon, DaemonConfig, LedgerConfig};
use turnstile_soft::{SoftConfig, SoftGpu};

/// Both, in a folder of their own.
pub(crate) struct Bench {
    pub(crate) api: Option<Api>,
    daemon: Option<Daemon>,
    soft: Option<Arc<SoftGpu>>,
    pub(crate) folder: tempfile::TempDir,
}

impl Bench {
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    pub(crate) fn with(change: impl FnOnce(&mut ApiSection)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut bench = Self {
            api: None,
            daemon: None,
            soft: None,
            folder,
        };
        bench.start(change);
        bench
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The GPU.
    pub(crate) fn soft(&self) -> &SoftGpu {
        self.soft.as_ref().unwrap()
    }

    /// Periods that were accounted.
    pub(crate) fn periods(&self) -> u64 {
        let periods = self.daemon.as_ref().unwrap().periods();
        periods[0].load(Ordering::Relaxed)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.path("api.sock")
    }

    pub(crate) fn start(&mut self, change: impl FnOnce(&mut ApiSection)) {
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
            store: Arc::new(Mutex::new(Box::new(
                SqliteStore::create(&self.path("ledger")).unwrap(),
            ))),
            gpu: gpu.clone(),
            window_ns: Nanos::from_ms(200),
            keep_ns: None,
        };
        let state = section.state.clone().map(StateFile::new);
        let kept = state.map(|state| state.load().unwrap()).unwrap_or_default();
        let config = kept.resumed(DaemonConfig {
            identity: gpu.clone(),
            ..DaemonConfig::new(self.path("vmm.sock"))
        });
        let soft = Arc::new(SoftGpu::new(SoftConfig::default()).unwrap());
        self.soft = Some(soft.clone());
        let daemon = Daemon::with_ledger(config, soft, Some(ledger)).unwrap();
        let config = ApiConfig {
            section,
            metrics: MetricsSection::default(),
            prices: None,
            ledger: Some(self.path("ledger")),
            version: "1.2.3-4-gabc".into(),
        };
        self.api = Some(Api::start(config, daemon.fleet().clone()).unwrap());
        self.daemon = Some(daemon);
    }

    pub(crate) fn stop(&mut self) {
        self.api = None;
        self.daemon = None;
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.stop();
    }
}
