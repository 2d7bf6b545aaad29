//! Tables of earlier versions: read as they are, and made new ones by the next writer.

use super::*;

/// What version 2 does not have, and version 1.
const METADATA: &str = "ALTER TABLE usage DROP COLUMN metadata_key; DROP TABLE metadata;";
const ACCOUNTS: &str = "ALTER TABLE tenant DROP COLUMN account;";

/// Entries of which the first two are without metadata, and all without accounts if they have none.
fn written_over(accounts: bool) -> Vec<Entry> {
    let mut written = entries(1, 600);
    let mut digest = Digest::genesis(&gpu());
    for (number, entry) in written.iter_mut().enumerate() {
        if let Body::Window { tenants, .. } = &mut entry.body {
            for TenantRecord { tenant, .. } in tenants {
                if number < 2 {
                    tenant.metadata = Arc::default();
                }
                tenant.account = tenant.account.take().filter(|_| accounts);
            }
        }
        digest = digest.follow(&entry.stretch, &entry.body);
        entry.digest = digest;
    }
    written
}

#[test]
fn files_of_earlier_versions_are_read_and_are_made_new_ones_by_the_next_writer() {
    for (version, drop) in [(1, ACCOUNTS), (2, "")] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger");
        let written = written_over(version > 1);
        let (first, rest) = written.split_at(2);
        write(&mut SqliteStore::create(&path).unwrap(), first);
        let connection = rusqlite::Connection::open(&path).unwrap();
        let before = format!("{METADATA} {drop} PRAGMA user_version = {version}");
        connection.execute_batch(&before).unwrap();
        connection.close().unwrap();
        assert_eq!(all(&mut SqliteStore::read(&path).unwrap()), first);
        write(&mut SqliteStore::create(&path).unwrap(), rest);
        assert_eq!(all(&mut SqliteStore::read(&path).unwrap()), written);
    }
}

#[cfg(feature = "postgres")]
#[test]
fn databases_of_earlier_versions_are_read_and_are_made_new_ones_by_the_next_writer() {
    use common::server::Server;
    use turnstile_accounting::store::PostgresStore;

    let Some(server) = Server::or_skip() else {
        return;
    };
    for (version, drop) in [(1, ACCOUNTS), (2, "")] {
        let database = server.database(&format!("version{version}"));
        let written = written_over(version > 1);
        let (first, rest) = written.split_at(2);
        write(&mut PostgresStore::connect(&database).unwrap(), first);
        let before = format!("{METADATA} {drop} UPDATE ledger_version SET version = {version}");
        let mut client = ::postgres::Client::connect(&database, ::postgres::NoTls).unwrap();
        client.batch_execute(&before).unwrap();
        let mut reader = PostgresStore::read_with(&database, None).unwrap();
        assert_eq!(all(&mut reader), first);
        write(&mut PostgresStore::connect(&database).unwrap(), rest);
        let mut reader = PostgresStore::read_with(&database, None).unwrap();
        assert_eq!(all(&mut reader), written);
    }
}
