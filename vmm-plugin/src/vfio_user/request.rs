//! Requests of a client, checked.

use super::layout::Layout;
use super::message::{Capabilities, Command, MAJOR, decode_version, long, word};
use super::socket::Raw;
use super::{DATA_BYTES_MAX, Errno, MESSAGE_FDS_MAX, PAGE_BYTES};
use std::fs::File;

/// Flags of a mapping. SOURCE: linux/vfio.h, VFIO_DMA_MAP_FLAG_*.
const DMA_READ: u32 = 1;
const DMA_WRITE: u32 = 2;
/// SOURCE: linux/vfio.h, VFIO_DMA_UNMAP_FLAG_ALL.
const UNMAP_ALL: u32 = 2;
/// SOURCE: linux/vfio.h, VFIO_IRQ_SET_*.
pub(super) mod irq_set {
    pub(in super::super) const NONE: u32 = 1;
    pub(in super::super) const BOOL: u32 = 2;
    pub(in super::super) const EVENTFD: u32 = 4;
    pub(in super::super) const DATA: u32 = 7;
    pub(in super::super) const MASK: u32 = 8;
    pub(in super::super) const UNMASK: u32 = 16;
    pub(in super::super) const TRIGGER: u32 = 32;
}
/// Bytes of `struct vfio_region_info`.
pub(super) const REGION_INFO_BYTES: usize = 32;

/// Memory that the device may use: whole pages, an end that does not overflow. The length of the
/// file is not checked.
#[derive(Debug)]
pub struct DmaMap {
    /// Address on the device's side.
    pub address: u64,
    /// Bytes.
    pub bytes: u64,
    /// Where it begins in the file.
    pub offset: u64,
    /// Whether the device may read it.
    pub readable: bool,
    /// Whether the device may write it.
    pub writable: bool,
    /// The memory. Mappings without a file (ROMs, BARs of other devices) can only be reached by
    /// messages, which are not served.
    pub file: Option<File>,
}

/// Memory that the device may use no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DmaUnmap {
    /// All of it.
    All,
    /// The mappings in this range, whole pages.
    Range {
        /// First address.
        address: u64,
        /// Bytes.
        bytes: u64,
    },
}

/// What is done with interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IrqAction {
    /// Hold them back.
    Mask,
    /// Let them go.
    Unmask,
    /// Deliver them.
    Trigger,
}

/// With what.
#[derive(Debug)]
pub enum IrqData {
    /// Now, all of the range. With a count of zero: take all eventfds back.
    None,
    /// Now, those that are true.
    Bool(Vec<bool>),
    /// From now on by these, one for each vector of the range; or, with none, no longer.
    Eventfds(Vec<File>),
}

/// A change of interrupts; the range is within the device's vectors.
#[derive(Debug)]
pub struct SetIrqs {
    /// Which interrupt.
    pub index: u32,
    /// First vector.
    pub start: u32,
    /// Vectors.
    pub count: u32,
    /// What is done.
    pub action: IrqAction,
    /// With what.
    pub data: IrqData,
}

/// A request that is well-formed, in order, and within what the device has.
#[derive(Debug)]
pub enum Request<'a> {
    /// The client's version.
    Version {
        /// Its minor version.
        minor: u16,
        /// The client's capabilities.
        capabilities: Capabilities,
    },
    /// Map memory.
    DmaMap(DmaMap),
    /// Unmap memory.
    DmaUnmap(DmaUnmap),
    /// What is the device?
    DeviceInfo,
    /// What is this region?
    RegionInfo {
        /// Which.
        index: u32,
        /// Bytes that the client has room for.
        argsz: u32,
    },
    /// What is this interrupt?
    IrqInfo {
        /// Which.
        index: u32,
    },
    /// Change interrupts.
    SetIrqs(SetIrqs),
    /// Read a region.
    Read {
        /// Which.
        region: u32,
        /// Where.
        offset: u64,
        /// Bytes, at most [`DATA_BYTES_MAX`].
        count: usize,
    },
    /// Write a region.
    Write {
        /// Which.
        region: u32,
        /// Where.
        offset: u64,
        /// What.
        data: &'a [u8],
    },
    /// Reset.
    Reset,
}

