//! What a GPU can do, and what its status registers show.

use turnstile_accounting::TenantId;

/// What a GPU can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
// FIELDS: abilities that do not depend on each other.
pub struct Capabilities {
    /// Number of compute engines, which have the first indices.
    pub compute_engines: u8,
    /// Number of copy engines; their indices follow the compute engines'.
    pub copy_engines: u8,
    /// How a tenant's work can be stopped once it is queued.
    pub suspend: Suspend,
    /// Whether the dispatcher holds a tenant on one engine ([`crate::Order::Hold`]).
    pub engine_holds: bool,
    /// Whether tenants' demand for each engine is reported ([`crate::EngineReading::demand`]).
    pub demand: bool,
    /// Whether the engine divides its time among tenants by itself, in timeslices, and a reading
    /// shows what each worked ([`crate::EngineReading::windows`]).
    pub time_slices: bool,
    /// Whether the time that a tenant worked is known. *Resident* time is charged otherwise.
    pub worked: bool,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Most shared memory of a block.
    pub shared_bytes_max: u32,
    /// GPU memory in bytes.
    pub memory_bytes: u64,
    /// Whether [`crate::Memory::memory`] reports what a tenant holds.
    pub memory_held: bool,
    /// Bytes of tenants' memory that the host can hold; zero if memory does not move.
    pub host_pool_bytes: u64,
    /// Recommended maximum of the bytes in transit in one direction; no chunk is longer than a
    /// quarter of it. Zero if memory does not move.
    pub move_window_bytes: u64,
    /// Whether a tenant's memory may gain and lose regions. If not, its first state is used
    /// throughout.
    pub follows_guest_memory: bool,
    /// Kernels run in software.
    pub software: bool,
    /// A VM can see its GPU memory through the aperture.
    pub aperture: bool,
}

impl Capabilities {
    /// Whether memory of suspended tenants can be moved to the host and back
    /// ([`crate::Memory::move_memory`]), and tenants may own more than the GPU has. Their apertures
    /// show nothing.
    pub const fn moves_memory(&self) -> bool {
        self.host_pool_bytes > 0
    }
}

/// How a tenant's queued work can be stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suspend {
    /// Not at all: work that was announced through the doorbell runs and is charged (LoGA 4.3).
    Drains,
    /// The running command ends, the next is not started.
    BetweenCommands,
    /// A running kernel stops and later goes on.
    MidKernel,
}

/// Content of an engine's status register and of the channel table, read together (LoGA 4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineStatus {
    /// The tenant of the channel that the engine is executing, or None while it is idle or
    /// switching.
    pub running: Option<TenantId>,
}
