//! The device on the PCI bus.

/// Vendor id. Not assigned by the PCI-SIG: one is to be applied for before devices leave the lab.
pub const VENDOR_ID: u16 = 0x7a51;
/// Device id of the mediated GPU.
pub const DEVICE_ID: u16 = 0x0001;
/// Class code: processing accelerator.
/// SOURCE: PCI Code and ID Assignment Specification 1.11, class 12h.
pub const CLASS_CODE: u32 = 0x12_0000;
/// BAR of the registers (32-bit, 64 KiB).
pub const BAR_REGS: usize = 0;
/// BAR of the doorbells (32-bit, 4 MiB).
pub const BAR_DOORBELLS: usize = 1;
/// BAR of the aperture (64-bit prefetchable, occupies BAR 2 and 3).
pub const BAR_APERTURE: usize = 2;
/// Offset in a doorbell page of the 32-bit register that takes the put index.
pub const DOORBELL_OFFSET: u64 = 0;
/// MSI-X vectors: 0 for the mailbox, the others for channels as the driver likes.
pub const VECTORS: u16 = 32;
/// Offset of the MSI-X table in the register BAR.
pub const MSIX_TABLE: u64 = 0x2000;
/// Offset of the MSI-X pending bits in the register BAR.
pub const MSIX_PBA: u64 = 0x3000;
