//! Messages on a socket. The reader never reads beyond the current message, so descriptors that
//! arrive meanwhile belong to that message.

use super::MESSAGE_FDS_MAX;
use super::message::{HEADER_BYTES, Header, PAYLOAD_BYTES_MAX};
use crate::sys::scm;
use std::collections::TryReserveError;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

/// TIMEOUT: a peer that reads takes a message at once; one that does not must not block a thread.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a connection is of no more use.
#[derive(Debug, thiserror::Error)]
pub enum ProtocolError {
    /// The socket failed.
    #[error("Socket error")]
    Socket(#[source] io::Error),
    /// The stream ended within a message.
    #[error("Connection ended within a message")]
    Truncated,
    /// A length that no message has.
    #[error("Message of {0} bytes; {HEADER_BYTES} to {max} are permitted", max = HEADER_BYTES + PAYLOAD_BYTES_MAX)]
    Length(u32),
    /// A message needs more memory than this process can have.
    #[error("No memory for a message")]
    NoMemory(#[from] TryReserveError),
    /// More descriptors than a message may carry.
    #[error("A message carries more than {MESSAGE_FDS_MAX} descriptors")]
    TooManyFds,
    /// Neither command nor reply, or one of them where the other is due.
    #[error("Message with flags {0:#x}, which is not due")]
    Kind(u32),
    /// An answer to something else, or of another form than the request has.
    #[error("Answer that is not one to command {command}")]
    Answer {
        /// Command of the request.
        command: u16,
    },
}

/// A message as received: its length equals the header's and is bounded. Nothing else is checked.
#[derive(Debug)]
pub struct Raw {
    /// Its header.
    pub header: Header,
    /// The bytes after the header.
    pub payload: Vec<u8>,
    /// Descriptors received with it.
    pub fds: Vec<OwnedFd>,
}

/// A connection.
#[derive(Debug)]
pub struct Socket {
    stream: UnixStream,
}

impl Socket {
    /// Over a blocking socket.
    ///
    /// # Errors
    /// When the socket's timeout cannot be set.
    pub fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_write_timeout(Some(SEND_TIMEOUT))?;
        Ok(Self { stream })
    }

    /// The stream.
    pub fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// The next message; `None` at the end of the connection.
    ///
    /// # Errors
    /// When the stream breaks the protocol. The received part of the message is dropped, its
    /// descriptors are closed.
    pub fn receive(&mut self) -> Result<Option<Raw>, ProtocolError> {
        let mut fds = Vec::new();
        let mut header = [0; HEADER_BYTES];
        if !self.fill(&mut header, &mut fds, true)? {
            return Ok(None);
        }
        let header = Header::decode(&header);
        let bytes = header.size as usize;
        if !(HEADER_BYTES..=HEADER_BYTES + PAYLOAD_BYTES_MAX).contains(&bytes) {
            return Err(ProtocolError::Length(header.size));
        }
        let mut payload = Vec::new();
        payload.try_reserve_exact(bytes - HEADER_BYTES)?;
        payload.resize(bytes - HEADER_BYTES, 0);
        self.fill(&mut payload, &mut fds, false)?;
        Ok(Some(Raw {
            header,
            payload,
            fds,
        }))
    }

    /// Fills `buffer`; false where the stream has ended before its first byte and may.
    fn fill(
        &self,
        buffer: &mut [u8],
        fds: &mut Vec<OwnedFd>,
        may_end: bool,
    ) -> Result<bool, ProtocolError> {
        let mut have = 0;
        while have < buffer.len() {
            match scm::receive(&self.stream, &mut buffer[have..], fds, MESSAGE_FDS_MAX) {
                Ok(0) if have == 0 && may_end && fds.is_empty() => return Ok(false),
                Ok(0) => return Err(ProtocolError::Truncated),
                Ok(_) if fds.len() > MESSAGE_FDS_MAX => return Err(ProtocolError::TooManyFds),
                Ok(got) => have += got,
                Err(error) => match error.kind() {
                    io::ErrorKind::Interrupted => {}
                    io::ErrorKind::InvalidData => return Err(ProtocolError::TooManyFds),
                    _ => return Err(ProtocolError::Socket(error)),
                },
            }
        }
        Ok(true)
    }

    /// Sends a message.
    ///
    /// # Errors
    /// When the peer is gone, or does not read.
    pub fn send(
        &mut self,
        header: Header,
        payload: &[u8],
        fds: &[RawFd],
    ) -> Result<(), ProtocolError> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(HEADER_BYTES + payload.len())?;
        bytes.extend_from_slice(&header.encode());
        bytes.extend_from_slice(payload);
        let (mut sent, mut fds) = (0, fds);
        while sent < bytes.len() {
            match self.stream.send_with_fds(&[&bytes[sent..]], fds) {
                Ok(more) => {
                    sent += more;
                    fds = &[];
                }
                Err(error) => match io::Error::from(error) {
                    error if error.kind() == io::ErrorKind::Interrupted => {}
                    error => return Err(ProtocolError::Socket(error)),
                },
            }
        }
        Ok(())
    }
}
