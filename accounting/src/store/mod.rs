//! Where entries are kept for good.
//!
//! ```text
//! open_window -> append* -> close_window      durable when close_window has returned, not there at all before
//! append_gap                                  the same in one step
//! ```
//!
//! A store takes entries of a GPU in their order only: each follows the last one's number. So an entry cannot be lost or
//! written twice without somebody being told. [`SqliteStore`] is a file on the host, `PostgresStore` one database for a fleet.

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

/// Records handed to [`Store::append`] at a time.
const BATCH: usize = 1_024;

/// One GPU's ledger as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Whose.
    pub gpu: GpuIdentity,
    /// Its last entry.
    pub tail: Tail,
    /// Where the kept part begins: what lies before was discarded by [`Store::retain`].
    pub anchor: Anchor,
    /// Nothing before this is kept; zero if nothing was discarded.
    pub from: UnixNanos,
}

/// Which entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Those that begin at or after this.
    pub from: Option<UnixNanos>,
    /// Those that begin before this.
    pub to: Option<UnixNanos>,
    /// Those of this node. (A host that is renamed is another one.)
    pub node: Option<String>,
    /// Those of this GPU, by its identity within its node.
    pub gpu: Option<String>,
}

impl Selection {
    /// Whether it has this GPU.
    pub fn has(&self, gpu: &GpuIdentity) -> bool {
        let is =
            |asked: &Option<String>, own: &str| asked.as_ref().is_none_or(|asked| asked == own);
        is(&self.node, &gpu.node) && is(&self.gpu, &gpu.gpu)
    }
}

/// What [`Store::retain`] discarded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retained {
    /// Entries discarded.
    pub entries: u64,
}

/// What [`Store::put`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// It is durable now.
    Written,
    /// It was durable before: this very entry.
    Known,
}

/// Takes each entry of a query; returns false to end it.
pub type Visit<'a> = dyn FnMut(&GpuIdentity, Entry) -> Result<bool, StoreError> + 'a;

/// Takes each change; returns false to end it.
pub type VisitChanges<'a> = dyn FnMut(Change) -> Result<bool, StoreError> + 'a;

/// A durable ledger.
pub trait Store: Send + fmt::Debug {
    /// The last entry of a GPU.
    ///
    /// # Errors
    /// If it cannot be read.
    fn tail(&mut self, gpu: &GpuIdentity) -> Result<Option<Tail>, StoreError>;

    /// Begins a window; one at a time.
    ///
    /// # Errors
    /// If it does not follow the last entry, or the store fails. Nothing is open then.
    fn open_window(&mut self, gpu: &GpuIdentity, stretch: &Stretch) -> Result<(), StoreError>;

    /// Adds records to the open window.
    ///
    /// # Errors
    /// If the store fails, or no window is open. The window is given up then.
    fn append(&mut self, records: &[TenantRecord]) -> Result<(), StoreError>;

    /// Closes the open window; when this has returned, it is on the disk.
    ///
    /// # Errors
    /// If the store fails, or no window is open. The window is given up, or (if the disk said nothing) there: ask for the
    /// tail.
    fn close_window(&mut self, engines: &[EngineRecord], digest: &Digest)
    -> Result<(), StoreError>;

    /// Gives the open window up, as if it had not been opened.
    fn abandon(&mut self);

    /// Writes a gap; when this has returned, it is on the disk.
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

    /// Visits entries by GPU (in the order of [`Self::gpus`]) and number. All that is seen is of one moment; what is written
    /// meanwhile is not seen. Memory does not grow with the number of entries.
    ///
    /// # Errors
    /// If they cannot be read, or are not what was written; and what `visit` returns.
    fn query(&mut self, selection: &Selection, visit: &mut Visit<'_>) -> Result<(), StoreError>;

    /// Discards entries that ended at or before `before`, but for each GPU's last one, and changes of before; where several hosts write, those of this node alone.
    ///
    /// # Errors
    /// If the store fails; what was discarded until then stays so.
    fn retain(&mut self, node: &str, before: UnixNanos) -> Result<Retained, StoreError>;

    /// Keeps a change, if it is not there yet; when this has returned, it is on the disk. Not while a window is open.
    ///
    /// # Errors
    /// If the store fails; it may be repeated.
    fn note(&mut self, change: &Change) -> Result<Put, StoreError>;

    /// Visits changes of the time that is selected, oldest first.
    ///
    /// # Errors
    /// If they cannot be read, or are not what was written; and what `visit` returns.
    fn changes(
        &mut self,
        selection: &Selection,
        visit: &mut VisitChanges<'_>,
    ) -> Result<(), StoreError>;

    /// Writes an entry as a whole, if it is not there yet: may be repeated after any error.
    ///
    /// # Errors
    /// If it does not follow the last entry, or the store fails. It is then there as a whole or not at all.
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
