//! Durable storage of entries.
//!
//! ```text
//! open_window -> append* -> close_window      durable when close_window has returned, not there at all before
//! append_gap                                  the same in one step
//! ```
//!
//! A store takes entries of a GPU in their order only: each follows the last one's number. So a
//! lost or repeated entry is always an error. [`SqliteStore`] is a file on the host,
//! `PostgresStore` one database for a fleet.

mod draft;
mod error;
#[cfg(feature = "postgres")]
mod postgres;
mod rows;
mod shell;
mod sqlite;

pub use error::StoreError;
#[cfg(feature = "postgres")]
pub use postgres::{PostgresStore, holds_password};
pub use sqlite::SqliteStore;

use crate::audit::Anchor;
use crate::change::Change;
use crate::record::{
    Body, Digest, EngineRecord, Entry, GapCause, GpuIdentity, Stretch, Tail, TenantRecord,
    UnixNanos,
};
use std::fmt;

/// Records passed to [`Store::append`] at a time.
const BATCH: usize = 1_024;

/// One GPU's ledger as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The GPU.
    pub gpu: GpuIdentity,
    /// Its last entry.
    pub tail: Tail,
    /// Where the kept part begins: entries before were discarded by [`Store::retain`].
    pub anchor: Anchor,
    /// End of the last discarded entry; zero if nothing was discarded.
    pub from: UnixNanos,
    /// Beginning of the first entry that is kept.
    pub first: UnixNanos,
}

/// A selection of entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Those that begin at or after this.
    pub from: Option<UnixNanos>,
    /// Those that begin before this.
    pub to: Option<UnixNanos>,
    /// Those of this node. A renamed host is another node.
    pub node: Option<String>,
    /// Those of this GPU, by its identity within its node.
    pub gpu: Option<String>,
    /// Also the entry that has `from` within it.
    pub overlapping: bool,
}

impl Selection {
    /// Whether the selection includes this GPU.
    pub fn has(&self, gpu: &GpuIdentity) -> bool {
        let is = |requested: &Option<String>, own: &str| {
            requested.as_ref().is_none_or(|requested| requested == own)
        };
        is(&self.node, &gpu.node) && is(&self.gpu, &gpu.gpu)
    }
}

/// Result of [`Store::retain`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retained {
    /// Entries discarded.
    pub entries: u64,
}

/// Result of [`Store::put`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// The entry is durable now.
    Written,
    /// The same entry was durable before.
    Known,
}

/// Takes each entry of a query; returns false to end the query.
pub type Visit<'a> = dyn FnMut(&GpuIdentity, Entry) -> Result<bool, StoreError> + 'a;

/// Takes each change; returns false to end the query.
pub type VisitChanges<'a> = dyn FnMut(Change) -> Result<bool, StoreError> + 'a;

/// A durable ledger.
pub trait Store: Send + fmt::Debug {
    /// Takes the right to write the entries of a GPU, until the store is dropped. A file is
    /// claimed as a whole when it is opened to write, so that nothing is left to take.
    ///
    /// # Errors
    /// If another process has it, or if the store fails.
    fn claim(&mut self, _gpu: &GpuIdentity) -> Result<(), StoreError> {
        Ok(())
    }

    /// The daemon ends. A file that is gone is made again from then on, with all its entries: an
    /// open but removed file is lost when the process ends.
    fn ending(&mut self) {}

    /// The last entry of a GPU.
    ///
    /// # Errors
    /// If it cannot be read.
    fn tail(&mut self, gpu: &GpuIdentity) -> Result<Option<Tail>, StoreError>;

    /// Begins a window; only one may be open.
    ///
    /// # Errors
    /// If it does not follow the last entry, or the store fails. No window is open then.
    fn open_window(&mut self, gpu: &GpuIdentity, stretch: &Stretch) -> Result<(), StoreError>;

    /// Adds records to the open window.
    ///
    /// # Errors
    /// If the store fails, or no window is open. The window is abandoned then.
    fn append(&mut self, records: &[TenantRecord]) -> Result<(), StoreError>;

    /// Closes the open window; when this returns, the window is on the disk.
    ///
    /// # Errors
    /// If the store fails, or no window is open. The window is abandoned; if the disk gave no
    /// answer, it may be written nevertheless: read the tail.
    fn close_window(&mut self, engines: &[EngineRecord], digest: &Digest)
    -> Result<(), StoreError>;

