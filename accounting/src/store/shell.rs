//! Logic common to all stores: one window is open at a time, and abandoned as a whole if any part
//! of it fails.
//!
//! A database implements [`Tables`]; [`Ledger`] makes a [`Store`] of it. The calls to tables are
//! small and have no state. So order, sequence and abandonment are decided in one place.

use super::rows::{bounds, stored};
use super::{Kept, Put, Retained, Selection, Store, StoreError, Visit, VisitChanges, draft};
use crate::change::Change;
use crate::record::{
    Digest, EngineRecord, Entry, GapCause, GpuIdentity, Stretch, Tail, TenantRecord, UnixNanos,
};
use std::fmt;
use uuid::Uuid;

/// The window that is open.
#[derive(Clone, Copy, Debug)]
pub struct Open {
    /// Row of its GPU.
    pub(super) gpu: i64,
    /// Its number.
    pub(super) seq: i64,
    /// The run of the daemon that writes it.
    pub(super) boot: Uuid,
}

/// Takes the entries of one GPU; returns false to end the query.
pub(super) type VisitEntry<'a> = dyn FnMut(Entry) -> Result<bool, StoreError> + 'a;

/// A database with the tables of a ledger. GPUs are identified by the keys of their rows.
pub trait Tables: Send + fmt::Debug {
    /// Makes the connection usable again, if it was lost outside a transaction.
    ///
    /// # Errors
    /// If that is not possible.
    fn refresh(&mut self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Takes the right to write the entries of a GPU, until the connection ends.
    ///
    /// # Errors
    /// If another process has it, or if the database fails.
    fn claim(&mut self, _gpu: &GpuIdentity) -> Result<(), StoreError> {
        Ok(())
    }

    /// The daemon ends: what can be done to write the last entries is to be done now.
    fn ending(&mut self) {}

    /// Begins a transaction that writes.
    ///
    /// # Errors
    /// If the database fails.
    fn begin_writing(&mut self) -> Result<(), StoreError>;

    /// Begins a transaction that reads a snapshot.
    ///
    /// # Errors
    /// As [`Self::begin_writing`].
    fn begin_reading(&mut self) -> Result<(), StoreError>;

    /// Makes written rows durable.
    ///
    /// # Errors
    /// As [`Self::begin_writing`].
    fn commit(&mut self) -> Result<(), StoreError>;

    /// Discards the current transaction, if there is one.
    fn rollback(&mut self);

    /// Row of a known GPU.
    ///
    /// # Errors
    /// As [`Self::begin_writing`].
    fn find(&mut self, gpu: &GpuIdentity) -> Result<Option<i64>, StoreError>;

    /// Row of a GPU, created if missing, and locked until the transaction ends.
    ///
    /// # Errors
    /// As [`Self::begin_writing`].
    fn enter(&mut self, gpu: &GpuIdentity) -> Result<i64, StoreError>;

    /// Last entry of a GPU.
    ///
    /// # Errors
    /// As [`Self::begin_writing`].
    fn last(&mut self, gpu: i64) -> Result<Option<Tail>, StoreError>;

    /// Writes an entry's own row: a window if there is no cause.
    ///
    /// # Errors
    /// As [`Self::begin_writing`].
    fn write_entry(
        &mut self,
        gpu: i64,
        stretch: &Stretch,
        cause: Option<GapCause>,
        digest: &Digest,
    ) -> Result<(), StoreError>;

    /// Writes records of tenants.
    ///
    /// # Errors
    /// As [`Self::begin_writing`].
    fn write_records(&mut self, open: Open, records: &[TenantRecord]) -> Result<(), StoreError>;

    /// Writes records of engines, and the window's digest.
    ///
    /// # Errors
    /// As [`Self::begin_writing`].
    fn finish_window(
        &mut self,
        open: Open,
        engines: &[EngineRecord],
        digest: &Digest,
    ) -> Result<(), StoreError>;

    /// Keeps a text for a GPU in place of the one before, with the digest that it follows.
    ///
    /// # Errors
    /// As [`Self::begin_writing`].
    fn write_draft(
        &mut self,
        gpu: &GpuIdentity,
        after: &Digest,
        draft: &str,
    ) -> Result<(), StoreError>;

    /// The digest and the text that are kept for a GPU.
    ///
    /// # Errors
    /// As [`Self::begin_writing`].
    fn read_draft(&mut self, gpu: &GpuIdentity) -> Result<Option<(Vec<u8>, String)>, StoreError>;

    /// All GPUs by node and identity, with their rows.
    ///
    /// # Errors
    /// As [`Self::begin_writing`].
    fn kept(&mut self) -> Result<Vec<(i64, Kept)>, StoreError>;

    /// Visits entries of a GPU that begin within `[from, to)`, by number; false if the visitor
    /// ended it.
    ///
    /// # Errors
    /// As [`Self::begin_writing`], and the visitor's.
    fn visit(
        &mut self,
        gpu: i64,
        from: i64,
        to: i64,
        visit: &mut VisitEntry<'_>,
    ) -> Result<bool, StoreError>;

    /// Beginning of the last entry of a GPU that begins at or before a time.
    ///
    /// # Errors
    /// As [`Self::begin_writing`].
    fn begins(&mut self, gpu: i64, at: i64) -> Result<Option<i64>, StoreError>;

    /// Whether there is a tenant of this name, or of this id.
    ///
    /// # Errors
    /// As [`Self::begin_writing`].
    fn knows(&mut self, name: &str, id: Option<Uuid>) -> Result<bool, StoreError>;

    /// Discards permanently some of a GPU's entries that ended at or before `before`, but not its
    /// last; returns their number.
    ///
    /// # Errors
    /// As [`Self::begin_writing`].
    fn discard(&mut self, gpu: i64, before: i64) -> Result<u64, StoreError>;

    /// Writes a change of a setting, unless it is known.
    ///
    /// # Errors
    /// As [`Self::begin_writing`].
    fn note(&mut self, change: &Change) -> Result<Put, StoreError>;

    /// Visits changes within `[from, to)`, oldest first.
    ///
    /// # Errors
    /// As [`Self::begin_writing`], and the visitor's.
    fn changes(
        &mut self,
        from: i64,
        to: i64,
        visit: &mut VisitChanges<'_>,
    ) -> Result<(), StoreError>;

    /// Whether several hosts write to it, each with a retention of its own.
    fn is_shared(&self) -> bool;

    /// Discards changes before `before`: those of this node, or all.
    ///
    /// # Errors
    /// As [`Self::begin_writing`].
    fn forget_changes(&mut self, node: Option<&str>, before: i64) -> Result<(), StoreError>;

    /// Called after entries were discarded.
    ///
    /// # Errors
    /// As [`Self::begin_writing`].
    fn tidy(&mut self) -> Result<(), StoreError> {
        Ok(())
    }
}

/// A ledger in a database.
#[derive(Debug)]
pub struct Ledger<T> {
    pub(super) tables: T,
    open: Option<Open>,
}

impl<T: Tables> Ledger<T> {
    pub(super) fn over(tables: T) -> Self {
        Self { tables, open: None }
    }

