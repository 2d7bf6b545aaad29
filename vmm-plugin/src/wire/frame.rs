//! Frames: a little-endian u32 length, that many bytes of JSON, and descriptors with the first
//! bytes.
//!
//! The reader never reads beyond the current frame. Descriptors are received with the first byte
//! that they were sent with, so those that arrive while a frame is read belong to that frame.

use super::{FRAME_BYTES_MAX, FRAME_FDS_MAX};
use crate::sys::scm;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::{TryReserveError, VecDeque};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

/// Text of [`WireError::Format`]. A daemon refuses a frame that it does not know with it, so that a
/// peer knows a daemon without offers by it.
pub(super) const FORMAT: &str = "Frame is not a message of the protocol";

/// Bytes of the length before each frame.
const LENGTH_BYTES: usize = 4;
/// Frames that may wait to be sent before [`FrameWriter::push`] refuses more.
pub(crate) const QUEUE_FRAMES_MAX: usize = 4096;

/// What can be wrong with a stream of frames. After any of them the connection is of no more use.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// Socket error
    #[error("Socket error")]
    Socket(#[source] io::Error),
    /// A frame announced a length that is not permitted.
    #[error("Frame of {0} bytes; 1 to {FRAME_BYTES_MAX} are permitted")]
    Length(usize),
    /// More descriptors than a frame may carry.
    #[error("A frame carries more than {FRAME_FDS_MAX} descriptors")]
    TooManyFds,
    /// The frame's kind takes another number of descriptors.
    #[error("Frame with {got} descriptors where {expected} are expected")]
    WrongFds {
        /// Received descriptors.
        got: usize,
        /// Descriptors that belong to such a frame.
        expected: usize,
    },
    /// A frame is no message of the protocol.
    #[error("{FORMAT}")]
    Format(#[source] serde_json::Error),
    /// The stream ended within a frame.
    #[error("Connection ended within a frame")]
    Truncated,
    /// A frame needs more memory than this process can have.
    #[error("No memory for a frame")]
    NoMemory(#[from] TryReserveError),
    /// The peer does not read.
    #[error("Peer left {QUEUE_FRAMES_MAX} frames unread")]
    Stalled,
}

/// A received message and its descriptors.
#[derive(Debug)]
pub struct Frame<T> {
    /// The message.
    pub message: T,
    /// Its descriptors, in order.
    pub fds: Vec<OwnedFd>,
}

impl<T> Frame<T> {
    /// The message and exactly `N` descriptors.
    ///
    /// # Errors
    /// [`WireError::WrongFds`] for any other number of descriptors; all are closed.
    pub(crate) fn with_fds<const N: usize>(self) -> Result<(T, [OwnedFd; N]), WireError> {
        let got = self.fds.len();
        let fds = self
            .fds
            .try_into()
            .map_err(|_| WireError::WrongFds { got, expected: N })?;
        Ok((self.message, fds))
    }
}

/// What [`FrameReader::read`] found.
#[derive(Debug)]
pub enum Read<T> {
    /// A whole frame.
    Frame(Frame<T>),
    /// The socket is non-blocking and has no more bytes now.
    WouldBlock,
    /// The peer closed the connection between two frames.
    End,
}

/// Takes frames from a socket, blocking or not, however they are cut into pieces.
#[derive(Debug, Default)]
pub struct FrameReader {
    /// What has arrived of the frame being read, length included.
    bytes: Vec<u8>,
    /// Descriptors of the frame being read.
    fds: Vec<OwnedFd>,
}

impl FrameReader {
    /// A reader at the start of a frame.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads until a frame is whole, the socket would block, or the stream ends.
    ///
    /// # Errors
    /// When the stream breaks the protocol; the connection is then to be dropped.
    pub fn read<T: DeserializeOwned>(&mut self, stream: &UnixStream) -> Result<Read<T>, WireError> {
        loop {
            let missing = self.missing()?;
            if missing == 0 {
                return self.take().map(Read::Frame);
            }
            let have = self.bytes.len();
            self.bytes.try_reserve_exact(missing)?;
            self.bytes.resize(have + missing, 0);
            let got = scm::receive(
                stream,
                &mut self.bytes[have..],
                &mut self.fds,
                FRAME_FDS_MAX,
            );
            self.bytes.truncate(have + *got.as_ref().unwrap_or(&0));
            match got {
                Ok(0) if have == 0 && self.fds.is_empty() => return Ok(Read::End),
                Ok(0) => return Err(WireError::Truncated),
                Ok(_) if self.fds.len() > FRAME_FDS_MAX => return Err(WireError::TooManyFds),
                Ok(_) => {}
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return Ok(Read::WouldBlock),
                    io::ErrorKind::Interrupted => {}
                    io::ErrorKind::InvalidData => return Err(WireError::TooManyFds),
                    _ => return Err(WireError::Socket(error)),
                },
            }
        }
    }

    /// Bytes still missing: of the frame's length first, then of its text.
    fn missing(&self) -> Result<usize, WireError> {
        let Some(length) = self.bytes.first_chunk::<LENGTH_BYTES>() else {
            return Ok(LENGTH_BYTES - self.bytes.len());
        };
        let length = u32::from_le_bytes(*length) as usize;
        if length == 0 || length > FRAME_BYTES_MAX {
            return Err(WireError::Length(length));
        }
        Ok(LENGTH_BYTES + length - self.bytes.len())
    }

    fn take<T: DeserializeOwned>(&mut self) -> Result<Frame<T>, WireError> {
        let message =
            serde_json::from_slice(&self.bytes[LENGTH_BYTES..]).map_err(WireError::Format)?;
        self.bytes.clear();
        Ok(Frame {
            message,
            fds: std::mem::take(&mut self.fds),
        })
    }
}

/// The bytes of a frame.
///
/// # Errors
/// [`WireError::Length`] where the message is longer than a frame may be.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, WireError> {
    let mut bytes = Growing(vec![0; LENGTH_BYTES]);
    serde_json::to_writer(&mut bytes, message).map_err(WireError::Format)?;
    let mut bytes = bytes.0;
    let length = bytes.len() - LENGTH_BYTES;
    match u32::try_from(length) {
        Ok(short) if length <= FRAME_BYTES_MAX => {
            bytes[..LENGTH_BYTES].copy_from_slice(&short.to_le_bytes());
            Ok(bytes)
        }
        _ => Err(WireError::Length(length)),
    }
}

