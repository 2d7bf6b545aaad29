//! GPUs behind one trait.
//!
//! The trait covers what hardware can do; [`Capabilities`] states what a GPU cannot. One folder per
//! GPU.
#![deny(unsafe_code)]

mod capabilities;
mod guest;
pub mod interrupts;
pub mod layout;
mod look;
mod moves;
pub mod pace;
pub mod pool;
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
use turnstile_accounting::{
    AccountId, DemandEvent, EngineId, Moment, Nanos, SwitchEvent, TenantId,
};
use turnstile_vmm::gate::{PageWords, SharedPages};
use turnstile_vmm::wire::ObjectChange;

pub use capabilities::{Capabilities, EngineStatus, Suspend};
pub use guest::GuestMemory;
pub use look::{LOOKS, Look};
pub use moves::{ChunkId, Direction, MemoryEvent, MoveError, MoveFailure, MoveOrder, MoveReport};
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

/// A GPU. The mediator makes all calls; none of them blocks on a tenant's work.
pub trait Gpu: Send + Sync + fmt::Debug {
    /// What it can do.
    fn capabilities(&self) -> Capabilities;

    /// The GPU's clock: that of events, fences and kernels.
    fn now(&self) -> Moment;

    /// Doorbell pages of the GPU's own for a new tenant, if it has some. They have to be mapped
    /// into the guest, and passed to [`Gpu::create_context`], which takes them back if it fails.
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

    /// Bytes that the tenant may still allocate.
    fn memory_free_bytes(&self, tenant: TenantId) -> u64;

    /// GPU memory that the tenant holds, if that is known.
    fn memory_held_bytes(&self, _tenant: TenantId) -> Option<u64> {
        None
    }

    /// Loads a module; returns its handle and the number of its functions. `max_bytes` is an
    /// operator's limit on [`Self::memory_held_bytes`], if that is known: variables of modules
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

    /// Reads an engine's status register and the channel table (LoGA 4.1). Cheap: called every
    /// microsecond while the meter polls.
    fn engine_status(&self, engine: EngineId) -> EngineStatus;

    /// Bytes that copy engines have moved since the last call, by the tenant that is charged for
    /// their time: those of finished commands and moves. None if the GPU does not count them.
    fn take_copied(&self) -> Option<BTreeMap<TenantId, u64>> {
        None
    }

    /// Whether the compute engine is idle, if only tenants that may run are counted. May take a
    /// millisecond to find out.
    fn has_run_dry(&self) -> bool {
        self.engine_status(EngineId(0)).running.is_none()
    }

    /// Sleeps for `length`, or less if woken, or if the GPU has a notice. Returns how soon a
    /// decision about the notice is due, if one is. A GPU with [`Capabilities::engine_holds`] has a
    /// notice when an engine has nothing more to start while held tenants have work for it. A GPU
    /// that stops running kernels also has a notice when a tenant without work for an occupied
    /// engine gets some.
    fn nap(&self, length: Nanos) -> Option<Nanos> {
        thread::park_timeout(Duration::from_nanos(length.0));
        None
    }

    /// Ends the sleep of another thread, if unparking it does not.
    fn wake(&self) {}

    /// Appends the context switches logged since the last call to `events`, oldest first. Dropped
    /// records show as gaps in the sequence numbers. False if some were dropped after the last one:
    /// the state that it began may have ended.
    fn read_events(&self, events: &mut Vec<SwitchEvent>) -> bool;

    /// Appends the changes of tenants' demand since the last call to `events`, oldest first. After
    /// a loss the current state of every tenant follows.
    fn read_demand(&self, _events: &mut Vec<DemandEvent>) {}

    /// Holds a tenant on an engine, or releases it ([`Capabilities::engine_holds`]). While it is
    /// held, no further command of it is started there, and a running kernel stops if
    /// [`Suspend::MidKernel`] is possible. The order of commands within a channel stays.
    fn hold(&self, _tenant: TenantId, _engine: EngineId, _held: bool) {}

