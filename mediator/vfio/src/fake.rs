//! A bus within this process, with simulated hardware on it.

use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;

use turnstile_abi::PAGE_BYTES;
use turnstile_abi::physical::{BAR_DOORBELLS, BAR_REGS, regs, status};
use vm_memory::MmapRegion;

use super::bus::{Bus, BusError, Region, RegionFile};
use turnstile_soft::pci::{PciGpu, Region as Part};

/// Version of the contract that the device shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contract {
    Present,
    /// Without the registers for holds, demand and notices.
    V1_0,
}

/// A [`PciGpu`] without a real bus.
#[derive(Debug)]
pub struct FakeBus {
    device: PciGpu,
    contract: Contract,
}

impl FakeBus {
    /// Plugs a device in.
    pub fn new(device: PciGpu) -> Self {
        let contract = Contract::Present;
        Self { device, contract }
    }

    /// Plugs a device in that has version 1.0 of the contract.
    pub fn version_1_0(device: PciGpu) -> Self {
        let contract = Contract::V1_0;
        Self { device, contract }
    }

    /// The device.
    pub fn device(&self) -> &PciGpu {
        &self.device
    }

    /// Whether a register exists.
    fn exists(&self, region: Region, offset: u64) -> bool {
        let is_new = matches!(offset & !7, regs::NOTICE | regs::DEMAND_AREA)
            || (regs::HOLD..status::PAGE).contains(&offset);
        self.contract == Contract::Present || region != Region::Bar(BAR_REGS) || !is_new
    }
}

/// What a register of 4 bytes reads as in version 1.0.
fn version_1_0(offset: u64, data: &mut [u8]) {
    let Ok(word) = <[u8; 4]>::try_from(&*data) else {
        return;
    };
    let word = u32::from_le_bytes(word);
    let word = match offset {
        regs::VERSION => 0x1_0000,
        regs::ENGINES => word & !(regs::ENGINES_HOLDS | regs::ENGINES_DEMAND),
        _ => word,
    };
    data.copy_from_slice(&word.to_le_bytes());
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
            Some(part) if self.exists(region, offset) => self.device.read(part, offset, data),
            Some(_) => data.fill(0),
            None => data.fill(0xff),
        }
        if (region, self.contract) == (Region::Bar(BAR_REGS), Contract::V1_0) {
            version_1_0(offset, data);
        }
        Ok(())
    }

    fn write(&self, region: Region, offset: u64, data: &[u8]) -> Result<(), BusError> {
        if let Some(part) = part(region).filter(|_| self.exists(region, offset)) {
            self.device.write(part, offset, data);
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
                (self.device.status_file(), offset)
            }
            Region::Bar(BAR_DOORBELLS) => (self.device.doorbells_file(), offset),
            _ => return Err(failed(io::ErrorKind::Unsupported.into())),
        };
        let file = file.try_clone().map_err(failed)?;
        Ok(RegionFile { file, offset })
    }

    fn connect(&self, vector: u16, eventfd: Option<BorrowedFd<'_>>) -> Result<(), BusError> {
        let copy = eventfd.map(|fd| fd.try_clone_to_owned()).transpose();
        let copy = copy.map_err(|source| BusError::Vector { vector, source })?;
        self.device.connect(vector, copy.map(File::from));
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
        self.device
            .dma_map(iova, bytes, file, behind.start())
            .map_err(|error| failed(error.into()))
    }

    fn dma_unmap(&self, iova: u64, bytes: u64) -> Result<(), BusError> {
        self.device.dma_unmap(iova, bytes);
        Ok(())
    }

    fn describe(&self) -> String {
        "simulated device in this process".into()
    }
}
