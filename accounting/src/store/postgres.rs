//! The ledgers of a fleet in one PostgreSQL database: many hosts write, each its own GPUs' entries.
//!
//! The connection is not encrypted: a socket of this host, or a tunnel that is.

use std::fmt;
use std::io::Write as _;

use postgres::{Client, NoTls, Row};

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

/// Version of the tables.
const VERSION: i64 = 1;

/// Entries read, or discarded, at a time.
const PAGE: i64 = 1_024;

const SCHEMA: &str = include_str!("postgres.sql");
const CHANGES: &str = include_str!("change_postgres.sql");

/// A ledger in a PostgreSQL database.
pub struct PostgresStore {
    database: String,
    client: Client,
    /// Row of the GPU and number of the window that is open.
    open: Option<(i64, i64)>,
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The database's address may hold a password.
        f.debug_struct("PostgresStore")
            .field("open", &self.open)
            .finish_non_exhaustive()
    }
}

impl PostgresStore {
    /// Connects to a database (`host=/run/postgresql dbname=turnstile user=turnstile`, or a URL), and makes the tables if
    /// there are none.
    ///
    /// # Errors
    /// If it cannot be reached, has tables of another version, or does not write through to its disk.
    pub fn connect(database: &str) -> Result<Self, StoreError> {
        let client = Self::connected(database)?;
        let mut store = Self {
            database: database.to_owned(),
            client,
            open: None,
        };
        store.make_tables()?;
        Ok(store)
    }

    fn connected(database: &str) -> Result<Client, StoreError> {
        let mut client = Client::connect(database, NoTls)?;
        // A window counts as closed when it is on the disk, whatever the server's default.
        client.batch_execute("SET synchronous_commit = on")?;
        let fsync: String = client.query_one("SHOW fsync", &[])?.get(0);
        if fsync != "on" {
            return Err(StoreError::NotDurable);
        }
        Ok(client)
    }

    fn make_tables(&mut self) -> Result<(), StoreError> {
        let mut tx = self.client.transaction()?;
        // Two hosts may come at once. The number is this program's own.
        tx.execute("SELECT pg_advisory_xact_lock(1414744903)", &[])?;
        let there: bool = tx
            .query_one("SELECT to_regclass('ledger_version') IS NOT NULL", &[])?
            .get(0);
        if !there {
            tx.batch_execute(SCHEMA)?;
        }
        tx.batch_execute(CHANGES)?;
        let found: i64 = tx
            .query_one("SELECT max(version) FROM ledger_version", &[])?
            .try_get(0)?;
        tx.commit()?;
        if found != VERSION {
            return Err(StoreError::Version {
                expected: VERSION,
                found,
            });
        }
        Ok(())
    }

    /// The connection; a new one if the server closed the old one.
    fn client(&mut self) -> Result<&mut Client, StoreError> {
        if self.client.is_closed() {
            self.open = None;
            self.client = Self::connected(&self.database)?;
        }
        Ok(&mut self.client)
    }

    fn begin(&mut self, gpu: &GpuIdentity, stretch: &Stretch) -> Result<i64, StoreError> {
        if self.open.is_some() {
            self.abandon();
            return Err(StoreError::Order);
        }
        self.client()?.batch_execute("BEGIN")?;
        let began = self.begin_entry(gpu, stretch);
        self.or_abandon(began)
    }

    fn begin_entry(&mut self, gpu: &GpuIdentity, stretch: &Stretch) -> Result<i64, StoreError> {
        let genesis = Digest::genesis(gpu);
        // The update locks the row, so that of two writers one waits.
        let row = self.client.query_one(
            "INSERT INTO gpu(node, gpu, model, anchor_seq, anchor_digest, kept_from_ns) VALUES($1, $2, $3, 0, $4, 0)
             ON CONFLICT(node, gpu) DO UPDATE SET model = excluded.model RETURNING gpu_key",
            &[&gpu.node, &gpu.gpu, &gpu.model, &&genesis.0[..]],
        )?;
        let key: i64 = row.try_get(0)?;
        let expected = self.last(key)?.map_or(0, |tail| tail.seq + 1);
        if stretch.seq != expected {
            let found = stretch.seq;
            return Err(StoreError::Sequence { expected, found });
        }
        Ok(key)
    }

