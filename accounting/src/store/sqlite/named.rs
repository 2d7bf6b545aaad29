//! Rows that usage refers to in a file: tenants, and their metadata.
//!
//! In: an identity, and the run of the daemon that writes. Out: the key of its row, which is made
//! if it is missing. The tables of a file call it for each record.

use rusqlite::{Connection, OptionalExtension, params};
use uuid::Uuid;

use crate::ids::metadata_id;
use crate::metadata::Metadata;
use crate::record::TenantIdentity;
use crate::store::{StoreError, rows};

/// The row of a tenant that `boot` refers to; created if missing.
pub(super) fn tenant(
    connection: &Connection,
    tenant: &TenantIdentity,
    boot: Uuid,
) -> Result<i64, StoreError> {
    let id = &tenant.id.as_bytes()[..];
    if let Some(key) = known(connection, "tenant", id, boot)? {
        return Ok(key);
    }
    connection
        .prepare_cached(
            "INSERT INTO tenant(id, name, kind, account, boot) VALUES(?1, ?2, ?3, ?4, ?5)",
        )?
        .execute(params![
            id,
            tenant.name,
            tenant.kind.as_str(),
            tenant.account,
            &boot.as_bytes()[..]
        ])?;
    Ok(connection.last_insert_rowid())
}

/// The row of metadata, likewise; none if they are empty.
pub(super) fn metadata(
    connection: &Connection,
    metadata: &Metadata,
    boot: Uuid,
) -> Result<Option<i64>, StoreError> {
    if metadata.is_empty() {
        return Ok(None);
    }
    let id = metadata_id(metadata);
    let id = &id.as_bytes()[..];
    if let Some(key) = known(connection, "metadata", id, boot)? {
        return Ok(Some(key));
    }
    let content = rows::stored_metadata(metadata)?;
    connection
        .prepare_cached("INSERT INTO metadata(id, content, boot) VALUES(?1, ?2, ?3)")?
        .execute(params![id, content, &boot.as_bytes()[..]])?;
    Ok(Some(connection.last_insert_rowid()))
}

/// The key of the row of this id in a table, to which `boot` refers from now on.
fn known(
    connection: &Connection,
    table: &str,
    id: &[u8],
    boot: Uuid,
) -> Result<Option<i64>, StoreError> {
    let boot = &boot.as_bytes()[..];
    let found: Option<(i64, bool)> = connection
        .prepare_cached(&format!(
            "SELECT {table}_key, boot = ?2 FROM {table} WHERE id = ?1"
        ))?
        .query_row([id, boot], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    if let Some((key, false)) = found {
        connection
            .prepare_cached(&format!(
                "UPDATE {table} SET boot = ?2 WHERE {table}_key = ?1"
            ))?
            .execute(params![key, boot])?;
    }
    Ok(found.map(|(key, _)| key))
}
