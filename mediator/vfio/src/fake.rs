//! A bus within this process, with simulated hardware on it.

use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;

use turnstile_abi::PAGE_BYTES;
use turnstile_abi::physical::{BAR_DOORBELLS, BAR_REGS, status};
use vm_memory::MmapRegion;

use super::bus::{Bus, BusError, Region, RegionFile};
use turnstile_soft::pci::{PciGpu, Region as Part};

/// A [`PciGpu`] that hangs on nothing.
#[derive(Debug)]
pub struct FakeBus(PciGpu);

impl FakeBus {
    /// Plugs a device in.
    pub fn new(device: PciGpu) -> Self {
        Self(device)
    }

    /// The device.
    pub fn device(&self) -> &PciGpu {
        &self.0
    }
}

fn part(region: Region) -> Option<Part> {
    match region {
        Region::Config => Some(Part::Config),
        Region::Bar(BAR_REGS) => Some(Part::Regs),
        Region::Bar(BAR_DOORBELLS) => Some(Part::Doorbells),
        Region::Bar(_) => None,
    }
}

impl Bus for FakeBus {
    fn read(&self, region: Region, offset: u64, data: &mut [u8]) -> Result<(), BusError> {
        match part(region) {
            Some(part) => self.0.read(part, offset, data),
            None => data.fill(0xff),
        }
        Ok(())
    }

    fn write(&self, region: Region, offset: u64, data: &[u8]) -> Result<(), BusError> {
        if let Some(part) = part(region) {
            self.0.write(part, offset, data);
        }
        Ok(())
    }

    fn file(&self, region: Region, offset: u64, bytes: u64) -> Result<RegionFile, BusError> {
        let failed = |source| BusError::Map {
            region,
            offset,
            source,
        };
        let (file, offset) = match region {
            Region::Bar(BAR_REGS) if offset == status::PAGE && bytes <= PAGE_BYTES => {
                (self.0.status_file(), offset)
            }
            Region::Bar(BAR_DOORBELLS) => (self.0.doorbells_file(), offset),
            _ => return Err(failed(io::ErrorKind::Unsupported.into())),
        };
        let file = file.try_clone().map_err(failed)?;
        Ok(RegionFile { file, offset })
    }

    fn connect(&self, vector: u16, eventfd: Option<BorrowedFd<'_>>) -> Result<(), BusError> {
        let copy = eventfd.map(|fd| fd.try_clone_to_owned()).transpose();
        let copy = copy.map_err(|source| BusError::Vector { vector, source })?;
        self.0.connect(vector, copy.map(File::from));
        Ok(())
    }

    fn dma_map(&self, iova: u64, memory: &MmapRegion<()>) -> Result<(), BusError> {
        let bytes = memory.size() as u64;
        let failed = |source| BusError::Dma {
            iova,
            bytes,
            source,
        };
        let behind = memory.file_offset();
        let behind = behind.ok_or_else(|| failed(io::ErrorKind::Unsupported.into()))?;
        let file = behind.file().try_clone().map_err(failed)?;
        self.0
            .dma_map(iova, bytes, file, behind.start())
            .map_err(|error| failed(error.into()))
    }

    fn dma_unmap(&self, iova: u64, bytes: u64) -> Result<(), BusError> {
        self.0.dma_unmap(iova, bytes);
        Ok(())
    }

    fn describe(&self) -> String {
        "simulated device in this process".into()
    }
}
