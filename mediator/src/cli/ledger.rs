//! The durable ledger that a configuration asks for.

use anyhow::Context;
use turnstile_accounting::Nanos;
use turnstile_accounting::record::GpuIdentity;
use turnstile_accounting::store::SqliteStore;
use turnstile_mediator::config::LedgerSection;
use turnstile_mediator::daemon::LedgerConfig;

/// Name of this host.
pub(super) fn node(section: &LedgerSection) -> String {
    let name = rustix::system::uname();
    let own = || name.nodename().to_string_lossy().into_owned();
    section.node.clone().unwrap_or_else(own)
}

/// Opens the ledger for the GPU that `identity` names, if one is asked for.
pub(super) fn open(
    section: &LedgerSection,
    identity: impl FnOnce() -> anyhow::Result<(String, String)>,
) -> anyhow::Result<Option<LedgerConfig>> {
    anyhow::ensure!(
        section.postgres.is_none(),
        "ledger.postgres: `serve` does not write to a server yet; ledger.path names a file"
    );
    let Some(path) = &section.path else {
        return Ok(None);
    };
    let node = node(section);
    let (gpu, model) = identity()?;
    let store = SqliteStore::create(path)
        .with_context(|| format!("The ledger {} cannot be opened", path.display()))?;
    let keep = section.keep_days * 86_400_000_000_000;
    Ok(Some(LedgerConfig {
        store: Box::new(store),
        gpu: GpuIdentity { node, gpu, model },
        window_ns: Nanos::from_ms(section.window_ms),
        keep_ns: (keep > 0).then_some(Nanos(keep)),
    }))
}
