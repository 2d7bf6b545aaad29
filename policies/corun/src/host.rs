//! The host of a program: where it is in its steps, and what it waits for.

use crate::programs::Op;
use crate::{Ns, Program};
use std::collections::VecDeque;

/// The state of a host.
#[derive(Debug)]
// FIELDS: the state of a simulated program, with its measurements.
pub(crate) struct Host {
    pub(crate) program: Program,
    pub(crate) next_op: usize,
    pub(crate) launched: u64,
    pub(crate) finished: u64,
    pub(crate) copies: u64,
    pub(crate) copied: u64,
    pub(crate) copies_queued: VecDeque<Ns>,
    /// Factor by which this step is slower than usual.
    pub(crate) pace: f64,
    pub(crate) dues: Ns,
    pub(crate) blocked: bool,
    pub(crate) step_start: Ns,
    pub(crate) steps: u64,
    pub(crate) latencies: Vec<Ns>,
    pub(crate) connected: bool,
    /// Number of names that it has had.
    pub(crate) names: u64,
    /// Number of times that it has returned.
    pub(crate) returns: u64,
}

impl Host {
    pub(crate) fn new(program: Program) -> Self {
        Self {
            program,
            next_op: 0,
            launched: 0,
            finished: 0,
            copies: 0,
            copied: 0,
            copies_queued: VecDeque::new(),
            pace: 1.0,
            dues: 0,
            blocked: false,
            step_start: 0,
            steps: 0,
            latencies: Vec::new(),
            connected: true,
            names: 0,
            returns: 0,
        }
    }

    pub(crate) fn op(&self) -> Op {
        self.program.ops[self.next_op]
    }

    pub(crate) fn may_pass(&self, pending: u64) -> bool {
        self.launched - self.finished <= pending
    }

    /// A kernel has ended; returns whether the host waited for it.
    pub(crate) fn end_kernel(&mut self) -> bool {
        self.finished += 1;
        let Op::Sync(pending) = self.op() else {
            return false;
        };
        let goes_on = self.blocked && self.may_pass(pending);
        self.blocked &= !goes_on;
        goes_on
    }
}