    /// Polls the compute engine ([`Capabilities::time_slices`]).
    fn read_look(&self, _look: &mut Look) {}

    /// Sets the timeslice of a tenant's channel groups ([`Capabilities::time_slices`]).
    fn set_slice(&self, _tenant: TenantId, _slice: Nanos) {}

    /// Writes the activity of each open channel of the tenant to `channels`.
    fn activity(&self, tenant: TenantId, channels: &mut Vec<ChannelActivity>);

    /// Stops the tenant's queued work as far as [`Capabilities::suspend`] allows; returns at once.
    fn suspend(&self, tenant: TenantId);

    /// Lets the tenant's work continue.
    fn resume(&self, tenant: TenantId);

    /// Whether a suspended tenant executes nothing any more, which moving its memory requires.
    fn is_quiet(&self, _tenant: TenantId) -> bool {
        false
    }

    /// Begins to move chunks of a quiet tenant, and returns at once. [`Gpu::read_memory_events`]
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

    /// Polls the tenant's doorbells now: a gate let a write through, or was opened. This wakes a
    /// GPU that sleeps because all gates are watched or closed.
    fn ring(&self, tenant: TenantId);

    /// Sets whether any gate of the tenant is open, so that its doorbells have to be polled without
    /// a call of [`Gpu::ring`].
    fn set_unwatched(&self, tenant: TenantId, open: bool);

    /// Makes a program a tenant: the process `root`, all its descendants, and the processes of
    /// reported objects. [`Gpu::destroy_context`] ends it. [`Gpu::activity`] reports its work, as
    /// far as it can be known. `memory_max_bytes` limits its movable memory, if it is given.
    ///
    /// # Errors
    /// If the GPU takes no programs.
    fn add_program(
        &self,
        _tenant: TenantId,
        _root: u32,
        _memory_max_bytes: Option<u64>,
    ) -> Result<(), ProgramRefusal> {
        Err(ProgramRefusal::Unsupported)
    }

    /// A process of a program has movable memory, and a connection of the protocol
    /// `turnstile-preload-wire` for it. The kernel reported that the process is the program's.
    ///
    /// # Errors
    /// If the GPU refuses the connection, and why.
    fn program_memory(&self, _tenant: TenantId, _connection: OwnedFd) -> Result<(), String> {
        Err("this GPU does not move memory of programs".into())
    }

    /// The driver handed objects to a process of a program, or freed some. The kernel reported that
    /// the process is the program's. No other process has named these clients; that the objects
    /// exist is an allegation.
    fn program_changed(&self, _tenant: TenantId, _pid: u32, _changes: &[ObjectChange]) {}

    /// A process of a program is gone, with all that it had.
    fn program_exited(&self, _tenant: TenantId, _pid: u32) {}

    /// Why no source of engine state is readable now; none while all are. Called at the end of each
    /// period: what is after the last call that returned none is not known.
    fn silence(&self) -> Option<String> {
        None
    }

    /// Takes a silent GPU back. Its contexts are gone then, and its clock goes on.
    ///
    /// # Errors
    /// Why it does not answer yet.
    fn retake(&self) -> Result<(), String> {
        Err("this GPU cannot be taken back while the daemon runs".into())
    }

    /// Faults of the tenant's channels so far, by kind; empty where they are not counted.
    fn faults(&self, _tenant: TenantId) -> BTreeMap<ErrorCode, u64> {
        BTreeMap::new()
    }

    /// Figures of its own work, by name; names that end in `_ns` are times. They only grow.
    fn figures(&self) -> BTreeMap<&'static str, u64> {
        BTreeMap::new()
    }

    /// Processes that use the GPU and belong to no tenant, bounded.
    fn untracked(&self) -> Vec<Untracked> {
        Vec::new()
    }
}
