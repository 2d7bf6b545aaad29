//! The physical GPU: the second part of the contract, between the mediator and a PCI GPU that
//! implements it. Guests see only its doorbell pages, which are mapped into them. `docs/DEVICE.md`
//! describes the same in prose.
//!
//! | BAR | what | size | access |
//! |---|---|---|---|
//! | 0 | registers, status page, MSI-X table | 64 KiB | trapped or mapped; the status page is meant to be mapped |
//! | 1 | doorbells, a page of 4 KiB per channel | 4 MiB | mapped, laid into guests page by page |
//!
//! All accesses of the device beyond its BARs use the mediator's IOMMU mappings: the *host area*,
//! which the mediator provides, and each context's own windows into the mappings.

use crate::PAGE_BYTES;

/// Device id of the physical GPU; vendor and class are those of [`crate::pci`].
pub const DEVICE_ID: u16 = 0x0002;
/// BAR of the registers.
pub const BAR_REGS: u32 = 0;
/// BAR of the doorbells.
pub const BAR_DOORBELLS: u32 = 1;
/// Doorbell pages, and so channels of all contexts together.
pub const PAGES: u32 = crate::CHANNELS_MAX;
/// MSI-X vectors, of all contexts together.
pub const VECTORS: u16 = 64;
/// Offset of the MSI-X table in BAR 0.
pub const MSIX_TABLE: u64 = 0x2000;
/// Offset of the MSI-X pending bits in BAR 0.
pub const MSIX_PBA: u64 = 0x3000;
/// Contexts at a time.
pub const CONTEXTS_MAX: u32 = 256;
/// Windows of a context at most.
pub const WINDOWS_MAX: usize = 64;
/// Engines at most.
pub const ENGINES_MAX: u8 = 16;

/// Registers of BAR 0, page 0. Accesses are 4 or 8 bytes, naturally aligned; others read as zero
/// and write nothing.
pub mod regs {
    /// Bytes of the BAR.
    pub const BAR_BYTES: u64 = 0x1_0000;
    /// u32: "TSPG" in ASCII, little-endian.
    pub const IDENTITY: u64 = 0x000;
    /// Value of [`IDENTITY`].
    pub const IDENTITY_VALUE: u32 = 0x4750_5354;
    /// u32: contract version, major << 16 | minor.
    pub const VERSION: u64 = 0x004;
    /// Value of [`VERSION`]: 1.1.
    pub const VERSION_VALUE: u32 = 0x0001_0001;
    /// u32: bits 7..0 compute engines, 15..8 copy engines, 17..16 how queued work can be stopped (0
    /// not, 1 between commands, 2 within a kernel). Bit 31: the device is simulated in software.
    /// From version 1.1 on bit 18: [`HOLD`], [`RELEASE`] and [`NOTICE`] exist, and bit 19:
    /// [`DEMAND_AREA`] exists.
    pub const ENGINES: u64 = 0x008;
    /// Bit of [`ENGINES`], only where queued work can be stopped.
    pub const ENGINES_HOLDS: u32 = 1 << 18;
    /// Bit of [`ENGINES`].
    pub const ENGINES_DEMAND: u32 = 1 << 19;
    /// Bit of [`ENGINES`].
    pub const ENGINES_SIMULATED: u32 = 1 << 31;
    /// u32: streaming multiprocessors.
    pub const MULTIPROCESSORS: u64 = 0x00c;
    /// u64: GPU memory.
    pub const MEMORY_BYTES: u64 = 0x010;
    /// u32: most shared memory of a block.
    pub const SHARED_BYTES_MAX: u64 = 0x018;
    /// u32: accesses of contexts beyond their windows, and of the device beyond the IOMMU's
    /// mappings, since the reset.
    pub const DMA_FAULTS: u64 = 0x01c;
    /// u64: the GPU's clock in nanoseconds. Reading the low half latches the matching high half.
    pub const TIME: u64 = 0x020;
    /// u32, write: any value ends all contexts, releases the host area and restarts the switch log.
    pub const RESET: u64 = 0x028;
    /// u32, write: queued work of this context is not started any more, as far as the device can.
    pub const SUSPEND: u64 = 0x02c;
    /// u32, write: queued work of this context continues.
    pub const RESUME: u64 = 0x030;
    /// u32: number of existing contexts.
    pub const CONTEXTS: u64 = 0x034;
    /// u64: address of the host area (as the IOMMU maps it, below 4 GiB if written in halves). A
    /// write takes the area into use, zero releases it. Reads as zero if the area could not be
    /// reached.
    pub const HOST_AREA: u64 = 0x038;
    /// u32, write: arms this vector for one notice; a vector that does not exist disarms. A notice
    /// while the vector is not armed again is kept and raised by the next write. Disarmed by a
    /// reset; then none is kept.
    pub const NOTICE: u64 = 0x040;
    /// u64: address of the [`super::demand`] area, as [`HOST_AREA`].
    pub const DEMAND_AREA: u64 = 0x048;

