//! Socket for the preloaded library of a program's processes, for memory that can move. The
//! launcher passes the connections on to the daemon.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with,
};
use tempfile::TempDir;
use turnstile_preload_wire::VARIABLE;

use super::{LaunchError, learner};

/// Connections that wait to be passed on, when processes start at once.
const WAITING: i32 = 64;

/// A listening socket.
#[derive(Debug)]
pub(super) struct Door {
    listener: OwnedFd,
    path: PathBuf,
    library: PathBuf,
    /// The socket's.
    _folder: TempDir,
}

impl AsFd for Door {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Door {
    /// Opens it.
    ///
    /// # Errors
    /// If there is no library, or the host has no room for a socket.
    pub(super) fn open(library: Option<&Path>) -> Result<Self, LaunchError> {
        let library = learner::find(library)?;
        let folder = tempfile::tempdir().map_err(LaunchError::Host)?;
        let path = folder.path().join("memory");
        let listen_at = || {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
            bind(&socket, &SocketAddrUnix::new(&path)?)?;
            listen(&socket, WAITING)?;
            Ok(socket)
        };
        let listener =
            listen_at().map_err(|errno: rustix::io::Errno| LaunchError::Host(errno.into()))?;
        Ok(Self {
            listener,
            path,
            library,
            _folder: folder,
        })
    }

    /// Has a command's processes connect to it.
    pub(super) fn show(&self, command: &mut Command) {
        learner::preload(command, &self.library);
        command.env(VARIABLE, &self.path);
    }

    /// The next connection.
    pub(super) fn next(&self) -> Option<OwnedFd> {
        accept_with(&self.listener, SocketFlags::CLOEXEC).ok()
    }
}
