//! Frames to and from a program's library, over its SEQPACKET socket.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred, socket_type};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketType, recvmsg, sendmsg, shutdown,
};
use turnstile_preload_wire::{FRAME_BYTES, FrameError, ToDaemon, ToLibrary};

/// TIMEOUT: the library has a thread that reads; one that does not for so long is not spoken with any more.
const SEND_LIMIT: Duration = Duration::from_secs(2);
/// Descriptors of a frame that are taken; more than one is refused, and all are closed.
const FDS_MAX: usize = 4;

/// Why a frame is none.
#[derive(Debug, thiserror::Error)]
pub(super) enum LineError {
    #[error("the connection failed: {0}")]
    Socket(#[from] io::Error),
    #[error(transparent)]
    Frame(#[from] FrameError),
}

/// A connection.
#[derive(Debug)]
pub(super) struct Line {
    socket: OwnedFd,
    /// The process that connected, by the kernel's word.
    pub(super) pid: u32,
}

impl Line {
    pub(super) fn new(socket: OwnedFd) -> io::Result<Self> {
        if socket_type(&socket)? != SocketType::SEQPACKET {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        rustix::io::ioctl_fionbio(&socket, false)?;
        set_socket_timeout(&socket, Timeout::Send, Some(SEND_LIMIT))?;
        let pid = socket_peercred(&socket)?.pid.as_raw_pid().unsigned_abs();
        Ok(Self { socket, pid })
    }

    /// Waits for the next frame; None at the end.
    pub(super) fn next(&self) -> Result<Option<(ToDaemon, Option<OwnedFd>)>, LineError> {
        // One byte more, by which a longer frame is noticed.
        let mut frame = [0; FRAME_BYTES + 1];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let got = loop {
            let mut parts = [IoSliceMut::new(&mut frame)];
            match recvmsg(
                &self.socket,
                &mut parts,
                &mut control,
                RecvFlags::CMSG_CLOEXEC,
            ) {
                Err(rustix::io::Errno::INTR) => {}
                got => break got.map_err(io::Error::from)?.bytes,
            }
        };
        let mut fds: Vec<OwnedFd> = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(more) = message {
                fds.extend(more);
            }
        }
        if got == 0 {
            return Ok(None);
        }
        let message = ToDaemon::decode(&frame[..got], fds.len())?;
        Ok(Some((message, fds.pop())))
    }

    /// False if it does not arrive.
    pub(super) fn say(&self, message: &ToLibrary, fd: Option<&OwnedFd>) -> bool {
        let fds: Vec<_> = fd.iter().map(|fd| fd.as_fd()).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&fds)) {
            return false;
        }
        let frame = message.encode();
        let sent = loop {
            let parts = [IoSlice::new(&frame)];
            match sendmsg(&self.socket, &parts, &mut control, SendFlags::NOSIGNAL) {
                Err(rustix::io::Errno::INTR) => {}
                sent => break sent,
            }
        };
        let said = sent == Ok(FRAME_BYTES);
        if !said {
            self.end();
        }
        said
    }

    /// The thread that hears sees its end.
    pub(super) fn end(&self) {
        let _ = shutdown(&self.socket, Shutdown::Both);
    }
}
