//! Frames over a SEQPACKET socket, for processes that are not the preloaded library.
//!
//! In: messages of this side. Out: checked messages of the other side, each with its descriptor.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::net::sockopt::{socket_peercred, socket_type};
use rustix::net::{RecvFlags, SendFlags, Shutdown, SocketType, shutdown};

use crate::descriptors::{receive, send};
use crate::{FRAME_BYTES, FrameError, ToDaemon, ToLibrary};

/// Time limit for sending. TIMEOUT: each side has a thread that reads, also on a busy host. A
/// connection that accepts nothing within the limit is ended.
const SEND_LIMIT: Duration = Duration::from_secs(2);

/// Why no frame could be received.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    /// The socket's.
    #[error("the connection failed: {0}")]
    Socket(#[from] io::Error),
    /// The frame is invalid.
    #[error(transparent)]
    Frame(#[from] FrameError),
}

/// A message of one side.
pub trait Frame: Sized {
    /// The message as a frame.
    fn encode(&self) -> [u8; FRAME_BYTES];

    /// The message of a frame that arrived with `descriptors` descriptors.
    ///
    /// # Errors
    /// If the frame is invalid.
    fn decode(frame: &[u8], descriptors: usize) -> Result<Self, FrameError>;
}

impl Frame for ToDaemon {
    fn encode(&self) -> [u8; FRAME_BYTES] {
        Self::encode(self)
    }

    fn decode(frame: &[u8], descriptors: usize) -> Result<Self, FrameError> {
        Self::decode(frame, descriptors)
    }
}

impl Frame for ToLibrary {
    fn encode(&self) -> [u8; FRAME_BYTES] {
        Self::encode(self)
    }

    fn decode(frame: &[u8], descriptors: usize) -> Result<Self, FrameError> {
        Self::decode(frame, descriptors)
    }
}

/// One end of a connection: sends `S`, receives `R`.
#[derive(Debug)]
pub struct Line<S, R> {
    socket: OwnedFd,
    /// Process id of the peer, as reported by the kernel.
    pub pid: u32,
    messages: PhantomData<fn(S) -> R>,
}

/// The daemon's end.
pub type DaemonLine = Line<ToLibrary, ToDaemon>;
/// The end of a process that has memory.
pub type ProcessLine = Line<ToDaemon, ToLibrary>;

impl<S: Frame, R: Frame> Line<S, R> {
    /// A connection.
    ///
    /// # Errors
    /// If the socket is of another kind.
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        if socket_type(&socket)? != SocketType::SEQPACKET {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let flags = fcntl_getfl(&socket)?;
        fcntl_setfl(&socket, flags - OFlags::NONBLOCK)?;
        let pid = socket_peercred(&socket)?.pid.as_raw_pid().unsigned_abs();
        Ok(Self {
            socket,
            pid,
            messages: PhantomData,
        })
    }

    /// Waits for the next frame; `None` at the end of the connection.
    ///
    /// # Errors
    /// If the connection fails, or the frame is invalid.
    pub fn next(&self) -> Result<Option<(R, Option<OwnedFd>)>, LineError> {
        // One byte more, so that a longer frame is detected.
        let mut frame = [0; FRAME_BYTES + 1];
        let received = receive(&self.socket, &mut frame, RecvFlags::empty());
        let (got, mut fds) = received.map_err(io::Error::from)?;
        if got == 0 {
            return Ok(None);
        }
        let message = R::decode(&frame[..got], fds.len())?;
        Ok(Some((message, fds.pop())))
    }

    /// Whether something can be received within `limit`.
    pub fn has_message(&self, limit: Duration) -> bool {
        matches!(ready(&self.socket, PollFlags::IN, limit), Ok(true))
    }

    /// Sends a message. False if it cannot be delivered; the connection is ended then.
    pub fn say(&self, message: &S, fd: Option<&OwnedFd>) -> bool {
        let fds: Vec<_> = fd.iter().map(|fd| fd.as_fd()).collect();
        let frame = message.encode();
        // Per call: the process that passed this end on may have kept a copy, and could make the
        // socket blocking for all.
        let begin = Instant::now();
        let sent = loop {
            match send(&self.socket, &frame, &fds, SendFlags::DONTWAIT) {
                Err(Errno::AGAIN) if self.has_room_within(SEND_LIMIT, begin) => {}
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
        left.is_some_and(|left| matches!(ready(&self.socket, PollFlags::OUT, left), Ok(true)))
    }

    /// Ends the connection; the receiving thread detects that.
    pub fn end(&self) {
        let _ = shutdown(&self.socket, Shutdown::Both);
    }
}

/// Waits for an event of a descriptor, for `limit` at most.
fn ready(fd: &OwnedFd, events: PollFlags, limit: Duration) -> io::Result<bool> {
    let limit = Timespec::try_from(limit).map_err(io::Error::other)?;
    loop {
        match poll(&mut [PollFd::new(fd, events)], Some(&limit)) {
            Err(Errno::INTR) => {}
            ready => return Ok(ready? > 0),
        }
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
        let line = DaemonLine::new(ours).unwrap();
        let flags = fcntl_getfl(&kept).unwrap();
        fcntl_setfl(&kept, flags - OFlags::NONBLOCK).unwrap();
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
