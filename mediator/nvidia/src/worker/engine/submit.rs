//! Fetches commands of a channel, checks them, and submits them to its stream.
//!
//! In: a channel with announced commands, and a budget. Out: commands in flight with their marks,
//! or the fault that ends the channel. Called by [`Engine::pass`] for each channel.

use turnstile_abi::{Command, CopyDirection};

use super::channel::{Channel, Phase, Then};
use super::state::State;
use super::{Engine, IN_FLIGHT_MAX, MARK_EVERY};
use crate::worker::executor::{Executor, Failure};

impl<E: Executor> Engine<E> {
    /// Submits commands. An error is the end of the context.
    pub(super) fn submit(
        &self,
        state: &State<E>,
        channel: &mut Channel<E>,
        budget: &mut u32,
    ) -> Result<(), Failure> {
        while *budget > 0
            && !state.is_absent()
            && channel.phase == Phase::Fetching
            && channel.pending_fetch() > 0
            && channel.in_flight.len() < IN_FLIGHT_MAX
        {
            *budget -= 1;
            match self.give(state, channel) {
                Ok(()) => {}
                Err(failure) if failure.is_fatal => return Err(failure),
                Err(failure) => channel.phase = Phase::Failing(failure.fault),
            }
            if channel.unmarked >= MARK_EVERY {
                channel.mark(&self.executor)?;
            }
        }
        if *budget > 0 || channel.in_flight.len() >= IN_FLIGHT_MAX {
            channel.mark(&self.executor)?;
        }
        Ok(())
    }

    /// Fetches the next command and submits it to the stream.
    fn give(&self, state: &State<E>, channel: &mut Channel<E>) -> Result<(), Failure> {
        let failure = |fault| Failure {
            fault,
            is_fatal: false,
        };
        // CAST: bounded by IN_FLIGHT_MAX.
        let index = channel
            .ring
            .get()
            .wrapping_add(channel.in_flight.len() as u32);
        let nothing = [(0, 0); 2];
        match channel.ring.command(index).map_err(failure)? {
            Command::Nop => channel.push(Then::Nothing, None, nothing),
            Command::Fence {
                gpa,
                value,
                interrupt,
            } => {
                channel.mark(&self.executor)?;
                let then = Then::Fence {
                    gpa,
                    value,
                    interrupt,
                };
                channel.push(then, None, nothing);
            }
            Command::Wait { gpa, value } => {
                channel.mark(&self.executor)?;
                channel.phase = Phase::Waiting { gpa, value };
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
                let stream = &channel.stream;
                self.executor
                    .copy(stream, direction, source, destination, bytes)?;
                channel.gave(None, [reads, writes]);
            }
            Command::Fill { va, bytes, pattern } => {
                state.covered(va, bytes)?;
                self.executor.fill(&channel.stream, va, bytes, pattern)?;
                channel.gave(None, [(va, bytes), (0, 0)]);
            }
            Command::Launch(launch) => {
                let params = channel.ring.params(&launch).map_err(failure)?;
                let shared = self.executor.shared_bytes_max();
                let module = state.resolve(&launch, &params, shared);
                let module = module.map_err(|code| Failure::of(code, launch.module.into()))?;
                let function = launch.function as usize;
                self.executor.launch(
                    &channel.stream,
                    &module.module,
                    function,
                    &launch,
                    &params,
                )?;
                channel.gave(Some(module), nothing);
            }
        }
        Ok(())
    }
}
