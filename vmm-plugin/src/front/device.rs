//! The device as a stock VMM sees it.

use std::sync::Arc;

use turnstile_abi::pci::{BAR_APERTURE, BAR_DOORBELLS, BAR_REGS, VECTORS};
use turnstile_abi::regs::{self, device_status};

use super::link::Session;
use crate::device::{ConfigSpace, doorbell};
use crate::vfio_user::{Backend, DmaMap, DmaUnmap, Errno, SetIrqs, region};

/// The device of one connection. It has its own configuration space, as the VMM emulates most of
/// that: the VMM places BARs, and delivers MSI-X messages through the eventfds that it provides.
#[derive(Debug)]
pub(super) struct Device {
    session: Arc<Session>,
    config: ConfigSpace,
}

impl Device {
    pub(super) fn new(session: &Arc<Session>) -> Self {
        Self {
            session: Arc::clone(session),
            // No aperture: its memory is known only once the VM is a tenant, and cannot be mapped
            // then.
            config: ConfigSpace::new(0),
        }
    }

    /// A read of registers while the VM is no tenant.
    fn absent(&self, offset: u64, data: &mut [u8]) {
        data.fill(0);
        let value = match offset {
            regs::IDENTITY => regs::IDENTITY_VALUE,
            regs::VERSION => regs::VERSION_VALUE,
            regs::VECTORS => VECTORS.into(),
            regs::DEVICE_STATUS if self.session.is_refused() => device_status::LOST,
            _ => 0,
        };
        let count = data.len().min(4);
        data[..count].copy_from_slice(&value.to_le_bytes()[..count]);
    }
}

impl Backend for Device {
    fn read(&mut self, index: u32, offset: u64, data: &mut [u8]) -> Result<(), Errno> {
        match index {
            region::CONFIG => self.config.read(offset, data),
            index if index == BAR_REGS as u32 => match self.session.touched() {
                Some(attached) => attached.gpu().regs_read(offset, data),
                None => self.absent(offset, data),
            },
            _ => data.fill(0),
        }
        Ok(())
    }

    fn write(&mut self, index: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        const REGS: u32 = BAR_REGS as u32;
        const DOORBELLS: u32 = BAR_DOORBELLS as u32;
        match index {
            region::CONFIG => self.config.write(offset, data),
            REGS => {
                if let Some(attached) = self.session.touched() {
                    attached.gpu().regs_write(offset, data);
                }
            }
            DOORBELLS => {
                if let Some((channel, value)) = doorbell(offset, data)
                    && let Some(attached) = self.session.attached()
                {
                    attached.gates.trap(channel, value);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn dma_map(&mut self, map: DmaMap) -> Result<(), Errno> {
        self.session.map(map)
    }

    fn dma_unmap(&mut self, unmap: DmaUnmap) -> Result<(), Errno> {
        self.session.unmap(unmap)
    }

    fn set_irqs(&mut self, set: SetIrqs) -> Result<(), Errno> {
        self.session.vectors().table().set(set)
    }

    fn reset(&mut self) -> Result<(), Errno> {
        self.config = ConfigSpace::new(0);
        self.session.reset();
        Ok(())
    }
}

const _: () = assert!(BAR_APERTURE == 2);
