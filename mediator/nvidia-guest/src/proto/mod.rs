//! Requests of a guest side to the device process, and its answers.
//!
//! A message is a header of fixed size, the lengths of its buffers, extents of guest RAM, and the
//! buffers' bytes. Requests have numbers, so that a ring in guest RAM can carry the same messages
//! with several in flight. There, a request with extents has a number of its memory in `result`.
//! The extents of an answer are the numbers of memory that is no longer used; its `b` is how many
//! more there are. All lengths are bounded, and both sides decode with the same function.
//!
//! ```text
//! Hello     version, RAM's bytes, RAM's file      -> release as text; with a file, its table
//! Open      node, flags, eventfd                  -> file, device number
//! Close     file                                  -> -
//! Call      file, request, buffers, extents,
//!           a shared file of the extents         -> result, errno, buffers
//! Map       file, length                          -> a window's descriptor, or a page's bytes
//! Managed   file, base, length, extents           -> status
//! Stat      node                                  -> device number
//! Table     -                                     -> rows of the release (abi::rows)
//! Released  -                                     -> -
//! ```

mod socket;

pub use socket::{Received, receive, send};

use crate::abi::{Node, read_u32, read_u64};

/// Version of this protocol.
pub const VERSION: u32 = 1;
/// Variable with the path of the device process's socket, in a program's environment.
pub const VARIABLE: &str = "TURNSTILE_GUEST_DEVICE";
/// Bytes of a header.
pub const HEADER_BYTES: usize = 64;
/// Most buffers of a message.
pub(crate) const BUFFERS_MAX: usize = 16;
/// Most extents of a message: 256 MiB in single pages.
pub const EXTENTS_MAX: usize = 65_536;
/// Most bytes of all buffers.
pub const BYTES_MAX: usize = 4 << 20;
/// Most bytes behind a header.
pub(crate) const BODY_MAX: usize = BYTES_MAX + 4 * BUFFERS_MAX + 16 * EXTENTS_MAX;
const MAGIC: u32 = 0x3147_5354;

/// Kind of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// First message of a program: protocol version in `a`, length of guest RAM in `b`.
    #[default]
    Hello = 1,
    /// Opens a node: its kind in `a`, flags in `b`.
    Open = 2,
    /// Closes a file.
    Close = 3,
    /// A call on a file.
    Call = 4,
    /// What a file's mapping is: length in `a`.
    Map = 5,
    /// Managed memory in guest RAM: base in `a`, length in `b`.
    Managed = 6,
    /// The device number of a node: its kind in `a`, and the number in the answer's.
    Stat = 7,
    /// The release's table.
    Table = 8,
    /// What is no longer used, beyond the room of earlier answers.
    Released = 9,
}

impl Kind {
    const ALL: [Self; 9] = [
        Self::Hello,
        Self::Open,
        Self::Close,
        Self::Call,
        Self::Map,
        Self::Managed,
        Self::Stat,
        Self::Table,
        Self::Released,
    ];
}

/// A part of guest RAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Byte of the RAM's file.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
}

/// A request or an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// What it is.
    pub kind: Kind,
    /// Number of the request, repeated in its answer.
    pub id: u64,
    /// The file.
    pub file: u32,
    /// Request of a call.
    pub request: u32,
    /// Result of an answer; -1 with `errno`.
    pub result: i32,
    /// Error of an answer.
    pub errno: i32,
    /// Values that depend on the kind.
    pub a: u64,
    /// The second.
    pub b: u64,
    /// Buffers of a call.
    pub buffers: Vec<Vec<u8>>,
    /// Guest RAM of a call.
    pub extents: Vec<Extent>,
}

/// Why bytes are no message.
#[derive(Debug, thiserror::Error)]
pub enum ProtocolError {
    /// They have another form, or a length beyond its bound.
    #[error("A message has another form")]
    Form,
    /// The socket failed.
    #[error("The socket of a guest failed")]
    Socket(#[from] std::io::Error),
}

/// A header, checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header {
    buffers: usize,
    extents: usize,
    /// Bytes behind the header.
    pub(crate) body_bytes: usize,
}

/// Adds zero bytes, of a number that a guest or program chose.
///
/// # Errors
/// If this process cannot have the memory.
pub(crate) fn extend(buffer: &mut Vec<u8>, bytes: usize) -> std::io::Result<()> {
    let reserved = buffer.try_reserve_exact(bytes);
    reserved.map_err(|_| std::io::ErrorKind::OutOfMemory)?;
    buffer.resize(buffer.len() + bytes, 0);
    Ok(())
}

/// The word that stands for a node.
pub const fn node_word(node: Node) -> u64 {
    match node {
        Node::Control => 0x100,
        Node::Uvm => 0x101,
        Node::Gpu(index) => index as u64,
    }
}

/// The node of such a word.
pub(crate) fn node_of(word: u64) -> Option<Node> {
    match word {
        0x100 => Some(Node::Control),
        0x101 => Some(Node::Uvm),
        index => u8::try_from(index).ok().map(Node::Gpu),
    }
}

impl Message {
    /// The answer to this request, without an error.
    pub fn answer(&self) -> Self {
        Self {
            kind: self.kind,
            id: self.id,
            file: self.file,
            request: self.request,
            ..Self::default()
        }
    }

