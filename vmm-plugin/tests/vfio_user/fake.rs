//! A device of this test: trapped registers, a region that is mapped in part, four vectors.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use turnstile_vmm::vfio_user::{
    Area, Backend, DMA_MAPS_MAX, DmaMap, DmaUnmap, Errno, Irq, IrqAction, IrqData, Layout, Mapping,
    ProtocolError, Region, SetIrqs, irq, region, serve,
};

pub(crate) const VECTORS: u32 = 4;
pub(crate) const REGS_BYTES: u64 = 0x1000;
pub(crate) const SHARED_BYTES: u64 = 0x4000;
/// A write of an address here makes the device sum up the 64 bytes there, write the sum behind them
/// and raise vector 0.
pub(crate) const SUM_AT: u64 = 0x10;

#[derive(Debug)]
pub(crate) struct Fake {
    regs: Vec<u8>,
    config: Vec<u8>,
    maps: BTreeMap<u64, DmaMap>,
    vectors: [Option<File>; VECTORS as usize],
    pub(crate) resets: u32,
}

pub(crate) fn memory(bytes: u64) -> File {
    let fd = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&fd, bytes).unwrap();
    File::from(fd)
}

/// Regions: BAR 0 trapped, BAR 2 mapped in its first and third page.
pub(crate) fn layout() -> (Layout, Arc<File>) {
    let shared = Arc::new(memory(SHARED_BYTES));
    let area = |offset| Area {
        offset,
        bytes: 0x1000,
    };
    let mut layout = Layout::default();
    layout.regions[0] = Region::trapped(REGS_BYTES);
    layout.regions[2] = Region {
        mapping: Some(Mapping {
            file: shared.clone(),
            file_offset: 0,
            areas: vec![area(0), area(0x2000)],
        }),
        ..Region::trapped(SHARED_BYTES)
    };
    layout.irqs[irq::MSIX as usize] = Irq { count: VECTORS };
    (layout, shared)
}

impl Fake {
    pub(crate) fn new() -> Self {
        Self {
            regs: vec![0; REGS_BYTES as usize],
            config: (0..=255).collect(),
            maps: BTreeMap::new(),
            vectors: Default::default(),
            resets: 0,
        }
    }

    fn raise(&self, vector: usize) {
        if let Some(mut eventfd) = self.vectors[vector].as_ref() {
            // A random descriptor may refuse.
            let _ = eventfd.write(&1u64.to_ne_bytes());
        }
    }

    fn sum(&self, address: u64) -> Option<()> {
        let (start, map) = self.maps.range(..=address).next_back()?;
        let at = map.offset + (address - start);
        let mut bytes = [0; 64];
        map.file.as_ref()?.read_exact_at(&mut bytes, at).ok()?;
        let sum: u64 = bytes.iter().map(|byte| u64::from(*byte)).sum();
        let file = map.file.as_ref()?;
        file.write_all_at(&sum.to_le_bytes(), at + 64).ok()?;
        self.raise(0);
        Some(())
    }
}

impl Backend for Fake {
    fn read(&mut self, index: u32, offset: u64, data: &mut [u8]) -> Result<(), Errno> {
        let from = match index {
            0 => &self.regs,
            region::CONFIG => &self.config,
            _ => {
                data.fill(index as u8);
                return Ok(());
            }
        };
        data.copy_from_slice(&from[offset as usize..offset as usize + data.len()]);
        Ok(())
    }

    fn write(&mut self, index: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        if index == 0 {
            self.regs[offset as usize..offset as usize + data.len()].copy_from_slice(data);
            if let (SUM_AT, Ok(address)) = (offset, data.try_into()) {
                self.sum(u64::from_le_bytes(address)).ok_or(Errno::IO)?;
            }
        }
        Ok(())
    }

    fn dma_map(&mut self, map: DmaMap) -> Result<(), Errno> {
        if self.maps.len() >= DMA_MAPS_MAX {
            return Err(Errno::NO_ROOM);
        }
        self.maps.insert(map.address, map);
        Ok(())
    }

    fn dma_unmap(&mut self, unmap: DmaUnmap) -> Result<(), Errno> {
        match unmap {
            DmaUnmap::All => self.maps.clear(),
            DmaUnmap::Range { address, .. } => {
                self.maps.remove(&address).ok_or(Errno::NOT_FOUND)?;
            }
        }
        Ok(())
    }

    fn set_irqs(&mut self, set: SetIrqs) -> Result<(), Errno> {
        assert!(set.start + set.count <= VECTORS, "the range was checked");
        let range = set.start as usize..(set.start + set.count) as usize;
        match (set.action, set.data) {
            (IrqAction::Trigger, IrqData::Eventfds(fds)) if !fds.is_empty() => {
                assert_eq!(fds.len(), range.len(), "the count was checked");
                for (vector, fd) in range.zip(fds) {
                    self.vectors[vector] = Some(fd);
                }
            }
            (IrqAction::Trigger, IrqData::Eventfds(_)) => {
                self.vectors[range].fill_with(|| None);
            }
            (IrqAction::Trigger, IrqData::None) if set.count == 0 => {
                self.vectors = Default::default();
            }
            (IrqAction::Trigger, IrqData::None) => range.for_each(|vector| self.raise(vector)),
            (_, IrqData::Bool(which)) => assert_eq!(which.len(), range.len()),
            _ => {}
        }
        Ok(())
    }

    fn reset(&mut self) -> Result<(), Errno> {
        self.resets += 1;
        Ok(())
    }
}

/// How serving ended, and the device afterwards.
pub(crate) type Served = (Result<(), ProtocolError>, Fake);

/// Serves the device on one end of a pair; the other end, and the thread that serves.
pub(crate) fn served() -> (UnixStream, JoinHandle<Served>) {
    let (client, server) = UnixStream::pair().unwrap();
    let (layout, _) = layout();
    let thread = thread::spawn(move || {
        let mut fake = Fake::new();
        (serve(server, &layout, &mut fake), fake)
    });
    (client, thread)
}
