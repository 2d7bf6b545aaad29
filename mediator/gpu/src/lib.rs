//! GPUs behind one trait, [`Gpu`], which is four small ones by capability.
//!
//! The traits cover what hardware can do; [`Capabilities`] states what a GPU cannot. The mediator
//! makes all calls; none of them blocks on a tenant's work, but for [`Metering::wait`].
#![deny(unsafe_code)]

mod capabilities;
pub mod conformance;
mod guest;
pub mod interrupts;
pub mod layout;
mod moves;
mod orders;
pub mod pace;
pub mod plain;
pub mod pool;
mod reading;
mod refusal;
pub mod ring;

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use serde::Serialize;
use turnstile_abi::ErrorCode;
use turnstile_accounting::meter::ChannelReading;
use turnstile_accounting::{AccountId, EngineId, Moment, Nanos, TenantId};
use turnstile_vmm::gate::{PageWords, SharedPages};
use turnstile_vmm::wire::ObjectChange;

pub use capabilities::{Capabilities, EngineStatus, Suspend};
pub use guest::GuestMemory;
pub use moves::{ChunkId, Direction, MemoryEvent, MoveError, MoveFailure, MoveOrder, MoveReport};
pub use orders::Order;
pub use reading::{EngineReading, READINGS};
pub use refusal::{ProgramRefusal, Refusal, within_limit};

/// The engine of kernels.
pub const COMPUTE: EngineId = EngineId(0);

/// Work of one channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelActivity {
    /// Channel of the tenant.
    pub channel: u32,
    /// Commands announced and not finished.
    pub pending: u32,
    /// Commands finished since the channel was opened, modulo 2^32; `None` if get is not known.
    pub finished: Option<u32>,
    /// Changes between able and unable to use the compute engine, modulo 2^32: odd while the
    /// channel waits for a value or for another engine.
    pub stalls: u32,
    /// When the last command finished or was announced, whichever is later.
    pub last_active: Moment,
}

impl ChannelActivity {
    /// The reading for the polled meter.
    pub const fn reading(&self, tenant: TenantId) -> ChannelReading {
        ChannelReading {
            tenant,
            channel: self.channel,
            finished: self.finished,
            stalls: self.stalls,
            pending: self.pending,
        }
    }
}

/// Signals a VM's interrupt vectors. Never blocks threads that serve other VMs as well.
pub trait Interrupts: Send + Sync + fmt::Debug {
    /// Raises `vector`; a vector that the VM does not have is ignored.
    fn raise(&self, vector: u16);

    /// Eventfds by which another process can raise the vectors, in their order.
    ///
    /// # Errors
    /// When the vectors are of this process alone, or it has no descriptors left.
    fn descriptors(&self) -> io::Result<Vec<OwnedFd>> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Doorbell pages of one VM as the device sees them: the last put index that passed each gate.
pub trait Doorbells: Send + Sync + fmt::Debug {
    /// The put index of `channel`; zero for a channel that has no page.
    fn put(&self, channel: u32) -> u32;
    /// Sets the page of a channel that is being opened to zero.
    fn clear(&self, channel: u32);
    /// The file of the pages, if another process can map them: a memory file, or the device.
    fn file(&self) -> Option<&File> {
        None
    }
    /// Offset of the page of channel 0 in that file.
    fn offset(&self) -> u64 {
        0
    }
}

impl Doorbells for SharedPages {
    fn put(&self, channel: u32) -> u32 {
        self.load(channel)
    }

    fn clear(&self, channel: u32) {
        self.store(channel, 0);
    }

    fn file(&self) -> Option<&File> {
        Some(SharedPages::file(self))
    }
}

/// Resources of a tenant.
#[derive(Clone, Debug)]
pub struct TenantResources {
    /// Its account, which stays the same while it is a tenant. Limits that hardware has per owner
    /// of tenants, such as for work that is never billed, apply to the account.
    pub account: AccountId,
    /// Its memory.
    pub guest: Arc<GuestMemory>,
    /// Its doorbells.
    pub doorbells: Arc<dyn Doorbells>,
    /// Its interrupts.
    pub interrupts: Arc<dyn Interrupts>,
    /// GPU memory that it may own, a multiple of the chunk size.
    pub memory_bytes: u64,
    /// Channels that it may have open.
    pub channels: u32,
}

/// A process that uses the GPU and belongs to no tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Untracked {
    /// Its number in the daemon's namespace.
    pub pid: u32,
    /// Its name, as it set it; empty if it is gone.
    pub name: String,
    /// Number of switches to it.
    pub switches: u64,
}

/// Ring and notification of a channel to be opened; the GPU has checked that the addresses are in
/// the VM's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelConfig {
    /// Guest-physical address of the ring.
    pub ring_gpa: u64,
    /// Entries, a power of two.
    pub entries: u32,
    /// Guest-physical address of the state block.
    pub state_gpa: u64,
    /// Vector of fences and faults.
    pub vector: u16,
}

