//! Execution of one block of a launch.

mod access;
mod barrier;
mod block;
mod call;
mod carry;
mod exchange;
mod matrix;
mod step;
mod warp;

use super::LANES;
use super::entry::Entry;
use super::memory::{DeviceMemory, MemoryFault, Timer};
use super::module::Module;
use access::Spaces;
use barrier::Barriers;
use block::Block;
use std::sync::atomic::AtomicBool;
use thiserror::Error;
use warp::Warp;

/// Threads of a block (PTX ISA, `%ntid`; CUDA programming guide, compute capabilities).
const MAX_THREADS: u32 = 1024;

/// A kernel and what it is started with.
#[derive(Debug, Clone, Copy)]
pub struct Launch<'a> {
    /// The module.
    pub module: &'a Module,
    /// Index of the entry, from [`Module::entry`].
    pub entry: usize,
    /// Blocks per dimension.
    pub grid: [u32; 3],
    /// Threads per dimension of a block.
    pub block: [u32; 3],
    /// Bytes of `extern .shared` memory.
    pub dynamic_shared_bytes: u32,
    /// The parameter block, in the layout of [`Entry::params`].
    pub params: &'a [u8],
    /// Device address at which [`Module::global_image`] was placed.
    pub module_base: u64,
    /// `%gridid`.
    pub grid_id: u64,
    /// `%smid` and `%nsmid`: where the block runs, and of how many.
    pub sm: (u32, u32),
}

impl<'a> Launch<'a> {
    /// A launch without dynamic shared memory, of a module without variables.
    pub fn new(module: &'a Module, entry: usize, params: &'a [u8]) -> Launch<'a> {
        Launch {
            module,
            entry,
            grid: [1; 3],
            block: [1; 3],
            dynamic_shared_bytes: 0,
            params,
            module_base: 0,
            grid_id: 0,
            sm: (0, 1),
        }
    }

    /// Checks what does not depend on the block; returns the entry and its threads per block.
    ///
    /// # Errors
    /// [`ExecError::Launch`].
    pub fn check(&self) -> Result<(&'a Entry, u32), ExecError> {
        let refuse = |what| Err(ExecError::Launch { what });
        let Some(entry) = self.module.entry_at(self.entry) else {
            return refuse("the module has no such entry");
        };
        let threads = self.block.iter().try_fold(1u32, |n, d| n.checked_mul(*d));
        let threads = match threads {
            Some(n) if (1..=MAX_THREADS).contains(&n) => n,
            _ => return refuse("a block has 1 to 1024 threads"),
        };
        if entry.max_threads.is_some_and(|max| threads > max) {
            return refuse("the block has more threads than the entry was compiled for");
        }
        if self.grid.contains(&0) {
            return refuse("the grid has no blocks");
        }
        // CAST: a u32 always fits a usize here.
        if self.params.len() != entry.param_bytes as usize {
            return refuse("the parameter block has another size than the entry's");
        }
        let shared = entry
            .static_shared_bytes
            .checked_add(self.dynamic_shared_bytes);
        if shared.is_none_or(|bytes| bytes > entry.shared_limit) {
            return refuse("static and dynamic shared memory are more than a block may have");
        }
        Ok((entry, threads))
    }

    /// Bytes of the buffers that a block of it needs, but for the frames of calls.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn scratch_bytes(&self) -> Result<u64, ExecError> {
        let (entry, threads) = self.check()?;
        let lane = u64::from(entry.local_bytes) + entry.code.register_bytes();
        let shared = u64::from(entry.static_shared_bytes + self.dynamic_shared_bytes);
        Ok(shared + lane * u64::from(threads).next_multiple_of(LANES as u64))
    }
}

/// How a running block is ended from outside.
#[derive(Debug, Clone, Copy)]
pub struct Control<'a> {
    /// Set to end the block with [`ExecError::Aborted`]; read every few thousand instructions.
    pub abort: &'a AtomicBool,
    /// Set to stop the block with [`ExecError::Paused`]; it goes on when it is run again with the
    /// same scratch. Read as often.
    pub pause: &'a AtomicBool,
    /// Warp instructions that the block may execute, helpers of the lowering included.
    pub budget: u64,
}

/// What a block did; the input of a cost model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BlockOutcome {
    /// PTX instructions, once per warp and execution.
    pub warp_instructions: u64,
    /// The same, once per lane that took part.
    pub lane_instructions: u64,
    /// Transactions of 32 bytes with global memory, by loads and stores.
    pub global_sectors: u64,
    /// Atomics, once per lane.
    pub atomics: u64,
    /// Warps that reached a block barrier.
    pub barriers: u64,
    /// Time in which all warps slept, in nanoseconds.
    pub slept_ns: u64,
}

