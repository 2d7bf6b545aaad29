//! Socket for connections about memory that can move: of the preloaded library of a program's
//! processes, or of a device process. The launcher passes the connections on to the daemon.
//!
//! A device process is confined and cannot connect anew when the daemon restarts: it connects once,
//! before, and sends further connections as descriptors.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::net::{
    AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect,
    listen, socket_with,
};
use tempfile::TempDir;
use turnstile_preload_wire::VARIABLE;
use turnstile_preload_wire::descriptors::receive;

use super::{LaunchError, learner};

/// Connections that wait to be passed on, when processes start at once.
const WAITING: i32 = 64;

/// What connects.
#[derive(Debug)]
enum Source {
    /// Processes with this library.
    Processes(PathBuf),
    /// A device process, by its connection once it has come.
    Device(Option<OwnedFd>),
}

/// A listening socket.
#[derive(Debug)]
pub(super) struct Door {
    listener: OwnedFd,
    path: PathBuf,
    source: Source,
    /// The socket's.
    _folder: TempDir,
}

impl AsFd for Door {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.source {
            Source::Device(Some(connection)) => connection.as_fd(),
            _ => self.listener.as_fd(),
        }
    }
}

impl Door {
    /// Opens it for the processes of a command.
    ///
    /// # Errors
    /// If there is no library, or the host has no room for a socket.
    pub(super) fn open(library: Option<&Path>) -> Result<Self, LaunchError> {
        Self::with(Source::Processes(learner::find(library)?))
    }

    /// Opens it for a device process.
    ///
    /// # Errors
    /// If the host has no room for a socket.
    pub(super) fn for_device() -> Result<Self, LaunchError> {
        Self::with(Source::Device(None))
    }

    fn with(source: Source) -> Result<Self, LaunchError> {
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
            source,
            _folder: folder,
        })
    }

    /// Where a device process connects.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Has a command's processes connect to it.
    pub(super) fn show(&self, command: &mut Command) {
        if let Source::Processes(library) = &self.source {
            learner::preload(command, library);
            command.env(VARIABLE, &self.path);
        }
    }

    /// The next connection.
    pub(super) fn next(&mut self) -> Option<OwnedFd> {
        let accept = || accept_with(&self.listener, SocketFlags::CLOEXEC).ok();
        let Source::Device(device) = &mut self.source else {
            return accept();
        };
        if device.is_none() {
            *device = accept();
        }
        let connection = device.as_ref()?;
        let (got, mut fds) = receive(connection, &mut [0], RecvFlags::DONTWAIT).ok()?;
        if got == 0 {
            // It has ended.
            *device = None;
        }
        fds.pop()
    }
}

/// Connects a device process, before it is confined.
///
/// # Errors
/// As connect(2).
pub(super) fn connect_device(path: &Path) -> std::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{SendFlags, socketpair};
    use turnstile_preload_wire::descriptors::send;

    #[test]
    fn connections_of_a_device_process_come_as_descriptors() {
        let mut door = Door::for_device().unwrap();
        assert!(door.next().is_none(), "no device process yet");
        let device = connect_device(door.path()).unwrap();
        assert!(door.next().is_none(), "its own connection is not passed on");
        for _ in 0..2 {
            let flags = SocketFlags::CLOEXEC;
            let (ours, theirs) =
                socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
            send(&device, &[0], &[theirs.as_fd()], SendFlags::empty()).unwrap();
            let passed_on = door.next().unwrap();
            rustix::io::write(&ours, b"x").unwrap();
            let mut byte = [0];
            rustix::io::read(&passed_on, &mut byte).unwrap();
            assert_eq!(byte, *b"x");
        }
        drop(device);
        assert!(door.next().is_none());
        assert!(connect_device(door.path()).is_ok(), "it listens again");
    }
}
