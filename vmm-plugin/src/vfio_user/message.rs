//! Headers, the version's text, and little-endian words.

use super::{DATA_BYTES_MAX, DMA_MAPS_MAX, PAGE_BYTES};
use serde::{Deserialize, Serialize};

/// Bytes of a header.
pub(super) const HEADER_BYTES: usize = 16;
/// Longest payload: a read's or write's own words and its data.
pub(super) const PAYLOAD_BYTES_MAX: usize = 16 + DATA_BYTES_MAX;
/// Major version of the protocol; no other is known.
pub(super) const MAJOR: u16 = 0;
/// Supported minor version.
pub(super) const MINOR: u16 = 1;

/// Bits of a header's flags.
mod flag {
    pub(super) const KIND: u32 = 0xf;
    pub(super) const NO_REPLY: u32 = 0x10;
    pub(super) const ERROR: u32 = 0x20;
}

macro_rules! commands {
    ($($name:ident = $number:literal, $doc:literal;)*) => {
        /// The kind of request.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u16)]
        pub enum Command { $(#[doc = $doc] $name = $number,)* }

        impl Command {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// The one of this number, if there is one.
            pub const fn from_u16(number: u16) -> Option<Self> {
                match number { $($number => Some(Self::$name),)* _ => None }
            }
        }
    };
}

commands! {
    Version = 1, "Agree on a version; first.";
    DmaMap = 2, "Client memory that the device may use.";
    DmaUnmap = 3, "It may no longer.";
    DeviceInfo = 4, "What the device is.";
    RegionInfo = 5, "What a region is.";
    RegionIoFds = 6, "Descriptors that stand for accesses; not served.";
    IrqInfo = 7, "What an interrupt is.";
    SetIrqs = 8, "How interrupts are delivered.";
    RegionRead = 9, "A read of a region.";
    RegionWrite = 10, "A write to a region.";
    DmaRead = 11, "From the server alone; not served.";
    DmaWrite = 12, "From the server alone; not served.";
    Reset = 13, "Reset the device.";
    DirtyPages = 14, "Migration; not served.";
}

/// Whether a message is a request or an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A request.
    Command,
    /// An answer.
    Reply,
}

/// What every message begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Chosen by the sender of the request; repeated in the answer.
    pub id: u16,
    /// [`Command`], unchecked.
    pub command: u16,
    /// Bytes of the message, header included.
    pub size: u32,
    /// Kind, and whether an answer is wanted.
    pub flags: u32,
    /// errno of a refusal.
    pub error: u32,
}

impl Header {
    /// A request's.
    pub const fn command(id: u16, command: Command, payload_bytes: usize) -> Self {
        Self {
            id,
            command: command as u16,
            // CAST: payloads are bounded.
            size: (HEADER_BYTES + payload_bytes) as u32,
            flags: 0,
            error: 0,
        }
    }

    /// That of an answer to this; with an errno it is a refusal.
    pub(super) const fn reply(&self, payload_bytes: usize, error: Option<i32>) -> Self {
        Self {
            id: self.id,
            command: self.command,
            // CAST: payloads are bounded.
            size: (HEADER_BYTES + payload_bytes) as u32,
            flags: match error {
                None => 1,
                Some(_) => 1 | flag::ERROR,
            },
            // CAST: an errno is positive.
            error: match error {
                None => 0,
                Some(error) => error as u32,
            },
        }
    }

    /// Whether the message is a request or an answer; `None` for any other value.
    pub const fn kind(&self) -> Option<Kind> {
        match self.flags & flag::KIND {
            0 => Some(Kind::Command),
            1 => Some(Kind::Reply),
            _ => None,
        }
    }

    /// Whether no answer is wanted.
    pub(crate) const fn no_reply(&self) -> bool {
        self.flags & flag::NO_REPLY != 0
    }

    /// The errno, of a refusal.
    pub const fn refused(&self) -> Option<u32> {
        if self.flags & flag::ERROR != 0 {
            Some(self.error)
        } else {
            None
        }
    }