    /// u32, write: starts the command of this number ([`super::AdminOp`]); the device reads the
    /// arguments at that moment.
    pub const COMMAND: u64 = 0x080;
    /// u32: [`crate::regs::mailbox_status`].
    pub const COMMAND_STATUS: u64 = 0x084;
    /// u32: [`crate::ErrorCode`] of the command last finished.
    pub const COMMAND_ERROR: u64 = 0x088;
    /// u32: bytes of text at [`super::area::REPLY`].
    pub const COMMAND_TEXT: u64 = 0x08c;
    /// Arguments, [`super::ARGS`] words of 8 bytes.
    pub const COMMAND_ARG: u64 = 0x0c0;
    /// Results, [`super::RESULTS`] words of 8 bytes.
    pub const COMMAND_RESULT: u64 = 0x100;

    /// u32, write, one for each engine: the context of this number is held on the engine.
    pub const HOLD: u64 = 0x200;
    /// u32, write, one for each engine: the context of this number goes on there.
    pub const RELEASE: u64 = 0x204;
    /// From the registers of one engine to those of the next.
    pub const HOLD_STRIDE: u64 = 8;
}

/// Words of arguments.
pub const ARGS: usize = 8;
/// Words of results.
pub const RESULTS: usize = 4;

/// The status page, BAR 0 page 1: what the mediator polls. Reading it has no effect.
pub mod status {
    use super::PAGE_BYTES;
    /// Offset in BAR 0.
    pub const PAGE: u64 = PAGE_BYTES;
    /// Offset in the page of engine `n`'s register, a u64: bit 63 it is executing, bits 62..32 the
    /// dispatcher's slot of the current channel, bits 31..0 the context of that channel. The
    /// channel stays when the engine becomes idle.
    pub const fn engine(n: u8) -> u64 {
        n as u64 * 8
    }
    /// The engine is executing.
    pub const BUSY: u64 = 1 << 63;
}

/// Administrative commands. Texts go through the host area.
///
/// Each operation, its arguments and its results:
///
/// * 1 create context: context (a number that the mediator chooses), first doorbell page, pages,
///   bytes of GPU memory, windows in [`area::WINDOWS`].
/// * 2 destroy context: context.
/// * 3 open channel: context, ring gpa, entries, state block gpa, vector of the device. Result:
///   channel, as its page less the first.
/// * 4 close channel: context, channel.
/// * 5 allocate: context, bytes. Results: va, offset, bytes.
/// * 6 free: context, va.
/// * 7 load module: context, bytes of text in [`area::TEXT`]. Results: module, functions.
/// * 8 unload module: context, module.
/// * 9 find function: context, module, bytes of name in [`area::TEXT`]. Results: function,
///   parameter bytes.
/// * 10 memory: context. Results: bytes free, bytes held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum AdminOp {
    /// Makes a context.
    CreateContext = 1,
    /// Ends one.
    DestroyContext = 2,
    /// Opens a channel.
    OpenChannel = 3,
    /// Closes one.
    CloseChannel = 4,
    /// Allocates GPU memory.
    Allocate = 5,
    /// Frees it.
    Free = 6,
    /// Loads a module.
    LoadModule = 7,
    /// Unloads one.
    UnloadModule = 8,
    /// Finds a function.
    FindFunction = 9,
    /// Reports how much memory is free and held.
    Memory = 10,
}

impl AdminOp {
    /// Every operation.
    pub const ALL: [Self; 10] = [
        Self::CreateContext,
        Self::DestroyContext,
        Self::OpenChannel,
        Self::CloseChannel,
        Self::Allocate,
        Self::Free,
        Self::LoadModule,
        Self::UnloadModule,
        Self::FindFunction,
        Self::Memory,
    ];

    /// The operation of this number, if there is one.
    pub fn from_u32(op: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|known| *known as u32 == op)
    }
}

/// The host area: memory of the mediator's that the device reads and writes.
pub mod area {
    use crate::{MODULE_TEXT_BYTES_MAX, PAGE_BYTES};

