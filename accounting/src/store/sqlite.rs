//! The ledger in a file: SQLite in WAL mode, one transaction per entry, fsynced before the entry
//! counts as written.
//!
//! Readers in other processes read up to the last closed entry and do not block a writer.

mod claim;
mod connection;
mod named;

use claim::{Claim, Place};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::rows::{self, Columns, damaged, stored, stored_ns};
use super::shell::{Ledger, Open, Tables, VisitEntry};
use super::{Kept, Put, StoreError, VisitChanges};
use crate::change::Change;
use crate::record::{
    Digest, EngineRecord, Entry, GapCause, GpuIdentity, Stretch, Tail, TenantRecord,
};
use uuid::Uuid;

/// Entries that are discarded in one transaction.
const DISCARDED_AT_ONCE: i64 = 4_096;

/// A ledger in a file.
pub type SqliteStore = Ledger<Sqlite>;

/// The tables in a file.
#[derive(Debug)]
pub struct Sqlite {
    connection: Connection,
    /// Version of the tables.
    version: i64,
    /// The right to write the file; none of a reader, and of a ledger in memory. It is dropped
    /// after the connection.
    claim: Option<Claim>,
    /// Whether a file that is gone is made again.
    ending: bool,
}

impl Columns for Row<'_> {
    fn number(&self, at: usize) -> Result<i64, StoreError> {
        Ok(self.get(at)?)
    }

    fn number_or_null(&self, at: usize) -> Result<Option<i64>, StoreError> {
        Ok(self.get(at)?)
    }

    fn flag(&self, at: usize) -> Result<bool, StoreError> {
        Ok(self.get::<_, i64>(at)? != 0)
    }

    fn text(&self, at: usize) -> Result<String, StoreError> {
        Ok(self.get(at)?)
    }

    fn text_or_null(&self, at: usize) -> Result<Option<String>, StoreError> {
        Ok(self.get(at)?)
    }

    fn bytes(&self, at: usize) -> Result<Vec<u8>, StoreError> {
        Ok(self.get(at)?)
    }
}

impl Sqlite {
    fn tail(&self, key: i64) -> Result<Option<Tail>, StoreError> {
        let text = format!(
            "SELECT {} FROM entry WHERE gpu_key = ?1 ORDER BY seq DESC LIMIT 1",
            rows::TAIL
        );
        let mut statement = self.connection.prepare_cached(&text)?;
        let mut found = statement.query([key])?;
        found.next()?.map(rows::tail).transpose()
    }

    fn entry(&self, key: i64, row: &Row<'_>) -> Result<Entry, StoreError> {
        rows::entry(row, |seq| {
            Ok((self.records(key, seq)?, self.engines(key, seq)?))
        })
    }

    fn records(&self, key: i64, seq: i64) -> Result<Vec<TenantRecord>, StoreError> {
        let (account, metadata, join) = rows::later(self.version);
        let text = format!(
            "SELECT u.id, t.id, t.name, t.kind, engine_ns, estimated_ns, fault_ns, copy_ns, copy_bytes, held_ns, waiting_ns,
             memory_byte_ns, weight, quota_ns, period_ns, signals, error_bound_ns, turns, {account}, {metadata}
             FROM usage u JOIN tenant t USING(tenant_key) {join} WHERE gpu_key = ?1 AND seq = ?2 ORDER BY t.id",
        );
        let mut statement = self.connection.prepare_cached(&text)?;
        let mut found = statement.query([key, seq])?;
        let mut records = Vec::new();
        while let Some(row) = found.next()? {
            records.push(rows::tenant_record(row)?);
        }
        Ok(records)
    }

    fn engines(&self, key: i64, seq: i64) -> Result<Vec<EngineRecord>, StoreError> {
        let text = format!(
            "SELECT {} FROM engine WHERE gpu_key = ?1 AND seq = ?2 ORDER BY engine",
            rows::ENGINE
        );
        let mut statement = self.connection.prepare_cached(&text)?;
        let mut found = statement.query([key, seq])?;
        let mut engines = Vec::new();
        while let Some(row) = found.next()? {
            engines.push(rows::engine_record(row)?);
        }
        Ok(engines)
    }
}

