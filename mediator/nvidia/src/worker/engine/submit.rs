//! Fetches commands of a channel, checks them, and submits them to its stream.
//!
//! In: a channel with announced commands, and a budget. Out: commands in flight with their marks,
//! or the fault that ends the channel. Called by [`super::Engine::pass`] for each channel.

use turnstile_abi::{Command, CopyDirection};

use super::channel::{Channel, Phase, Then};
use super::state::State;
use super::{IN_FLIGHT_MAX, MARK_EVERY};
use crate::worker::executor::{Executor, Failure};

impl<E: Executor> Channel<E> {
    /// Submits commands. An error is the end of the context.
    pub(super) fn submit(
        &mut self,
        executor: &E,
        state: &State<E>,
        budget: &mut u32,
    ) -> Result<(), Failure> {
        while *budget > 0
            && !state.is_absent()
            && self.phase == Phase::Fetching
            && self.pending_fetch() > 0
            && self.in_flight.len() < IN_FLIGHT_MAX
        {
            *budget -= 1;
            match self.give(executor, state) {
                Ok(()) => {}
                Err(failure) if failure.is_fatal => return Err(failure),
                Err(failure) => self.phase = Phase::Failing(failure.fault),
            }
            if self.unmarked >= MARK_EVERY {
                self.mark(executor)?;
            }
        }
        if *budget > 0 || self.in_flight.len() >= IN_FLIGHT_MAX {
            self.mark(executor)?;
        }
        Ok(())
    }

    /// Fetches the next command and submits it to the stream.
    fn give(&mut self, executor: &E, state: &State<E>) -> Result<(), Failure> {
        let failure = |fault| Failure {
            fault,
            is_fatal: false,
        };
        // CAST: bounded by IN_FLIGHT_MAX.
        let index = self.ring.get().wrapping_add(self.in_flight.len() as u32);
        let nothing = [(0, 0); 2];
        match self.ring.command(index).map_err(failure)? {
            Command::Nop => self.push(Then::Nothing, None, nothing),
            Command::Fence {
                gpa,
                value,
                interrupt,
            } => {
                self.mark(executor)?;
                let then = Then::Fence {
                    gpa,
                    value,
                    interrupt,
                };
                self.push(then, None, nothing);
            }
            Command::Wait { gpa, value } => {
                self.mark(executor)?;
                self.phase = Phase::Waiting { gpa, value };
            }
            Command::Copy {
                direction,
                source,
                destination,
                bytes,
            } => {
                let (mut reads, mut writes) = ((source, bytes), (destination, bytes));
                if direction == CopyDirection::GuestToGpu {
                    reads = (0, 0);
                } else {
                    state.covered(source, bytes)?;
                }
                if direction == CopyDirection::GpuToGuest {
                    writes = (0, 0);
                } else {
                    state.covered(destination, bytes)?;
                }
                let stream = &self.stream;
                executor.copy(stream, direction, source, destination, bytes)?;
                self.gave(None, [reads, writes]);
            }
            Command::Fill { va, bytes, pattern } => {
                state.covered(va, bytes)?;
                executor.fill(&self.stream, va, bytes, pattern)?;
                self.gave(None, [(va, bytes), (0, 0)]);
            }
            Command::Launch(launch) => {
                let params = self.ring.params(&launch).map_err(failure)?;
                let shared = executor.shared_bytes_max();
                let module = state.resolve(&launch, &params, shared);
                let module = module.map_err(|code| Failure::of(code, launch.module.into()))?;
                let function = launch.function as usize;
                executor.launch(&self.stream, &module.module, function, &launch, &params)?;
                self.gave(Some(module), nothing);
            }
        }
        Ok(())
    }
}
