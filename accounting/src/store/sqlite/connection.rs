//! Opens a ledger's file, and makes or checks its tables.
//!
//! In: the path of a file, or memory for tests. Out: a connection that fsyncs each commit, and
//! tables of a known version. The daemon, the command line and tests call it.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::claim::{Claim, beside};
use super::{Sqlite, SqliteStore};
use crate::record::{Body, Entry, Stretch, Tail};
use crate::renumber::follow;
use crate::store::rows::stored;
use crate::store::shell::{Open, Tables};
use crate::store::{Kept, StoreError};

/// Version of the tables, kept in the file's `user_version`. Version 1 has no accounts, version 2
/// no metadata: they can be read, and are converted when they are opened for writing.
const VERSION: i64 = 3;
/// Makes tables of version 1 those of version 2, and so on.
const TO_NEXT: [&str; 2] = [
    "ALTER TABLE tenant ADD COLUMN account TEXT",
    "ALTER TABLE usage ADD COLUMN metadata_key INTEGER",
];

/// Marks the file as a ledger: "TSLG", kept in its `application_id`.
const APPLICATION: i64 = 0x5453_4c47;

/// TIMEOUT: another process holds the file for one entry or one batch of retention: milliseconds on
/// a disk that works.
const BUSY: Duration = Duration::from_secs(5);

const SCHEMA: &str = include_str!("../sqlite.sql");
const LATER: [&str; 3] = [
    include_str!("../change.sql"),
    include_str!("../draft.sql"),
    include_str!("../metadata.sql"),
];

impl SqliteStore {
    /// Opens a ledger for writing, or creates one that only its owner and group may read.
    ///
    /// # Errors
    /// If the file cannot be opened, or is not a ledger.
    pub fn create(path: &Path) -> Result<Self, StoreError> {
        Ok(Self::over(Sqlite::claimed(Claim::take(path)?)?))
    }

    /// Opens a ledger for reading.
    ///
    /// # Errors
    /// If it does not exist, or may not be read.
    pub fn read(path: &Path) -> Result<Self, StoreError> {
        // Not opened and closed: that drops the locks that SQLite has on the file in this process.
        let readable = rustix::fs::access(path, rustix::fs::Access::READ_OK);
        readable.map_err(|error| store_error(path, error.into()))?;
        match Sqlite::reader(path, OpenFlags::SQLITE_OPEN_READ_ONLY) {
            // SQLite cannot make the log's files beside a file on a read-only disk, or in the
            // folder of another user. Without a log it needs none.
            Err(StoreError::Sqlite(error)) if makes_no_log(&error) => {
                if beside(path, "-wal").exists() {
                    return Err(StoreError::Sqlite(error));
                }
                let escaped = path.to_string_lossy().replace('%', "%25");
                let escaped = escaped.replace('?', "%3f").replace('#', "%23");
                let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
                let address = format!("file:{escaped}?immutable=1");
                Ok(Self::over(Sqlite::reader(Path::new(&address), flags)?))
            }
            read => Ok(Self::over(read?)),
        }
    }

    /// A ledger in memory, for tests.
    ///
    /// # Errors
    /// If no memory is available.
    pub fn in_memory() -> Result<Self, StoreError> {
        let mut tables = Sqlite::over(Connection::open_in_memory()?)?;
        tables.make_tables()?;
        Ok(Self::over(tables))
    }
}

impl Sqlite {
    fn reader(path: &Path, flags: OpenFlags) -> Result<Self, StoreError> {
        let mut tables = Self::over(Connection::open_with_flags(path, flags)?)?;
        tables.check_version(1)?;
        Ok(tables)
    }

