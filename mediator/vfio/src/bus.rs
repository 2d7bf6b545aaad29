//! The narrow trait between the backend and whatever the device hangs on: regions, interrupts, DMA, mappings. Three
//! implementations: VFIO in the kernel ([`super::kernel`]), a vfio-user server, and a device in this process
//! ([`super::fake`]).

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;

use vm_memory::MmapRegion;

/// Which part of the device an access goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Region {
    /// Configuration space.
    Config,
    /// A BAR by number.
    Bar(u32),
}

/// Why the bus could not do something.
#[derive(Debug, thiserror::Error)]
pub enum BusError {
    /// An access failed.
    #[error("Access to {region:?} at {offset:#x} failed")]
    Access {
        /// Which region.
        region: Region,
        /// Where in it.
        offset: u64,
        /// What the system said.
        source: io::Error,
    },
    /// A region cannot be mapped.
    #[error("{region:?} cannot be mapped at {offset:#x}")]
    Map {
        /// Which region.
        region: Region,
        /// Where in it.
        offset: u64,
        /// What the system said.
        source: io::Error,
    },
    /// A vector could not be connected.
    #[error("Interrupt vector {vector} could not be connected")]
    Vector {
        /// Which.
        vector: u16,
        /// What the system said.
        source: io::Error,
    },
    /// Memory could not be mapped for the device, or its mapping not be taken back.
    #[error(
        "Mapping {bytes:#x} bytes at {iova:#x} for the device, or taking that back, failed (locked memory limit?)"
    )]
    Dma {
        /// Where.
        iova: u64,
        /// How much.
        bytes: u64,
        /// What the system said.
        source: io::Error,
    },
    /// The device could not be had.
    #[error("{what}")]
    Open {
        /// What could not be done, and what to do.
        what: String,
        /// What the system said.
        source: io::Error,
    },
}

/// A part of a region as a file shows it.
#[derive(Debug)]
pub struct RegionFile {
    /// The file: of a device that VFIO has opened, or a memory file.
    pub file: File,
    /// Where the part begins in it.
    pub offset: u64,
}

/// A device on a bus. Calls may come from any thread.
pub trait Bus: Send + Sync + fmt::Debug {
    /// Reads; one access of the bus where `data` is 4 or 8 bytes and aligned.
    ///
    /// # Errors
    /// [`BusError::Access`].
    fn read(&self, region: Region, offset: u64, data: &mut [u8]) -> Result<(), BusError>;

    /// Writes; as [`Self::read`].
    ///
    /// # Errors
    /// [`BusError::Access`].
    fn write(&self, region: Region, offset: u64, data: &[u8]) -> Result<(), BusError>;

    /// A file by which a part of a region, whole pages, can be mapped by any process that has it.
    ///
    /// # Errors
    /// [`BusError::Map`].
    fn file(&self, region: Region, offset: u64, bytes: u64) -> Result<RegionFile, BusError>;

    /// Ties an interrupt vector to an eventfd, or to none. It may go on being raised until this returns.
    ///
    /// # Errors
    /// [`BusError::Vector`].
    fn connect(&self, vector: u16, eventfd: Option<BorrowedFd<'_>>) -> Result<(), BusError>;

    /// Lets the device reach this memory at `iova`. Precondition: the memory stays mapped until [`Self::dma_unmap`].
    ///
    /// # Errors
    /// [`BusError::Dma`].
    fn dma_map(&self, iova: u64, memory: &MmapRegion<()>) -> Result<(), BusError>;

    /// Takes that back: when this returns, the device reaches it no more.
    ///
    /// # Errors
    /// [`BusError::Dma`].
    fn dma_unmap(&self, iova: u64, bytes: u64) -> Result<(), BusError>;

    /// What it is, in a few words.
    fn describe(&self) -> String;
}
