//! Messages over a Unix stream socket, with descriptors beside them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv};
use turnstile_preload_wire::descriptors::{receive as receive_part, send as send_part};

use super::{HEADER_BYTES, Header, Message, ProtocolError, extend};

/// A message with its descriptors.
#[derive(Debug)]
pub struct Received {
    /// The message.
    pub message: Message,
    /// Its descriptors.
    pub descriptors: Vec<OwnedFd>,
}

/// Sends a message.
///
/// # Errors
/// The socket's.
pub fn send(
    socket: impl AsFd,
    message: &Message,
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), ProtocolError> {
    let bytes = message.encode();
    let mut sent = 0;
    while sent < bytes.len() {
        let rest = &bytes[sent..];
        let beside = if sent == 0 { descriptors } else { &[] };
        let result = send_part(&socket, rest, beside, SendFlags::empty());
        match result {
            Ok(more) => sent += more,
            Err(errno) => return Err(ProtocolError::Socket(errno.into())),
        }
    }
    Ok(())
}

/// Receives a message; `None` at the end of the connection.
///
/// # Errors
/// If the bytes are no message, or the socket fails.
pub fn receive(socket: impl AsFd) -> Result<Option<Received>, ProtocolError> {
    let mut bytes = vec![0; HEADER_BYTES];
    let received = receive_part(&socket, &mut bytes, RecvFlags::empty());
    let (got, descriptors) = received.map_err(|errno| ProtocolError::Socket(errno.into()))?;
    if got == 0 {
        return Ok(None);
    }
    rest(&socket, &mut bytes[got..])?;
    let header = Header::of(&bytes)?;
    extend(&mut bytes, header.body_bytes)?;
    rest(&socket, &mut bytes[HEADER_BYTES..])?;
    let message = Message::decode(&bytes)?;
    Ok(Some(Received {
        message,
        descriptors,
    }))
}

fn rest(socket: &impl AsFd, mut bytes: &mut [u8]) -> Result<(), ProtocolError> {
    while !bytes.is_empty() {
        match recv(socket, &mut *bytes, RecvFlags::empty()) {
            Ok((_, 0)) => return Err(ProtocolError::Form),
            Ok((_, got)) => bytes = &mut bytes[got..],
            Err(Errno::INTR) => {}
            Err(errno) => return Err(ProtocolError::Socket(errno.into())),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::Kind;
    use std::os::unix::net::UnixStream;

    #[test]
    fn message_arrives_whole_with_its_descriptors() {
        let (one, other) = UnixStream::pair().unwrap();
        let message = Message {
            kind: Kind::Call,
            buffers: vec![vec![7; 300_000], vec![8]],
            ..Message::default()
        };
        let copy = message.clone();
        let sender = std::thread::spawn(move || {
            let file = std::fs::File::open("/dev/null").unwrap();
            send(&one, &copy, &[file.as_fd()]).unwrap();
        });
        let received = receive(&other).unwrap().unwrap();
        assert_eq!((received.message, received.descriptors.len()), (message, 1));
        sender.join().unwrap();
        assert!(receive(&other).unwrap().is_none());
    }
}