/// Why a block ended early. What it stored before stays stored.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ExecError {
    /// The launch does not fit the entry.
    #[error("Launch refused: {what}")]
    Launch {
        /// Why.
        what: &'static str,
    },
    /// A memory access failed.
    #[error("{fault} at 0x{va:x}: block {block:?}, thread {thread:?}, line {line}")]
    Fault {
        /// What is wrong with the address.
        fault: MemoryFault,
        /// The address as the instruction had it (an offset, for shared, local and parameter
        /// memory).
        va: u64,
        /// Block index.
        block: [u32; 3],
        /// Thread index.
        thread: [u32; 3],
        /// Line of the PTX text.
        line: u32,
    },
    /// `trap` was executed.
    #[error("Trap: block {block:?}, line {line}")]
    Trap {
        /// Block index.
        block: [u32; 3],
        /// Line of the PTX text.
        line: u32,
    },
    /// A barrier with an id above 15.
    #[error("Barrier {id} does not exist: block {block:?}, line {line}")]
    BarrierId {
        /// The id.
        id: u32,
        /// Block index.
        block: [u32; 3],
        /// Line of the PTX text.
        line: u32,
    },
    /// Every warp waits at a barrier that will not open.
    #[error("Barriers wait for each other: block {block:?}")]
    Deadlock {
        /// Block index.
        block: [u32; 3],
    },
    /// A call by an address that is no function's.
    #[error("No function at 0x{address:x}: block {block:?}, line {line}")]
    NoFunction {
        /// The address.
        address: u64,
        /// Block index.
        block: [u32; 3],
        /// Line of the PTX text.
        line: u32,
    },
    /// Calls need more local memory than a thread has.
    #[error("Calls are nested too deep: block {block:?}, line {line}")]
    StackOverflow {
        /// Block index.
        block: [u32; 3],
        /// Line of the PTX text.
        line: u32,
    },
    /// The host has no memory for the block's registers, frames, shared and local memory.
    #[error("The host has no memory for a block")]
    NoMemory,
    /// [`Control::abort`] was set.
    #[error("Aborted")]
    Aborted,
    /// [`Control::pause`] was set.
    #[error("Paused")]
    Paused,
    /// [`Control::budget`] is used up.
    #[error("Instruction budget is used up")]
    Budget,
}

/// Buffers that blocks reuse: registers, shared and local memory. Each block finds them zeroed, so
/// nothing passes from one tenant's block to another's (cf. LeftoverLocals, CVE-2023-4969).
#[derive(Debug, Default)]
pub struct Scratch {
    warps: Vec<Warp>,
    shared: Vec<u8>,
    local: Vec<u8>,
    /// The block that was stopped, of which the buffers are.
    paused: Option<Paused>,
}

/// What is left of a stopped block beside its buffers.
#[derive(Debug)]
struct Paused {
    index: [u32; 3],
    barriers: Barriers,
    outcome: BlockOutcome,
    executed: u64,
    unreported: u64,
}

impl Paused {
    fn before(index: [u32; 3]) -> Self {
        Self {
            index,
            barriers: Barriers::default(),
            outcome: BlockOutcome::default(),
            executed: 0,
            unreported: 0,
        }
    }
}

impl Scratch {
    /// Empty buffers; they grow to what blocks need and are kept.
    pub fn new() -> Scratch {
        Scratch::default()
    }

    fn prepare(
        &mut self,
        entry: &Entry,
        block: [u32; 3],
        threads: u32,
        shared_bytes: usize,
    ) -> Result<(), ExecError> {
        let warps = (threads as usize).div_ceil(LANES);
        self.warps.resize_with(warps, Warp::new);
        for (index, warp) in self.warps.iter_mut().enumerate() {
            // CAST: 32 warps at most.
            warp.reset(index as u32, block, &entry.code)?;
        }
        refill(&mut self.shared, shared_bytes, 0)?;
        let local_bytes = entry.local_bytes as usize * warps * LANES;
        refill(&mut self.local, local_bytes, 0)
    }
}

/// Gives a buffer this length, all of the same value. A guest decides the length.
fn refill<T: Clone>(buffer: &mut Vec<T>, length: usize, value: T) -> Result<(), ExecError> {
    buffer.clear();
    let reserved = buffer.try_reserve_exact(length);
    reserved.map_err(|_| ExecError::NoMemory)?;
    buffer.resize(length, value);
    Ok(())
}

/// Runs one block to its end.
///
/// Blocks of a grid may run in any order and at the same time, each with its own scratch. A block
/// that waits for another one through memory needs that one to run at the same time, as on
/// hardware.
///
/// # Errors
/// The launch does not fit, an access failed, `trap`, or [`Control`] ended or stopped it. A block
/// that was stopped goes on if it is run again with the same launch and scratch.
pub fn run_block<M: DeviceMemory, T: Timer>(
    launch: &Launch<'_>,
    block_index: [u32; 3],
    memory: &M,
    timer: &mut T,
    control: &Control<'_>,
    scratch: &mut Scratch,
) -> Result<BlockOutcome, ExecError> {
    let (entry, threads) = launch.check()?;
    if block_index.iter().zip(launch.grid).any(|(at, n)| *at >= n) {
        return Err(ExecError::Launch {
            what: "the block is not in the grid",
        });
    }
    // CAST: checked against the 32-bit limit.
    let shared_bytes = (entry.static_shared_bytes + launch.dynamic_shared_bytes) as usize;
    let paused = scratch.paused.take();
    let resumed = match paused.filter(|paused| paused.index == block_index) {
        Some(paused) => paused,
        None => {
            scratch.prepare(entry, launch.block, threads, shared_bytes)?;
            Paused::before(block_index)
        }
    };
    let mut block = Block {
        launch,
        spaces: Spaces {
            code: &entry.code,
            block: block_index,
            params: launch.params,
            memory,
            shared: &mut scratch.shared,
            local: &mut scratch.local,
            local_bytes: entry.local_bytes as usize,
            global_sectors: resumed.outcome.global_sectors,
            atomics: resumed.outcome.atomics,
        },
        timer,
        barriers: resumed.barriers,
        outcome: resumed.outcome,
        executed: resumed.executed,
        unreported: resumed.unreported,
    };
    let result = block.run(&mut scratch.warps, control);
    // Also of a block that failed: its time was used.
    block.now_ns();
    let outcome = BlockOutcome {
        global_sectors: block.spaces.global_sectors,
        atomics: block.spaces.atomics,
        ..block.outcome
    };
    if result == Err(ExecError::Paused) {
        scratch.paused = Some(Paused {
            index: block_index,
            barriers: block.barriers,
            outcome,
            executed: block.executed,
            unreported: block.unreported,
        });
    }
    result.map(|()| outcome)
}
