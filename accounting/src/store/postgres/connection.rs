//! Connects to a PostgreSQL database, and makes or checks the tables of a ledger.
//!
//! In: the address of a database, and a password if the address has none. Out: a connection that
//! writes through to the server's disk, and tables of a known version. The daemon and the command
//! line call it; the store calls it again when a connection is lost.

use std::time::Duration;

use postgres::{Client, Config, GenericClient, NoTls};

use super::{Postgres, PostgresStore};
use crate::record::{Digest, GpuIdentity};
use crate::store::StoreError;

/// Version of the tables.
const VERSION: i64 = 3;
/// Makes tables of version 1 those of version 2, and so on.
const TO_NEXT: [&str; 2] = [
    "ALTER TABLE tenant ADD COLUMN account TEXT; UPDATE ledger_version SET version = 2",
    "ALTER TABLE usage ADD COLUMN metadata_key BIGINT; UPDATE ledger_version SET version = 3",
];

const SCHEMA: &str = include_str!("../postgres.sql");
const LATER: [&str; 3] = [
    include_str!("../change_postgres.sql"),
    include_str!("../draft_postgres.sql"),
    include_str!("../metadata_postgres.sql"),
];

impl PostgresStore {
    /// Connects to a database (`host=/run/postgresql dbname=turnstile user=turnstile`, or a URL),
    /// and creates the tables if there are none.
    ///
    /// # Errors
    /// If it cannot be reached, has tables of another version, or does not write through to its
    /// disk.
    pub fn connect(database: &str) -> Result<Self, StoreError> {
        Self::connect_with(database, None)
    }

    /// As [`Self::connect`], with a password that the address does not contain.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub fn connect_with(database: &str, password: Option<&[u8]>) -> Result<Self, StoreError> {
        let mut tables = Postgres::at(database, password)?;
        tables.make_tables()?;
        Ok(Self::over(tables))
    }

    /// Connects to a database to read its ledgers.
    ///
    /// # Errors
    /// If it cannot be reached, or has no ledger of this version.
    pub fn read_with(database: &str, password: Option<&[u8]>) -> Result<Self, StoreError> {
        let mut tables = Postgres::at(database, password)?;
        tables
            .client
            .batch_execute("SET default_transaction_read_only = on")?;
        tables.check_version(1)?;
        Ok(Self::over(tables))
    }
}

/// Whether an address contains a password, which is visible wherever the address is.
///
/// # Errors
/// If it is not the address of a database.
pub fn holds_password(database: &str) -> Result<bool, StoreError> {
    Ok(database.parse::<Config>()?.get_password().is_some())
}

impl Postgres {
    fn at(database: &str, password: Option<&[u8]>) -> Result<Self, StoreError> {
        let mut config: Config = database.parse()?;
        if let Some(password) = password {
            config.password(password);
        }
        // TIMEOUT: a server in the same site answers in milliseconds; the writer tries again.
        config.connect_timeout(Duration::from_secs(10));
        // TIMEOUT: a connection that is lost without notice is an error after 20 s, not after the 2
        // h and 15 min of the kernel.
        config.keepalives_idle(Duration::from_secs(10));
        config.keepalives_interval(Duration::from_secs(5));
        config.keepalives_retries(2);
        config.tcp_user_timeout(Duration::from_secs(20));
        let host = rustix::system::uname();
        let host = host.nodename().to_string_lossy();
        let process = format!("turnstile process {} on {host}", std::process::id());
        config.application_name(&process);
        let client = Self::connected(&config)?;
        Ok(Self {
            config,
            client,
            version: VERSION,
            claims: Vec::new(),
        })
    }

    pub(super) fn connected(config: &Config) -> Result<Client, StoreError> {
        let mut client = config.connect(NoTls)?;
        // A window counts as closed when it is on the disk, whatever the server's default.
        client.batch_execute("SET synchronous_commit = on")?;
        // TIMEOUT: a lock that another session holds for longer is an error, as a full disk is,
        // instead of a silent wait.
        client.batch_execute("SET lock_timeout = '20s'")?;
        let fsync: String = client.query_one("SHOW fsync", &[])?.get(0);
        if fsync != "on" {
            return Err(StoreError::NotDurable);
        }
        Ok(client)
    }

    fn make_tables(&mut self) -> Result<(), StoreError> {
        let mut tx = self.client.transaction()?;
        // Two hosts may connect at once. The lock's number is specific to this program.
        tx.execute("SELECT pg_advisory_xact_lock(1414744903)", &[])?;
        let there: bool = tx
            .query_one("SELECT to_regclass('ledger_version') IS NOT NULL", &[])?
            .get(0);
        if !there {
            tx.batch_execute(SCHEMA)?;
        } else {
            for (from, step) in (1..).zip(TO_NEXT) {
                if version_of(&mut tx)? == from {
                    tx.batch_execute(step)?;
                }
            }
        }
        for tables in LATER {
            tx.batch_execute(tables)?;
        }
        tx.commit()?;
        self.check_version(VERSION)
    }

    /// Accepts tables of versions from `least` on.
    fn check_version(&mut self, least: i64) -> Result<(), StoreError> {
        let there = "SELECT to_regclass('ledger_version') IS NOT NULL";
        let there: bool = self.client.query_one(there, &[])?.try_get(0)?;
        self.version = if there {
            version_of(&mut self.client)?
        } else {
            0
        };
        if !(least..=VERSION).contains(&self.version) {
            return Err(StoreError::Version {
                expected: VERSION,
                found: self.version,
            });
        }
        Ok(())
    }
}

/// The number of the advisory lock of a GPU's entries: one for each node name and GPU.
fn lock_of(gpu: &GpuIdentity) -> i64 {
    let [a, b, c, d, e, f, g, h, ..] = Digest::genesis(gpu).0;
    i64::from_be_bytes([a, b, c, d, e, f, g, h])
}

/// Takes the lock of a GPU's entries for a session.
pub(super) fn claim(client: &mut Client, gpu: &GpuIdentity) -> Result<(), StoreError> {
    let lock = lock_of(gpu);
    let taken: bool = client
        .query_one("SELECT pg_try_advisory_lock($1)", &[&lock])?
        .try_get(0)?;
    if taken {
        return Ok(());
    }
    // The server reports a lock of 64 bits in two halves.
    let holder = client.query_opt(
        "SELECT application_name FROM pg_locks JOIN pg_stat_activity USING(pid)
         WHERE locktype = 'advisory' AND objsubid = 1 AND granted
         AND (classid::bigint << 32) | objid::bigint = $1",
        &[&lock],
    )?;
    let name: Option<String> = holder.map(|row| row.try_get(0)).transpose()?;
    Err(StoreError::Held {
        what: format!("ledger of GPU {} of node {}", gpu.gpu, gpu.node),
        holder: name.unwrap_or_else(|| "another process".to_owned()),
        remedy: "give this host another name (ledger.node, --node)",
    })
}

/// Version of existing tables.
fn version_of(client: &mut impl GenericClient) -> Result<i64, StoreError> {
    let version = "SELECT max(version) FROM ledger_version";
    Ok(client.query_one(version, &[])?.try_get(0)?)
}
