//! Arguments that give a daemon its durable ledger.

use std::path::PathBuf;

use anyhow::Context;
use turnstile_accounting::Nanos;
use turnstile_accounting::record::GpuIdentity;
use turnstile_accounting::store::SqliteStore;
use turnstile_mediator::daemon::LedgerConfig;

/// Where and how the ledger is kept.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct LedgerArgs {
    /// Keep a durable ledger in this file; none is kept unless it is named
    #[arg(long)]
    ledger: Option<PathBuf>,
    /// Length of the ledger's windows, in seconds
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    ledger_window_s: u64,
    /// Days after which entries are discarded; 0 for never
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u64).range(0..=36_500))]
    ledger_keep_days: u64,
    /// Name of this host in the ledger; its own unless said otherwise
    #[arg(long)]
    node: Option<String>,
}

impl LedgerArgs {
    /// Name of this host.
    pub(crate) fn node(&self) -> String {
        let own = || {
            let name = rustix::system::uname();
            name.nodename().to_string_lossy().into_owned()
        };
        self.node.clone().unwrap_or_else(own)
    }

    /// Opens the ledger for the GPU that `identity` names, if one is asked for.
    pub(crate) fn open(
        &self,
        identity: impl FnOnce() -> anyhow::Result<(String, String)>,
    ) -> anyhow::Result<Option<LedgerConfig>> {
        let Some(path) = &self.ledger else {
            return Ok(None);
        };
        let node = self.node();
        let (gpu, model) = identity()?;
        let store = SqliteStore::create(path)
            .with_context(|| format!("The ledger {} cannot be opened", path.display()))?;
        let keep = self.ledger_keep_days * 86_400_000_000_000;
        Ok(Some(LedgerConfig {
            store: Box::new(store),
            gpu: GpuIdentity { node, gpu, model },
            window_ns: Nanos(self.ledger_window_s * 1_000_000_000),
            keep_ns: (keep > 0).then_some(Nanos(keep)),
        }))
    }
}
