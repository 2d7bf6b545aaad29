//! Memory of a device for tests, within the crate and beside it.

use std::cell::RefCell;

use super::{DeviceMemory, MemoryFault};

/// Device memory at addresses from [`BASE`] on.
pub(crate) struct Flat(pub(crate) RefCell<Vec<u8>>);

pub(crate) const BASE: u64 = 0x1_0000_0000;

impl Flat {
    pub(crate) fn new(bytes: usize) -> Flat {
        Flat(RefCell::new(vec![0; bytes]))
    }

    fn range(&self, va: u64, len: usize) -> Result<std::ops::Range<usize>, MemoryFault> {
        let start = va.checked_sub(BASE).ok_or(MemoryFault::Unmapped)? as usize;
        let end = start.checked_add(len).ok_or(MemoryFault::Unmapped)?;
        if end > self.0.borrow().len() {
            return Err(MemoryFault::Unmapped);
        }
        Ok(start..end)
    }
}

impl DeviceMemory for Flat {
    fn load(&self, va: u64, out: &mut [u8]) -> Result<(), MemoryFault> {
        let range = self.range(va, out.len())?;
        out.copy_from_slice(&self.0.borrow()[range]);
        Ok(())
    }

    fn store(&self, va: u64, data: &[u8]) -> Result<(), MemoryFault> {
        let range = self.range(va, data.len())?;
        self.0.borrow_mut()[range].copy_from_slice(data);
        Ok(())
    }

    fn update_u32(&self, va: u64, f: &dyn Fn(u32) -> u32) -> Result<u32, MemoryFault> {
        let old = self.load_u32(va)?;
        self.store_u32(va, f(old))?;
        Ok(old)
    }

    fn update_u64(&self, va: u64, f: &dyn Fn(u64) -> u64) -> Result<u64, MemoryFault> {
        let old = self.load_u64(va)?;
        self.store_u64(va, f(old))?;
        Ok(old)
    }
}
