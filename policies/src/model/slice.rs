//! Time slices of programs with memory that is copied in and out (Share-a-GPU, A2).
//!
//! [`shortest`] and [`effective`] are eq. 1. [`Turns`] is the scheduler's state machine, as printed
//! and repaired. Laws of the repaired one: at most one process runs, one prepares and one saves; at
//! most two have memory; all processes end.

use std::collections::VecDeque;

use turnstile_accounting::Nanos;

/// The shortest slice that hides the copies of the process before and of the next one (eq. 1); none
/// without a link, or beyond the largest time.
pub fn shortest(out_bytes: u64, in_bytes: u64, bytes_per_s: u64) -> Option<Nanos> {
    let bytes = u128::from(out_bytes) + u128::from(in_bytes);
    let ns = (bytes * 1_000_000_000).checked_div(u128::from(bytes_per_s))?;
    u64::try_from(ns).ok().map(Nanos)
}

/// The slice that a process has in effect: whole slices until the copies have ended; none if the
/// slice is 0.
pub fn effective(slice: Nanos, shortest: Nanos) -> Option<Nanos> {
    let slices = (slice.0 > 0).then(|| shortest.0.div_ceil(slice.0).max(1))?;
    slices.checked_mul(slice.0).map(Nanos)
}

/// A process.
pub type Process = usize;

/// What a process does next by order of the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Allocate memory and restore the state: PrepareState.
    Prepare(Process),
    /// Launch a microkernel: LaunchKernel.
    Launch(Process),
    /// Save the state and free the memory.
    Save(Process),
}

/// A message to the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// RequestTimeSlice.
    Request(Process),
    /// ReadyToLaunch: the state is restored.
    Ready(Process),
    /// YieldedGPU: the microkernel has ended.
    YieldedGpu(Process),
    /// YieldedGPUMemory: the state is saved.
    YieldedMemory(Process),
}

/// The scheduler of algorithm 2.
#[derive(Clone, Debug, Default)]
pub struct Turns {
    as_printed: bool,
    queue: VecDeque<Process>,
    running: Option<Process>,
    preparing: Option<Process>,
    ready: Option<Process>,
    saving: Option<Process>,
}

impl Turns {
    /// The repaired scheduler.
    pub fn new() -> Self {
        Self::default()
    }

    /// The scheduler as printed: it sends PrepareState only after memory was freed, so that no
    /// process ever begins.
    pub fn as_printed() -> Self {
        Self {
            as_printed: true,
            ..Self::default()
        }
    }

    /// Takes a message; returns the orders that follow.
    pub fn take(&mut self, message: Message) -> Vec<Order> {
        match message {
            Message::Request(process) => {
                self.queue.push_back(process);
                if self.as_printed {
                    return Vec::new();
                }
            }
            Message::Ready(process) => {
                self.preparing = None;
                self.ready = Some(process);
            }
            Message::YieldedGpu(process) => {
                // While another state is saved, the process that runs gets further slices (A2.3).
                if self.saving.is_some() {
                    return vec![Order::Launch(process)];
                }
                self.running = None;
                self.saving = Some(process);
                let mut orders = vec![Order::Save(process)];
                orders.extend(self.dispatch());
                return orders;
            }
            Message::YieldedMemory(_) => self.saving = None,
        }
        let launch = self.dispatch();
        self.prepare().into_iter().chain(launch).collect()
    }

    fn dispatch(&mut self) -> Option<Order> {
        if self.running.is_some() {
            return None;
        }
        self.running = self.ready.take();
        self.running.map(Order::Launch)
    }

    /// Half of the memory is for the process that prepares: not more than two have memory.
    fn prepare(&mut self) -> Option<Order> {
        let busy = self.preparing.is_some() || self.ready.is_some();
        if busy || (self.running.is_some() && self.saving.is_some()) {
            return None;
        }
        self.preparing = self.queue.pop_front();
        self.preparing.map(Order::Prepare)
    }
}