    /// Keeps the open window so far, in place of what was kept of it before. `after` is the digest
    /// of the entry before it. Precondition: no window is open.
    ///
    /// # Errors
    /// If the store fails.
    fn keep(&mut self, gpu: &GpuIdentity, after: &Digest, window: &Entry)
    -> Result<(), StoreError>;

    /// The window that [`Self::keep`] kept, as entries that follow the last one; none if it was
    /// closed since.
    ///
    /// # Errors
    /// If the store fails, or what was kept is damaged.
    fn kept_window(&mut self, gpu: &GpuIdentity) -> Result<Vec<Entry>, StoreError>;

    /// Writes the entries of [`Self::kept_window`], as a daemon does at its start; returns their
    /// number.
    ///
    /// # Errors
    /// If the store fails, or what was kept is damaged.
    fn adopt(&mut self, gpu: &GpuIdentity) -> Result<u64, StoreError> {
        let entries = self.kept_window(gpu)?;
        for entry in &entries {
            self.put(gpu, entry)?;
        }
        Ok(entries.len() as u64)
    }

    /// Abandons the open window, as if it had not been opened.
    fn abandon(&mut self);

    /// Writes a gap; when this returns, the gap is on the disk.
    ///
    /// # Errors
    /// As [`Self::open_window`] and [`Self::close_window`].
    fn append_gap(
        &mut self,
        gpu: &GpuIdentity,
        stretch: &Stretch,
        cause: GapCause,
        digest: &Digest,
    ) -> Result<(), StoreError>;

    /// All GPUs that have entries, by node and identity.
    ///
    /// # Errors
    /// If they cannot be read.
    fn gpus(&mut self) -> Result<Vec<Kept>, StoreError>;

    /// Visits entries by GPU (in the order of [`Self::gpus`]) and number. The result is a snapshot:
    /// entries written meanwhile are not visited. Memory does not grow with the number of entries.
    ///
    /// # Errors
    /// If entries cannot be read or are not what was written, or if `visit` fails.
    fn query(&mut self, selection: &Selection, visit: &mut Visit<'_>) -> Result<(), StoreError>;

    /// Whether there is a tenant of this name or id.
    ///
    /// # Errors
    /// If that cannot be read.
    fn knows(&mut self, tenant: &str) -> Result<bool, StoreError>;

    /// Discards entries that ended at or before `before`, but each GPU's last one, and changes
    /// before it. If several hosts write to the store, only those of `node`.
    ///
    /// # Errors
    /// If the store fails. Entries discarded until then stay discarded.
    fn retain(&mut self, node: &str, before: UnixNanos) -> Result<Retained, StoreError>;

    /// Writes a change, unless it is known; when this returns, the change is on the disk.
    /// Precondition: no window is open.
    ///
    /// # Errors
    /// If the store fails; the call may be repeated.
    fn note(&mut self, change: &Change) -> Result<Put, StoreError>;

    /// Visits changes of the selected time, oldest first.
    ///
    /// # Errors
    /// If they cannot be read or are not what was written, or if `visit` fails.
    fn changes(
        &mut self,
        selection: &Selection,
        visit: &mut VisitChanges<'_>,
    ) -> Result<(), StoreError>;

    /// Writes an entry as a whole, unless it is the last one already; may be repeated after any
    /// error.
    ///
    /// # Errors
    /// If it does not follow the last entry, or the store fails. The entry is then written as a
    /// whole or not at all.
    fn put(&mut self, gpu: &GpuIdentity, entry: &Entry) -> Result<Put, StoreError> {
        let seal = (entry.stretch.seq, entry.digest);
        if self.tail(gpu)?.map(|tail| (tail.seq, tail.digest)) == Some(seal) {
            return Ok(Put::Known);
        }
        match &entry.body {
            Body::Gap { cause } => self.append_gap(gpu, &entry.stretch, *cause, &entry.digest)?,
            Body::Window { tenants, engines } => {
                self.open_window(gpu, &entry.stretch)?;
                for batch in tenants.chunks(BATCH) {
                    self.append(batch)?;
                }
                self.close_window(engines, &entry.digest)?;
            }
        }
        Ok(Put::Written)
    }
}
