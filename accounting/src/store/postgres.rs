//! The ledgers of a fleet in one PostgreSQL database: many hosts write, each the entries of its own
//! GPUs.
//!
//! The connection is not encrypted: use a socket of this host, or an encrypted tunnel.

mod connection;
mod named;

pub use connection::holds_password;

use std::fmt;
use std::io::Write as _;
use std::time::{Duration, Instant};

use postgres::{Client, Config, Row};

use super::rows::{self, Columns, stored, stored_ns};
use super::shell::{Ledger, Open, Tables, VisitEntry};
use super::{Kept, Put, StoreError, VisitChanges};
use crate::change::Change;
use crate::record::{
    Digest, EngineRecord, Entry, GapCause, GpuIdentity, Stretch, Tail, TenantRecord,
};
use uuid::Uuid;

/// Entries read, or discarded, at a time.
const PAGE: i64 = 1_024;

/// TIMEOUT: the server ends the session of a process that was killed, and its locks, within
/// milliseconds on a socket of the host.
const SESSION_END: Duration = Duration::from_secs(2);

/// A ledger in a PostgreSQL database.
pub type PostgresStore = Ledger<Postgres>;

/// The tables in a database.
pub struct Postgres {
    config: Config,
    client: Client,
    /// Version of the tables; 0 if there are none.
    version: i64,
    /// GPUs of which this process may write entries, each by an advisory lock of the session.
    claims: Vec<GpuIdentity>,
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The database's address may hold a password.
        f.debug_struct("Postgres").finish_non_exhaustive()
    }
}

impl Columns for Row {
    fn number(&self, at: usize) -> Result<i64, StoreError> {
        Ok(self.try_get(at)?)
    }

    fn number_or_null(&self, at: usize) -> Result<Option<i64>, StoreError> {
        Ok(self.try_get(at)?)
    }

    fn flag(&self, at: usize) -> Result<bool, StoreError> {
        Ok(self.try_get(at)?)
    }

    fn text(&self, at: usize) -> Result<String, StoreError> {
        Ok(self.try_get(at)?)
    }

    fn text_or_null(&self, at: usize) -> Result<Option<String>, StoreError> {
        Ok(self.try_get(at)?)
    }

    fn bytes(&self, at: usize) -> Result<Vec<u8>, StoreError> {
        Ok(self.try_get(at)?)
    }
}

impl Postgres {
    fn entry(&mut self, key: i64, row: &Row) -> Result<Entry, StoreError> {
        rows::entry(row, |seq| {
            Ok((self.records(key, seq)?, self.engines(key, seq)?))
        })
    }

    fn records(&mut self, key: i64, seq: i64) -> Result<Vec<TenantRecord>, StoreError> {
        let (account, metadata, join) = rows::later(self.version);
        let text = format!(
            "SELECT u.id, t.id, t.name, t.kind, engine_ns, estimated_ns, fault_ns, copy_ns, copy_bytes, held_ns, waiting_ns,
             memory_byte_ns::text, weight, quota_ns, period_ns, signals, error_bound_ns, turns, {account}, {metadata}
             FROM usage u JOIN tenant t USING(tenant_key) {join} WHERE gpu_key = $1 AND seq = $2 ORDER BY t.id",
        );
        let found = self.client.query(&text, &[&key, &seq])?;
        found.iter().map(rows::tenant_record).collect()
    }

    fn engines(&mut self, key: i64, seq: i64) -> Result<Vec<EngineRecord>, StoreError> {
        let text = format!(
            "SELECT {} FROM engine WHERE gpu_key = $1 AND seq = $2 ORDER BY engine",
            rows::ENGINE
        );
        let found = self.client.query(&text, &[&key, &seq])?;
        found.iter().map(rows::engine_record).collect()
    }
}

impl Tables for Postgres {
    fn refresh(&mut self) -> Result<(), StoreError> {
        if self.client.is_closed() {
            let mut client = Self::connected(&self.config)?;
            // The locks ended with the session: another process may have them by now.
            self.claims
                .iter()
                .try_for_each(|gpu| connection::claim(&mut client, gpu))?;
            self.client = client;
        }
        Ok(())
    }

