//! Unix sockets that this daemon listens on: its own, or those of the service manager (systemd's
//! socket units). The latter outlive the daemon and keep connecting clients waiting meanwhile.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use listenfd::ListenFd;

/// Reason why a socket cannot be listened on.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another daemon listens there.
    #[error("Another daemon listens on {}; stop it, or choose another socket", path.display())]
    InUse {
        /// The socket.
        path: PathBuf,
    },
    /// Something else is there, and is not removed.
    #[error("{} is a file and no socket; move it away, or choose another socket", path.display())]
    NoSocket {
        /// The file.
        path: PathBuf,
    },
    /// The socket could not be made.
    #[error("Listening on {} failed; its folder has to exist, and this user has to be permitted to write in it", path.display())]
    Listen {
        /// The socket.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// Sockets from the service manager, open for as long as the process lives.
fn given() -> &'static [UnixListener] {
    static GIVEN: OnceLock<Vec<UnixListener>> = OnceLock::new();
    GIVEN.get_or_init(|| {
        let mut given = ListenFd::from_env();
        let mut taken = Vec::new();
        for index in 0..given.len() {
            match given.take_unix_listener(index) {
                Ok(listener) => taken.extend(listener),
                Err(error) => log::error!("A socket of the service manager is of no use: {error}"),
            }
        }
        taken
    })
}

/// The one bound to this path, if the service manager gave it.
fn given_at(path: &Path) -> Option<&'static UnixListener> {
    let at = |listener: &&UnixListener| {
        let address = listener.local_addr().ok();
        address.is_some_and(|address| address.as_pathname() == Some(path))
    };
    given().iter().find(at)
}

/// Removes the file of the daemon's own socket; one from the service manager stays, for the next
/// daemon.
pub fn remove(path: &Path) {
    if given_at(path).is_none() {
        let _ = std::fs::remove_file(path);
    }
}

/// Changes the permissions of the daemon's own socket; one from the service manager keeps its own.
pub fn permit(path: &Path, mode: u32) {
    if given_at(path).is_none()
        && let Err(error) = std::fs::set_permissions(path, Permissions::from_mode(mode))
    {
        log::warn!("Permissions of {} stay: {error}", path.display());
    }
}

/// Listens on a socket with permissions `mode`; one from the service manager has its own. A socket
/// file without a listener is replaced.
///
/// # Errors
/// If another daemon listens there, a file is there, or the kernel refuses.
pub fn listen(path: &Path, mode: u32) -> Result<UnixListener, ListenError> {
    let failed = |source| ListenError::Listen {
        path: path.to_owned(),
        source,
    };
    if let Some(listener) = given_at(path) {
        return listener.try_clone().map_err(failed);
    }
    let listener = match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            if UnixStream::connect(path).is_ok() {
                let path = path.to_owned();
                return Err(ListenError::InUse { path });
            }
            // A file that is no socket, named by mistake, refuses a connection too.
            let kind = std::fs::symlink_metadata(path).map_err(failed)?.file_type();
            if !kind.is_socket() {
                let path = path.to_owned();
                return Err(ListenError::NoSocket { path });
            }
            std::fs::remove_file(path).map_err(failed)?;
            UnixListener::bind(path)
        }
        bound => bound,
    };
    let listener = listener.map_err(failed)?;
    std::fs::set_permissions(path, Permissions::from_mode(mode)).map_err(failed)?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_in_use_is_refused_and_a_stale_one_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vmm.sock");
        let first = listen(&path, 0o660).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o660);
        assert!(matches!(
            listen(&path, 0o660),
            Err(ListenError::InUse { .. })
        ));
        drop(first);
        listen(&path, 0o660).unwrap();
        let nowhere = folder.path().join("missing/vmm.sock");
        assert!(matches!(
            listen(&nowhere, 0o660),
            Err(ListenError::Listen { .. })
        ));
    }
    #[test]
    fn a_file_that_is_no_socket_stays() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ledger.db");
        std::fs::write(&file, "dear").unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        for path in [&file, &link] {
            let refused = listen(path, 0o660).unwrap_err();
            assert!(matches!(refused, ListenError::NoSocket { .. }), "{refused}");
        }
        assert_eq!(std::fs::read_to_string(&link).unwrap(), "dear");
    }
}
