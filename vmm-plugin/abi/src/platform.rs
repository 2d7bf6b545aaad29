//! What the driver needs of its surroundings.

/// The device's buses and the guest's memory, clock and sleep.
///
/// Addresses of guest memory are guest-physical and naturally aligned. All accesses are volatile:
/// the device writes the same memory.
pub trait Platform {
    /// Reads a word of the device's PCI configuration space; `offset` is a multiple of 4.
    fn config_read(&self, offset: u8) -> u32;
    /// Writes a word of the device's PCI configuration space.
    fn config_write(&self, offset: u8, value: u32);

    /// Reads a 32-bit register of BAR 0.
    fn reg_read32(&self, offset: u64) -> u32;
    /// Reads a 64-bit register of BAR 0.
    fn reg_read64(&self, offset: u64) -> u64;
    /// Writes a 32-bit register of BAR 0.
    fn reg_write32(&self, offset: u64, value: u32);
    /// Writes a 64-bit register of BAR 0.
    fn reg_write64(&self, offset: u64, value: u64);

    /// Writes the doorbell of `channel` in BAR 1. All earlier writes to memory are visible to the
    /// device first.
    fn ring_doorbell(&self, channel: u32, put: u32);

    /// Reads a word of the aperture, BAR 2.
    fn aperture_read(&self, offset: u64) -> u64;
    /// Writes a word of the aperture, BAR 2.
    fn aperture_write(&self, offset: u64, value: u64);

    /// Reads a word of guest memory; what the device wrote before it is visible afterwards
    /// (acquire).
    fn read_u32(&self, gpa: u64) -> u32;
    /// As [`Self::read_u32`], 64 bits.
    fn read_u64(&self, gpa: u64) -> u64;
    /// Writes a word of guest memory.
    fn write_u32(&self, gpa: u64, value: u32);
    /// As [`Self::write_u32`], 64 bits.
    fn write_u64(&self, gpa: u64, value: u64);
    /// Reads bytes of guest memory.
    fn read_bytes(&self, gpa: u64, bytes: &mut [u8]);
    /// Writes bytes of guest memory.
    fn write_bytes(&self, gpa: u64, bytes: &[u8]);

    /// Address and data of the message that reaches this guest as `vector`.
    fn msi(&self, vector: u16) -> (u64, u32);
    /// Sleeps until an interrupt, or about `at_most_ns` nanoseconds. An interrupt since the last
    /// sleep ends it at once, so that none is missed. May return early.
    fn wait(&self, at_most_ns: u64);
    /// A clock in nanoseconds that never goes back.
    fn now_ns(&self) -> u64;
}