impl Tables for Sqlite {
    /// Goes on in the file that is in the ledger's place.
    fn refresh(&mut self) -> Result<(), StoreError> {
        let Some(claim) = &self.claim else {
            return Ok(());
        };
        match claim.place()? {
            Place::Same => Ok(()),
            Place::OtherLog => self.reopen(),
            Place::Missing if !self.ending => Err(StoreError::Removed {
                path: claim.path().to_owned(),
            }),
            Place::Missing | Place::OtherFile => self.go_on(),
        }
    }

    fn ending(&mut self) {
        self.ending = true;
    }

    fn begin_writing(&mut self) -> Result<(), StoreError> {
        Ok(self.connection.execute_batch("BEGIN IMMEDIATE")?)
    }

    fn begin_reading(&mut self) -> Result<(), StoreError> {
        Ok(self.connection.execute_batch("BEGIN")?)
    }

    fn commit(&mut self) -> Result<(), StoreError> {
        Ok(self.connection.execute_batch("COMMIT")?)
    }

    fn rollback(&mut self) {
        if !self.connection.is_autocommit() {
            // A rollback that fails leaves a transaction in which each call fails.
            let _ = self.connection.execute_batch("ROLLBACK");
        }
    }

    fn find(&mut self, gpu: &GpuIdentity) -> Result<Option<i64>, StoreError> {
        let key = self
            .connection
            .prepare_cached("SELECT gpu_key FROM gpu WHERE node = ?1 AND gpu = ?2")?
            .query_row(params![gpu.node, gpu.gpu], |row| row.get(0))
            .optional()?;
        Ok(key)
    }

    fn enter(&mut self, gpu: &GpuIdentity) -> Result<i64, StoreError> {
        let genesis = Digest::genesis(gpu);
        self.connection
            .prepare_cached(
                "INSERT INTO gpu(node, gpu, model, anchor_seq, anchor_digest, kept_from_ns) VALUES(?1, ?2, ?3, 0, ?4, 0)
                 ON CONFLICT(node, gpu) DO UPDATE SET model = excluded.model WHERE model <> excluded.model",
            )?
            .execute(params![gpu.node, gpu.gpu, gpu.model, &genesis.0[..]])?;
        self.find(gpu)?.ok_or_else(|| damaged("GPU", &gpu.gpu))
    }

    fn last(&mut self, key: i64) -> Result<Option<Tail>, StoreError> {
        self.tail(key)
    }

    fn write_entry(
        &mut self,
        key: i64,
        stretch: &Stretch,
        cause: Option<GapCause>,
        digest: &Digest,
    ) -> Result<(), StoreError> {
        self.connection
            .prepare_cached(
                "INSERT INTO entry(gpu_key, seq, boot, start_ns, end_ns, from_ns, length_ns, gap, digest)
                 VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
            )?
            .execute(params![
                key,
                stored("seq", stretch.seq)?,
                &stretch.boot.as_bytes()[..],
                stored("start", stretch.start.0)?,
                stored("end", stretch.end.0)?,
                stored("from", stretch.from.0)?,
                stored_ns("length", stretch.length_ns)?,
                cause.map(GapCause::as_str),
                &digest.0[..],
            ])?;
        Ok(())
    }