/// A buffer that reports when it cannot grow.
struct Growing(Vec<u8>);

impl io::Write for Growing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let reserved = self.0.try_reserve(bytes.len());
        reserved.map_err(|_| io::ErrorKind::OutOfMemory)?;
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Sends frames, over a blocking or a non-blocking socket; what the socket does not take waits.
#[derive(Debug, Default)]
pub struct FrameWriter {
    waiting: VecDeque<Outgoing>,
}

#[derive(Debug)]
struct Outgoing {
    bytes: Vec<u8>,
    sent: usize,
    fds: Vec<OwnedFd>,
}

impl FrameWriter {
    /// A writer with nothing to send.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a frame to those waiting; `fds` are closed once they are sent.
    ///
    /// # Errors
    /// When the message is too long, has too many descriptors, or the peer has left too many frames
    /// unread.
    pub fn push<T: Serialize>(&mut self, message: &T, fds: Vec<OwnedFd>) -> Result<(), WireError> {
        if fds.len() > FRAME_FDS_MAX {
            return Err(WireError::TooManyFds);
        }
        if self.waiting.len() >= QUEUE_FRAMES_MAX {
            return Err(WireError::Stalled);
        }
        let bytes = encode(message)?;
        self.waiting.try_reserve(1)?;
        let sent = 0;
        self.waiting.push_back(Outgoing { bytes, sent, fds });
        Ok(())
    }

    /// Sends what the socket takes. Returns whether everything is sent; if not, call again once it
    /// is writable.
    ///
    /// # Errors
    /// When the peer is gone.
    pub fn flush(&mut self, stream: &UnixStream) -> Result<bool, WireError> {
        while let Some(front) = self.waiting.front_mut() {
            let fds: Vec<RawFd> = front.fds.iter().map(AsRawFd::as_raw_fd).collect();
            match stream.send_with_fds(&[&front.bytes[front.sent..]], &fds) {
                Ok(sent) => {
                    front.sent += sent;
                    front.fds.clear();
                    if front.sent == front.bytes.len() {
                        self.waiting.pop_front();
                    }
                }
                Err(error) => match io::Error::from(error) {
                    error if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                    error if error.kind() == io::ErrorKind::Interrupted => {}
                    error => return Err(WireError::Socket(error)),
                },
            }
        }
        Ok(true)
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

/// Sends one frame over a blocking socket.
///
/// # Errors
/// When the message cannot be encoded or the peer is gone.
pub fn send<T: Serialize>(
    stream: &UnixStream,
    message: &T,
    fds: Vec<OwnedFd>,
) -> Result<(), WireError> {
    let mut writer = FrameWriter::new();
    writer.push(message, fds)?;
    if writer.flush(stream)? {
        Ok(())
    } else {
        Err(WireError::Socket(io::ErrorKind::WouldBlock.into()))
    }
}

#[cfg(test)]
#[path = "frame_tests.rs"]
mod tests;
