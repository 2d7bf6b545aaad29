//! PCI configuration space: 256 bytes of a type 0 header with one capability, MSI-X.
//! SOURCE: PCI Local Bus Specification 3.0, 6.1 and 6.8.2.

use turnstile_abi::pci::{
    BAR_APERTURE, BAR_DOORBELLS, BAR_REGS, CLASS_CODE, DEVICE_ID, MSIX_PBA, MSIX_TABLE, VECTORS,
    VENDOR_ID,
};
use turnstile_abi::{CHANNELS_MAX, PAGE_BYTES, cuda, physical, regs};

const WORDS: usize = 64;
const SPACE_BYTES: u64 = 4 * WORDS as u64;
const COMMAND: usize = 1;
const BAR: usize = 0x10 / 4;
const CAPABILITIES: usize = 0x34 / 4;
const MSIX: usize = 0x40 / 4;
/// Memory decoding, bus mastering, INTx off.
const COMMAND_WRITABLE: u32 = 0x0406;
const STATUS_CAPABILITIES: u32 = 1 << 20;
const MSIX_ID: u32 = 0x11;
const MSIX_ENABLE: u32 = 1 << 31;
const MSIX_MASK: u32 = 1 << 30;
const BAR_64_BIT_PREFETCHABLE: u32 = 0b1100;

/// Bytes that a BAR of the device takes on the bus; a power of two.
pub fn bar_bytes(bar: usize, memory_bytes: u64) -> u64 {
    match bar {
        BAR_REGS => regs::BAR_BYTES,
        BAR_DOORBELLS => u64::from(CHANNELS_MAX) * PAGE_BYTES,
        BAR_APERTURE => memory_bytes
            .max(PAGE_BYTES)
            .checked_next_power_of_two()
            .unwrap_or(1 << 63),
        _ => 0,
    }
}

/// Configuration space of the device.
#[derive(Clone, Debug)]
pub struct ConfigSpace {
    words: [u32; WORDS],
    writable: [u32; WORDS],
}

impl ConfigSpace {
    /// After reset: no BAR placed, MSI-X off.
    pub fn new(memory_bytes: u64) -> Self {
        let mut space = Self::with_msix(DEVICE_ID, VECTORS, MSIX_TABLE, MSIX_PBA);
        let Self { words, writable } = &mut space;
        for bar in [BAR_REGS, BAR_DOORBELLS] {
            writable[BAR + bar] = !(bar_bytes(bar, memory_bytes) - 1) as u32;
        }
        let aperture = !(bar_bytes(BAR_APERTURE, memory_bytes) - 1);
        words[BAR + BAR_APERTURE] = BAR_64_BIT_PREFETCHABLE;
        writable[BAR + BAR_APERTURE] = aperture as u32 & !0xf;
        writable[BAR + BAR_APERTURE + 1] = (aperture >> 32) as u32;
        space
    }

    /// The same of the physical GPU ([`turnstile_abi::physical`]).
    pub fn physical() -> Self {
        let (table, pba) = (physical::MSIX_TABLE, physical::MSIX_PBA);
        let mut space = Self::with_msix(physical::DEVICE_ID, physical::VECTORS, table, pba);
        let bars = [physical::regs::BAR_BYTES, bar_bytes(BAR_DOORBELLS, 0)];
        for (bar, bytes) in bars.into_iter().enumerate() {
            space.writable[BAR + bar] = !(bytes - 1) as u32;
        }
        space
    }

    /// The same of the function for CUDA in guests ([`turnstile_abi::cuda`]).
    pub fn cuda() -> Self {
        let (table, pba) = (cuda::MSIX_TABLE, cuda::MSIX_PBA);
        let mut space = Self::with_msix(cuda::DEVICE_ID, cuda::VECTORS, table, pba);
        let windows = cuda::BAR_WINDOWS.map(|bar| (bar, cuda::WINDOW_BYTES));
        for (bar, bytes) in windows.into_iter().chain([(BAR_REGS, cuda::BAR_BYTES)]) {
            space.writable[BAR + bar] = !(bytes - 1) as u32;
        }
        space
    }

    /// A header without BARs, and MSI-X in the register BAR.
    fn with_msix(device: u16, vectors: u16, table: u64, pba: u64) -> Self {
        let mut words = [0; WORDS];
        let mut writable = [0; WORDS];
        words[0] = u32::from(device) << 16 | u32::from(VENDOR_ID);
        words[COMMAND] = STATUS_CAPABILITIES;
        writable[COMMAND] = COMMAND_WRITABLE;
        words[2] = CLASS_CODE << 8;
        words[0x2c / 4] = words[0];
        words[CAPABILITIES] = 0x40;
        // Interrupt line: no meaning to the device, but firmware may keep a note there.
        writable[0x3c / 4] = 0xff;
        words[MSIX] = u32::from(vectors - 1) << 16 | MSIX_ID;
        writable[MSIX] = MSIX_ENABLE | MSIX_MASK;
        words[MSIX + 1] = table as u32 | BAR_REGS as u32;
        words[MSIX + 2] = pba as u32 | BAR_REGS as u32;
        Self { words, writable }
    }

    /// Puts a BAR at an address, as firmware does. The address is rounded down to the BAR's size.
    pub fn place(&mut self, bar: usize, address: u64) {
        self.write_word(BAR + bar, address as u32);
        if bar == BAR_APERTURE {
            self.write_word(BAR + bar + 1, (address >> 32) as u32);
        }
    }

    /// Lets the device decode memory accesses, as firmware does.
    pub fn enable_memory(&mut self) {
        self.words[COMMAND] |= 1 << 1;
    }

    /// Whether MSI-X is enabled, and whether all of it is masked.
    pub(crate) fn msix_control(&self) -> (bool, bool) {
        let control = self.words[MSIX];
        (control & MSIX_ENABLE != 0, control & MSIX_MASK != 0)
    }

    /// Reads bytes; all ones beyond the space.
    pub fn read(&self, offset: u64, data: &mut [u8]) {
        for (at, byte) in (offset.min(SPACE_BYTES)..).zip(data) {
            *byte = match self.words.get((at / 4) as usize) {
                Some(word) => word.to_le_bytes()[(at % 4) as usize],
                None => 0xff,
            };
        }
    }

    /// Writes bytes where they are writable.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        for (at, byte) in (offset.min(SPACE_BYTES)..).zip(data) {
            let (word, shift) = ((at / 4) as usize, at % 4 * 8);
            if let Some(old) = self.words.get(word) {
                self.write_word(word, old & !(0xff << shift) | u32::from(*byte) << shift);
            }
        }
    }

    fn write_word(&mut self, word: usize, value: u32) {
        let mask = self.writable[word];
        self.words[word] = self.words[word] & !mask | value & mask;
    }
}
