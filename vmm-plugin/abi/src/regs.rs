//! The register BAR (BAR 0, 64 KiB): one trapped page, one read-only status page, the MSI-X table.
//!
//! | page | what | access |
//! |---|---|---|
//! | 0x0000 | registers and mailbox | trapped, 4- and 8-byte accesses, naturally aligned |
//! | 0x1000 | status page | mapped read-only: reads cost no exit, writes are dropped |
//! | 0x2000 | MSI-X table | trapped |
//! | 0x3000 | MSI-X pending bits | trapped; read as zero: what is raised while masked is delivered on unmasking |

/// Bytes of the register BAR.
pub const BAR_BYTES: u64 = 0x1_0000;

/// Read-only: "TSGP" in ASCII, little-endian.
pub const IDENTITY: u64 = 0x000;
/// Value of [`IDENTITY`].
pub const IDENTITY_VALUE: u32 = 0x5047_5354;
/// Read-only: contract version, major << 16 | minor. A driver refuses an unknown major.
pub const VERSION: u64 = 0x004;
/// Value of [`VERSION`]: 1.0.
pub const VERSION_VALUE: u32 = 0x0001_0000;
/// Read-only u64: [`features`].
pub const FEATURES: u64 = 0x008;
/// Read-only: channels that this VM may have open.
pub const CHANNELS: u64 = 0x010;
/// Read-only: MSI-X vectors.
pub const VECTORS: u64 = 0x014;
/// Read-only u64: bytes of GPU memory that this VM may own; also the part of the aperture that is
/// backed.
pub const MEMORY_BYTES: u64 = 0x018;
/// Read-only: [`device_status`] bits.
pub const DEVICE_STATUS: u64 = 0x020;
/// Interrupt status; write 1 to clear. Bit 0: the mailbox has an answer. Channels have no bit:
/// their interrupts reach the guest without passing the device. A driver reads their fences and
/// state blocks instead.
pub const INTERRUPT_STATUS: u64 = 0x024;

/// Write: starts the request of this operation ([`crate::MailboxOp`]); the device reads the
/// arguments at that moment. Read: the operation last started.
pub const MAILBOX_OP: u64 = 0x040;
/// Read-only: [`mailbox_status`].
pub const MAILBOX_STATUS: u64 = 0x044;
/// Read-only: [`crate::ErrorCode`] of the request last finished.
pub const MAILBOX_ERROR: u64 = 0x048;
/// Read-only: bytes of [`MAILBOX_TEXT`] that are in use.
pub const MAILBOX_TEXT_LEN: u64 = 0x04c;
/// Arguments, [`crate::MAILBOX_ARGS`] words of 8 bytes.
pub const MAILBOX_ARG: u64 = 0x080;
/// Read-only: results, [`crate::MAILBOX_RESULTS`] words of 8 bytes.
pub const MAILBOX_RESULT: u64 = 0x0c0;
/// Read-only: why the request was refused, in UTF-8.
pub const MAILBOX_TEXT: u64 = 0x100;
/// Bytes at [`MAILBOX_TEXT`].
pub const MAILBOX_TEXT_BYTES: u64 = 0x100;

/// Bits of [`FEATURES`].
pub mod features {
    /// Kernels are loaded as PTX text.
    pub const PTX: u64 = 1 << 0;
    /// The aperture BAR is backed by the VM's GPU memory.
    pub const APERTURE: u64 = 1 << 1;
    /// The status page is kept up to date.
    pub const STATUS_PAGE: u64 = 1 << 2;
    /// Kernels run on a software GPU: correct, and slow.
    pub const SOFTWARE: u64 = 1 << 3;
}

/// Bits of [`DEVICE_STATUS`].
pub mod device_status {
    /// The device takes requests.
    pub const READY: u32 = 1 << 0;
    /// The mediator is gone ([`crate::ErrorCode::DeviceLost`]).
    pub const LOST: u32 = 1 << 1;
}

/// Values of [`MAILBOX_STATUS`].
pub mod mailbox_status {
    /// No request was made yet.
    pub const IDLE: u32 = 0;
    /// Working; an interrupt on vector 0 follows.
    pub const BUSY: u32 = 1;
    /// The last request succeeded; results are valid.
    pub const DONE: u32 = 2;
    /// The last request was refused; error and text are valid.
    pub const REFUSED: u32 = 3;
}

/// The status page: state of the engines that a VM reads without an exit. It covers the VM's own
/// use only: whether an engine runs this VM or another one, but not which other.
///
/// All fields are little-endian. A u64 field is written in one store, so each is consistent in
/// itself.
pub mod status {
    /// Offset of the page in the register BAR.
    pub const PAGE: u64 = 0x1000;
    /// u32 for each of the [`crate::regs::status::ENGINES`] engines: [`engine_state`](self::engine_state).
    pub const ENGINE_STATE: u64 = 0x000;
    /// Engines reported: compute, copy 0, copy 1.
    pub const ENGINES: u64 = 3;
    /// u64: nanoseconds of compute engine that this VM was charged.
    pub const COMPUTE_NS: u64 = 0x010;
    /// u64: nanoseconds of copy engines that this VM was charged.
    pub const COPY_NS: u64 = 0x018;
    /// u32: the VM's weight.
    pub const WEIGHT: u64 = 0x020;
    /// u32: 1 while the VM is admitted, 0 while it is held back.
    pub const ADMITTED: u64 = 0x024;
    /// u64: nanoseconds for which the VM was held back with work queued.
    pub const HELD_NS: u64 = 0x028;
    /// u64: the mediator's clock in nanoseconds when the page was last written.
    pub const UPDATED_AT_NS: u64 = 0x030;

    /// Values of [`ENGINE_STATE`].
    pub mod engine_state {
        /// Nothing runs.
        pub const IDLE: u32 = 0;
        /// This VM's command runs.
        pub const OWN: u32 = 1;
        /// Another VM's command runs, or the engine is being switched.
        pub const OTHER: u32 = 2;
    }
}
