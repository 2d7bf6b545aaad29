//! Runs kernels on the multiprocessors: interprets the blocks of a grid one after another.
//!
//! In real time an engine's thread stands for all multiprocessors: blocks run in order, each to its
//! end. A kernel can be paused; its state is then the number of finished blocks, the memory, and
//! the interpreter state of the unfinished block. (Share-a-GPU 2.1 stops between blocks only.) If
//! the blocks of a grid wait for each other, the kernel does not end before its limit.
//!
//! In virtual time a block goes to the multiprocessor slot that becomes free first. Its length
//! follows from what it executed; the kernel ends when its last block does. Blocks that share a
//! multiprocessor do not slow each other down: the model covers latency, not bandwidth.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicBool, Ordering};

use turnstile_abi::ErrorCode;
use turnstile_accounting::{Moment, Nanos};

use super::clock::Clock;
use super::context::LoadedModule;
use super::given_length;
use super::work::{Kernel, Outcome, Progress, Start, Stop};
use crate::config::{CostModel, SoftConfig};
use turnstile_gpu::ring::{extents, launch_fits};
use turnstile_host::room::has_room;
use turnstile_ptx::{self as ptx, Control, ExecError, MemoryFault, Scratch, Timer, run_block};

const PS_PER_NS: u64 = 1_000;

/// Scratch of a block beyond which it is checked that the host has the memory: the check costs
/// microseconds.
const SMALL_BYTES: u64 = 1 << 20;

/// Buffers for the blocks of a launch; none where the host has no memory for them.
fn scratch(launch: &ptx::Launch<'_>) -> Option<Box<Scratch>> {
    let bytes = launch.scratch_bytes().unwrap_or(0);
    (bytes <= SMALL_BYTES || has_room(bytes)).then(Box::default)
}

/// The launch as the interpreter takes it.
fn interpreted<'a>(
    kernel: &'a Kernel,
    module: &'a LoadedModule,
    sm: (u32, u32),
) -> ptx::Launch<'a> {
    let launch = &kernel.launch;
    ptx::Launch {
        module: &module.ptx,
        entry: launch.function as usize,
        grid: extents(launch.grid),
        block: extents(launch.block),
        dynamic_shared_bytes: launch.shared_bytes,
        params: &kernel.params,
        module_base: module.base,
        grid_id: kernel.id,
        sm,
    }
}

/// Checks a launch against its module and the limits of the hardware.
pub(crate) fn check(kernel: &Kernel) -> Result<(), ErrorCode> {
    let Some(module) = &kernel.module else {
        return Ok(());
    };
    let launch = interpreted(kernel, module, (0, 1));
    if module.ptx.entry_at(launch.entry).is_none() {
        return Err(ErrorCode::NoSuchFunction);
    }
    if !launch_fits(&kernel.launch) || launch.check().is_err() {
        return Err(ErrorCode::BadLaunch);
    }
    Ok(())
}

/// Index of the n-th block, x fastest.
fn block_index(grid: [u32; 3], n: u64) -> [u32; 3] {
    let [x, y, _] = grid.map(u64::from);
    // CAST: remainders of u32s, and a quotient that is below the third extent.
    [(n % x) as u32, (n / x % y) as u32, (n / x / y) as u32]
}

/// What an error of a block means for its channel.
fn fault(error: &ExecError, stop: &Stop) -> Outcome {
    let (code, info) = match error {
        ExecError::Launch { .. } => (ErrorCode::BadLaunch, 0),
        ExecError::Fault {
            fault: MemoryFault::Misaligned,
            va,
            ..
        } => (ErrorCode::MisalignedAccess, *va),
        ExecError::Fault { va, .. } => (ErrorCode::PageFault, *va),
        ExecError::Trap { line, .. }
        | ExecError::BarrierId { line, .. }
        | ExecError::NoFunction { line, .. }
        | ExecError::StackOverflow { line, .. } => (ErrorCode::KernelTrap, u64::from(*line)),
        ExecError::Deadlock { .. } => (ErrorCode::KernelTrap, 0),
        ExecError::Budget => (ErrorCode::KernelTimeout, 0),
        ExecError::NoMemory => (ErrorCode::HostLimit, 0),
        ExecError::Aborted | ExecError::Paused => return stop.outcome(),
    };
    Outcome::Fault { code, info }
}

