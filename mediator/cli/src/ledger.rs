//! Opens the durable ledger of a configuration.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use anyhow::Context;
use turnstile_accounting::Nanos;
use turnstile_accounting::record::GpuIdentity;
#[cfg(feature = "postgres")]
use turnstile_accounting::store::{PostgresStore, holds_password};
use turnstile_accounting::store::{SqliteStore, Store};
use turnstile_daemon::config::LedgerSection;
use turnstile_daemon::{LedgerConfig, SharedStore};

#[cfg(not(feature = "postgres"))]
use super::absent::absent;

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

#[cfg(feature = "postgres")]
fn server(section: &LedgerSection, database: &str) -> anyhow::Result<Box<dyn Store>> {
    let password = password(database, section.postgres_password_file.as_deref())?;
    let store = PostgresStore::connect_with(database, password.as_deref().map(str::as_bytes))
        .context("The ledger's server cannot be used")?;
    Ok(Box::new(store))
}

/// Opens the ledgers of a server to read.
#[cfg(feature = "postgres")]
fn read_server(database: &str, file: Option<&Path>) -> anyhow::Result<Box<dyn Store>> {
    let password = password(database, file)?;
    let password = password.as_deref().map(str::as_bytes);
    Ok(Box::new(PostgresStore::read_with(database, password)?))
}

#[cfg(not(feature = "postgres"))]
fn server(_: &LedgerSection, _: &str) -> anyhow::Result<Box<dyn Store>> {
    Err(absent("ledger.postgres", "postgres"))
}

#[cfg(not(feature = "postgres"))]
fn read_server(_: &str, _: Option<&Path>) -> anyhow::Result<Box<dyn Store>> {
    Err(absent("--postgres", "postgres"))
}

/// Reads the password from its file; an address that contains one is refused.
#[cfg(feature = "postgres")]
fn password(database: &str, file: Option<&Path>) -> anyhow::Result<Option<String>> {
    let address = holds_password(database).context("The ledger's server has no such address")?;
    anyhow::ensure!(
        !address,
        "The server's address holds a password, which `config show`, `ps` and logs would tell: write it into a file, and name that \
         by ledger.postgres_password_file or --postgres-password-file"
    );
    let Some(path) = file else { return Ok(None) };
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("The password in {} cannot be read", path.display()))?;
    Ok(Some(text.lines().next().unwrap_or_default().to_owned()))
}

/// Opens the configured ledger to read.
pub(super) fn read(section: &LedgerSection) -> anyhow::Result<Box<dyn Store>> {
    match (&section.postgres, &section.path) {
        (Some(database), _) => read_server(database, section.postgres_password_file.as_deref()),
        (None, Some(path)) => Ok(Box::new(SqliteStore::read(path)?)),
        (None, None) => anyhow::bail!("No ledger is configured; ledger.path names a file"),
    }
}

/// The ledger to read.
#[derive(clap::Args, Debug)]
pub(super) struct Source {
    /// The ledger, as `serve --ledger` writes it
    #[arg(long, global = true, default_value = "/var/lib/turnstile/ledger")]
    pub(super) ledger: PathBuf,
    /// The ledgers of a PostgreSQL server instead, as `ledger.postgres` names it
    #[arg(long, global = true, value_name = "ADDRESS", conflicts_with = "ledger")]
    postgres: Option<String>,
    /// File with the password of the PostgreSQL user in its first line
    #[arg(long, global = true, value_name = "FILE", requires = "postgres")]
    postgres_password_file: Option<PathBuf>,
}

impl Source {
    /// Opens it to read.
    pub(super) fn open(&self) -> anyhow::Result<Box<dyn Store>> {
        match &self.postgres {
            Some(database) => read_server(database, self.postgres_password_file.as_deref()),
            None => Ok(Box::new(SqliteStore::read(&self.ledger)?)),
        }
    }
}

/// Opens the configured ledger to write, if there is one; all GPUs of a daemon share it.
pub(super) fn open(section: &LedgerSection) -> anyhow::Result<Option<SharedStore>> {
    Ok(store(section)?.map(|store| Arc::new(Mutex::new(store))))
}

/// The part of a ledger that one GPU has.
pub(super) fn of_gpu(
    section: &LedgerSection,
    store: SharedStore,
    gpu: GpuIdentity,
) -> LedgerConfig {
    let keep = section.keep_days * 86_400_000_000_000;
    LedgerConfig {
        store,
        gpu,
        window_ns: Nanos::from_ms(section.window_ms),
        keep_ns: (keep > 0).then_some(Nanos(keep)),
    }
}
