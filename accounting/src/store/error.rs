use std::path::PathBuf;
use thiserror::Error;

/// Why a store refused or failed.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The file does not exist.
    #[error("There is no ledger at {}", path.display())]
    NotFound {
        /// Its path.
        path: PathBuf,
    },
    /// The file may not be opened.
    #[error("The ledger at {} may not be opened", path.display())]
    Denied {
        /// Its path.
        path: PathBuf,
    },
    /// Another process writes it.
    #[error("The {what} is written by {holder}; end that daemon first, or {remedy}")]
    Held {
        /// The file, or the entries of a GPU.
        what: String,
        /// The process.
        holder: String,
        /// The other remedy.
        remedy: &'static str,
    },
    /// The file was removed or moved while it is written.
    #[error("The ledger {} was removed or moved; put it back, or an empty file in its place, which then gets all entries", path.display())]
    Removed {
        /// Where it was.
        path: PathBuf,
    },
    /// The file was written by another version, or is no ledger.
    #[error("Not a ledger of version {expected}, but of {found}")]
    Version {
        /// The supported version.
        expected: i64,
        /// The one found; zero for a file that is no ledger.
        found: i64,
    },
    /// An entry does not follow the last one: another daemon writes, or entries were lost.
    #[error(
        "Entry {found} does not follow, as {expected} is next: another daemon wrote to the ledger, or it was replaced by another copy; end that daemon"
    )]
    Sequence {
        /// The number that is next.
        expected: u64,
        /// The number of the entry.
        found: u64,
    },
    /// No window is open, or one is already open.
    #[error(
        "A window has to be opened before records are appended, and closed before the next one"
    )]
    Order,
    /// A number that the store cannot hold.
    #[error("{what} is {value}, more than a ledger holds")]
    Range {
        /// Which number.
        what: &'static str,
        /// Its value.
        value: u128,
    },
    /// A value read is not one that was written.
    #[error("Damaged: {what} is {found:?}")]
    Damaged {
        /// Which column.
        what: &'static str,
        /// The value.
        found: String,
    },
    /// The file or the disk failed.
    #[error("SQLite failed")]
    Sqlite(#[from] rusqlite::Error),
    /// The server or the connection to it failed.
    #[cfg(feature = "postgres")]
    #[error("PostgreSQL failed")]
    Postgres(#[from] postgres::Error),
    /// The server may lose data that it reported as written.
    #[cfg(feature = "postgres")]
    #[error("The server runs with fsync off: what it calls written may be lost")]
    NotDurable,
    /// Reading or writing a file failed.
    #[error("A file of the ledger or the export failed")]
    Output(#[from] std::io::Error),
    /// The visitor of a query refused an entry.
    #[error("{0}")]
    Refused(String),
}
