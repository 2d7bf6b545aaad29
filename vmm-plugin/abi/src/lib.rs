//! The device contract between a guest and Turnstile: registers, doorbells, commands, errors.
//!
//! The guest's driver, the VMM's device model and the mediator all compile against this crate, so
//! that each layout is defined once. `docs/DEVICE.md` describes the same contract in prose.
//! [`boot`] is what the reference VMM and its guests agree on beside the device. [`Platform`] is
//! what a driver needs of a guest.
//!
//! No value that a guest writes is trusted. The `decode` functions here check the form (opcodes,
//! lengths, alignments, reserved fields) once. The mediator checks the rest: which ranges are guest
//! memory, which handles exist.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod boot;
mod command;
pub mod cuda;
mod error;
mod mailbox;
pub mod pci;
pub mod physical;
mod platform;
pub mod regs;

pub use command::{COMMAND_BYTES, Command, CopyDirection, Dim3, FENCE_BYTES, FenceRecord, Launch};
pub use error::{ChannelStatus, ErrorCode};
pub use mailbox::{MAILBOX_ARGS, MAILBOX_RESULTS, MailboxOp, QueryItem, Request};
pub use platform::Platform;

/// Bytes of one page, and so of one doorbell.
pub const PAGE_BYTES: u64 = 4096;
/// Doorbell pages of a device, and so channels at most.
pub const CHANNELS_MAX: u32 = 1024;
/// Fewest entries of a ring.
pub(crate) const RING_ENTRIES_MIN: u32 = 8;
/// Most entries of a ring.
pub const RING_ENTRIES_MAX: u32 = 4096;
/// Bytes of the block in guest memory where the device reports a channel's state (see
/// [`ChannelStateBlock`]).
pub const CHANNEL_STATE_BYTES: u64 = 32;
/// Granule of GPU memory: allocations are rounded up to it and start at a multiple of it.
pub const CHUNK_BYTES: u64 = 2 << 20;
/// Most GPU memory of a VM and of a GPU: 1 TiB, more than any card has.
pub const GPU_MEMORY_BYTES_MAX: u64 = 1 << 40;
/// Offset in the aperture of an allocation that it does not show, as its memory is in holes.
pub const NOT_IN_APERTURE: u64 = u64::MAX;
/// Longest text of a module.
pub const MODULE_TEXT_BYTES_MAX: u64 = 4 << 20;
/// Longest name of a function.
pub const FUNCTION_NAME_BYTES_MAX: u64 = 256;
/// Most bytes of kernel parameters (as CUDA before 12.1).
pub const PARAM_BYTES_MAX: u32 = 4096;
/// Most bytes that one COPY or FILL moves. The driver splits longer ones, so that none occupies an
/// engine for long.
pub const TRANSFER_BYTES_MAX: u64 = 64 << 20;
/// First GPU virtual address that is allocated. Nothing is mapped below, so that small wild
/// addresses fault.
pub const GPU_VA_BASE: u64 = 0x10_0000_0000;

/// State that the device writes back for a channel, to the guest-physical address given when it was
/// opened. Fields by offset:
///
/// * 0: `get` u32, commands that the device has finished, modulo 2^32.
/// * 4: `status` u32, [`ChannelStatus`].
/// * 8: `error` u32, [`ErrorCode`] of the command that ended the channel.
/// * 12: `error_at` u32, index (modulo 2^32) of that command.
/// * 16: `error_info` u64, the faulting GPU address, or the offending value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelStateBlock {
    /// Commands finished, modulo 2^32.
    pub get: u32,
    /// [`ChannelStatus`] as a number.
    pub status: u32,
    /// [`ErrorCode`] as a number.
    pub error: u32,
    /// Index of the offending command.
    pub error_at: u32,
    /// Faulting address or offending value.
    pub error_info: u64,
}

impl ChannelStateBlock {
    /// Offset of `get` in the block.
    pub const GET: u64 = 0;
    /// Offset of `status` in the block.
    pub const STATUS: u64 = 4;
    /// Offset of `error` in the block.
    pub const ERROR: u64 = 8;
    /// Offset of `error_at` in the block.
    pub const ERROR_AT: u64 = 12;
    /// Offset of `error_info` in the block.
    pub const ERROR_INFO: u64 = 16;
}
