//! The ledger in a file: SQLite in WAL mode, one transaction per entry, an fsync before the entry counts.
//!
//! Readers in other processes see the last closed entry and disturb no writer.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, OptionalExtension, Row, params};

use super::rows::{
    bounds, damaged, read, read_cap, read_cause, read_digest, read_kind, read_ns, read_signals,
    read_uuid, read_wide, stored, stored_ns,
};
use super::{Kept, Put, Retained, Selection, Store, StoreError, Visit, VisitChanges};
use crate::audit::Anchor;
use crate::change::Change;
use crate::record::{
    Body, Digest, EngineRecord, Entry, GapCause, GpuIdentity, Stretch, Tail, TenantIdentity,
    TenantRecord, UnixNanos,
};
use crate::units::{EngineId, Moment};
use uuid::Uuid;

/// Version of the tables, kept in the file's `user_version`.
const VERSION: i64 = 1;

/// Marks the file as a ledger: "TSLG", kept in its `application_id`.
const APPLICATION: i64 = 0x5453_4c47;

/// TIMEOUT: another process holds the file for one entry or one batch of retention, milliseconds on a disk that works.
const BUSY: Duration = Duration::from_secs(5);

/// Entries that are discarded in one transaction.
const DISCARDED_AT_ONCE: i64 = 4_096;

const SCHEMA: &str = include_str!("sqlite.sql");
const CHANGES: &str = include_str!("change.sql");

/// A ledger in a file.
#[derive(Debug)]
pub struct SqliteStore {
    connection: Connection,
    /// Row of the GPU, number and run of the window that is open.
    open: Option<(i64, i64, Uuid)>,
}

