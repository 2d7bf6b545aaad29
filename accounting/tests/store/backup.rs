//! Ledgers in a folder in which this process may make no files: a backup on a read-only disk.

use super::*;
use rustix::process::{Gid, Uid};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Some user that owns none of the files.
const OTHER: u32 = 65_534;

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// Runs as another user where this process may be any user, in a thread of its own.
fn unprivileged<R: Send>(run: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            if rustix::process::geteuid().is_root() {
                let (uid, gid) = (Uid::from_raw(OTHER), Gid::from_raw(OTHER));
                rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
                rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
            }
            run()
        });
        thread.join().unwrap()
    })
}

#[test]
fn backup_is_read_where_no_file_can_be_made_unless_it_has_a_log() {
    let folder = tempfile::tempdir().unwrap();
    mode(folder.path(), 0o755);
    let written = entries(1, 600);
    // The name has what an address would take for its own.
    let backup = folder.path().join("a%41?b#c");
    fs::create_dir(&backup).unwrap();
    let path = backup.join("ledger?mode=rw");
    let mut store = SqliteStore::create(&path).unwrap();
    write(&mut store, &written[..3]);
    drop(store);
    fs::remove_file(backup.join("ledger?mode=rw-lock")).unwrap();
    let files = || fs::read_dir(&backup).unwrap().count();
    assert_eq!(files(), 1, "closed, it has no log");
    mode(&path, 0o444);
    mode(&backup, 0o555);
    let found = unprivileged(|| all(&mut SqliteStore::read(&path).unwrap()));
    assert_eq!(found, written[..3]);
    assert_eq!(files(), 1);

    // With a log the file alone is not all that was written.
    mode(&backup, 0o755);
    let log = backup.join("ledger?mode=rw-wal");
    fs::write(&log, b"").unwrap();
    mode(&log, 0o000);
    mode(&backup, 0o555);
    let refused = unprivileged(|| SqliteStore::read(&path).map(drop));
    assert!(matches!(refused, Err(StoreError::Sqlite(_))), "{refused:?}");

    mode(&backup, 0o755);
    fs::remove_file(&log).unwrap();
    mode(&path, 0o000);
    let refused = unprivileged(|| SqliteStore::read(&path).map(drop));
    assert!(
        matches!(refused, Err(StoreError::Denied { .. })),
        "{refused:?}"
    );
    mode(&path, 0o644);
    fs::write(&path, b"no ledger at all, and long enough for a header").unwrap();
    let refused = unprivileged(|| SqliteStore::read(&path).map(drop)).unwrap_err();
    assert!(!matches!(refused, StoreError::Denied { .. }), "{refused:?}");
}
