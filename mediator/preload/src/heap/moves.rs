//! Takes a chunk's memory from its addresses, and maps other memory there.

use std::os::fd::OwnedFd;

use super::{Chunk, Device, Outcome};
use crate::gate::Gate;

impl Chunk {
    /// Unmaps and releases its memory, which `handle` names. If unmapping fails, it stays.
    pub(super) fn release(
        &mut self,
        device: &impl Device,
        gate: &Gate,
        handle: u64,
    ) -> Outcome<()> {
        for at in 0..self.mappings.len() {
            let unmapped = device.unmap(self.mappings[at].address, self.bytes);
            if let Err(result) = unmapped {
                for at in 0..at {
                    let _ = self.lay(device, at, handle);
                }
                gate.returns();
                return Err(result);
            }
        }
        self.handle = None;
        device.release(handle)
    }

    /// Maps the memory of `fd` at its addresses. Precondition: it is missing.
    pub(super) fn restore(
        &mut self,
        device: &impl Device,
        gate: &Gate,
        fd: OwnedFd,
    ) -> Outcome<()> {
        let handle = device.import(fd)?;
        for at in 0..self.mappings.len() {
            if let Err(result) = self.lay(device, at, handle) {
                for mapping in &self.mappings[..at] {
                    let _ = device.unmap(mapping.address, self.bytes);
                }
                let _ = device.release(handle);
                return Err(result);
            }
        }
        self.handle = Some(handle);
        self.made_here = false;
        gate.returns();
        Ok(())
    }

    /// Maps it at one of its addresses.
    fn lay(&self, device: &impl Device, at: usize, handle: u64) -> Outcome<()> {
        let mapping = &self.mappings[at];
        device.map(mapping.address, self.bytes, handle)?;
        if mapping.access.is_empty() {
            return Ok(());
        }
        let permitted = device.permit(mapping.address, self.bytes, &mapping.access);
        permitted.inspect_err(|_| {
            let _ = device.unmap(mapping.address, self.bytes);
        })
    }
}