    /// u64, the device's: records of the switch log written since the reset.
    pub const LOG_PUT: u64 = 0;
    /// The channel table: an entry for each doorbell page.
    pub const CHANNELS: u64 = PAGE_BYTES;
    /// Bytes of an entry: u32 context, u32 commands announced and not finished, u64 the time when
    /// the last one was announced or finished. Then u32 commands finished (modulo 2^32), u32
    /// stalls, 8 bytes of zeroes. A stall is a change between able and unable to use the compute
    /// engine; the count is odd while unable.
    pub const CHANNEL_BYTES: u64 = 32;
    /// Text of a refused command, the device's.
    pub const REPLY: u64 = CHANNELS + super::PAGES as u64 * CHANNEL_BYTES;
    /// Bytes of it.
    pub const REPLY_BYTES: u64 = PAGE_BYTES;
    /// Windows of a context to be made, written by the mediator: u64 gpa, u64 address as the IOMMU
    /// maps it, u64 bytes; whole pages.
    pub const WINDOWS: u64 = REPLY + REPLY_BYTES;
    /// Bytes of an entry.
    pub const WINDOW_BYTES: u64 = 24;
    /// Text of a module or a name, the mediator's.
    pub const TEXT: u64 = WINDOWS + PAGE_BYTES;
    /// The switch log, written by the device: record *n* is in entry *n mod* [`LOG_ENTRIES`].
    pub const LOG: u64 = TEXT + MODULE_TEXT_BYTES_MAX;
    /// Entries of the log.
    pub const LOG_ENTRIES: u64 = 1 << 14;
    /// Bytes of a record: u64 time, u64 number among the engine's records, u32 engine, u32 state
    /// ([`super::switch_state`]), u32 context, u32 zero.
    pub const RECORD_BYTES: u64 = 32;
    /// Bytes of the whole.
    pub const BYTES: u64 = LOG + LOG_ENTRIES * RECORD_BYTES;
}

/// The demand area: memory of the mediator's in which the device logs what contexts have for each
/// engine.
pub mod demand {
    use super::{PAGES, area};
    use crate::PAGE_BYTES;

    /// u64, the device's: records of the log written since the area was taken into use.
    pub const LOG_PUT: u64 = 0;
    /// The present demand of each context: a u64 for each doorbell page, of which the one of a
    /// context's first page counts. Bits 31..0 are the context, two bits for each engine follow.
    /// Zero without a context.
    pub const CONTEXTS: u64 = PAGE_BYTES;
    /// Bytes of an entry.
    pub const CONTEXT_BYTES: u64 = 8;
    /// The log: record *n* is in entry *n mod* [`LOG_ENTRIES`].
    pub const LOG: u64 = CONTEXTS + PAGES as u64 * CONTEXT_BYTES;
    /// Entries of the log.
    pub const LOG_ENTRIES: u64 = area::LOG_ENTRIES;
    /// Bytes of a record: u64 time, u32 context, u16 engine, u16 demand.
    pub const RECORD_BYTES: u64 = 16;
    /// Bytes of the whole.
    pub const BYTES: u64 = LOG + LOG_ENTRIES * RECORD_BYTES;

    /// No command for the engine.
    pub const NOTHING: u32 = 0;
    /// A command that the engine executes, alone.
    pub const EXECUTES: u32 = 1;
    /// A command that could start now, or as soon as the executing one ends.
    pub const QUEUED: u32 = 2;

    /// Where an engine's two bits begin in an entry of [`CONTEXTS`].
    pub const fn shift(engine: u8) -> u32 {
        32 + 2 * engine as u32
    }
}

const _: () = assert!(demand::shift(ENGINES_MAX) <= 64);
const _: () = assert!(demand::BYTES.is_multiple_of(PAGE_BYTES));
const _: () = assert!(WINDOWS_MAX as u64 * area::WINDOW_BYTES <= PAGE_BYTES);
const _: () = assert!(area::BYTES.is_multiple_of(PAGE_BYTES));

/// State of an engine in the switch log.
pub mod switch_state {
    /// Nothing runs.
    pub const IDLE: u32 = 0;
    /// The context's command runs.
    pub const RUNNING: u32 = 1;
    /// Another context is being loaded.
    pub const SWITCHING: u32 = 2;
    /// The engine recovers from a fault of the context's.
    pub const FAULT: u32 = 3;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_numbered_from_one_on() {
        for (index, op) in AdminOp::ALL.into_iter().enumerate() {
            assert_eq!(op as usize, index + 1);
            assert_eq!(AdminOp::from_u32(op as u32), Some(op));
        }
        assert_eq!(AdminOp::from_u32(0), None);
        assert_eq!(AdminOp::from_u32(11), None);
    }
}
