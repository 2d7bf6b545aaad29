//! What kind of GPU is to be made.

use turnstile_accounting::Nanos;

use turnstile_gpu::Suspend;

/// Index of the compute engine.
pub const COMPUTE: usize = 0;
/// Engines: one that computes, two that copy.
pub const ENGINES: usize = 3;

/// Source of a kernel's length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernels {
    /// The module's PTX is interpreted and the results are right. In real time a kernel takes as
    /// long as its interpretation, in virtual time as long as [`CostModel`] yields.
    Interpreted,
    /// Nothing is computed and no module is needed: the first u64 of the parameters is the length
    /// in nanoseconds.
    GivenLength,
}

/// What instructions and accesses cost in virtual time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CostModel {
    /// Picoseconds that a block spends on one warp instruction.
    pub warp_instruction_ps: u64,
    /// Picoseconds that a block spends more for each 32-byte sector of global memory that it
    /// touches.
    pub sector_ps: u64,
    /// From the front end to the first block.
    pub launch: Nanos,
    /// From the front end to the first byte of a copy or fill.
    pub transfer: Nanos,
    /// What a command that needs no engine takes of its account's front-end budget, in real time
    /// as well; 0 for no budget. An account earns 1 % of time and saves up to 1 ms. A tenant is
    /// granted 4 such commands at each command that an engine finished for it.
    pub front_end: Nanos,
}

impl Default for CostModel {
    /// About one Hopper multiprocessor at 1.755 GHz that issues one warp instruction of a block per
    /// cycle; a sector costs four cycles of it. A model to reason with, not a measurement.
    fn default() -> Self {
        Self {
            warp_instruction_ps: 570,
            sector_ps: 2_280,
            launch: Nanos(2_000),
            transfer: Nanos(1_000),
            front_end: Nanos(100),
        }
    }
}

/// A software GPU to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
// FIELDS: settings, each of its own.
pub struct SoftConfig {
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Blocks that a multiprocessor holds at most. SOURCE: CUDA C programming guide, compute
    /// capability 9.0: 32.
    pub block_slots: u32,
    /// Warps that a multiprocessor holds at most. SOURCE: as above: 64.
    pub warp_slots: u32,
    /// Shared memory of a multiprocessor in bytes. SOURCE: as above: 228 KiB.
    pub shared_bytes: u32,
    /// Most shared memory of a block in bytes. SOURCE: as above: 227 KiB.
    pub shared_bytes_max: u32,
    /// Bytes per second of each copy engine.
    pub link_rate: u64,
    /// What an engine spends on changing from one tenant to another.
    pub switch: Nanos,
    /// What an engine spends on a command that ended in a fault, in the state `Fault`.
    pub fault: Nanos,
    /// Memory of the card in bytes, a multiple of the chunk size.
    pub memory_bytes: u64,
    /// Bytes of the host's pool for memory that is not on the card; zero for memory that stays
    /// where it is. Memory moves only where queued work can be stopped.
    pub host_pool_bytes: u64,
    /// What a kernel may run before it is ended. In virtual time an endless kernel is computed up
    /// to here: at the default costs a second of it is two thousand million instructions, which
    /// take minutes.
    pub kernel_limit: Nanos,
    /// How queued work can be stopped.
    pub suspend: Suspend,
    /// Context switches that are kept for the next reader; older ones are dropped.
    pub log_capacity: usize,
    /// Seed of the variation below.
    pub seed: u64,
    /// Virtual time only: kernel lengths vary by up to this many thousandths to either side.
    pub jitter_permille: u32,
    /// What work costs in virtual time.
    pub cost: CostModel,
    /// Source of a kernel's length.
    pub kernels: Kernels,
    /// Modules of a tenant at most.
    pub modules_max: usize,
    /// Bytes of text of all modules of a tenant at most.
    pub module_text_bytes_max: usize,
    /// Allocations of a tenant at most.
    pub allocations_max: usize,
}

impl Default for SoftConfig {
    fn default() -> Self {
        Self {
            multiprocessors: 8,
            block_slots: 32,
            warp_slots: 64,
            shared_bytes: 228 << 10,
            shared_bytes_max: 227 << 10,
            link_rate: 12_000_000_000,
            switch: Nanos::ZERO,
            fault: Nanos::ZERO,
            memory_bytes: 1 << 30,
            host_pool_bytes: 0,
            kernel_limit: Nanos::from_ms(10_000),
            suspend: Suspend::Drains,
            log_capacity: 1 << 16,
            seed: 0,
            jitter_permille: 0,
            cost: CostModel::default(),
            kernels: Kernels::Interpreted,
            modules_max: 64,
            module_text_bytes_max: 16 << 20,
            allocations_max: 4096,
        }
    }
}

impl SoftConfig {
    /// Bytes of the pool, if there is one.
    pub(super) fn pool_bytes(&self) -> Option<u64> {
        let moves = self.host_pool_bytes > 0 && self.suspend != Suspend::Drains;
        moves.then_some(self.host_pool_bytes)
    }

    /// What `bytes` take on the link, rounded up.
    pub(super) fn link_time(&self, bytes: u64) -> Nanos {
        let ns = u128::from(bytes) * 1_000_000_000;
        let ns = ns.div_ceil(u128::from(self.link_rate.max(1)));
        Nanos(u64::try_from(ns).unwrap_or(u64::MAX))
    }
}
