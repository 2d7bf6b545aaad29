//! The warps of a block, taking turns.

use super::super::memory::{DeviceMemory, Timer};
use super::access::Spaces;
use super::barrier::Barriers;
use super::warp::{State, Warp};
use super::{BlockOutcome, Control, ExecError, Launch};
use std::sync::atomic::Ordering;

/// Operations per turn of a warp: few enough to end a block soon, many enough that the check costs
/// nothing.
const TURN: u32 = 4096;

/// `nanosleep` sleeps at most this long (PTX ISA, `nanosleep`).
pub(super) const MAX_SLEEP_NS: u64 = 1_000_000;

/// A running block.
pub(super) struct Block<'a, M, T> {
    pub(super) launch: &'a Launch<'a>,
    pub(super) spaces: Spaces<'a, M>,
    pub(super) timer: &'a mut T,
    pub(super) barriers: Barriers,
    pub(super) outcome: BlockOutcome,
    /// Operations, helpers included.
    pub(super) executed: u64,
    /// Value of `outcome.warp_instructions` at the last report to the timer.
    pub(super) unreported: u64,
}

impl<M: DeviceMemory, T: Timer> Block<'_, M, T> {
    /// The time. Reports the executed instructions to the timer first.
    pub(super) fn now_ns(&mut self) -> u64 {
        let total = self.outcome.warp_instructions;
        self.timer.executed(total - self.unreported);
        self.unreported = total;
        self.timer.now_ns()
    }

    pub(super) fn run(
        &mut self,
        warps: &mut [Warp],
        control: &Control<'_>,
    ) -> Result<(), ExecError> {
        loop {
            let mut ran = false;
            for warp in warps.iter_mut() {
                if let State::Sleeping(until) = warp.state
                    && self.now_ns() >= until
                {
                    warp.state = State::Ready;
                }
                if warp.state != State::Ready {
                    continue;
                }
                ran = true;
                self.turn(warp, TURN)?;
                if control.abort.load(Ordering::Relaxed) {
                    return Err(ExecError::Aborted);
                }
                if self.executed > control.budget {
                    return Err(ExecError::Budget);
                }
            }
            ran |= self.barriers.open(self.spaces.code, warps);
            if warps.iter().all(|w| w.state == State::Done) {
                return Ok(());
            }
            if !ran {
                self.sleep(warps)?;
                if control.abort.load(Ordering::Relaxed) {
                    return Err(ExecError::Aborted);
                }
                // A sleep costs budget, or a timer that stands still would never end.
                self.executed += 1;
                if self.executed > control.budget {
                    return Err(ExecError::Budget);
                }
            }
            if control.pause.load(Ordering::Relaxed) {
                return Err(ExecError::Paused);
            }
        }
    }

    /// All warps sleep or wait: sleeps until the first wakes.
    fn sleep(&mut self, warps: &[Warp]) -> Result<(), ExecError> {
        let wake = warps.iter().filter_map(|warp| match warp.state {
            State::Sleeping(until) => Some(until),
            _ => None,
        });
        let Some(wake) = wake.min() else {
            return Err(ExecError::Deadlock {
                block: self.spaces.block,
            });
        };
        let length = wake.saturating_sub(self.now_ns()).min(MAX_SLEEP_NS);
        if length > 0 {
            self.timer.sleep(length);
            self.outcome.slept_ns += length;
        }
        Ok(())
    }
}