/// GPU memory given to a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// First GPU virtual address.
    pub va: u64,
    /// Offset in the aperture.
    pub aperture_offset: u64,
    /// Bytes, rounded up to chunks.
    pub bytes: u64,
}

/// GPU memory of a tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TenantMemory {
    /// Bytes that it may still allocate.
    pub free_bytes: u64,
    /// Bytes that it holds; zero without [`Capabilities::memory_held`].
    pub held_bytes: u64,
    /// It is suspended and executes nothing any more, which moving its memory requires.
    pub is_quiet: bool,
}

/// A change at a VM's doorbells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DoorbellChange {
    /// A gate let a write through, or was opened: the GPU polls the doorbells now. This wakes a GPU
    /// that sleeps because all gates are watched or closed.
    Written,
    /// Whether any gate is open: then writes reach the doorbells without notice.
    AnyOpen(bool),
}

/// An event of a program that is a tenant.
#[derive(Debug)]
pub enum ProgramEvent<'a> {
    /// It becomes a tenant: the process `root`, all its descendants, and the processes of reported
    /// objects. [`Channels::destroy_context`] ends it.
    Started {
        /// Number of its first process.
        root: u32,
        /// Limit of its movable memory, if there is one.
        memory_max_bytes: Option<u64>,
    },
    /// A process of it has movable memory, and this connection of the protocol
    /// `turnstile-preload-wire`. The kernel reported that the process is the program's.
    Memory(OwnedFd),
    /// The driver handed objects to a process of it, or freed some. The kernel reported that the
    /// process is the program's. No other process has named these clients; that the objects exist
    /// is an allegation.
    Changed {
        /// The process.
        pid: u32,
        /// The objects.
        changes: &'a [ObjectChange],
    },
    /// A process of it is gone, with all that it had.
    Exited {
        /// The process.
        pid: u32,
    },
}

/// What a GPU reports about its own work.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Figures by name; names that end in `_ns` are times. They only grow.
    pub figures: BTreeMap<&'static str, u64>,
    /// Processes that use the GPU and belong to no tenant, bounded.
    pub untracked: Vec<Untracked>,
    /// Faults of each tenant's channels so far, by kind, where they are counted.
    pub faults: BTreeMap<TenantId, BTreeMap<ErrorCode, u64>>,
    /// What it cannot do on this host though GPUs of its kind can, with the remedy.
    pub lacks: Option<String>,
}

/// What a GPU is to do about its sources of engine state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Check that they are readable. Called at the end of each period: what is after the last
    /// success is not known.
    Answer,
    /// Take a silent GPU back, with a reset if it needs one. Its clock goes on.
    TakeBack,
}

/// Contexts of a GPU that was taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contexts {
    /// They are as before.
    Kept,
    /// All are gone: the GPU was reset.
    Gone,
}

/// Tenants, their channels and their modules.
pub trait Channels: Send + Sync + fmt::Debug {
    /// Doorbell pages of the GPU's own for a new tenant, if it has some. They have to be mapped
    /// into the guest, and passed to [`Self::create_context`], which takes them back if it fails.
    ///
    /// # Errors
    /// When it has none left.
    fn doorbells(
        &self,
        _tenant: TenantId,
        _channels: u32,
    ) -> Result<Option<Arc<dyn Doorbells>>, Refusal> {
        Ok(None)
    }

    /// Makes an address space for a tenant. Returns the memory file behind its aperture.
    ///
    /// # Errors
    /// When the host has no memory or descriptors for it.
    fn create_context(&self, tenant: TenantId, resources: TenantResources)
    -> Result<File, Refusal>;

    /// Ends a tenant: its running commands are stopped (or end by themselves within the kernel
    /// limit), its memory is scrubbed and freed. A program stops being a tenant and continues to
    /// run; it is resumed if it was suspended. Unknown tenants are ignored.
    fn destroy_context(&self, tenant: TenantId);

    /// Opens a channel and returns its number, which is also its doorbell page.
    ///
    /// # Errors
    /// The refusal that the guest sees.
    fn open_channel(&self, tenant: TenantId, config: ChannelConfig) -> Result<u32, Refusal>;

    /// Closes a channel; queued commands are dropped, a running one ends first (without delay to
    /// the caller).
    ///
    /// # Errors
    /// The refusal that the guest sees.
    fn close_channel(&self, tenant: TenantId, channel: u32) -> Result<(), Refusal>;

    /// Loads a module; returns its handle and the number of its functions. `max_bytes` is an
    /// operator's limit on [`TenantMemory::held_bytes`], if that is known: variables of modules
    /// count.
    ///
    /// # Errors
    /// The refusal that the guest sees: for unsupported PTX, with its line, and for variables
    /// beyond the limit.
    fn load_module(
        &self,
        tenant: TenantId,
        ptx: &str,
        max_bytes: Option<u64>,
    ) -> Result<(u32, u32), Refusal>;

    /// Unloads a module.
    ///
    /// # Errors
    /// The refusal that the guest sees.
    fn unload_module(&self, tenant: TenantId, module: u32) -> Result<(), Refusal>;

