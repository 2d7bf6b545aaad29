//! The vfio-user protocol: a PCI device served to another process over a Unix socket.
//!
//! ```text
//!   client (QEMU, Cloud Hypervisor, Client) --request--> server (serve) --> Backend
//!          <--reply, or the errno of a refusal--
//! ```
//!
//! A message is a header of 16 bytes and a payload; descriptors arrive with its first bytes.
//! Received data is not trusted: in [`Raw`] only the lengths are checked, and only
//! [`Request::check`] makes it a request. An invalid request is answered with an errno and the
//! connection continues. A stream without recognizable message boundaries is ended, and only that
//! stream.
//!
//! SOURCE: docs/interop/vfio-user.rst of QEMU 10.1; structures and flags are those of linux/vfio.h.

mod client;
mod layout;
mod maps;
mod message;
mod request;
mod server;
mod socket;
mod vectors;

pub use client::{Client, ClientError, ClientRegion};
pub use layout::{Area, Irq, Layout, Mapping, Region};
pub use maps::{Maps, Memory};
pub use message::{Capabilities, Command, Header, Kind};
pub use request::{DmaMap, DmaUnmap, IrqAction, IrqData, Request, SetIrqs};
pub use server::{Backend, serve};
pub use socket::{ProtocolError, Raw, Socket};
pub use vectors::Vectors;

use std::fmt;
use std::io;

/// Most bytes that one read or write of a region moves. Registers take 8; configuration space is
/// read in one piece.
pub const DATA_BYTES_MAX: usize = 16 << 10;
/// Most descriptors with one message; clients send more vectors in several messages. SOURCE: QEMU
/// 11.1, hw/vfio-user/protocol.h: it refuses a server that declares more than 16.
pub(crate) const MESSAGE_FDS_MAX: usize = 16;
/// Most mappings of one client; declared when the version is agreed on.
pub const DMA_MAPS_MAX: usize = 4096;
/// Configuration space of a function as ECAM has it; a conventional device has its first 256 bytes.
/// SOURCE: PCI Express Base Specification 3.0, 7.2.2.
pub(crate) const EXTENDED_CONFIG_BYTES: u64 = 4096;
/// Granule of mappings.
pub const PAGE_BYTES: u64 = 4096;

/// Indices of a PCI device's regions.
/// SOURCE: linux/vfio.h, VFIO_PCI_BAR0_REGION_INDEX and following.
pub mod region {
    /// First of six BARs.
    pub const BAR0: u32 = 0;
    /// Configuration space.
    pub const CONFIG: u32 = 7;
    /// How many there are, VGA included.
    pub const COUNT: u32 = 9;
}

/// Indices of a PCI device's interrupts.
/// SOURCE: linux/vfio.h, VFIO_PCI_INTX_IRQ_INDEX and following.
pub mod irq {
    /// The interrupt pin.
    pub const INTX: u32 = 0;
    /// MSI.
    pub const MSI: u32 = 1;
    /// MSI-X.
    pub const MSIX: u32 = 2;
    /// How many there are, error and request included.
    pub const COUNT: u32 = 5;
}

/// Why a request is refused, as a number of errno(3).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// The request is malformed, out of order, or outside of what the device has.
    pub const INVALID: Self = Self(libc::EINVAL);
    /// The command is not served.
    pub(crate) const UNSUPPORTED: Self = Self(libc::ENOTSUP);
    /// More than the server takes.
    pub(crate) const TOO_MUCH: Self = Self(libc::E2BIG);
    /// A limit of the server is reached.
    pub const NO_ROOM: Self = Self(libc::ENOSPC);
    /// There is something already.
    pub(crate) const EXISTS: Self = Self(libc::EEXIST);
    /// There is nothing.
    pub const NOT_FOUND: Self = Self(libc::ENOENT);
    /// Something below failed.
    pub const IO: Self = Self(libc::EIO);
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&io::Error::from_raw_os_error(self.0), f)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&io::Error::from_raw_os_error(self.0), f)
    }
}

impl std::error::Error for Errno {}

impl From<io::Error> for Errno {
    fn from(error: io::Error) -> Self {
        Self(error.raw_os_error().unwrap_or(libc::EIO))
    }
}