/// The timer of a block in real time: the GPU's clock, shared by all blocks.
struct RealTimer<'a> {
    clock: &'a Clock,
    stop: &'a Stop,
}

impl Timer for RealTimer<'_> {
    fn now_ns(&mut self) -> u64 {
        self.clock.now().0
    }

    fn sleep(&mut self, ns: u64) {
        let until = self.clock.now() + Nanos(ns);
        let stop = self.stop;
        self.clock
            .sleep_until(until, || stop.is_ended() || stop.is_paused());
    }
}

/// Runs a kernel in real time.
pub(crate) fn run_real(
    start: &Start,
    kernel: &Kernel,
    clock: &Clock,
    config: &SoftConfig,
) -> Outcome {
    match &kernel.module {
        Some(module) => run_blocks(start, kernel, module, clock, config),
        None => sleep_through(start, kernel, clock),
    }
}

fn run_blocks(
    start: &Start,
    kernel: &Kernel,
    module: &LoadedModule,
    clock: &Clock,
    config: &SoftConfig,
) -> Outcome {
    let stop = &*start.stop;
    let control = Control {
        abort: &stop.ended,
        pause: &stop.pause,
        budget: u64::MAX,
    };
    let sms = config.multiprocessors.max(1);
    let mut timer = RealTimer { clock, stop };
    let paused = kernel.paused().take();
    let Some(mut scratch) = paused.or_else(|| scratch(&interpreted(kernel, module, (0, sms))))
    else {
        return fault(&ExecError::NoMemory, stop);
    };
    for block in start.progress.blocks..kernel.launch.grid.count() {
        if stop.is_ended() {
            return stop.outcome();
        }
        // CAST: a remainder of a u32.
        let sm = (block % u64::from(sms)) as u32;
        let launch = interpreted(kernel, module, (sm, sms));
        let index = block_index(launch.grid, block);
        let space = &start.context.space;
        let ran = run_block(&launch, index, space, &mut timer, &control, &mut scratch);
        match ran {
            Ok(_) => {}
            Err(ExecError::Paused) => {
                *kernel.paused() = Some(scratch);
                return Outcome::Preempted(Progress {
                    blocks: block,
                    ..start.progress
                });
            }
            Err(error) => return fault(&error, stop),
        }
    }
    Outcome::Done
}

/// A kernel of given length.
fn sleep_through(start: &Start, kernel: &Kernel, clock: &Clock) -> Outcome {
    let length = start.progress.remaining.unwrap_or(given_length(kernel));
    let end = Moment(start.starts_at.0.saturating_add(length.0));
    let stop = &start.stop;
    if clock.sleep_until(end, || stop.is_ended() || stop.is_paused()) {
        return Outcome::Done;
    }
    if stop.is_ended() {
        return stop.outcome();
    }
    Outcome::Preempted(Progress {
        remaining: Some(end.since(clock.now())),
        ..start.progress
    })
}

/// A block's time that passes by executing.
struct VirtualTimer<'a> {
    /// When the kernel began.
    begin: Moment,
    /// Picoseconds since.
    ps: u64,
    cost: CostModel,
    limit_ps: u64,
    /// Set when the limit is exceeded: a block that only sleeps uses up no instructions.
    exceeded: &'a AtomicBool,
}

impl VirtualTimer<'_> {
    fn pass(&mut self, count: u64, each_ps: u64) {
        self.ps = self.ps.saturating_add(count.saturating_mul(each_ps));
        if self.ps > self.limit_ps {
            self.exceeded.store(true, Ordering::Relaxed);
        }
    }
}

impl Timer for VirtualTimer<'_> {
    fn now_ns(&mut self) -> u64 {
        self.begin.0.saturating_add(self.ps / PS_PER_NS)
    }

    fn sleep(&mut self, ns: u64) {
        self.pass(ns, PS_PER_NS);
    }

    fn executed(&mut self, warp_instructions: u64) {
        self.pass(warp_instructions, self.cost.warp_instruction_ps);
    }
}

