//! A device that failed is taken back once it answers: it is reset, and its areas, vectors and
//! clock begin anew. The contexts of before are gone; the daemon ends their tenants.

use std::sync::PoisonError;

use turnstile_abi::physical::{VECTORS, regs};
use turnstile_accounting::{Moment, TenantId};

use super::{AREA_IOVA, VfioGpu};
use crate::area;
use crate::begin::{identify, status_page};
use crate::error::StartError;
use crate::features::capabilities;
use crate::notices;
use crate::tenants::Tenants;

impl VfioGpu {
    /// Makes the device use both areas.
    pub(super) fn take_areas(&self) -> Result<(), StartError> {
        self.take_area(regs::HOST_AREA, AREA_IOVA)?;
        if self.demand.is_some() {
            // CAST: some MiB.
            self.take_area(regs::DEMAND_AREA, AREA_IOVA + area::DEMAND as u32)?;
        }
        Ok(())
    }

    /// Takes a device that failed: all contexts are gone, and its clock and logs begin anew.
    pub(super) fn take_again(&self) -> Result<(), StartError> {
        let is_new = self.bus.reconnect()?;
        let version = identify(&*self.bus, &self.admin)?;
        // A device of other abilities is refused: the daemon was started for the first.
        if capabilities(&self.admin, version)? != self.capabilities {
            return Err(StartError::Changed);
        }
        self.admin.write32(regs::RESET, 1)?;
        let map = status_page(&*self.bus)?;
        *self.status.write().unwrap_or_else(PoisonError::into_inner) = map;
        if !is_new {
            // The device was reset: it uses none of this memory any more.
            let _ = self.bus.dma_unmap(AREA_IOVA.into(), area::BYTES);
            let tenants: Vec<TenantId> = self.tenants().known.keys().copied().collect();
            for tenant in tenants {
                self.clear_away(tenant);
            }
        }
        let vectors = self.notices.as_ref().map_or(VECTORS, |_| notices::VECTOR);
        let before = std::mem::replace(&mut *self.tenants(), Tenants::new(vectors));
        self.admin.area.clear();
        *self.log_get.lock().unwrap_or_else(PoisonError::into_inner) = 0;
        let time = Moment(self.admin.read64(regs::TIME)?);
        self.clock.begin_anew(time);
        if let Some(demand) = &self.demand {
            let shift_ns = self.clock.shifted(Moment(0)).0;
            let mut reader = demand.lock().unwrap_or_else(PoisonError::into_inner);
            reader.begin_anew(shift_ns);
        }
        self.bus
            .dma_map(AREA_IOVA.into(), self.admin.area.region())?;
        if let Some(notices) = &self.notices {
            notices.connect(&*self.bus, &self.admin)?;
        }
        self.take_areas()?;
        // After the reset no device uses the memory of tenants of before.
        drop(before);
        Ok(())
    }

    /// Makes the device use an area.
    fn take_area(&self, register: u64, iova: u32) -> Result<(), StartError> {
        self.admin.write32(register, iova)?;
        match self.admin.read64(register)? == u64::from(iova) {
            true => Ok(()),
            false => Err(StartError::NoDma),
        }
    }
}