    /// Opens a file that this process may write.
    fn claimed(claim: Claim) -> Result<Self, StoreError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE;
        let mut tables = Self::over(Connection::open_with_flags(claim.path(), flags)?)?;
        tables.make_tables()?;
        tables.claim.insert(claim).note_log()?;
        Ok(tables)
    }

    /// Goes on with another log: the removed one still has entries, which are moved to the file.
    pub(super) fn reopen(&mut self) -> Result<(), StoreError> {
        let Some(claim) = &mut self.claim else {
            return Ok(());
        };
        let moved = "PRAGMA wal_checkpoint(TRUNCATE)";
        let busy: i64 = self.connection.query_row(moved, [], |row| row.get(0))?;
        if busy != 0 {
            return Err(StoreError::Removed {
                path: beside(claim.path(), "-wal"),
            });
        }
        // Closed before the file is opened again: SQLite shares what it knows of a file among the
        // connections of a process.
        self.connection = Connection::open_in_memory()?;
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE;
        let connection = Connection::open_with_flags(claim.path(), flags)?;
        let opened = Self::over(connection)?;
        opened
            .connection
            .pragma_update(None, "journal_mode", "WAL")?;
        self.connection = opened.connection;
        claim.note_log()
    }

    /// Goes on in the file that is in the ledger's place now; it is made if there is none. It gets
    /// all entries of the old file, which is still open, from where its own ones end.
    pub(super) fn go_on(&mut self) -> Result<(), StoreError> {
        let Some(claim) = &self.claim else {
            return Ok(());
        };
        let mut next = Self::claimed(claim.next()?)?;
        next.begin_writing()?;
        self.copy_to(&mut next)?;
        next.commit()?;
        next.ending = self.ending;
        *self = next;
        Ok(())
    }

    fn copy_to(&mut self, next: &mut Self) -> Result<(), StoreError> {
        for (key, Kept { gpu, .. }) in self.kept()? {
            let into = next.enter(&gpu)?;
            let mut tail = next.last(into)?;
            let from = tail.map_or(Ok(i64::MIN), |tail| stored("end", tail.end.0))?;
            self.visit(key, from, i64::MAX, &mut |entry| {
                for entry in follow(&gpu, tail, &entry) {
                    tail = Some(Tail::of(&entry));
                    next.write_whole(into, &entry)?;
                }
                Ok(true)
            })?;
        }
        self.changes(i64::MIN, i64::MAX, &mut |change| {
            next.note(&change).map(|_| true)
        })
    }

    fn write_whole(&mut self, gpu: i64, entry: &Entry) -> Result<(), StoreError> {
        let Stretch { seq, boot, .. } = entry.stretch;
        match &entry.body {
            Body::Gap { cause } => {
                self.write_entry(gpu, &entry.stretch, Some(*cause), &entry.digest)
            }
            Body::Window { tenants, engines } => {
                self.write_entry(gpu, &entry.stretch, None, &entry.digest)?;
                let seq = stored("seq", seq)?;
                let open = Open { gpu, seq, boot };
                self.write_records(open, tenants)?;
                self.finish_window(open, engines, &entry.digest)
            }
        }
    }

    fn over(connection: Connection) -> Result<Self, StoreError> {
        connection.busy_timeout(BUSY)?;
        connection.set_prepared_statement_cache_capacity(32);
        // A damaged or forged file may have functions in its schema, and overlapping cells.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
        connection.pragma_update(None, "cell_size_check", true)?;
        // Rows are deleted in an order that leaves no dangling reference. With the check, SQLite
        // reads all of `usage` for each deleted tenant, as it has no index by tenant.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_FKEY, false)?;
        // In WAL mode FULL means that the log is fsynced at each commit.
        connection.pragma_update(None, "synchronous", "FULL")?;
        Ok(Self {
            connection,
            version: VERSION,
            claim: None,
            ending: false,
        })
    }

    fn make_tables(&mut self) -> Result<(), StoreError> {
        self.connection.pragma_update(None, "journal_mode", "WAL")?;
        let tx = self
            .connection
            .transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        let tables: i64 =
            tx.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
        if tables == 0 {
            tx.execute_batch(SCHEMA)?;
            tx.pragma_update(None, "application_id", APPLICATION)?;
            tx.pragma_update(None, "user_version", VERSION)?;
        } else {
            for (from, step) in (1..).zip(TO_NEXT) {
                if version_of(&tx)? == from {
                    tx.execute_batch(step)?;
                    tx.pragma_update(None, "user_version", from + 1)?;
                }
            }
        }
        tx.commit()?;
        self.check_version(VERSION)?;
        for tables in LATER {
            self.connection.execute_batch(tables)?;
        }
        Ok(())
    }

    /// Accepts tables of versions from `least` on.
    fn check_version(&mut self, least: i64) -> Result<(), StoreError> {
        self.version = version_of(&self.connection)?;
        if !(least..=VERSION).contains(&self.version) {
            return Err(StoreError::Version {
                expected: VERSION,
                found: self.version,
            });
        }
        Ok(())
    }
}

/// Whether SQLite failed because it may not make files beside the ledger.
fn makes_no_log(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error_code();
    let denied = [ErrorCode::CannotOpen, ErrorCode::ReadOnly];
    code.is_some_and(|code| denied.contains(&code))
}

/// Version of a file's tables; 0 if it is no ledger.
fn version_of(connection: &Connection) -> Result<i64, StoreError> {
    let pragma = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let ours = pragma("application_id")? == APPLICATION;
    Ok(if ours { pragma("user_version")? } else { 0 })
}

pub(super) fn store_error(path: &Path, error: std::io::Error) -> StoreError {
    let path = PathBuf::from(path);
    match error.kind() {
        ErrorKind::NotFound => StoreError::NotFound { path },
        ErrorKind::PermissionDenied => StoreError::Denied { path },
        _ => StoreError::Output(error),
    }
}
