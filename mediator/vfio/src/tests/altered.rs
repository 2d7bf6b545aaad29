//! A bus on which some reads return other values.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

use turnstile_abi::physical::BAR_REGS;
use vm_memory::MmapRegion;

use crate::fake::FakeBus;
use crate::{Bus, BusError, Region, RegionFile};

type Alter = fn(Region, u64, &mut [u8]);

/// The bus, and the registers that were written.
#[derive(Debug)]
pub(super) struct Altered {
    bus: Arc<FakeBus>,
    alter: Alter,
    pub(super) written: Mutex<Vec<u64>>,
}

impl Altered {
    pub(super) fn new(bus: Arc<FakeBus>, alter: Alter) -> Self {
        Self {
            bus,
            alter,
            written: Mutex::default(),
        }
    }
}

impl Bus for Altered {
    fn read(&self, region: Region, offset: u64, data: &mut [u8]) -> Result<(), BusError> {
        self.bus.read(region, offset, data)?;
        (self.alter)(region, offset, data);
        Ok(())
    }

    fn write(&self, region: Region, offset: u64, data: &[u8]) -> Result<(), BusError> {
        if region == Region::Bar(BAR_REGS) {
            self.written.lock().unwrap().push(offset);
        }
        self.bus.write(region, offset, data)
    }

    fn file(&self, region: Region, offset: u64, bytes: u64) -> Result<RegionFile, BusError> {
        self.bus.file(region, offset, bytes)
    }

    fn connect(&self, vector: u16, fd: Option<BorrowedFd<'_>>) -> Result<(), BusError> {
        self.bus.connect(vector, fd)
    }

    fn dma_map(&self, iova: u64, memory: &MmapRegion<()>) -> Result<(), BusError> {
        self.bus.dma_map(iova, memory)
    }

    fn dma_unmap(&self, iova: u64, bytes: u64) -> Result<(), BusError> {
        self.bus.dma_unmap(iova, bytes)
    }

    fn describe(&self) -> String {
        "altered".into()
    }
}