    fn claim(&mut self, gpu: &GpuIdentity) -> Result<(), StoreError> {
        let begin = Instant::now();
        while let Err(error) = connection::claim(&mut self.client, gpu) {
            let held = matches!(error, StoreError::Held { .. });
            if !held || begin.elapsed() > SESSION_END {
                return Err(error);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        self.claims.push(gpu.clone());
        Ok(())
    }

    fn begin_writing(&mut self) -> Result<(), StoreError> {
        Ok(self.client.batch_execute("BEGIN")?)
    }

    fn begin_reading(&mut self) -> Result<(), StoreError> {
        let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
        Ok(self.client.batch_execute(begin)?)
    }

    fn commit(&mut self) -> Result<(), StoreError> {
        Ok(self.client.batch_execute("COMMIT")?)
    }

    fn rollback(&mut self) {
        // Outside a transaction the server warns and does nothing.
        let _ = self.client.batch_execute("ROLLBACK");
    }

    fn find(&mut self, gpu: &GpuIdentity) -> Result<Option<i64>, StoreError> {
        let row = self.client.query_opt(
            "SELECT gpu_key FROM gpu WHERE node = $1 AND gpu = $2",
            &[&gpu.node, &gpu.gpu],
        )?;
        Ok(row.map(|row| row.try_get(0)).transpose()?)
    }

    fn enter(&mut self, gpu: &GpuIdentity) -> Result<i64, StoreError> {
        let genesis = Digest::genesis(gpu);
        // The update locks the row, so that one of two writers waits.
        let row = self.client.query_one(
            "INSERT INTO gpu(node, gpu, model, anchor_seq, anchor_digest, kept_from_ns) VALUES($1, $2, $3, 0, $4, 0)
             ON CONFLICT(node, gpu) DO UPDATE SET model = excluded.model RETURNING gpu_key",
            &[&gpu.node, &gpu.gpu, &gpu.model, &&genesis.0[..]],
        )?;
        Ok(row.try_get(0)?)
    }

    fn last(&mut self, key: i64) -> Result<Option<Tail>, StoreError> {
        let text = format!(
            "SELECT {} FROM entry WHERE gpu_key = $1 ORDER BY seq DESC LIMIT 1",
            rows::TAIL
        );
        let found = self.client.query_opt(&text, &[&key])?;
        found.as_ref().map(rows::tail).transpose()
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

    fn write_records(&mut self, open: Open, records: &[TenantRecord]) -> Result<(), StoreError> {
        let Open { gpu, seq, .. } = open;
        let tenants = named::tenants(&mut self.client, records)?.into_iter();
        let referred = tenants.zip(named::metadata(&mut self.client, records)?);
        let mut text = Vec::new();
        for (record, (tenant, metadata)) in records.iter().zip(referred) {
            let null = || "\\N".to_owned();
            let optional = |value: Option<i64>| value.map_or_else(null, |value| value.to_string());
            let cap = record.cap;
            // Only numbers and hexadecimal digits: COPY requires no escaping.
            writeln!(
                text,
                "{gpu}\t{seq}\t{tenant}\t\\\\x{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}",
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
                optional(metadata),
            )?;
        }
        let mut copy = self.client.copy_in(
            "COPY usage(gpu_key, seq, tenant_key, id, engine_ns, estimated_ns, fault_ns, copy_ns, copy_bytes, held_ns, waiting_ns,
             memory_byte_ns, weight, quota_ns, period_ns, signals, error_bound_ns, turns, metadata_key) FROM STDIN",
        )?;
        copy.write_all(&text)?;
        copy.finish()?;
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

    fn write_draft(
        &mut self,
        gpu: &GpuIdentity,
        after: &Digest,
        draft: &str,
    ) -> Result<(), StoreError> {
        self.client.execute(
            "INSERT INTO draft(node, gpu, after, content) VALUES($1, $2, $3, $4)
             ON CONFLICT(node, gpu) DO UPDATE SET after = excluded.after, content = excluded.content",
            &[&gpu.node, &gpu.gpu, &&after.0[..], &draft],
        )?;
        Ok(())
    }

    fn read_draft(&mut self, gpu: &GpuIdentity) -> Result<Option<(Vec<u8>, String)>, StoreError> {
        let found = self.client.query_opt(
            "SELECT after, content FROM draft WHERE node = $1 AND gpu = $2",
            &[&gpu.node, &gpu.gpu],
        )?;
        let kept = found.map(|row| Ok::<_, StoreError>((row.try_get(0)?, row.try_get(1)?)));
        kept.transpose()
    }

    fn kept(&mut self) -> Result<Vec<(i64, Kept)>, StoreError> {
        let found = self.client.query(rows::GPUS, &[])?;
        let mut kept = |row: &Row| {
            rows::kept(row, |key| {
                let first = self.client.query_opt(rows::FIRST, &[&key])?;
                let first = first.map(|row| row.try_get(0)).transpose()?;
                Ok((self.last(key)?, first))
            })
        };
        found.iter().map(&mut kept).collect()
    }

    fn visit(
        &mut self,
        gpu: i64,
        from: i64,
        to: i64,
        visit: &mut VisitEntry<'_>,
    ) -> Result<bool, StoreError> {
        let mut after: i64 = -1;
        loop {
            let text = format!(
                "SELECT {} FROM entry
                 WHERE gpu_key = $1 AND start_ns >= $2 AND start_ns < $3 AND seq > $4 ORDER BY seq LIMIT $5",
                rows::ENTRY
            );
            let page = self
                .client
                .query(&text, &[&gpu, &from, &to, &after, &PAGE])?;
            let Some(last) = page.last() else {
                return Ok(true);
            };
            after = last.try_get(0)?;
            for row in &page {
                if !visit(self.entry(gpu, row)?)? {
                    return Ok(false);
                }
            }
        }
    }

    fn begins(&mut self, gpu: i64, at: i64) -> Result<Option<i64>, StoreError> {
        let found = self.client.query_opt(rows::BEGINS, &[&gpu, &at])?;
        Ok(found.map(|row| row.try_get(0)).transpose()?)
    }

    fn knows(&mut self, name: &str, id: Option<Uuid>) -> Result<bool, StoreError> {
        let id = id.map(|id| id.as_bytes().to_vec());
        let found = self.client.query_one(rows::KNOWS, &[&name, &id])?;
        Ok(found.try_get(0)?)
    }

    // Tenants are kept when entries are discarded: another host may be about to refer to one.
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

    fn note(&mut self, change: &Change) -> Result<Put, StoreError> {
        let at = stored("at_ns", change.at.0)?;
        let rows = self.client.execute(
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
        from: i64,
        to: i64,
        visit: &mut VisitChanges<'_>,
    ) -> Result<(), StoreError> {
        let mut after = (from, Vec::new());
        let text = format!(
            "SELECT {} FROM setting_change
             WHERE (at_ns, request) > ($1, $2) AND at_ns < $3 ORDER BY at_ns, request LIMIT $4",
            rows::CHANGE
        );
        loop {
            let page = self
                .client
                .query(&text, &[&after.0, &after.1, &to, &PAGE])?;
            for row in &page {
                after = (row.number(1)?, row.bytes(0)?);
                if !visit(rows::change(row)?)? {
                    return Ok(());
                }
            }
            // CAST: a page has 1,024 rows at most
            if (page.len() as i64) < PAGE {
                return Ok(());
            }
        }
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn forget_changes(&mut self, node: Option<&str>, before: i64) -> Result<(), StoreError> {
        self.client.execute(
            "DELETE FROM setting_change WHERE at_ns < $1 AND node = coalesce($2, node)",
            &[&before, &node],
        )?;
        Ok(())
    }
}
