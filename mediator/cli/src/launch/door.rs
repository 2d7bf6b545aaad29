//! Socket for connections about memory that can move: of the preloaded library of a program's
//! processes, or of a device process. The launcher passes the connections on to the daemon.
//!
//! A device process is confined and cannot connect anew when the daemon restarts: it connects once,
//! before, and sends further connections as descriptors.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix,
    SocketFlags, SocketType, accept_with, bind, connect, listen, recvmsg, socket_with,
};
use tempfile::TempDir;
use turnstile_preload_wire::VARIABLE;

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
        let mut byte = [0];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let mut parts = [IoSliceMut::new(&mut byte)];
        let got = recvmsg(device.as_ref()?, &mut parts, &mut control, flags).ok()?;
        if got.bytes == 0 {
            // It has ended.
            *device = None;
        }
        control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        })
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
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg, socketpair};
    use std::io::IoSlice;

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
            let fds = [theirs.as_fd()];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
            let parts = [IoSlice::new(&[0])];
            sendmsg(&device, &parts, &mut control, SendFlags::NOSIGNAL).unwrap();
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
