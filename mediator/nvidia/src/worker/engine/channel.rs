//! A channel: its ring, its stream, and its commands in flight.
//!
//! In: commands that were submitted, and the marks that the stream wrote. Out: completions, fences
//! and interrupts for the guest. Called by [`super::Engine`], which holds the lock.

use std::collections::VecDeque;
use std::sync::Arc;

use turnstile_accounting::{Moment, Nanos};

use crate::worker::executor::{Executor, Failure, KernelInfo};
use turnstile_gpu::ring::{ChannelFault, Ring};

/// A module as channels use it.
#[derive(Debug)]
pub(super) struct LoadedModule<E: Executor> {
    pub(super) module: E::Module,
    pub(super) kernels: Vec<KernelInfo>,
}

/// What to do when a command has finished.
#[derive(Debug)]
pub(super) enum Then {
    Nothing,
    Fence {
        gpa: u64,
        value: u64,
        interrupt: bool,
    },
}

/// A command that was submitted.
#[derive(Debug)]
pub(super) struct InFlight<E: Executor> {
    /// The command has finished when the stream's mark is at least this.
    needs: u64,
    then: Then,
    /// Keeps the module loaded.
    pub(super) module: Option<Arc<LoadedModule<E>>>,
    /// GPU ranges that the command is known to touch: address and bytes.
    pub(super) touches: [(u64, u64); 2],
}

/// State of a channel, beside its commands in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Fetching,
    /// Until the word has reached the value, once nothing is in flight.
    Waiting {
        gpa: u64,
        value: u64,
    },
    /// Ends with this, once nothing is in flight.
    Failing(ChannelFault),
    Faulted,
}

#[derive(Debug)]
// FIELDS: the state of a channel: its ring, its stream, its commands in flight.
pub(super) struct Channel<E: Executor> {
    pub(super) ring: Ring,
    pub(super) stream: E::Stream,
    pub(super) phase: Phase,
    pub(super) in_flight: VecDeque<InFlight<E>>,
    /// Commands that were submitted to the stream so far.
    pub(super) given: u64,
    /// The last mark that was submitted to the stream, and the last that the stream wrote.
    pub(super) marks_requested: u64,
    pub(super) reached: u64,
    pub(super) unmarked: u32,
    /// Marks that were submitted and not reached.
    pub(super) marks: VecDeque<u64>,
    /// How long the oldest command has been the oldest, as far as marks show.
    pub(super) oldest_for: Nanos,
    pub(super) last_active: Moment,
}

impl<E: Executor> Channel<E> {
    pub(super) fn pending_fetch(&self) -> u32 {
        // CAST: bounded by IN_FLIGHT_MAX.
        self.ring.pending() - self.in_flight.len() as u32
    }

    /// Removes finished commands from the list and reports them to the guest.
    pub(super) fn retire(&mut self, executor: &E, now: Moment) -> bool {
        self.reached = self
            .reached
            .max(executor.marked(&self.stream).min(self.marks_requested));
        while self
            .marks
            .pop_front_if(|mark| *mark <= self.reached)
            .is_some()
        {}
        let mut news = false;
        while let Some(oldest) = self
            .in_flight
            .pop_front_if(|oldest| oldest.needs <= self.reached)
        {
            news = true;
            // First, so that the module can be unloaded when the guest reads that the command
            // finished.
            drop(oldest.module);
            let mut interrupts = false;
            if let Then::Fence {
                gpa,
                value,
                interrupt,
            } = oldest.then
            {
                interrupts = interrupt;
                // The range was checked when the command was fetched.
                let _ = self.ring.write_fence(gpa, value, now);
            }
            self.ring.complete();
            if interrupts {
                self.ring.interrupt();
            }
        }
        if news {
            self.last_active = now;
            self.oldest_for = Nanos::ZERO;
        }
        news
    }

    /// As [`Self::retire`], once per pass: `elapsed` counts against the commands in flight.
    pub(super) fn progress(&mut self, executor: &E, now: Moment, elapsed: Nanos) -> bool {
        let news = self.retire(executor, now);
        if !self.is_idle() && !news {
            self.oldest_for += elapsed;
        }
        news
    }

    pub(super) fn push(
        &mut self,
        then: Then,
        module: Option<Arc<LoadedModule<E>>>,
        touches: [(u64, u64); 2],
    ) {
        if self.in_flight.is_empty() {
            self.oldest_for = Nanos::ZERO;
        }
        self.in_flight.push_back(InFlight {
            needs: self.given,
            then,
            module,
            touches,
        });
    }

    pub(super) fn mark(&mut self, executor: &E) -> Result<(), Failure> {
        if self.given > self.marks_requested {
            executor.mark(&self.stream, self.given)?;
            self.marks_requested = self.given;
            self.marks.push_back(self.given);
            self.unmarked = 0;
        }
        Ok(())
    }

    /// Commands that have to finish before the next mark is reached; at most [`super::MARK_EVERY`].
    pub(super) fn commands_to_mark(&self) -> u64 {
        let next = self.marks.front().copied().unwrap_or(self.given);
        next.saturating_sub(self.reached).max(1)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Records a command that was submitted to the stream.
    pub(super) fn gave(&mut self, module: Option<Arc<LoadedModule<E>>>, touches: [(u64, u64); 2]) {
        self.given += 1;
        self.unmarked += 1;
        self.push(Then::Nothing, module, touches);
    }
}