/// Blocks of this kernel that the GPU holds at the same time.
fn slots(config: &SoftConfig, launch: &ptx::Launch<'_>) -> u64 {
    let Ok((entry, threads)) = launch.check() else {
        return 1;
    };
    let warps = threads.div_ceil(ptx::LANES as u32);
    let shared = entry.static_shared_bytes + launch.dynamic_shared_bytes;
    let by_shared = config.shared_bytes.checked_div(shared);
    let resident = config
        .block_slots
        .min(config.warp_slots / warps)
        .min(by_shared.unwrap_or(u32::MAX))
        .max(1);
    u64::from(resident) * u64::from(config.multiprocessors.max(1))
}

/// Computes a kernel and its length in virtual time.
pub(crate) fn run_virtual(config: &SoftConfig, start: &Start, kernel: &Kernel) -> (Nanos, Outcome) {
    let Some(module) = &kernel.module else {
        return (given_length(kernel), Outcome::Done);
    };
    let sms = config.multiprocessors.max(1);
    let launch = |slot: u64| interpreted(kernel, module, ((slot % u64::from(sms)) as u32, sms));
    let (grid, blocks) = (launch(0).grid, kernel.launch.grid.count());
    let exceeded = AtomicBool::new(false);
    let Some(mut scratch) = scratch(&launch(0)) else {
        return (Nanos::ZERO, fault(&ExecError::NoMemory, &start.stop));
    };
    let launch_ps = config.cost.launch.0.saturating_mul(PS_PER_NS);
    let limit_ps = config.kernel_limit.0.saturating_mul(PS_PER_NS);
    let timeout = || (config.kernel_limit, fault(&ExecError::Budget, &start.stop));
    let length = |ps: u64| Nanos(ps.div_ceil(PS_PER_NS));
    // Slots by when they fall free; slot numbers run over the multiprocessors first.
    let free = (0..slots(config, &launch(0)).min(blocks)).map(|slot| Reverse((launch_ps, slot)));
    let mut free: BinaryHeap<_> = free.collect();
    let mut last_ps = launch_ps;
    for block in 0..blocks {
        // There is a slot: a grid has blocks.
        let Some(Reverse((from_ps, slot))) = free.pop() else {
            break;
        };
        let each_ps = config.cost.warp_instruction_ps;
        let affordable = limit_ps.saturating_sub(from_ps).checked_div(each_ps);
        let control = Control {
            abort: &exceeded,
            pause: &AtomicBool::new(false),
            // One more, so that the limit is exceeded and not just met.
            budget: affordable.map_or(u64::MAX, |n| n.saturating_add(1)),
        };
        let mut timer = VirtualTimer {
            begin: start.starts_at,
            ps: from_ps,
            cost: config.cost,
            limit_ps,
            exceeded: &exceeded,
        };
        let index = block_index(grid, block);
        let space = &start.context.space;
        match run_block(
            &launch(slot),
            index,
            space,
            &mut timer,
            &control,
            &mut scratch,
        ) {
            Ok(done) => timer.pass(done.global_sectors + done.atomics, config.cost.sector_ps),
            Err(ExecError::Budget | ExecError::Aborted | ExecError::Paused) => return timeout(),
            Err(error) => return (length(timer.ps), fault(&error, &start.stop)),
        }
        if exceeded.load(Ordering::Relaxed) {
            return timeout();
        }
        last_ps = last_ps.max(timer.ps);
        free.push(Reverse((timer.ps, slot)));
    }
    (length(last_ps), Outcome::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_counted_x_first() {
        let grid = [3, 2, 2];
        let all: Vec<_> = (0..12).map(|n| block_index(grid, n)).collect();
        assert_eq!(all[..4], [[0, 0, 0], [1, 0, 0], [2, 0, 0], [0, 1, 0]]);
        assert_eq!(all[11], [2, 1, 1]);
    }
}
