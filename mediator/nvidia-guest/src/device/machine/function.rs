//! The PCI function as the VMM sees it.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use turnstile_abi::cuda::{self, regs};
use turnstile_abi::pci::BAR_REGS;
use turnstile_vmm::device::ConfigSpace;
use turnstile_vmm::vfio_user::{
    Area, Backend, DmaMap, DmaUnmap, Errno, Irq, Layout, Mapping, Region, SetIrqs, irq, region,
};

use super::Machine;

/// The function of one VM.
#[derive(Debug)]
pub(super) struct Function {
    machine: Arc<Machine>,
    config: ConfigSpace,
    queue: u64,
}

/// BARs and vectors. The windows' files are handed to the VMM as they are.
///
/// # Errors
/// As dup(2).
pub(super) fn layout(machine: &Machine) -> io::Result<Layout> {
    let mut layout = Layout::default();
    layout.regions[BAR_REGS] = Region::trapped(cuda::BAR_BYTES);
    let windows = machine.windows().into_iter().flatten();
    for (bar, window) in cuda::BAR_WINDOWS.into_iter().zip(windows) {
        let area = Area {
            offset: 0,
            bytes: cuda::WINDOW_BYTES,
        };
        layout.regions[bar] = Region {
            mapping: Some(Mapping {
                file: Arc::new(File::from(window.as_fd().try_clone_to_owned()?)),
                file_offset: 0,
                areas: vec![area],
            }),
            ..Region::trapped(cuda::WINDOW_BYTES)
        };
    }
    layout.irqs[irq::MSIX as usize] = Irq {
        count: cuda::VECTORS.into(),
    };
    Ok(layout)
}

impl Function {
    pub(super) fn new(machine: Arc<Machine>) -> Self {
        Self {
            machine,
            config: ConfigSpace::cuda(),
            queue: 0,
        }
    }

    fn write_register(&mut self, offset: u64, value: u32) {
        match offset {
            regs::QUEUE_LOW => self.queue = self.queue & !0xffff_ffff | u64::from(value),
            regs::QUEUE_HIGH => self.queue = self.queue & 0xffff_ffff | u64::from(value) << 32,
            regs::CONTROL if value == 0 => self.machine.stop(),
            regs::CONTROL => self.machine.start(self.queue),
            regs::KICK => self.machine.kick(),
            _ => {}
        }
    }
}

impl Backend for Function {
    fn read(&mut self, index: u32, offset: u64, data: &mut [u8]) -> Result<(), Errno> {
        if index == region::CONFIG {
            self.config.read(offset, data);
            return Ok(());
        }
        data.fill(0);
        let value = match offset {
            _ if index != BAR_REGS as u32 || data.len() != 4 => 0,
            regs::IDENTITY => regs::IDENTITY_VALUE,
            regs::VERSION => regs::VERSION_VALUE,
            regs::STATUS => self.machine.status(),
            _ => 0,
        };
        if let Some(word) = data.first_chunk_mut() {
            *word = value.to_le_bytes();
        }
        Ok(())
    }

    fn write(&mut self, index: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        if index == region::CONFIG {
            self.config.write(offset, data);
        } else if index == BAR_REGS as u32
            && let Ok(word) = data.try_into()
        {
            self.write_register(offset, u32::from_le_bytes(word));
        }
        Ok(())
    }

    fn dma_map(&mut self, map: DmaMap) -> Result<(), Errno> {
        self.machine.map(map)
    }

    fn dma_unmap(&mut self, unmap: DmaUnmap) -> Result<(), Errno> {
        self.machine.unmap(unmap)
    }

    fn set_irqs(&mut self, set: SetIrqs) -> Result<(), Errno> {
        self.machine.vectors().set(set)
    }

    fn reset(&mut self) -> Result<(), Errno> {
        self.config = ConfigSpace::cuda();
        self.queue = 0;
        self.machine.stop();
        self.machine.vectors().reset();
        Ok(())
    }
}