    /// Begins the transaction of the next entry; returns the GPU's row.
    fn begin(&mut self, gpu: &GpuIdentity, stretch: &Stretch) -> Result<i64, StoreError> {
        self.none_open()?;
        self.tables.refresh()?;
        let started = self.tables.begin_writing().and_then(|()| {
            let key = self.tables.enter(gpu)?;
            let expected = self.tables.last(key)?.map_or(0, |tail| tail.seq + 1);
            if stretch.seq != expected {
                let found = stretch.seq;
                return Err(StoreError::Sequence { expected, found });
            }
            Ok(key)
        });
        self.or_abandon(started)
    }

    /// Only one window may be open: a second one abandons the first.
    fn none_open(&mut self) -> Result<(), StoreError> {
        if self.open.is_some() {
            self.abandon();
            return Err(StoreError::Order);
        }
        Ok(())
    }

    /// Abandons the window if `done` is an error.
    fn or_abandon<R>(&mut self, done: Result<R, StoreError>) -> Result<R, StoreError> {
        if done.is_err() {
            self.abandon();
        }
        done
    }

    fn commit(&mut self) -> Result<(), StoreError> {
        self.tables.commit()?;
        self.open = None;
        Ok(())
    }

    fn visit_all(
        &mut self,
        selection: &Selection,
        visit: &mut Visit<'_>,
    ) -> Result<(), StoreError> {
        let (from, to) = bounds(selection);
        for (key, kept) in self.tables.kept()? {
            if !selection.has(&kept.gpu) {
                continue;
            }
            let from = match selection.overlapping {
                true => self.tables.begins(key, from)?.unwrap_or(from),
                false => from,
            };
            let mut of_one = |entry| visit(&kept.gpu, entry);
            if !self.tables.visit(key, from, to, &mut of_one)? {
                return Ok(());
            }
        }
        Ok(())
    }
}

impl<T: Tables> Store for Ledger<T> {
    fn claim(&mut self, gpu: &GpuIdentity) -> Result<(), StoreError> {
        self.tables.claim(gpu)
    }

    fn ending(&mut self) {
        self.tables.ending();
    }

    fn tail(&mut self, gpu: &GpuIdentity) -> Result<Option<Tail>, StoreError> {
        if self.open.is_none() {
            self.tables.refresh()?;
        }
        let key = self.tables.find(gpu)?;
        Ok(key.map(|key| self.tables.last(key)).transpose()?.flatten())
    }