impl SqliteStore {
    /// Opens a ledger to write, or makes one that its owner and group may read.
    ///
    /// # Errors
    /// If the file cannot be opened, or is something else.
    pub fn create(path: &Path) -> Result<Self, StoreError> {
        // SQLite would make it readable for everyone.
        let made = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o640)
            .open(path);
        made.map_err(|error| told(path, error))?;
        let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        let mut store = Self::over(connection)?;
        store.make_tables()?;
        Ok(store)
    }

    /// Opens a ledger to read.
    ///
    /// # Errors
    /// If there is none, or it may not be read.
    pub fn read(path: &Path) -> Result<Self, StoreError> {
        File::open(path).map_err(|error| told(path, error))?;
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY;
        let store = Self::over(Connection::open_with_flags(path, flags)?)?;
        store.check_version()?;
        Ok(store)
    }

    /// A ledger in memory, for tests.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn in_memory() -> Result<Self, StoreError> {
        let mut store = Self::over(Connection::open_in_memory()?)?;
        store.make_tables()?;
        Ok(store)
    }

    fn over(connection: Connection) -> Result<Self, StoreError> {
        connection.busy_timeout(BUSY)?;
        connection.set_prepared_statement_cache_capacity(32);
        // A damaged or forged file may name functions in its schema, and cells that overlap.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
        connection.pragma_update(None, "cell_size_check", true)?;
        // In WAL mode FULL means: the log is fsynced at each commit.
        connection.pragma_update(None, "synchronous", "FULL")?;
        Ok(Self {
            connection,
            open: None,
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
        }
        tx.commit()?;
        self.check_version()?;
        Ok(self.connection.execute_batch(CHANGES)?)
    }

    fn check_version(&self) -> Result<(), StoreError> {
        let pragma = |name| {
            self.connection
                .pragma_query_value(None, name, |row| row.get::<_, i64>(0))
        };
        let ours = pragma("application_id")? == APPLICATION;
        let found = if ours { pragma("user_version")? } else { 0 };
        if found != VERSION {
            return Err(StoreError::Version {
                expected: VERSION,
                found,
            });
        }
        Ok(())
    }

    /// Begins the transaction of the next entry; returns the GPU's row.
    fn begin(&mut self, gpu: &GpuIdentity, stretch: &Stretch) -> Result<i64, StoreError> {
        if self.open.is_some() {
            self.abandon();
            return Err(StoreError::Order);
        }
        self.connection.execute_batch("BEGIN IMMEDIATE")?;
        let began = self.begin_entry(gpu, stretch);
        if began.is_err() {
            self.abandon();
        }
        began
    }

    fn begin_entry(&mut self, gpu: &GpuIdentity, stretch: &Stretch) -> Result<i64, StoreError> {
        let genesis = Digest::genesis(gpu);
        self.connection
            .prepare_cached(
                "INSERT INTO gpu(node, gpu, model, anchor_seq, anchor_digest, kept_from_ns) VALUES(?1, ?2, ?3, 0, ?4, 0)
                 ON CONFLICT(node, gpu) DO UPDATE SET model = excluded.model WHERE model <> excluded.model",
            )?
            .execute(params![gpu.node, gpu.gpu, gpu.model, &genesis.0[..]])?;
        let key: i64 = self
            .connection
            .prepare_cached("SELECT gpu_key FROM gpu WHERE node = ?1 AND gpu = ?2")?
            .query_row(params![gpu.node, gpu.gpu], |row| row.get(0))?;
        let expected = self.last(key)?.map_or(0, |tail| tail.seq + 1);
        if stretch.seq != expected {
            let found = stretch.seq;
            return Err(StoreError::Sequence { expected, found });
        }
        Ok(key)
    }

    fn last(&self, key: i64) -> Result<Option<Tail>, StoreError> {
        let row = self
            .connection
            .prepare_cached("SELECT seq, end_ns, digest FROM entry WHERE gpu_key = ?1 ORDER BY seq DESC LIMIT 1")?
            .query_row([key], |row| Ok((row.get(0)?, row.get(1)?, row.get::<_, Vec<u8>>(2)?)))
            .optional()?;
        row.map(|(seq, end, digest)| {
            Ok(Tail {
                seq: read("seq", seq)?,
                end: UnixNanos(read("end_ns", end)?),
                digest: read_digest(&digest)?,
            })
        })
        .transpose()
    }

    fn write_entry(
        &self,
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

    /// The row of a tenant that `boot` writes of; made if there is none.
    fn tenant(&self, tenant: &TenantIdentity, boot: Uuid) -> Result<i64, StoreError> {
        let (id, boot) = (&tenant.id.as_bytes()[..], &boot.as_bytes()[..]);
        let known: Option<(i64, bool)> = self
            .connection
            .prepare_cached("SELECT tenant_key, boot = ?2 FROM tenant WHERE id = ?1")?
            .query_row([id, boot], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?;
        let Some((key, same)) = known else {
            self.connection
                .prepare_cached("INSERT INTO tenant(id, name, kind, boot) VALUES(?1, ?2, ?3, ?4)")?
                .execute(params![id, tenant.name, tenant.kind.as_str(), boot])?;
            return Ok(self.connection.last_insert_rowid());
        };
        if !same {
            self.connection
                .prepare_cached("UPDATE tenant SET boot = ?2 WHERE tenant_key = ?1")?
                .execute(params![key, boot])?;
        }
        Ok(key)
    }

    fn append_records(&self, records: &[TenantRecord]) -> Result<(), StoreError> {
        let (gpu, seq, boot) = self.open.ok_or(StoreError::Order)?;
        for record in records {
            let tenant = self.tenant(&record.tenant, boot)?;
            let copied = record
                .copy_bytes
                .map(|bytes| stored("copy bytes", bytes))
                .transpose()?;
            let cap = record.cap;
            self.connection
                .prepare_cached(
                    "INSERT INTO usage(gpu_key, seq, tenant_key, id, engine_ns, estimated_ns, fault_ns, copy_ns, copy_bytes,
                     held_ns, waiting_ns, memory_byte_ns, weight, quota_ns, period_ns, signals, error_bound_ns, turns)
                     VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18)",
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
                ])?;
        }
        Ok(())
    }

    fn close_records(&self, engines: &[EngineRecord], digest: &Digest) -> Result<(), StoreError> {
        let (gpu, seq, _) = self.open.ok_or(StoreError::Order)?;
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

    fn commit(&mut self) -> Result<(), StoreError> {
        self.connection.execute_batch("COMMIT")?;
        self.open = None;
        Ok(())
    }

    /// What was done, or the window is given up.
    fn or_abandon<T>(&mut self, done: Result<T, StoreError>) -> Result<T, StoreError> {
        if done.is_err() {
            self.abandon();
        }
        done
    }

    fn kept(&self) -> Result<Vec<(i64, Kept)>, StoreError> {
        let mut statement = self.connection.prepare_cached(
            "SELECT gpu_key, node, gpu, model, anchor_seq, anchor_digest, kept_from_ns FROM gpu ORDER BY node, gpu",
        )?;
        let mut rows = statement.query([])?;
        let mut kept = Vec::new();
        while let Some(row) = rows.next()? {
            let key: i64 = row.get(0)?;
            // A GPU row is written with its first entry, in one transaction.
            let tail = self
                .last(key)?
                .ok_or_else(|| damaged("GPU without entries", key))?;
            let digest: Vec<u8> = row.get(5)?;
            let gpu = GpuIdentity {
                node: row.get(1)?,
                gpu: row.get(2)?,
                model: row.get(3)?,
            };
            let anchor = Anchor {
                seq: read("anchor_seq", row.get(4)?)?,
                digest: read_digest(&digest)?,
            };
            let from = UnixNanos(read("kept_from_ns", row.get(6)?)?);
            kept.push((
                key,
                Kept {
                    gpu,
                    tail,
                    anchor,
                    from,
                },
            ));
        }
        Ok(kept)
    }

    fn visit_all(&self, selection: &Selection, visit: &mut Visit<'_>) -> Result<(), StoreError> {
        let (from, to) = bounds(selection);
        let chosen = self.kept()?;
        for (key, kept) in chosen
            .into_iter()
            .filter(|(_, kept)| selection.has(&kept.gpu))
        {
            let mut statement = self.connection.prepare_cached(
                "SELECT seq, boot, start_ns, end_ns, from_ns, length_ns, gap, digest FROM entry
                 WHERE gpu_key = ?1 AND start_ns >= ?2 AND start_ns < ?3 ORDER BY seq",
            )?;
            let mut rows = statement.query([key, from, to])?;
            while let Some(row) = rows.next()? {
                let entry = self.entry(key, row)?;
                if !visit(&kept.gpu, entry)? {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn entry(&self, key: i64, row: &Row<'_>) -> Result<Entry, StoreError> {
        let (boot, digest): (Vec<u8>, Vec<u8>) = (row.get(1)?, row.get(7)?);
        let gap: Option<String> = row.get(6)?;
        let stretch = Stretch {
            seq: read("seq", row.get(0)?)?,
            boot: read_uuid("boot", &boot)?,
            start: UnixNanos(read("start_ns", row.get(2)?)?),
            end: UnixNanos(read("end_ns", row.get(3)?)?),
            from: Moment(read("from_ns", row.get(4)?)?),
            length_ns: read_ns("length_ns", row.get(5)?)?,
        };
        let body = match gap {
            Some(cause) => Body::Gap {
                cause: read_cause(&cause)?,
            },
            None => {
                let seq = stored("seq", stretch.seq)?;
                Body::Window {
                    tenants: self.records(key, seq)?,
                    engines: self.engines(key, seq)?,
                }
            }
        };
        Ok(Entry {
            stretch,
            body,
            digest: read_digest(&digest)?,
        })
    }

    fn records(&self, key: i64, seq: i64) -> Result<Vec<TenantRecord>, StoreError> {
        let mut statement = self.connection.prepare_cached(
            "SELECT u.id, t.id, t.name, t.kind, engine_ns, estimated_ns, fault_ns, copy_ns, copy_bytes, held_ns, waiting_ns,
             memory_byte_ns, weight, quota_ns, period_ns, signals, error_bound_ns, turns
             FROM usage u JOIN tenant t USING(tenant_key) WHERE gpu_key = ?1 AND seq = ?2 ORDER BY t.id",
        )?;
        let mut rows = statement.query([key, seq])?;
        let mut records = Vec::new();
        while let Some(row) = rows.next()? {
            let (id, tenant, kind): (Vec<u8>, Vec<u8>, String) =
                (row.get(0)?, row.get(1)?, row.get(3)?);
            let copied: Option<i64> = row.get(8)?;
            let wide: Option<String> = row.get(11)?;
            records.push(TenantRecord {
                id: read_uuid("id", &id)?,
                tenant: TenantIdentity {
                    id: read_uuid("tenant", &tenant)?,
                    name: row.get(2)?,
                    kind: read_kind(&kind)?,
                },
                engine_ns: read_ns("engine_ns", row.get(4)?)?,
                estimated_ns: read_ns("estimated_ns", row.get(5)?)?,
                fault_ns: read_ns("fault_ns", row.get(6)?)?,
                copy_ns: read_ns("copy_ns", row.get(7)?)?,
                copy_bytes: copied.map(|bytes| read("copy_bytes", bytes)).transpose()?,
                held_ns: read_ns("held_ns", row.get(9)?)?,
                waiting_ns: read_ns("waiting_ns", row.get(10)?)?,
                memory_byte_ns: read_wide("memory_byte_ns", wide.as_deref())?,
                weight: read("weight", row.get(12)?)?,
                cap: read_cap(row.get(13)?, row.get(14)?)?,
                signals: read_signals(row.get(15)?)?,
                error_bound_ns: read_ns("error_bound_ns", row.get(16)?)?,
                turns: read("turns", row.get(17)?)?,
            });
        }
        Ok(records)
    }

    fn engines(&self, key: i64, seq: i64) -> Result<Vec<EngineRecord>, StoreError> {
        let mut statement = self.connection.prepare_cached(
            "SELECT engine, compute, used_ns, fault_ns, switching_ns, idle_ns, unobserved_ns, gap_ns, error_bound_ns
             FROM engine WHERE gpu_key = ?1 AND seq = ?2 ORDER BY engine",
        )?;
        let mut rows = statement.query([key, seq])?;
        let mut engines = Vec::new();
        while let Some(row) = rows.next()? {
            engines.push(EngineRecord {
                engine: EngineId(read("engine", row.get(0)?)?),
                compute: row.get::<_, i64>(1)? != 0,
                used_ns: read_ns("used_ns", row.get(2)?)?,
                fault_ns: read_ns("fault_ns", row.get(3)?)?,
                switching_ns: read_ns("switching_ns", row.get(4)?)?,
                idle_ns: read_ns("idle_ns", row.get(5)?)?,
                unobserved_ns: read_ns("unobserved_ns", row.get(6)?)?,
                gap_ns: read_ns("gap_ns", row.get(7)?)?,
                error_bound_ns: read_ns("error_bound_ns", row.get(8)?)?,
            });
        }
        Ok(engines)
    }

    /// Discards some of a GPU's entries before `before`; returns how many.
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
}

fn told(path: &Path, error: std::io::Error) -> StoreError {
    let path = PathBuf::from(path);
    match error.kind() {
        ErrorKind::NotFound => StoreError::NotFound { path },
        ErrorKind::PermissionDenied => StoreError::Denied { path },
        _ => StoreError::Output(error),
    }
}

impl Store for SqliteStore {
    fn tail(&mut self, gpu: &GpuIdentity) -> Result<Option<Tail>, StoreError> {
        let key: Option<i64> = self
            .connection
            .prepare_cached("SELECT gpu_key FROM gpu WHERE node = ?1 AND gpu = ?2")?
            .query_row(params![gpu.node, gpu.gpu], |row| row.get(0))
            .optional()?;
        Ok(key.map(|key| self.last(key)).transpose()?.flatten())
    }

    fn open_window(&mut self, gpu: &GpuIdentity, stretch: &Stretch) -> Result<(), StoreError> {
        let key = self.begin(gpu, stretch)?;
        let entered = (|| {
            let seq = stored("seq", stretch.seq)?;
            // The digest is known at the end.
            self.write_entry(key, stretch, None, &Digest([0; 32]))?;
            Ok(seq)
        })();
        let seq = self.or_abandon(entered)?;
        self.open = Some((key, seq, stretch.boot));
        Ok(())
    }

    fn append(&mut self, records: &[TenantRecord]) -> Result<(), StoreError> {
        let appended = self.append_records(records);
        self.or_abandon(appended)
    }

    fn close_window(
        &mut self,
        engines: &[EngineRecord],
        digest: &Digest,
    ) -> Result<(), StoreError> {
        let closed = self
            .close_records(engines, digest)
            .and_then(|()| self.commit());
        self.or_abandon(closed)
    }

    fn abandon(&mut self) {
        self.open = None;
        if !self.connection.is_autocommit() {
            // A rollback that fails leaves a transaction that can only fail.
            let _ = self.connection.execute_batch("ROLLBACK");
        }
    }

    fn append_gap(
        &mut self,
        gpu: &GpuIdentity,
        stretch: &Stretch,
        cause: GapCause,
        digest: &Digest,
    ) -> Result<(), StoreError> {
        let key = self.begin(gpu, stretch)?;
        let written = self
            .write_entry(key, stretch, Some(cause), digest)
            .and_then(|()| self.commit());
        self.or_abandon(written)
    }

    fn gpus(&mut self) -> Result<Vec<Kept>, StoreError> {
        Ok(self.kept()?.into_iter().map(|(_, kept)| kept).collect())
    }

    fn query(&mut self, selection: &Selection, visit: &mut Visit<'_>) -> Result<(), StoreError> {
        if self.open.is_some() {
            return Err(StoreError::Order);
        }
        self.connection.execute_batch("BEGIN")?;
        let visited = self.visit_all(selection, visit);
        self.abandon();
        visited
    }

    fn retain(&mut self, before: UnixNanos) -> Result<Retained, StoreError> {
        if self.open.is_some() {
            return Err(StoreError::Order);
        }
        let before = stored("before", before.0)?;
        let mut retained = Retained::default();
        for (key, _) in self.kept()? {
            loop {
                let entries = self.discard(key, before)?;
                retained.entries += entries;
                if entries == 0 {
                    break;
                }
            }
        }
        self.connection
            .execute("DELETE FROM setting_change WHERE at_ns < ?1", [before])?;
        if retained.entries > 0 {
            self.connection.execute(
                "DELETE FROM tenant WHERE boot NOT IN (SELECT boot FROM entry)",
                [],
            )?;
        }
        Ok(retained)
    }

    fn note(&mut self, change: &Change) -> Result<Put, StoreError> {
        if self.open.is_some() {
            return Err(StoreError::Order);
        }
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
        selection: &Selection,
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
        let (from, to) = bounds(selection);
        let mut statement = self.connection.prepare_cached(
            "SELECT request, at_ns, node, boot, actor, tenant, part, old, new FROM setting_change
             WHERE at_ns >= ?1 AND at_ns < ?2 ORDER BY at_ns, request",
        )?;
        let mut rows = statement.query([from, to])?;
        while let Some(row) = rows.next()? {
            let (request, boot): (Vec<u8>, Vec<u8>) = (row.get(0)?, row.get(3)?);
            let change = Change {
                request: read_uuid("request", &request)?,
                at: UnixNanos(read("at_ns", row.get(1)?)?),
                node: row.get(2)?,
                boot: read_uuid("boot", &boot)?,
                by: row.get(4)?,
                tenant: row.get(5)?,
                part: row.get(6)?,
                old: row.get(7)?,
                new: row.get(8)?,
            };
            if !visit(change)? {
                break;
            }
        }
        Ok(())
    }
}