    fn last(&mut self, key: i64) -> Result<Option<Tail>, StoreError> {
        let row = self.client.query_opt(
            "SELECT seq, end_ns, digest FROM entry WHERE gpu_key = $1 ORDER BY seq DESC LIMIT 1",
            &[&key],
        )?;
        row.map(|row| {
            Ok(Tail {
                seq: read("seq", row.try_get(0)?)?,
                end: UnixNanos(read("end_ns", row.try_get(1)?)?),
                digest: read_digest(row.try_get(2)?)?,
            })
        })
        .transpose()
    }

    fn write_entry(
        &mut self,
        key: i64,
        stretch: &Stretch,
        cause: Option<GapCause>,
        digest: &Digest,
    ) -> Result<(), StoreError> {
        self.client.execute(
            "INSERT INTO entry(gpu_key, seq, boot, start_ns, end_ns, from_ns, length_ns, gap, digest)
             VALUES($1, $2, $3, $4, $5, $6, $7, $8, $9)",
            &[
                &key,
                &stored("seq", stretch.seq)?,
                &&stretch.boot.as_bytes()[..],
                &stored("start", stretch.start.0)?,
                &stored("end", stretch.end.0)?,
                &stored("from", stretch.from.0)?,
                &stored_ns("length", stretch.length_ns)?,
                &cause.map(GapCause::as_str),
                &&digest.0[..],
            ],
        )?;
        Ok(())
    }

    /// Rows of tenants, in the order of the records; made where there are none.
    fn tenants(&mut self, records: &[TenantRecord]) -> Result<Vec<i64>, StoreError> {
        let ids: Vec<&[u8]> = records
            .iter()
            .map(|record| &record.tenant.id.as_bytes()[..])
            .collect();
        let names: Vec<&str> = records
            .iter()
            .map(|record| record.tenant.name.as_str())
            .collect();
        let kinds: Vec<&str> = records
            .iter()
            .map(|record| record.tenant.kind.as_str())
            .collect();
        self.client.execute(
            "INSERT INTO tenant(id, name, kind) SELECT * FROM unnest($1::bytea[], $2::text[], $3::text[])
             ON CONFLICT(id) DO NOTHING",
            &[&ids, &names, &kinds],
        )?;
        let rows = self.client.query(
            "SELECT tenant_key FROM unnest($1::bytea[]) WITH ORDINALITY AS asked(id, place) JOIN tenant USING(id) ORDER BY place",
            &[&ids],
        )?;
        if rows.len() != records.len() {
            return Err(damaged("tenants", rows.len()));
        }
        rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
    }