    /// The answer to this request that it failed.
    pub fn failed(&self, errno: i32) -> Self {
        Self {
            result: -1,
            errno,
            ..self.answer()
        }
    }

    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let buffers: usize = self.buffers.iter().map(Vec::len).sum();
        let body = buffers + 4 * self.buffers.len() + 16 * self.extents.len();
        let mut bytes = Vec::with_capacity(HEADER_BYTES + body);
        // CAST: all lengths are below the bounds of this module, or the receiver refuses them.
        let words = [MAGIC, self.kind as u32, self.file, self.request];
        words
            .iter()
            .for_each(|word| bytes.extend(word.to_ne_bytes()));
        bytes.extend(self.id.to_ne_bytes());
        bytes.extend(self.result.to_ne_bytes());
        bytes.extend(self.errno.to_ne_bytes());
        bytes.extend(self.a.to_ne_bytes());
        bytes.extend(self.b.to_ne_bytes());
        let lengths = [
            self.buffers.len() as u32,
            self.extents.len() as u32,
            body as u32,
            0,
        ];
        lengths
            .iter()
            .for_each(|word| bytes.extend(word.to_ne_bytes()));
        for buffer in &self.buffers {
            bytes.extend((buffer.len() as u32).to_ne_bytes());
        }
        for extent in &self.extents {
            bytes.extend(extent.offset.to_ne_bytes());
            bytes.extend(extent.bytes.to_ne_bytes());
        }
        self.buffers.iter().for_each(|buffer| bytes.extend(buffer));
        bytes
    }

    /// The message of a header and the bytes behind it.
    ///
    /// # Errors
    /// [`ProtocolError::Form`].
    pub fn decode(bytes: &[u8]) -> Result<Self, ProtocolError> {
        let (head, body) = bytes
            .split_at_checked(HEADER_BYTES)
            .ok_or(ProtocolError::Form)?;
        let header = Header::of(head)?;
        if body.len() != header.body_bytes {
            return Err(ProtocolError::Form);
        }
        let (lengths, rest) = body
            .split_at_checked(4 * header.buffers)
            .ok_or(ProtocolError::Form)?;
        let (extents, mut rest) = rest
            .split_at_checked(16 * header.extents)
            .ok_or(ProtocolError::Form)?;
        let mut buffers = Vec::with_capacity(header.buffers);
        for at in 0..header.buffers {
            // CAST: 32 bits.
            let length = read_u32(lengths, 4 * at) as usize;
            let (buffer, behind) = rest.split_at_checked(length).ok_or(ProtocolError::Form)?;
            let mut copy = Vec::new();
            extend(&mut copy, length)?;
            copy.copy_from_slice(buffer);
            buffers.push(copy);
            rest = behind;
        }
        if !rest.is_empty() {
            return Err(ProtocolError::Form);
        }
        let extent = |at: usize| Extent {
            offset: read_u64(extents, 16 * at),
            bytes: read_u64(extents, 16 * at + 8),
        };
        let kind = read_u32(head, 4);
        Ok(Self {
            kind: *Kind::ALL
                .iter()
                .find(|one| **one as u32 == kind)
                .ok_or(ProtocolError::Form)?,
            file: read_u32(head, 8),
            request: read_u32(head, 12),
            id: read_u64(head, 16),
            // CAST: the bits of signed words.
            result: read_u32(head, 24) as i32,
            errno: read_u32(head, 28) as i32,
            a: read_u64(head, 32),
            b: read_u64(head, 40),
            buffers,
            extents: (0..header.extents).map(extent).collect(),
        })
    }
}

impl Header {
    /// The lengths of a header, which are within their bounds.
    pub(crate) fn of(head: &[u8]) -> Result<Self, ProtocolError> {
        let word = |at| read_u32(head, at) as usize;
        let header = Self {
            buffers: word(48),
            extents: word(52),
            body_bytes: word(56),
        };
        let bounded = header.buffers <= BUFFERS_MAX
            && header.extents <= EXTENTS_MAX
            && header.body_bytes <= BODY_MAX;
        if head.len() == HEADER_BYTES && read_u32(head, 0) == MAGIC && bounded {
            Ok(header)
        } else {
            Err(ProtocolError::Form)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn decoded_message_encodes_to_the_same_bytes(
            id: u64, file: u32, request: u32, result: i32, a: u64,
            buffers in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..BUFFERS_MAX),
            extents in prop::collection::vec((any::<u64>(), any::<u64>()), 0..20),
        ) {
            let extents = extents.into_iter().map(|(offset, bytes)| Extent { offset, bytes }).collect();
            let message = Message { kind: Kind::Call, id, file, request, result, a, buffers, extents, ..Message::default() };
            prop_assert_eq!(Message::decode(&message.encode()).unwrap(), message);
        }

        #[test]
        fn random_bytes_are_refused_or_encode_to_themselves(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(message) = Message::decode(&bytes) {
                prop_assert_eq!(message.encode().len(), bytes.len());
            }
        }
    }

    #[test]
    fn lengths_beyond_the_bounds_are_refused() {
        let good = Message::default().encode();
        assert!(Message::decode(&good).is_ok());
        for (at, value) in [
            (48, BUFFERS_MAX + 1),
            (52, EXTENTS_MAX + 1),
            (56, BODY_MAX + 1),
            (4, 99),
            (0, 1),
        ] {
            let mut bad = good.clone();
            bad[at..at + 4].copy_from_slice(&(value as u32).to_ne_bytes());
            assert!(Message::decode(&bad).is_err(), "{at}");
        }
    }
}
