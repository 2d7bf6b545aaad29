//! What the interpreter needs from its user: memory and time.

use thiserror::Error;

/// Bytes of each window below.
pub const WINDOW_BYTES: u64 = 1 << 32;
/// Generic addresses of the block's shared memory begin here. GPU virtual addresses have at most 57
/// bits (Hopper), so the windows, which need all 64, cannot be allocated.
pub(crate) const SHARED_WINDOW: u64 = 0xffff_fff0_0000_0000;
/// Generic addresses of the thread's own local memory begin here.
pub(crate) const LOCAL_WINDOW: u64 = 0xffff_fff1_0000_0000;
/// Generic addresses of the launch's parameters begin here (read only).
pub(crate) const PARAM_WINDOW: u64 = 0xffff_fff2_0000_0000;

/// Why an address could not be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum MemoryFault {
    /// No page, or outside of shared, local or parameter memory.
    #[error("Address is not mapped")]
    Unmapped,
    /// Not a multiple of the access' size (PTX ISA 6.4.1).
    #[error("Address is not aligned to the access")]
    Misaligned,
    /// The page or space does not take writes.
    #[error("Address is read-only")]
    ReadOnly,
}

/// Global memory by GPU virtual address, little-endian. Accesses are aligned to their element;
/// those longer than an element may cross pages.
pub trait DeviceMemory {
    /// Fills `out` from `va` on.
    ///
    /// # Errors
    /// Some byte cannot be read; `out` is then unspecified.
    fn load(&self, va: u64, out: &mut [u8]) -> Result<(), MemoryFault>;

    /// Writes `data` from `va` on.
    ///
    /// # Errors
    /// Some byte cannot be written; then none of those on its page are.
    fn store(&self, va: u64, data: &[u8]) -> Result<(), MemoryFault>;

    /// Atomically replaces the 32-bit value at `va` by `f` of it and returns the old one. `f` is
    /// pure and may be called more than once.
    ///
    /// # Errors
    /// As for [`DeviceMemory::store`].
    fn update_u32(&self, va: u64, f: &dyn Fn(u32) -> u32) -> Result<u32, MemoryFault>;

    /// As [`DeviceMemory::update_u32`], 64 bits wide.
    ///
    /// # Errors
    /// As for [`DeviceMemory::store`].
    fn update_u64(&self, va: u64, f: &dyn Fn(u64) -> u64) -> Result<u64, MemoryFault>;

    /// A 32-bit load, single-copy atomic where the implementation can.
    ///
    /// # Errors
    /// As for [`DeviceMemory::load`].
    fn load_u32(&self, va: u64) -> Result<u32, MemoryFault> {
        let mut bytes = [0; 4];
        self.load(va, &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// A 64-bit load.
    ///
    /// # Errors
    /// As for [`DeviceMemory::load`].
    fn load_u64(&self, va: u64) -> Result<u64, MemoryFault> {
        let mut bytes = [0; 8];
        self.load(va, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// A 32-bit store.
    ///
    /// # Errors
    /// As for [`DeviceMemory::store`].
    fn store_u32(&self, va: u64, value: u32) -> Result<(), MemoryFault> {
        self.store(va, &value.to_le_bytes())
    }

    /// A 64-bit store.
    ///
    /// # Errors
    /// As for [`DeviceMemory::store`].
    fn store_u64(&self, va: u64, value: u64) -> Result<(), MemoryFault> {
        self.store(va, &value.to_le_bytes())
    }
}

/// A block's time. In real time the implementation reads a clock and sleeps; in virtual time it
/// sums up costs.
pub trait Timer {
    /// Nanoseconds, never falling within a block (`%globaltimer`, and `%clock` at one tick per
    /// nanosecond).
    fn now_ns(&mut self) -> u64;

    /// All warps of the block wait for `ns`, which is at most 1 ms.
    fn sleep(&mut self, ns: u64);

    /// Reports the warp instructions executed since the last call. Called before each
    /// [`Timer::now_ns`] and at the end of the block. A virtual clock advances here; a real one
    /// ignores it.
    fn executed(&mut self, warp_instructions: u64) {
        let _ = warp_instructions;
    }
}
