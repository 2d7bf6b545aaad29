//! What the driver reports.

use core::fmt;
use turnstile_abi::{ErrorCode, PARAM_BYTES_MAX};

/// Bytes of a device's text that an error keeps.
pub const TEXT_BYTES: usize = 80;

/// A text of the device, cut to fit.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Text {
    bytes: [u8; TEXT_BYTES],
    len: u8,
}

impl Text {
    /// The first bytes of `text`.
    pub fn new(text: &[u8]) -> Self {
        let len = text.len().min(TEXT_BYTES);
        let mut bytes = [0; TEXT_BYTES];
        bytes[..len].copy_from_slice(&text[..len]);
        Self {
            bytes,
            len: len as u8,
        }
    }

    /// As far as it is UTF-8.
    pub fn as_str(&self) -> &str {
        let bytes = &self.bytes[..usize::from(self.len)];
        match core::str::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => core::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or(""),
        }
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// Why a request to the driver failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverError {
    /// There is no such device: the identity read is this.
    NotFound(u32),
    /// The device speaks a version of the contract that this driver does not.
    Version(u32),
    /// The device has no MSI-X capability.
    NoMsix,
    /// The device refused a request.
    Refused {
        /// Operation of the request.
        op: u32,
        /// Code from the device.
        code: u32,
        /// Text of the device, empty where it has none to add.
        text: Text,
    },
    /// A command of the channel failed, and with it the channel.
    Faulted {
        /// Code from the device.
        code: u32,
        /// Index of the command, modulo 2^32.
        at: u32,
        /// Faulting address or offending value.
        info: u64,
    },
    /// The ring has no room; wait for commands to finish.
    RingFull,
    /// Parameters exceed the limit, or are not what the kernel takes.
    Parameters {
        /// Bytes given.
        got: u32,
        /// Bytes that the kernel takes.
        expected: u32,
    },
    /// The mediator is gone, and with it what was under way.
    Lost,
    /// The device did not answer in time.
    Timeout,
    /// The driver's memory is used up.
    OutOfMemory,
}

impl DriverError {
    /// The device's code, where it is the device that reported.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Refused { code, .. } | Self::Faulted { code, .. } => ErrorCode::from_u32(*code),
            Self::Lost => Some(ErrorCode::DeviceLost),
            _ => None,
        }
    }
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.code().map_or("Unknown error", ErrorCode::text);
        match self {
            Self::NotFound(identity) => write!(f, "No such device: it identifies as {identity:#x}"),
            Self::Version(version) => write!(
                f,
                "The device has contract version {}.{}, the driver knows 1.x",
                version >> 16,
                version & 0xffff
            ),
            Self::NoMsix => f.write_str("The device has no MSI-X capability"),
            Self::Refused {
                op,
                code,
                text: more,
            } => write!(f, "Request {op} refused ({code}): {text} {}", more.as_str()),
            Self::Faulted { code, at, info } => {
                write!(
                    f,
                    "Command {at} ended the channel ({code}, {info:#x}): {text}"
                )
            }
            Self::RingFull => f.write_str("The ring is full"),
            Self::Parameters { got, expected } => write!(
                f,
                "{got} bytes of parameters; the kernel takes {expected}, at most {PARAM_BYTES_MAX}"
            ),
            Self::Lost => f.write_str(text),
            Self::Timeout => f.write_str("The device did not answer in time"),
            Self::OutOfMemory => f.write_str("The driver's memory is used up"),
        }
    }
}

impl core::error::Error for DriverError {}
