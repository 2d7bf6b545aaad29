//! The function for CUDA in guests: registers, and the queue in guest memory.
//!
//! | BAR | what | size | access |
//! |---|---|---|---|
//! | 0 | registers, MSI-X table | 16 KiB | trapped |
//! | 2 | doorbell window | 64 KiB | mapped |
//! | 4 | doorbell window through BAR 1 of the GPU | 64 KiB | mapped |
//!
//! The driver places [`queue`] in its memory, writes its address, and starts it. A request is put
//! into a slot and its number into the ring of submissions; a write of KICK makes the device read
//! that. Completions have any order. `guest-agent/kernel/protocol.h` has the same numbers in C.

/// Device id; vendor and class are those of [`crate::pci`].
pub const DEVICE_ID: u16 = 0x0003;
/// MSI-X vectors: completions, events.
pub const VECTORS: u16 = 2;
/// Raised when requests are completed.
pub const VECTOR_COMPLETIONS: usize = 0;
/// Raised when files have events.
pub const VECTOR_EVENTS: usize = 1;
/// BARs of the doorbell windows, without and with the mapping through BAR 1 of the GPU.
pub const BAR_WINDOWS: [usize; 2] = [2, 4];
/// Bytes of a doorbell window.
pub const WINDOW_BYTES: u64 = 0x1_0000;
/// Bytes of the register BAR.
pub const BAR_BYTES: u64 = 0x4000;
/// Offset of the MSI-X table in BAR 0.
pub const MSIX_TABLE: u64 = 0x2000;
/// Offset of the MSI-X pending bits in BAR 0.
pub const MSIX_PBA: u64 = 0x3000;

/// Registers of BAR 0. Accesses have 4 bytes, aligned; others read as zero and write nothing.
pub mod regs {
    /// Read: [`IDENTITY_VALUE`].
    pub const IDENTITY: u64 = 0x00;
    /// Read: [`VERSION_VALUE`].
    pub const VERSION: u64 = 0x04;
    /// Read: bits of `STATUS_*`.
    pub const STATUS: u64 = 0x08;
    /// Write: low half of the queue's address.
    pub const QUEUE_LOW: u64 = 0x10;
    /// Write: high half of the queue's address.
    pub const QUEUE_HIGH: u64 = 0x14;
    /// Write: 1 starts the queue; 0 stops it, closes all files, and is answered then.
    pub const CONTROL: u64 = 0x18;
    /// Write: there are submissions.
    pub const KICK: u64 = 0x20;
    /// "TSCU".
    pub const IDENTITY_VALUE: u32 = 0x5543_5354;
    /// Version of registers and queue.
    pub const VERSION_VALUE: u32 = 1;
    /// The queue is served.
    pub const STATUS_RUNNING: u32 = 1;
    /// The driver broke the queue's rules; it is not served until it is started again.
    pub const STATUS_FAILED: u32 = 2;
}

/// The queue: one block of guest memory. Indices count up modulo 2^32.
pub mod queue {
    /// Bytes of the block.
    pub const BYTES: u64 = 8192;
    /// Slots, and entries of the two rings of slots.
    pub const SLOTS: u32 = 128;
    /// Entries of the ring of events.
    pub const EVENTS: u32 = 256;
    /// Index of submissions; written by the driver.
    pub const SUBMITTED: u64 = 0;
    /// Index of completions.
    pub const COMPLETED: u64 = 64;
    /// Index of events: numbers of files.
    pub const EVENT_INDEX: u64 = 68;
    /// How often the ring of events was full: each file may have had an event then.
    pub const OVERFLOWS: u64 = 72;
    /// Events that the driver has taken; written by the driver.
    pub const EVENTS_SEEN: u64 = 128;
    /// Ring of submitted slots.
    pub const SUBMIT_RING: u64 = 256;
    /// Ring of completed slots.
    pub const COMPLETE_RING: u64 = 768;
    /// Ring of events.
    pub const EVENT_RING: u64 = 1280;
    /// Slots: u64 address, u32 bytes, u32 segments, u32 room, u32 answer's bytes, u64 reserved.
    /// With segments, the address is that of a list of them: u64 address, u64 bytes.
    pub const SLOT_TABLE: u64 = 4096;
    /// Bytes of a slot.
    pub const SLOT_BYTES: u64 = 32;
    /// Byte of the answer's length in a slot.
    pub const SLOT_ANSWER: u64 = 20;
}