    fn append_records(&mut self, records: &[TenantRecord]) -> Result<(), StoreError> {
        let (gpu, seq) = self.open.ok_or(StoreError::Order)?;
        let tenants = self.tenants(records)?;
        let mut text = Vec::new();
        for (record, tenant) in records.iter().zip(tenants) {
            let null = || "\\N".to_owned();
            let optional = |value: Option<i64>| value.map_or_else(null, |value| value.to_string());
            let cap = record.cap;
            // Numbers and hexadecimal alone: nothing that COPY would have to have escaped.
            writeln!(
                text,
                "{gpu}\t{seq}\t{tenant}\t\\\\x{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}",
                record.id.simple(),
                stored_ns("engine time", record.engine_ns)?,
                stored_ns("estimated time", record.estimated_ns)?,
                stored_ns("fault time", record.fault_ns)?,
                stored_ns("copy time", record.copy_ns)?,
                optional(
                    record
                        .copy_bytes
                        .map(|bytes| stored("copy bytes", bytes))
                        .transpose()?
                ),
                stored_ns("held time", record.held_ns)?,
                stored_ns("waiting time", record.waiting_ns)?,
                record
                    .memory_byte_ns
                    .map_or_else(null, |wide| wide.to_string()),
                record.weight,
                optional(
                    cap.map(|cap| stored_ns("quota", cap.quota_ns))
                        .transpose()?
                ),
                optional(
                    cap.map(|cap| stored_ns("period", cap.period_ns))
                        .transpose()?
                ),
                record.signals.bits(),
                stored_ns("error bound", record.error_bound_ns)?,
                stored("turns", record.turns)?,
            )?;
        }
        let mut copy = self.client.copy_in(
            "COPY usage(gpu_key, seq, tenant_key, id, engine_ns, estimated_ns, fault_ns, copy_ns, copy_bytes, held_ns, waiting_ns,
             memory_byte_ns, weight, quota_ns, period_ns, signals, error_bound_ns, turns) FROM STDIN",
        )?;
        copy.write_all(&text)?;
        copy.finish()?;
        Ok(())
    }

    fn close_records(
        &mut self,
        engines: &[EngineRecord],
        digest: &Digest,
    ) -> Result<(), StoreError> {
        let (gpu, seq) = self.open.ok_or(StoreError::Order)?;
        for record in engines {
            self.client.execute(
                "INSERT INTO engine(gpu_key, seq, engine, compute, used_ns, fault_ns, switching_ns, idle_ns, unobserved_ns, gap_ns,
                 error_bound_ns) VALUES($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
                &[
                    &gpu,
                    &seq,
                    &i64::from(record.engine.0),
                    &record.compute,
                    &stored_ns("used time", record.used_ns)?,
                    &stored_ns("fault time", record.fault_ns)?,
                    &stored_ns("switching time", record.switching_ns)?,
                    &stored_ns("idle time", record.idle_ns)?,
                    &stored_ns("unobserved time", record.unobserved_ns)?,
                    &stored_ns("gap", record.gap_ns)?,
                    &stored_ns("error bound", record.error_bound_ns)?,
                ],
            )?;
        }
        self.client.execute(
            "UPDATE entry SET digest = $3 WHERE gpu_key = $1 AND seq = $2",
            &[&gpu, &seq, &&digest.0[..]],
        )?;
        Ok(())
    }

    fn commit(&mut self) -> Result<(), StoreError> {
        self.client.batch_execute("COMMIT")?;
        self.open = None;
        Ok(())
    }

    fn or_abandon<T>(&mut self, done: Result<T, StoreError>) -> Result<T, StoreError> {
        if done.is_err() {
            self.abandon();
        }
        done
    }

    fn kept(&mut self) -> Result<Vec<(i64, Kept)>, StoreError> {
        let rows = self.client()?.query(
            "SELECT gpu_key, node, gpu, model, anchor_seq, anchor_digest, kept_from_ns FROM gpu ORDER BY node, gpu",
            &[],
        )?;
        let mut kept = Vec::new();
        for row in rows {
            let key: i64 = row.try_get(0)?;
            let tail = self
                .last(key)?
                .ok_or_else(|| damaged("GPU without entries", key))?;
            let gpu = GpuIdentity {
                node: row.try_get(1)?,
                gpu: row.try_get(2)?,
                model: row.try_get(3)?,
            };
            let anchor = Anchor {
                seq: read("anchor_seq", row.try_get(4)?)?,
                digest: read_digest(row.try_get(5)?)?,
            };
            let from = UnixNanos(read("kept_from_ns", row.try_get(6)?)?);
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

    fn visit_all(
        &mut self,
        selection: &Selection,
        visit: &mut Visit<'_>,
    ) -> Result<(), StoreError> {
        let (from, to) = bounds(selection);
        let chosen = self.kept()?;
        for (key, kept) in chosen
            .into_iter()
            .filter(|(_, kept)| selection.has(&kept.gpu))
        {
            let mut after: i64 = -1;
            loop {
                let rows = self.client.query(
                    "SELECT seq, boot, start_ns, end_ns, from_ns, length_ns, gap, digest FROM entry
                     WHERE gpu_key = $1 AND start_ns >= $2 AND start_ns < $3 AND seq > $4 ORDER BY seq LIMIT $5",
                    &[&key, &from, &to, &after, &PAGE],
                )?;
                let Some(last) = rows.last() else { break };
                after = last.try_get(0)?;
                for row in &rows {
                    let entry = self.entry(key, row)?;
                    if !visit(&kept.gpu, entry)? {
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }

    fn entry(&mut self, key: i64, row: &Row) -> Result<Entry, StoreError> {
        let gap: Option<&str> = row.try_get(6)?;
        let stretch = Stretch {
            seq: read("seq", row.try_get(0)?)?,
            boot: read_uuid("boot", row.try_get(1)?)?,
            start: UnixNanos(read("start_ns", row.try_get(2)?)?),
            end: UnixNanos(read("end_ns", row.try_get(3)?)?),
            from: Moment(read("from_ns", row.try_get(4)?)?),
            length_ns: read_ns("length_ns", row.try_get(5)?)?,
        };
        let body = match gap {
            Some(cause) => Body::Gap {
                cause: read_cause(cause)?,
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
            digest: read_digest(row.try_get(7)?)?,
        })
    }

    fn records(&mut self, key: i64, seq: i64) -> Result<Vec<TenantRecord>, StoreError> {
        let rows = self.client.query(
            "SELECT u.id, t.id, t.name, t.kind, engine_ns, estimated_ns, fault_ns, copy_ns, copy_bytes, held_ns, waiting_ns,
             memory_byte_ns::text, weight, quota_ns, period_ns, signals, error_bound_ns, turns
             FROM usage u JOIN tenant t USING(tenant_key) WHERE gpu_key = $1 AND seq = $2 ORDER BY t.id",
            &[&key, &seq],
        )?;
        let record = |row: &Row| {
            let copied: Option<i64> = row.try_get(8)?;
            Ok(TenantRecord {
                id: read_uuid("id", row.try_get(0)?)?,
                tenant: TenantIdentity {
                    id: read_uuid("tenant", row.try_get(1)?)?,
                    name: row.try_get(2)?,
                    kind: read_kind(row.try_get(3)?)?,
                },
                engine_ns: read_ns("engine_ns", row.try_get(4)?)?,
                estimated_ns: read_ns("estimated_ns", row.try_get(5)?)?,
                fault_ns: read_ns("fault_ns", row.try_get(6)?)?,
                copy_ns: read_ns("copy_ns", row.try_get(7)?)?,
                copy_bytes: copied.map(|bytes| read("copy_bytes", bytes)).transpose()?,
                held_ns: read_ns("held_ns", row.try_get(9)?)?,
                waiting_ns: read_ns("waiting_ns", row.try_get(10)?)?,
                memory_byte_ns: read_wide("memory_byte_ns", row.try_get(11)?)?,
                weight: read("weight", row.try_get(12)?)?,
                cap: read_cap(row.try_get(13)?, row.try_get(14)?)?,
                signals: read_signals(row.try_get(15)?)?,
                error_bound_ns: read_ns("error_bound_ns", row.try_get(16)?)?,
                turns: read("turns", row.try_get(17)?)?,
            })
        };
        rows.iter().map(record).collect()
    }

    fn engines(&mut self, key: i64, seq: i64) -> Result<Vec<EngineRecord>, StoreError> {
        let rows = self.client.query(
            "SELECT engine, compute, used_ns, fault_ns, switching_ns, idle_ns, unobserved_ns, gap_ns, error_bound_ns
             FROM engine WHERE gpu_key = $1 AND seq = $2 ORDER BY engine",
            &[&key, &seq],
        )?;
        let record = |row: &Row| {
            Ok(EngineRecord {
                engine: EngineId(read("engine", row.try_get(0)?)?),
                compute: row.try_get(1)?,
                used_ns: read_ns("used_ns", row.try_get(2)?)?,
                fault_ns: read_ns("fault_ns", row.try_get(3)?)?,
                switching_ns: read_ns("switching_ns", row.try_get(4)?)?,
                idle_ns: read_ns("idle_ns", row.try_get(5)?)?,
                unobserved_ns: read_ns("unobserved_ns", row.try_get(6)?)?,
                gap_ns: read_ns("gap_ns", row.try_get(7)?)?,
                error_bound_ns: read_ns("error_bound_ns", row.try_get(8)?)?,
            })
        };
        rows.iter().map(record).collect()
    }

    fn discard(&mut self, key: i64, before: i64) -> Result<u64, StoreError> {
        let mut tx = self.client.transaction()?;
        tx.execute("SELECT 1 FROM gpu WHERE gpu_key = $1 FOR UPDATE", &[&key])?;
        let last = tx.query_opt(
            "SELECT seq, end_ns, digest FROM (SELECT seq, end_ns, digest FROM entry WHERE gpu_key = $1 AND end_ns <= $2
             AND seq < (SELECT max(seq) FROM entry WHERE gpu_key = $1) ORDER BY seq LIMIT $3) AS old ORDER BY seq DESC LIMIT 1",
            &[&key, &before, &PAGE],
        )?;
        let Some(row) = last else {
            return Ok(0);
        };
        let (seq, end, digest): (i64, i64, Vec<u8>) =
            (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        for table in ["usage", "engine"] {
            tx.execute(
                &format!("DELETE FROM {table} WHERE gpu_key = $1 AND seq <= $2"),
                &[&key, &seq],
            )?;
        }
        let count = tx.execute(
            "DELETE FROM entry WHERE gpu_key = $1 AND seq <= $2",
            &[&key, &seq],
        )?;
        tx.execute(
            "UPDATE gpu SET anchor_seq = $2, anchor_digest = $3, kept_from_ns = $4 WHERE gpu_key = $1",
            &[&key, &seq.saturating_add(1), &digest, &end],
        )?;
        tx.commit()?;
        Ok(count)
    }
}

impl Store for PostgresStore {
    fn tail(&mut self, gpu: &GpuIdentity) -> Result<Option<Tail>, StoreError> {
        let row = self.client()?.query_opt(
            "SELECT gpu_key FROM gpu WHERE node = $1 AND gpu = $2",
            &[&gpu.node, &gpu.gpu],
        )?;
        match row {
            Some(row) => self.last(row.try_get(0)?),
            None => Ok(None),
        }
    }

    fn open_window(&mut self, gpu: &GpuIdentity, stretch: &Stretch) -> Result<(), StoreError> {
        let key = self.begin(gpu, stretch)?;
        let entered = stored("seq", stretch.seq).and_then(|seq| {
            // The digest is known at the end.
            self.write_entry(key, stretch, None, &Digest([0; 32]))?;
            Ok(seq)
        });
        let seq = self.or_abandon(entered)?;
        self.open = Some((key, seq));
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
        // Outside a transaction the server warns and does nothing.
        let _ = self.client.batch_execute("ROLLBACK");
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
        self.client()?
            .batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")?;
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
        self.client()?
            .execute("DELETE FROM setting_change WHERE at_ns < $1", &[&before])?;
        // Tenants stay: another host may be about to name one.
        Ok(retained)
    }

    fn note(&mut self, change: &Change) -> Result<Put, StoreError> {
        if self.open.is_some() {
            return Err(StoreError::Order);
        }
        let at = stored("at_ns", change.at.0)?;
        let rows = self.client()?.execute(
            "INSERT INTO setting_change(request, at_ns, node, boot, actor, tenant, part, old, new)
             VALUES($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT(request) DO NOTHING",
            &[
                &&change.request.as_bytes()[..],
                &at,
                &change.node,
                &&change.boot.as_bytes()[..],
                &change.by,
                &change.tenant,
                &change.part,
                &change.old,
                &change.new,
            ],
        )?;
        Ok(if rows == 0 { Put::Known } else { Put::Written })
    }

    fn changes(
        &mut self,
        selection: &Selection,
        visit: &mut VisitChanges<'_>,
    ) -> Result<(), StoreError> {
        let (from, to) = bounds(selection);
        let mut after = (from, Vec::new());
        loop {
            let rows = self.client()?.query(
                "SELECT request, at_ns, node, boot, actor, tenant, part, old, new FROM setting_change
                 WHERE (at_ns, request) > ($1, $2) AND at_ns < $3 ORDER BY at_ns, request LIMIT $4",
                &[&after.0, &after.1, &to, &PAGE],
            )?;
            for row in &rows {
                let (request, at): (Vec<u8>, i64) = (row.try_get(0)?, row.try_get(1)?);
                let boot: Vec<u8> = row.try_get(3)?;
                let change = Change {
                    request: read_uuid("request", &request)?,
                    at: UnixNanos(read("at_ns", at)?),
                    node: row.try_get(2)?,
                    boot: read_uuid("boot", &boot)?,
                    by: row.try_get(4)?,
                    tenant: row.try_get(5)?,
                    part: row.try_get(6)?,
                    old: row.try_get(7)?,
                    new: row.try_get(8)?,
                };
                after = (at, request);
                if !visit(change)? {
                    return Ok(());
                }
            }
            // CAST: a page has 1,024 rows at most
            if (rows.len() as i64) < PAGE {
                return Ok(());
            }
        }
    }
}
