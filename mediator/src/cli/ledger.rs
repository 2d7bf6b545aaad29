//! The durable ledger that a configuration asks for.

use anyhow::Context;
use turnstile_accounting::Nanos;
use turnstile_accounting::record::GpuIdentity;
use turnstile_accounting::store::{SqliteStore, Store};
use turnstile_mediator::config::LedgerSection;
use turnstile_mediator::daemon::LedgerConfig;

/// Name of this host.
pub(super) fn node(section: &LedgerSection) -> String {
    let name = rustix::system::uname();
    let own = || name.nodename().to_string_lossy().into_owned();
    section.node.clone().unwrap_or_else(own)
}

fn store(section: &LedgerSection) -> anyhow::Result<Option<Box<dyn Store>>> {
    if let Some(database) = &section.postgres {
        return Ok(Some(server(section, database)?));
    }
    let Some(path) = &section.path else {
        return Ok(None);
    };
    let store = SqliteStore::create(path)
        .with_context(|| format!("The ledger {} cannot be opened", path.display()))?;
    Ok(Some(Box::new(store)))
}

fn server(section: &LedgerSection, database: &str) -> anyhow::Result<Box<dyn Store>> {
    use turnstile_accounting::store::{PostgresStore, holds_password};
    let address = holds_password(database).context("ledger.postgres is no address")?;
    anyhow::ensure!(
        !address,
        "ledger.postgres holds a password, which `config show` and logs would tell: write it into a file, and name that by \
         ledger.postgres_password_file"
    );
    let password = match &section.postgres_password_file {
        Some(path) => {
            let text = std::fs::read_to_string(path)
                .with_context(|| format!("The password in {} cannot be read", path.display()))?;
            Some(text.lines().next().unwrap_or_default().to_owned())
        }
        None => None,
    };
    let store = PostgresStore::connect_with(database, password.as_deref().map(str::as_bytes))
        .context("The ledger's server cannot be used")?;
    Ok(Box::new(store))
}

/// Opens the ledger for the GPU that `identity` names, if one is asked for.
pub(super) fn open(
    section: &LedgerSection,
    identity: impl FnOnce() -> anyhow::Result<(String, String)>,
) -> anyhow::Result<Option<LedgerConfig>> {
    let Some(store) = store(section)? else {
        return Ok(None);
    };
    let node = node(section);
    let (gpu, model) = identity()?;
    let keep = section.keep_days * 86_400_000_000_000;
    Ok(Some(LedgerConfig {
        store,
        gpu: GpuIdentity { node, gpu, model },
        window_ns: Nanos::from_ms(section.window_ms),
        keep_ns: (keep > 0).then_some(Nanos(keep)),
    }))
}
