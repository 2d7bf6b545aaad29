//! Frames to and from a program's library, over its SEQPACKET socket.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::net::sockopt::{socket_peercred, socket_type};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketType, recvmsg, sendmsg, shutdown,
};
use turnstile_preload_wire::{FRAME_BYTES, FrameError, ToDaemon, ToLibrary};

use crate::line::has_room;

/// Time limit for sending. TIMEOUT: the library has a thread that reads, also on a busy host. A
/// connection that accepts nothing within the limit is ended.
const SEND_LIMIT: Duration = Duration::from_secs(2);
/// Maximum descriptors received with a frame. A frame with more than one is refused, and all are
/// closed.
const FDS_MAX: usize = 4;

/// Why no frame could be received.
#[derive(Debug, thiserror::Error)]
pub(super) enum LineError {
    #[error("the connection failed: {0}")]
    Socket(#[from] io::Error),
    #[error(transparent)]
    Frame(#[from] FrameError),
}

#[derive(Debug)]
pub(super) struct Line {
    socket: OwnedFd,
    /// Process id of the peer, as reported by the kernel.
    pub(super) pid: u32,
}

impl Line {
    pub(super) fn new(socket: OwnedFd) -> io::Result<Self> {
        if socket_type(&socket)? != SocketType::SEQPACKET {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        rustix::io::ioctl_fionbio(&socket, false)?;
        let pid = socket_peercred(&socket)?.pid.as_raw_pid().unsigned_abs();
        Ok(Self { socket, pid })
    }

    /// Waits for the next frame; `None` at the end of the connection.
    pub(super) fn next(&self) -> Result<Option<(ToDaemon, Option<OwnedFd>)>, LineError> {
        // One byte more, so that a longer frame is detected.
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

    /// Sends a message. False if it cannot be delivered; the connection is ended then.
    pub(super) fn say(&self, message: &ToLibrary, fd: Option<&OwnedFd>) -> bool {
        let fds: Vec<_> = fd.iter().map(|fd| fd.as_fd()).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&fds)) {
            return false;
        }
        let frame = message.encode();
        // Per call: the process that passed this end on may have kept a copy, and could make the
        // socket blocking for all.
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let begin = Instant::now();
        let sent = loop {
            let parts = [IoSlice::new(&frame)];
            match sendmsg(&self.socket, &parts, &mut control, flags) {
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) if self.has_room_within(SEND_LIMIT, begin) => {}
                sent => break sent,
            }
        };
        let sent_whole = sent == Ok(FRAME_BYTES);
        if !sent_whole {
            self.end();
        }
        sent_whole
    }

    /// Whether a frame may be sent now. Waits until `limit` has passed since `begin`.
    fn has_room_within(&self, limit: Duration, begin: Instant) -> bool {
        let left = limit.checked_sub(begin.elapsed());
        left.is_some_and(|left| matches!(has_room(&self.socket, left), Ok(true)))
    }

    /// Ends the connection; the receiving thread detects that.
    pub(super) fn end(&self) {
        let _ = shutdown(&self.socket, Shutdown::Both);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::sockopt::{Timeout, set_socket_timeout};
    use rustix::net::{AddressFamily, SocketFlags, socketpair};

    #[test]
    fn kept_copy_of_a_connection_cannot_make_sends_block() {
        let kind = SocketType::SEQPACKET;
        let flags = SocketFlags::CLOEXEC;
        let (ours, _theirs) = socketpair(AddressFamily::UNIX, kind, flags, None).unwrap();
        let kept = ours.try_clone().unwrap();
        let line = Line::new(ours).unwrap();
        rustix::io::ioctl_fionbio(&kept, false).unwrap();
        set_socket_timeout(&kept, Timeout::Send, None).unwrap();
        // In a thread of its own, so that the test fails and does not hang.
        let (done, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let message = ToLibrary::Granted { chunk: 0 };
            while line.say(&message, None) {}
            done.send(()).unwrap();
        });
        ended.recv_timeout(10 * SEND_LIMIT).unwrap();
    }
}
