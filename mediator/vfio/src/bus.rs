//! The narrow trait between the backend and the bus of the device: regions, interrupts, DMA,
//! mappings. Three implementations: VFIO in the kernel ([`super::kernel`]), a vfio-user server, and
//! a device in this process ([`super::fake`]).

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;

use vm_memory::MmapRegion;

/// The part of the device that is accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Region {
    /// Configuration space.
    Config,
    /// A BAR by number.
    Bar(u32),
}

/// Why the bus failed.
#[derive(Debug, thiserror::Error)]
pub enum BusError {
    /// An access failed.
    #[error("Access to {region:?} at {offset:#x} failed")]
    Access {
        /// The region.
        region: Region,
        /// Offset in it.
        offset: u64,
        /// Error of the system.
        source: io::Error,
    },
    /// A region cannot be mapped.
    #[error("{region:?} cannot be mapped at {offset:#x}")]
    Map {
        /// The region.
        region: Region,
        /// Offset in it.
        offset: u64,
        /// Error of the system.
        source: io::Error,
    },
    /// A vector could not be connected.
    #[error("Interrupt vector {vector} could not be connected")]
    Vector {
        /// Number of the vector.
        vector: u16,
        /// Error of the system.
        source: io::Error,
    },
    /// Memory could not be mapped for the device, or unmapped.
    #[error("Mapping {bytes:#x} bytes at {iova:#x} for the device, or taking that back, failed")]
    Dma {
        /// Address for the device.
        iova: u64,
        /// Length.
        bytes: u64,
        /// Error of the system.
        source: io::Error,
    },
    /// The device could not be opened.
    #[error("{what}")]
    Open {
        /// What failed, and what to do about it.
        what: String,
        /// Error of the system.
        source: io::Error,
    },
}

/// A part of a region, as a range of a file.
#[derive(Debug)]
pub struct RegionFile {
    /// The file: of a device that VFIO has opened, or a memory file.
    pub file: File,
    /// Offset of the part in it.
    pub offset: u64,
}

/// A device on a bus. Calls may come from any thread.
pub trait Bus: Send + Sync + fmt::Debug {
    /// Reads; one access of the bus if `data` is aligned and has 4 or 8 bytes.
    ///
    /// # Errors
    /// [`BusError::Access`].
    fn read(&self, region: Region, offset: u64, data: &mut [u8]) -> Result<(), BusError>;

    /// Writes; as [`Self::read`].
    ///
    /// # Errors
    /// [`BusError::Access`].
    fn write(&self, region: Region, offset: u64, data: &[u8]) -> Result<(), BusError>;

    /// A file by which any process that has it can map whole pages of a region.
    ///
    /// # Errors
    /// [`BusError::Map`].
    fn file(&self, region: Region, offset: u64, bytes: u64) -> Result<RegionFile, BusError>;

    /// Connects an interrupt vector to an eventfd, or to none. The previous eventfd may be
    /// signalled until this returns.
    ///
    /// # Errors
    /// [`BusError::Vector`].
    fn connect(&self, vector: u16, eventfd: Option<BorrowedFd<'_>>) -> Result<(), BusError>;

    /// Lets the device access this memory at `iova`. Precondition: the memory stays mapped until
    /// [`Self::dma_unmap`].
    ///
    /// # Errors
    /// [`BusError::Dma`].
    fn dma_map(&self, iova: u64, memory: &MmapRegion<()>) -> Result<(), BusError>;

    /// Ends that access: when this returns, the device cannot access the memory any more.
    ///
    /// # Errors
    /// [`BusError::Dma`].
    fn dma_unmap(&self, iova: u64, bytes: u64) -> Result<(), BusError>;

    /// Connects again to a device that failed. Returns whether it is another connection, with which
    /// DMA mappings and vectors of before are gone.
    ///
    /// # Errors
    /// If there is no device yet.
    fn reconnect(&self) -> Result<bool, BusError> {
        Ok(false)
    }

    /// Short description of the device.
    fn describe(&self) -> String;
}
