//! The connection between the daemon and a helper process, in frames of [`turnstile_vmm::wire`].
//! For the daemon: starting the helper and waiting for an answer. For the helper: waiting for
//! orders.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use serde::de::DeserializeOwned;
use turnstile_vmm::wire::{FrameReader, Read, WireError, send};

/// Why no answer arrived; the process is of no further use.
#[derive(Debug, thiserror::Error)]
pub(super) enum LineError {
    /// The process has ended.
    #[error("has ended")]
    Ended,
    /// The process exceeds its time limit.
    #[error("does not answer")]
    Silent,
    /// The process sends an invalid frame.
    #[error("does not keep to the protocol: {0}")]
    Wire(#[from] WireError),
}

/// Starts a helper with its end of the connection as standard input and no standard output. The
/// daemon keeps no copy of that end. A signal to the daemon's process group does not end the
/// helper.
pub(super) fn start(mut command: Command, theirs: OwnedFd) -> io::Result<Child> {
    command.stdin(theirs).stdout(Stdio::null()).process_group(0);
    command.spawn()
}

/// Whether a descriptor can be written to; waits up to `limit`. True also if a signal interrupts
/// it.
pub(super) fn has_room(fd: impl AsFd, limit: Duration) -> io::Result<bool> {
    let limit = Timespec::try_from(limit).map_err(|_| io::ErrorKind::InvalidInput)?;
    match poll(&mut [PollFd::new(&fd, PollFlags::OUT)], Some(&limit)) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// Waits for an answer. Time during which `stopped` returns true (the process cannot answer) does
/// not count. Precondition: the stream does not block.
pub(super) fn answer<A: DeserializeOwned>(
    stream: &UnixStream,
    reader: &mut FrameReader,
    limit: Duration,
    stopped: impl Fn() -> bool,
) -> Result<(A, Vec<OwnedFd>), LineError> {
    /// How often `stopped` is called.
    const TICK: Duration = Duration::from_millis(20);
    let (mut waited, mut last) = (Duration::ZERO, Instant::now());
    loop {
        match reader.read(stream)? {
            Read::Frame(frame) => return Ok((frame.message, frame.fds)),
            Read::End => return Err(LineError::Ended),
            Read::WouldBlock => {}
        }
        if !stopped() {
            waited += last.elapsed();
        }
        last = Instant::now();
        if waited >= limit {
            return Err(LineError::Silent);
        }
        let tick = Timespec {
            tv_sec: 0,
            // CAST: less than a second.
            tv_nsec: TICK.as_nanos() as _,
        };
        let mut fds = [PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::IN)];
        // An interrupted wait costs one needless read.
        let _ = poll(&mut fds, Some(&tick));
    }
}

/// The helper's end of the connection.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) stream: UnixStream,
    reader: FrameReader,
}

impl Line {
    pub(super) fn new(stream: UnixStream) -> Self {
        let reader = FrameReader::new();
        Self { stream, reader }
    }

    /// Waits for the next order and its descriptors; `None` when the daemon has ended the
    /// connection.
    pub(super) fn next<O: DeserializeOwned>(
        &mut self,
    ) -> Result<Option<(O, Vec<OwnedFd>)>, WireError> {
        loop {
            match self.reader.read(&self.stream)? {
                Read::Frame(frame) => return Ok(Some((frame.message, frame.fds))),
                Read::End => return Ok(None),
                Read::WouldBlock => {}
            }
        }
    }

    /// Answers an order.
    pub(super) fn answer(
        &self,
        answer: &impl Serialize,
        fds: Vec<OwnedFd>,
    ) -> Result<(), WireError> {
        send(&self.stream, answer, fds)
    }
}
