//! Rows that usage refers to in a database: tenants, and their metadata.
//!
//! In: the records of a window. Out: the keys of the rows, in the order of the records; rows that
//! are missing are made. The tables of a database call it for each window.

use std::collections::BTreeMap;

use postgres::Client;
use uuid::Uuid;

use crate::ids::metadata_id;
use crate::record::TenantRecord;
use crate::store::StoreError;
use crate::store::rows::{damaged, stored_metadata};

/// Rows of tenants, in the order of the records; created if missing.
pub(super) fn tenants(
    client: &mut Client,
    records: &[TenantRecord],
) -> Result<Vec<i64>, StoreError> {
    let each = |record: &TenantRecord| record.tenant.id.as_bytes().to_vec();
    let ids: Vec<Vec<u8>> = records.iter().map(each).collect();
    let names: Vec<&str> = records.iter().map(|r| r.tenant.name.as_str()).collect();
    let kinds: Vec<&str> = records.iter().map(|r| r.tenant.kind.as_str()).collect();
    let accounts = records.iter().map(|r| r.tenant.account.as_deref());
    let accounts: Vec<Option<&str>> = accounts.collect();
    client.execute(
        "INSERT INTO tenant(id, name, kind, account)
         SELECT * FROM unnest($1::bytea[], $2::text[], $3::text[], $4::text[]) ON CONFLICT(id) DO NOTHING",
        &[&ids, &names, &kinds, &accounts],
    )?;
    keys(client, "tenant", &ids)
}

/// Rows of the records' metadata, likewise; none where they are empty.
pub(super) fn metadata(
    client: &mut Client,
    records: &[TenantRecord],
) -> Result<Vec<Option<i64>>, StoreError> {
    let id = |record: &TenantRecord| {
        let metadata = &record.tenant.metadata;
        (!metadata.is_empty()).then(|| metadata_id(metadata))
    };
    let each: Vec<Option<Uuid>> = records.iter().map(id).collect();
    let mut contents = BTreeMap::new();
    for (id, record) in each.iter().zip(records) {
        if let Some(id) = id {
            contents.insert(*id, stored_metadata(&record.tenant.metadata)?);
        }
    }
    if contents.is_empty() {
        return Ok(vec![None; records.len()]);
    }
    let ids: Vec<Vec<u8>> = contents.keys().map(|id| id.as_bytes().to_vec()).collect();
    let texts: Vec<&str> = contents.values().map(String::as_str).collect();
    client.execute(
        "INSERT INTO metadata(id, content)
         SELECT * FROM unnest($1::bytea[], $2::text[]) ON CONFLICT(id) DO NOTHING",
        &[&ids, &texts],
    )?;
    let keys = keys(client, "metadata", &ids)?;
    let keys: BTreeMap<&Uuid, i64> = contents.keys().zip(keys).collect();
    let key = |id: &Option<Uuid>| id.as_ref().and_then(|id| keys.get(id)).copied();
    Ok(each.iter().map(key).collect())
}

fn keys(client: &mut Client, table: &str, ids: &[Vec<u8>]) -> Result<Vec<i64>, StoreError> {
    let text = format!(
        "SELECT {table}_key FROM unnest($1::bytea[]) WITH ORDINALITY AS asked(id, place) JOIN {table} USING(id) ORDER BY place"
    );
    let rows = client.query(&text, &[&ids])?;
    if rows.len() != ids.len() {
        return Err(damaged("rows of ids", rows.len()));
    }
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}
