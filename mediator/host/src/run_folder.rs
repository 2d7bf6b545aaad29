//! Folder of the daemon's sockets, for the daemon and for its clients.
//!
//! - In: the user's number, `XDG_RUNTIME_DIR`, and which sockets exist.
//! - Out: a path. The system's folder is `/run/turnstile`. A user without access to it has a folder
//!   of its own.
//! - Invariant: a daemon that one user starts without options is found by clients of that user
//!   that have none either.

use std::fs::{self, DirBuilder, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

/// Folder of the system's daemon.
pub(crate) const SYSTEM: &str = "/run/turnstile";

/// Socket of VMMs and launchers.
pub const VMM: &str = "vmm.sock";
/// Socket of the admin API.
pub const API: &str = "api.sock";

/// Folder in which a daemon of this user listens unless its configuration names another.
pub fn own() -> PathBuf {
    let user = rustix::process::geteuid();
    if user.is_root() || access(SYSTEM, Access::WRITE_OK).is_ok() {
        return SYSTEM.into();
    }
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|folder| !folder.is_empty());
    own_of(runtime.map(PathBuf::from), user.as_raw())
}

fn own_of(runtime: Option<PathBuf>, user: u32) -> PathBuf {
    match runtime {
        Some(runtime) => runtime.join("turnstile"),
        None => std::env::temp_dir().join(format!("turnstile-{user}")),
    }
}

/// A daemon's socket, for a client that was given none: the one that the variable of the daemon's
/// configuration names, the one of this user's own daemon, else the system's.
pub fn find(name: &str) -> PathBuf {
    let variable = match name {
        VMM => "TURNSTILE_SOCKETS_VMM",
        _ => "TURNSTILE_API_SOCKET",
    };
    if let Some(path) = std::env::var_os(variable) {
        return path.into();
    }
    let own = own().join(name);
    if own.exists() {
        return own;
    }
    Path::new(SYSTEM).join(name)
}

/// Makes the folder where it is missing: for all users to enter where it is the system's, else for
/// its owner alone.
///
/// # Errors
/// If the kernel refuses, or another user owns a folder of this name.
pub fn make(folder: &Path) -> io::Result<()> {
    let mode = if folder == Path::new(SYSTEM) {
        0o755
    } else {
        0o700
    };
    match DirBuilder::new().mode(mode).create(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let found = fs::symlink_metadata(folder)?;
            let user = rustix::process::geteuid();
            if !user.is_root() && is_of_another(&found, user.as_raw()) && mode == 0o700 {
                return Err(io::Error::new(
                    io::ErrorKind::PermissionDenied,
                    "another user owns it",
                ));
            }
            Ok(())
        }
        made => made,
    }
}

fn is_of_another(found: &Metadata, user: u32) -> bool {
    found.uid() != user || !found.is_dir()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_user_has_a_folder_of_its_own() {
        let runtime = PathBuf::from("/run/user/7");
        assert_eq!(own_of(Some(runtime), 7), Path::new("/run/user/7/turnstile"));
        assert!(own_of(None, 7).ends_with("turnstile-7"));
    }

    #[test]
    fn the_folder_is_made_once_and_is_its_owners() {
        let base = tempfile::tempdir().unwrap();
        let folder = base.path().join("turnstile");
        for _ in 0..2 {
            make(&folder).unwrap();
            let mode = fs::metadata(&folder).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o700);
        }
        let own = fs::symlink_metadata(&folder).unwrap();
        assert!(!is_of_another(&own, own.uid()));
        assert!(is_of_another(&own, own.uid() + 1));
        assert!(make(&base.path().join("missing/turnstile")).is_err());
    }
}