    fn write_records(&mut self, open: Open, records: &[TenantRecord]) -> Result<(), StoreError> {
        let Open { gpu, seq, boot } = open;
        for record in records {
            let tenant = named::tenant(&self.connection, &record.tenant, boot)?;
            let metadata = named::metadata(&self.connection, &record.tenant.metadata, boot)?;
            let copied = record
                .copy_bytes
                .map(|bytes| stored("copy bytes", bytes))
                .transpose()?;
            let cap = record.cap;
            self.connection
                .prepare_cached(
                    "INSERT INTO usage(gpu_key, seq, tenant_key, id, engine_ns, estimated_ns, fault_ns, copy_ns, copy_bytes,
                     held_ns, waiting_ns, memory_byte_ns, weight, quota_ns, period_ns, signals, error_bound_ns, turns, metadata_key)
                     VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19)",
                )?
                .execute(params![
                    gpu,
                    seq,
                    tenant,
                    &record.id.as_bytes()[..],
                    stored_ns("engine time", record.engine_ns)?,
                    stored_ns("estimated time", record.estimated_ns)?,
                    stored_ns("fault time", record.fault_ns)?,
                    stored_ns("copy time", record.copy_ns)?,
                    copied,
                    stored_ns("held time", record.held_ns)?,
                    stored_ns("waiting time", record.waiting_ns)?,
                    record.memory_byte_ns.map(|wide| wide.to_string()),
                    record.weight,
                    cap.map(|cap| stored_ns("quota", cap.quota_ns)).transpose()?,
                    cap.map(|cap| stored_ns("period", cap.period_ns)).transpose()?,
                    record.signals.bits(),
                    stored_ns("error bound", record.error_bound_ns)?,
                    stored("turns", record.turns)?,
                    metadata,
                ])?;
        }
        Ok(())
    }

    fn finish_window(
        &mut self,
        open: Open,
        engines: &[EngineRecord],
        digest: &Digest,
    ) -> Result<(), StoreError> {
        let Open { gpu, seq, .. } = open;
        for record in engines {
            self.connection
                .prepare_cached(
                    "INSERT INTO engine(gpu_key, seq, engine, compute, used_ns, fault_ns, switching_ns, idle_ns, unobserved_ns,
                     gap_ns, error_bound_ns) VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
                )?
                .execute(params![
                    gpu,
                    seq,
                    record.engine.0,
                    record.compute,
                    stored_ns("used time", record.used_ns)?,
                    stored_ns("fault time", record.fault_ns)?,
                    stored_ns("switching time", record.switching_ns)?,
                    stored_ns("idle time", record.idle_ns)?,
                    stored_ns("unobserved time", record.unobserved_ns)?,
                    stored_ns("gap", record.gap_ns)?,
                    stored_ns("error bound", record.error_bound_ns)?,
                ])?;
        }
        self.connection
            .prepare_cached("UPDATE entry SET digest = ?3 WHERE gpu_key = ?1 AND seq = ?2")?
            .execute(params![gpu, seq, &digest.0[..]])?;
        Ok(())
    }

    fn write_draft(
        &mut self,
        gpu: &GpuIdentity,
        after: &Digest,
        draft: &str,
    ) -> Result<(), StoreError> {
        self.connection
            .prepare_cached(
                "INSERT INTO draft(node, gpu, after, content) VALUES(?1, ?2, ?3, ?4)
                 ON CONFLICT(node, gpu) DO UPDATE SET after = excluded.after, content = excluded.content",
            )?
            .execute(params![gpu.node, gpu.gpu, &after.0[..], draft])?;
        Ok(())
    }

    fn read_draft(&mut self, gpu: &GpuIdentity) -> Result<Option<(Vec<u8>, String)>, StoreError> {
        let mut found = self
            .connection
            .prepare_cached("SELECT after, content FROM draft WHERE node = ?1 AND gpu = ?2")?;
        let kept = found.query_row([&gpu.node, &gpu.gpu], |row| Ok((row.get(0)?, row.get(1)?)));
        Ok(kept.optional()?)
    }

    fn kept(&mut self) -> Result<Vec<(i64, Kept)>, StoreError> {
        let mut statement = self.connection.prepare_cached(rows::GPUS)?;
        let mut found = statement.query([])?;
        let mut kept = Vec::new();
        while let Some(row) = found.next()? {
            let first = |key: i64| {
                let mut first = self.connection.prepare_cached(rows::FIRST)?;
                first.query_row([key], |row| row.get(0)).optional()
            };
            kept.push(rows::kept(row, |key| Ok((self.tail(key)?, first(key)?)))?);
        }
        Ok(kept)
    }

    fn visit(
        &mut self,
        gpu: i64,
        from: i64,
        to: i64,
        visit: &mut VisitEntry<'_>,
    ) -> Result<bool, StoreError> {
        let text = format!(
            "SELECT {} FROM entry WHERE gpu_key = ?1 AND start_ns >= ?2 AND start_ns < ?3 ORDER BY seq",
            rows::ENTRY
        );
        let mut statement = self.connection.prepare_cached(&text)?;
        let mut found = statement.query([gpu, from, to])?;
        while let Some(row) = found.next()? {
            if !visit(self.entry(gpu, row)?)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn begins(&mut self, gpu: i64, at: i64) -> Result<Option<i64>, StoreError> {
        let mut found = self.connection.prepare_cached(rows::BEGINS)?;
        Ok(found.query_row([gpu, at], |row| row.get(0)).optional()?)
    }

    fn knows(&mut self, name: &str, id: Option<Uuid>) -> Result<bool, StoreError> {
        let id = id.map(Uuid::into_bytes);
        let mut found = self.connection.prepare_cached(rows::KNOWS)?;
        Ok(found.query_row(params![name, id], |row| row.get(0))?)
    }

    fn discard(&mut self, key: i64, before: i64) -> Result<u64, StoreError> {
        let tx = self
            .connection
            .transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        let last: Option<(i64, i64, Vec<u8>)> = tx
            .prepare_cached(
                "SELECT seq, end_ns, digest FROM (SELECT seq, end_ns, digest FROM entry WHERE gpu_key = ?1 AND end_ns <= ?2
                 AND seq < (SELECT max(seq) FROM entry WHERE gpu_key = ?1) ORDER BY seq LIMIT ?3) ORDER BY seq DESC LIMIT 1",
            )?
            .query_row([key, before, DISCARDED_AT_ONCE], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
            .optional()?;
        let Some((seq, end, digest)) = last else {
            return Ok(0);
        };
        for table in ["usage", "engine"] {
            tx.execute(
                &format!("DELETE FROM {table} WHERE gpu_key = ?1 AND seq <= ?2"),
                [key, seq],
            )?;
        }
        let count = tx.execute(
            "DELETE FROM entry WHERE gpu_key = ?1 AND seq <= ?2",
            [key, seq],
        )?;
        tx.execute(
            "UPDATE gpu SET anchor_seq = ?2, anchor_digest = ?3, kept_from_ns = ?4 WHERE gpu_key = ?1",
            params![key, seq.saturating_add(1), digest, end],
        )?;
        tx.commit()?;
        Ok(count as u64)
    }

    fn tidy(&mut self) -> Result<(), StoreError> {
        for table in ["tenant", "metadata"] {
            self.connection.execute(
                &format!("DELETE FROM {table} WHERE boot NOT IN (SELECT boot FROM entry)"),
                [],
            )?;
        }
        Ok(())
    }

    fn note(&mut self, change: &Change) -> Result<Put, StoreError> {
        let rows = self
            .connection
            .prepare_cached(
                "INSERT INTO setting_change(request, at_ns, node, boot, actor, tenant, part, old, new)
                 VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9) ON CONFLICT(request) DO NOTHING",
            )?
            .execute(params![
                &change.request.as_bytes()[..],
                stored("at_ns", change.at.0)?,
                change.node,
                &change.boot.as_bytes()[..],
                change.by,
                change.tenant,
                change.part,
                change.old,
                change.new,
            ])?;
        Ok(if rows == 0 { Put::Known } else { Put::Written })
    }

    fn changes(
        &mut self,
        from: i64,
        to: i64,
        visit: &mut VisitChanges<'_>,
    ) -> Result<(), StoreError> {
        let there: bool = self.connection.query_row(
            "SELECT count(*) > 0 FROM sqlite_schema WHERE name = 'setting_change'",
            [],
            |row| row.get(0),
        )?;
        if !there {
            return Ok(());
        }
        let text = format!(
            "SELECT {} FROM setting_change WHERE at_ns >= ?1 AND at_ns < ?2 ORDER BY at_ns, request",
            rows::CHANGE
        );
        let mut statement = self.connection.prepare_cached(&text)?;
        let mut found = statement.query([from, to])?;
        while let Some(row) = found.next()? {
            if !visit(rows::change(row)?)? {
                break;
            }
        }
        Ok(())
    }

    /// A file belongs to one host, which may have been renamed.
    fn is_shared(&self) -> bool {
        false
    }

    fn forget_changes(&mut self, _: Option<&str>, before: i64) -> Result<(), StoreError> {
        self.connection
            .execute("DELETE FROM setting_change WHERE at_ns < ?1", [before])?;
        Ok(())
    }
}
