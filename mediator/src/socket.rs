//! Unix sockets that this daemon listens on.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Why a socket could not be listened on.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another daemon listens there.
    #[error("Another daemon listens on {}; stop it, or choose another socket", path.display())]
    InUse {
        /// The socket.
        path: PathBuf,
    },
    /// The socket could not be made.
    #[error("Listening on {} failed (does the folder exist, and may you write in it?)", path.display())]
    Listen {
        /// The socket.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// Listens on a socket of these permissions; a socket file that nobody listens on any more is replaced.
pub(crate) fn listen(path: &Path, mode: u32) -> Result<UnixListener, ListenError> {
    let failed = |source| ListenError::Listen {
        path: path.to_owned(),
        source,
    };
    let listener = match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            if UnixStream::connect(path).is_ok() {
                let path = path.to_owned();
                return Err(ListenError::InUse { path });
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
}