    pub(super) fn decode(bytes: &[u8; HEADER_BYTES]) -> Self {
        let [i0, i1, c0, c1, ..] = *bytes;
        Self {
            id: u16::from_le_bytes([i0, i1]),
            command: u16::from_le_bytes([c0, c1]),
            size: word(bytes, 4),
            flags: word(bytes, 8),
            error: word(bytes, 12),
        }
    }

    /// The bytes.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..2].copy_from_slice(&self.id.to_le_bytes());
        bytes[2..4].copy_from_slice(&self.command.to_le_bytes());
        for (at, value) in [(4, self.size), (8, self.flags), (12, self.error)] {
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        bytes
    }
}

/// The u32 at `at`; zero beyond the end, so check lengths first.
pub(super) fn word(bytes: &[u8], at: usize) -> u32 {
    bytes
        .get(at..)
        .and_then(|rest| rest.first_chunk())
        .map_or(0, |chunk| u32::from_le_bytes(*chunk))
}

/// As [`word`], 64 bits.
pub(super) fn long(bytes: &[u8], at: usize) -> u64 {
    bytes
        .get(at..)
        .and_then(|rest| rest.first_chunk())
        .map_or(0, |chunk| u64::from_le_bytes(*chunk))
}

/// Puts words together.
#[derive(Debug, Default)]
pub(super) struct Payload(pub(super) Vec<u8>);

impl Payload {
    pub(super) fn words(mut self, words: &[u32]) -> Self {
        for word in words {
            self.0.extend_from_slice(&word.to_le_bytes());
        }
        self
    }

    pub(super) fn longs(mut self, longs: &[u64]) -> Self {
        for long in longs {
            self.0.extend_from_slice(&long.to_le_bytes());
        }
        self
    }

    pub(super) fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }
}

/// Capabilities that a side declares when the version is agreed on. Those it omits have the
/// protocol's default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Capabilities {
    /// Descriptors that it takes with one message.
    pub max_msg_fds: u64,
    /// Most bytes of one read or write.
    pub max_data_xfer_size: u64,
    /// Mappings that a server takes.
    pub max_dma_maps: u64,
    /// Sizes of pages that can be mapped, as a mask.
    pub pgsizes: u64,
}

impl Default for Capabilities {
    fn default() -> Self {
        Self {
            max_msg_fds: 1,
            max_data_xfer_size: 1 << 20,
            max_dma_maps: 65_535,
            pgsizes: PAGE_BYTES,
        }
    }
}

/// Declared limit of descriptors per message: QEMU treats more as malformed. SOURCE: QEMU 11.1,
/// hw/vfio-user/proxy.c, VFIO_USER_MAX_MAX_FDS.
const ANNOUNCED_FDS_MAX: u64 = 16;

impl Capabilities {
    /// Ours.
    pub(super) const OWN: Self = Self {
        max_msg_fds: ANNOUNCED_FDS_MAX,
        max_data_xfer_size: DATA_BYTES_MAX as u64,
        max_dma_maps: DMA_MAPS_MAX as u64,
        pgsizes: PAGE_BYTES,
    };
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct VersionText {
    capabilities: Capabilities,
}

/// Payload of a version request or answer.
pub(super) fn encode_version(minor: u16, capabilities: Capabilities) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend_from_slice(&MAJOR.to_le_bytes());
    bytes.extend_from_slice(&minor.to_le_bytes());
    // PANIC: none; numbers can be written as JSON.
    let _ = serde_json::to_writer(&mut bytes, &VersionText { capabilities });
    bytes.push(0);
    bytes
}

/// Major, minor and capabilities; `None` where the payload is no version.
pub(super) fn decode_version(payload: &[u8]) -> Option<(u16, u16, Capabilities)> {
    let (numbers, text) = payload.split_first_chunk::<4>()?;
    let [a, b, c, d] = *numbers;
    let capabilities = match text {
        [] => Capabilities::default(),
        text => {
            let end = text.iter().position(|byte| *byte == 0)?;
            let text: VersionText = serde_json::from_slice(&text[..end]).ok()?;
            text.capabilities
        }
    };
    Some((
        u16::from_le_bytes([a, b]),
        u16::from_le_bytes([c, d]),
        capabilities,
    ))
}