    /// Number and parameter bytes of a module's function.
    ///
    /// # Errors
    /// The refusal that the guest sees.
    fn find_function(
        &self,
        tenant: TenantId,
        module: u32,
        name: &str,
    ) -> Result<(u32, u32), Refusal>;

    /// Takes a change at a VM's doorbells.
    fn doorbells_changed(&self, tenant: TenantId, change: DoorbellChange);

    /// Takes an event of a program. [`Metering::activity`] reports its work, as far as it can be
    /// known.
    ///
    /// # Errors
    /// If the GPU takes no programs, or refuses this one or its connection.
    fn program(&self, _tenant: TenantId, event: ProgramEvent<'_>) -> Result<(), ProgramRefusal> {
        match event {
            ProgramEvent::Started { .. } => Err(ProgramRefusal::Unsupported),
            ProgramEvent::Memory(_) => Err(ProgramRefusal::Immovable),
            ProgramEvent::Changed { .. } | ProgramEvent::Exited { .. } => Ok(()),
        }
    }
}

/// Stopping and resuming tenants' work.
pub trait Suspension: Send + Sync + fmt::Debug {
    /// Takes orders, and returns at once: work may stop later.
    fn carry_out(&self, orders: &[Order]);
}

/// GPU memory of tenants.
pub trait Memory: Send + Sync + fmt::Debug {
    /// Allocates zeroed GPU memory.
    ///
    /// # Errors
    /// The refusal that the guest sees.
    fn allocate(&self, tenant: TenantId, bytes: u64) -> Result<Allocation, Refusal>;

    /// Frees and scrubs the allocation that begins at `va`.
    ///
    /// # Errors
    /// The refusal that the guest sees.
    fn free(&self, tenant: TenantId, va: u64) -> Result<(), Refusal>;

    /// Memory of a tenant; zero for one that is unknown. Where [`Capabilities::memory_held`] is not
    /// set this may be a command to the device: call it for requests of guests alone.
    fn memory(&self, tenant: TenantId) -> TenantMemory;

    /// Begins to move chunks of a quiet tenant, and returns at once. [`Self::read_memory_events`]
    /// reports the result of each. Until then the tenant runs nothing, resumed or not.
    ///
    /// # Errors
    /// If nothing of the order will be done.
    fn move_memory(&self, _order: MoveOrder) -> Result<(), MoveError> {
        Err(MoveError::Unsupported)
    }

    /// Appends the events of tenants' memory since the last call to `events`, in the order in which
    /// they happened. There are none if memory does not move.
    fn read_memory_events(&self, _events: &mut Vec<MemoryEvent>) {}
}

/// What meters and policies read of the engines.
pub trait Metering: Send + Sync + fmt::Debug {
    /// The GPU's clock: that of events, fences and kernels.
    fn now(&self) -> Moment;

    /// Reads an engine's status register and the channel table (LoGA 4.1). Cheap: called every
    /// microsecond while the meter polls.
    fn engine_status(&self, engine: EngineId) -> EngineStatus;

    /// Writes the activity of each open channel of the tenant to `channels`.
    fn activity(&self, tenant: TenantId, channels: &mut Vec<ChannelActivity>);

    /// Appends to a reading what was recorded since the last call.
    fn read(&self, reading: &mut EngineReading);

    /// Sleeps for `length`, or less if woken, or if the GPU has a notice. Returns whether it has
    /// one, so that a decision is due. A GPU with [`Capabilities::engine_holds`] has a notice when
    /// an engine has nothing more to start while held tenants have work for it. A GPU that stops
    /// running kernels also has a notice when a tenant without work for an occupied engine gets
    /// some.
    fn wait(&self, length: Nanos) -> bool {
        thread::park_timeout(Duration::from_nanos(length.0));
        false
    }

    /// Ends the sleep of another thread, if unparking it does not.
    fn wake(&self) {}
}

/// A GPU.
pub trait Gpu: Channels + Suspension + Memory + Metering {
    /// What it can do.
    fn capabilities(&self) -> Capabilities;

    /// What it reports about its own work.
    fn report(&self) -> Report {
        Report::default()
    }

    /// Answers for its sources of engine state. A silent GPU stays so until it is taken back.
    ///
    /// # Errors
    /// Why it does not answer.
    fn ask(&self, _ask: Ask) -> Result<Contexts, String> {
        Ok(Contexts::Kept)
    }
}

impl dyn Gpu + '_ {
    /// As [`Ask::Answer`].
    ///
    /// # Errors
    /// Why it does not answer.
    pub fn answers(&self) -> Result<(), String> {
        self.ask(Ask::Answer).map(drop)
    }

    /// As [`Ask::TakeBack`].
    ///
    /// # Errors
    /// Why it does not answer yet.
    pub fn take_back(&self) -> Result<Contexts, String> {
        self.ask(Ask::TakeBack)
    }
}

/// The traits' methods without their names, for code that calls a backend by its type.
pub mod prelude {
    pub use crate::{Channels as _, Gpu as _, Memory as _, Metering as _, Suspension as _};
}