impl<'a> Request<'a> {
    /// Makes a request of a received message, taking its descriptors. `agreed`: a version was
    /// agreed on.
    ///
    /// # Errors
    /// What the client is answered. The connection goes on.
    pub fn check(raw: &'a mut Raw, layout: &Layout, agreed: bool) -> Result<Self, Errno> {
        let command = Command::from_u16(raw.header.command).ok_or(Errno::UNSUPPORTED)?;
        // Agreed on once, and first.
        if (command == Command::Version) == agreed {
            return Err(Errno::INVALID);
        }
        let fds = std::mem::take(&mut raw.fds);
        let takes_fds = matches!(command, Command::DmaMap | Command::SetIrqs);
        if !fds.is_empty() && !takes_fds {
            return Err(Errno::INVALID);
        }
        let files = fds.into_iter().map(File::from).collect();
        let payload = raw.payload.as_slice();
        match command {
            Command::Version => version(payload),
            Command::DmaMap => dma_map(payload, files).map(Self::DmaMap),
            Command::DmaUnmap => dma_unmap(payload).map(Self::DmaUnmap),
            Command::DeviceInfo => at_least(payload, 16).map(|()| Self::DeviceInfo),
            Command::RegionInfo => {
                at_least(payload, REGION_INFO_BYTES)?;
                let (argsz, index) = (word(payload, 0), word(payload, 8));
                layout.region(index)?;
                Ok(Self::RegionInfo { index, argsz })
            }
            Command::IrqInfo => {
                at_least(payload, 16)?;
                let index = word(payload, 8);
                layout.irq(index).map(|_| Self::IrqInfo { index })
            }
            Command::SetIrqs => set_irqs(payload, files, layout).map(Self::SetIrqs),
            Command::RegionRead => {
                let (region, offset, count) = access(payload)?;
                layout.check_access(region, offset, count, false)?;
                Ok(Self::Read {
                    region,
                    offset,
                    count,
                })
            }
            Command::RegionWrite => {
                let (region, offset, count) = access(payload)?;
                layout.check_access(region, offset, count, true)?;
                let data = payload.get(16..16 + count).ok_or(Errno::INVALID)?;
                Ok(Self::Write {
                    region,
                    offset,
                    data,
                })
            }
            Command::Reset => Ok(Self::Reset),
            Command::RegionIoFds | Command::DmaRead | Command::DmaWrite | Command::DirtyPages => {
                Err(Errno::UNSUPPORTED)
            }
        }
    }
}

fn at_least(payload: &[u8], bytes: usize) -> Result<(), Errno> {
    if payload.len() < bytes {
        return Err(Errno::INVALID);
    }
    Ok(())
}

fn version<'a>(payload: &[u8]) -> Result<Request<'a>, Errno> {
    match decode_version(payload) {
        Some((MAJOR, minor, capabilities)) => Ok(Request::Version {
            minor,
            capabilities,
        }),
        Some(_) => Err(Errno::UNSUPPORTED),
        None => Err(Errno::INVALID),
    }
}

fn whole_pages(address: u64, bytes: u64) -> bool {
    bytes != 0
        && address.is_multiple_of(PAGE_BYTES)
        && bytes.is_multiple_of(PAGE_BYTES)
        && address.checked_add(bytes).is_some()
}

fn dma_map(payload: &[u8], files: Vec<File>) -> Result<DmaMap, Errno> {
    at_least(payload, 32)?;
    let flags = word(payload, 4);
    let (offset, address, bytes) = (long(payload, 8), long(payload, 16), long(payload, 24));
    let mut files = files.into_iter();
    let file = files.next();
    let fits = whole_pages(address, bytes)
        && (file.is_none() || whole_pages(offset, bytes))
        && flags & !(DMA_READ | DMA_WRITE) == 0
        && files.next().is_none();
    if !fits {
        return Err(Errno::INVALID);
    }
    Ok(DmaMap {
        address,
        bytes,
        offset,
        readable: flags & DMA_READ != 0,
        writable: flags & DMA_WRITE != 0,
        file,
    })
}

fn dma_unmap(payload: &[u8]) -> Result<DmaUnmap, Errno> {
    at_least(payload, 24)?;
    let (address, bytes) = (long(payload, 8), long(payload, 16));
    match word(payload, 4) {
        UNMAP_ALL => Ok(DmaUnmap::All),
        0 if whole_pages(address, bytes) => Ok(DmaUnmap::Range { address, bytes }),
        // Dirty bitmaps belong to migration.
        _ => Err(Errno::INVALID),
    }
}

fn set_irqs(payload: &[u8], files: Vec<File>, layout: &Layout) -> Result<SetIrqs, Errno> {
    at_least(payload, 20)?;
    let (flags, index) = (word(payload, 4), word(payload, 8));
    let (start, count) = (word(payload, 12), word(payload, 16));
    let vectors = layout.irq(index)?.count;
    if start.checked_add(count).is_none_or(|end| end > vectors) {
        return Err(Errno::INVALID);
    }
    let action = match flags & !irq_set::DATA {
        irq_set::MASK => IrqAction::Mask,
        irq_set::UNMASK => IrqAction::Unmask,
        irq_set::TRIGGER => IrqAction::Trigger,
        _ => return Err(Errno::INVALID),
    };
    let data = match flags & irq_set::DATA {
        irq_set::NONE if files.is_empty() => IrqData::None,
        irq_set::BOOL if files.is_empty() => {
            // CAST: a count within the device's vectors
            let bytes = payload.get(20..20 + count as usize);
            let bytes = bytes.ok_or(Errno::INVALID)?;
            IrqData::Bool(bytes.iter().map(|byte| *byte != 0).collect())
        }
        irq_set::EVENTFD if files.len() <= MESSAGE_FDS_MAX => {
            // CAST: at most MESSAGE_FDS_MAX
            if !files.is_empty() && files.len() as u32 != count {
                return Err(Errno::INVALID);
            }
            IrqData::Eventfds(files)
        }
        _ => return Err(Errno::INVALID),
    };
    Ok(SetIrqs {
        index,
        start,
        count,
        action,
        data,
    })
}

/// Region, offset and bytes of a read or a write.
fn access(payload: &[u8]) -> Result<(u32, u64, usize), Errno> {
    at_least(payload, 16)?;
    let count = word(payload, 12) as usize;
    if count > DATA_BYTES_MAX {
        return Err(Errno::TOO_MUCH);
    }
    Ok((word(payload, 8), long(payload, 0), count))
}