    fn open_window(&mut self, gpu: &GpuIdentity, stretch: &Stretch) -> Result<(), StoreError> {
        let key = self.begin(gpu, stretch)?;
        let entered = stored("seq", stretch.seq).and_then(|seq| {
            // The digest is known when the window is closed.
            let digest = Digest([0; 32]);
            self.tables.write_entry(key, stretch, None, &digest)?;
            Ok(seq)
        });
        let seq = self.or_abandon(entered)?;
        self.open = Some(Open {
            gpu: key,
            seq,
            boot: stretch.boot,
        });
        Ok(())
    }

    fn append(&mut self, records: &[TenantRecord]) -> Result<(), StoreError> {
        let open = self.open.ok_or(StoreError::Order)?;
        let appended = self.tables.write_records(open, records);
        self.or_abandon(appended)
    }

    fn close_window(
        &mut self,
        engines: &[EngineRecord],
        digest: &Digest,
    ) -> Result<(), StoreError> {
        let open = self.open.ok_or(StoreError::Order)?;
        let finished = self.tables.finish_window(open, engines, digest);
        let closed = finished.and_then(|()| self.commit());
        self.or_abandon(closed)
    }

    fn keep(
        &mut self,
        gpu: &GpuIdentity,
        after: &Digest,
        window: &Entry,
    ) -> Result<(), StoreError> {
        if self.open.is_some() {
            return Err(StoreError::Order);
        }
        self.tables.refresh()?;
        let text = draft::written(window)?;
        self.tables.write_draft(gpu, after, &text)
    }

    fn kept_window(&mut self, gpu: &GpuIdentity) -> Result<Vec<Entry>, StoreError> {
        let tail = self.tail(gpu)?;
        let kept = self.tables.read_draft(gpu)?;
        let entries = |(after, text): (Vec<u8>, String)| draft::entries(gpu, tail, &after, &text);
        kept.map_or_else(|| Ok(Vec::new()), entries)
    }

    fn abandon(&mut self) {
        self.open = None;
        self.tables.rollback();
    }

    fn append_gap(
        &mut self,
        gpu: &GpuIdentity,
        stretch: &Stretch,
        cause: GapCause,
        digest: &Digest,
    ) -> Result<(), StoreError> {
        let key = self.begin(gpu, stretch)?;
        let entered = (self.tables).write_entry(key, stretch, Some(cause), digest);
        let written = entered.and_then(|()| self.commit());
        self.or_abandon(written)
    }

    fn gpus(&mut self) -> Result<Vec<Kept>, StoreError> {
        if self.open.is_none() {
            self.tables.refresh()?;
        }
        let kept = self.tables.kept()?;
        Ok(kept.into_iter().map(|(_, kept)| kept).collect())
    }

    fn query(&mut self, selection: &Selection, visit: &mut Visit<'_>) -> Result<(), StoreError> {
        if self.open.is_some() {
            return Err(StoreError::Order);
        }
        self.tables.refresh()?;
        self.tables.begin_reading()?;
        let visited = self.visit_all(selection, visit);
        self.abandon();
        visited
    }

    fn knows(&mut self, tenant: &str) -> Result<bool, StoreError> {
        if self.open.is_none() {
            self.tables.refresh()?;
        }
        self.tables.knows(tenant, Uuid::parse_str(tenant).ok())
    }

    fn retain(&mut self, node: &str, before: UnixNanos) -> Result<Retained, StoreError> {
        if self.open.is_some() {
            return Err(StoreError::Order);
        }
        self.tables.refresh()?;
        let before = stored("before", before.0)?;
        let own = self.tables.is_shared().then_some(node);
        let is_own = |kept: &Kept| own.is_none_or(|node| kept.gpu.node == node);
        let mut retained = Retained::default();
        for (key, _) in self
            .tables
            .kept()?
            .into_iter()
            .filter(|(_, kept)| is_own(kept))
        {
            loop {
                let entries = self.tables.discard(key, before)?;
                retained.entries += entries;
                if entries == 0 {
                    break;
                }
            }
        }
        self.tables.forget_changes(own, before)?;
        if retained.entries > 0 {
            self.tables.tidy()?;
        }
        Ok(retained)
    }

    fn note(&mut self, change: &Change) -> Result<Put, StoreError> {
        if self.open.is_some() {
            return Err(StoreError::Order);
        }
        self.tables.refresh()?;
        self.tables.note(change)
    }

    fn changes(
        &mut self,
        selection: &Selection,
        visit: &mut VisitChanges<'_>,
    ) -> Result<(), StoreError> {
        if self.open.is_none() {
            self.tables.refresh()?;
        }
        let (from, to) = bounds(selection);
        self.tables.changes(from, to, visit)
    }
}
