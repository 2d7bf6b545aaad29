//! A channel and its front end: fetches commands in order, executes those that need no engine.
//!
//! ```text
//!            NOP, FENCE
//!             +-----+
//!             v     |        COPY, FILL, LAUNCH              engine free
//!   open --> Fetching ------------------------> Queued ---------------------> Running
//!             |  ^  ^                              ^      preempted             |
//!        WAIT |  |  |                              +----------------------------+
//!             v  |  +-----------------------------------------------------------+
//!           Waiting                                done
//!
//!   any -- error --> Faulted            any -- close --> gone (a running command ends first)
//! ```

use std::sync::Arc;
use std::sync::atomic::Ordering;

use turnstile_abi::{
    COMMAND_BYTES, ChannelStateBlock, ChannelStatus, Command, ErrorCode, FENCE_BYTES,
};
use turnstile_accounting::{Moment, TenantId};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend};

use super::context::Context;
use super::work::{Job, Kernel, Progress, Work};
use crate::gpu::{ChannelActivity, ChannelConfig, GuestMemory, TenantResources};
use turnstile_abi::CopyDirection;

/// What a channel is at.
#[derive(Debug)]
pub(super) enum Phase {
    /// The next command is to be fetched, once one is announced.
    Fetching,
    /// Until the word in guest memory has reached the value.
    Waiting { gpa: u64, value: u64 },
    /// For an engine.
    Queued(Job),
    /// On an engine.
    Running,
    /// Ended by an error.
    Faulted,
}

/// What a turn of the front end came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Nothing to fetch.
    Empty,
    /// The budget is used up; there is more.
    More,
    /// Waits for a word.
    Waits,
    /// Waits for an engine.
    Queued,
    /// Ended.
    Faulted,
}

/// An error that ends a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChannelFault {
    pub(super) code: ErrorCode,
    pub(super) info: u64,
}

/// A channel.
#[derive(Debug)]
pub(super) struct Channel {
    pub(super) tenant: TenantId,
    pub(super) number: u32,
    pub(super) context: Arc<Context>,
    resources: TenantResources,
    config: ChannelConfig,
    pub(super) put: u32,
    get: u32,
    pub(super) phase: Phase,
    /// Closed by the guest while a command runs.
    pub(super) closing: bool,
    /// In the core's queue of channels that the front end has to look at.
    pub(super) in_line: bool,
    last_active: Moment,
}

/// Whether a range lies wholly in the VM's memory.
pub(super) fn in_guest(guest: &GuestMemory, gpa: u64, bytes: u64) -> bool {
    usize::try_from(bytes).is_ok_and(|bytes| guest.check_range(GuestAddress(gpa), bytes))
}

impl Channel {
    /// Opens a channel. Precondition: ring and state block lie in the VM's memory.
    pub(super) fn new(
        now: Moment,
        number: u32,
        context: Arc<Context>,
        resources: TenantResources,
        config: ChannelConfig,
    ) -> Self {
        resources.doorbells.clear(number);
        let channel = Self {
            tenant: context.tenant,
            number,
            context,
            resources,
            config,
            put: 0,
            get: 0,
            phase: Phase::Fetching,
            closing: false,
            in_line: false,
            last_active: now,
        };
        for at in (0..turnstile_abi::CHANNEL_STATE_BYTES).step_by(8) {
            channel.report_u64(at, 0);
        }
        channel.report(ChannelStateBlock::STATUS, ChannelStatus::Running as u32);
        channel
    }

    /// Writes a word of the state block. The block was checked when the channel was opened, and a VM's memory does not
    /// shrink; should it all the same, the VM alone misses the news.
    fn report(&self, offset: u64, value: u32) {
        let at = GuestAddress(self.config.state_gpa + offset);
        let guest = &self.resources.guest;
        let _ = guest.store(value.to_le(), at, Ordering::Release);
    }

    fn report_u64(&self, offset: u64, value: u64) {
        let at = GuestAddress(self.config.state_gpa + offset);
        let guest = &self.resources.guest;
        let _ = guest.store(value.to_le(), at, Ordering::Release);
    }

    /// Commands announced and not finished.
    fn pending(&self) -> u32 {
        self.put.wrapping_sub(self.get)
    }

    /// What the meter is told.
    pub(super) fn activity(&self) -> ChannelActivity {
        let pending = match self.phase {
            Phase::Faulted => 0,
            _ => self.pending(),
        };
        ChannelActivity {
            channel: self.number,
            pending,
            last_active: self.last_active,
        }
    }

    /// The put index that the doorbell page shows now.
    pub(super) fn doorbell(&self) -> u32 {
        self.resources.doorbells.put(self.number)
    }

    /// Takes a put index. True if there is something new to fetch.
    pub(super) fn announce(&mut self, now: Moment, put: u32) -> Result<bool, ChannelFault> {
        let more = put.wrapping_sub(self.put);
        if more == 0 {
            return Ok(false);
        }
        if more > self.config.entries - self.pending() {
            return Err(ChannelFault {
                code: ErrorCode::PutOutOfRange,
                info: put.into(),
            });
        }
        self.put = put;
        self.last_active = now;
        Ok(true)
    }

    /// Counts the command at `get` as finished and tells the guest.
    pub(super) fn complete(&mut self, now: Moment) {
        self.get = self.get.wrapping_add(1);
        self.last_active = now;
        self.report(ChannelStateBlock::GET, self.get);
    }

    /// Ends the channel with an error of the command at `get`.
    pub(super) fn fault(&mut self, now: Moment, fault: ChannelFault) {
        self.phase = Phase::Faulted;
        self.last_active = now;
        self.report(ChannelStateBlock::ERROR, fault.code as u32);
        self.report(ChannelStateBlock::ERROR_AT, self.get);
        self.report_u64(ChannelStateBlock::ERROR_INFO, fault.info);
        self.report(ChannelStateBlock::STATUS, ChannelStatus::Faulted as u32);
        self.resources.interrupts.raise(self.config.vector);
    }

    /// Says that the device will not touch the channel's memory any more.
    pub(super) fn report_closed(&self) {
        self.report(ChannelStateBlock::STATUS, ChannelStatus::Closed as u32);
    }

    /// Whether the word that the channel waits for has come; a word that cannot be read counts as come.
    pub(super) fn wait_is_over(&self) -> bool {
        match self.phase {
            Phase::Waiting { gpa, value } => word_reached(&self.resources.guest, gpa, value),
            _ => false,
        }
    }

    /// Guest memory of the channel.
    pub(super) fn guest(&self) -> &Arc<GuestMemory> {
        &self.resources.guest
    }

    /// Doorbells of the channel.
    pub(super) fn resources(&self) -> &TenantResources {
        &self.resources
    }

    /// Goes on with fetching, at most `budget` commands. `fenced` is set if a fence was written.
    pub(super) fn turn(&mut self, now: Moment, budget: &mut u32, fenced: &mut bool) -> Turn {
        if self.wait_is_over() {
            self.phase = Phase::Fetching;
            self.complete(now);
        }
        while matches!(self.phase, Phase::Fetching) {
            if self.pending() == 0 {
                return Turn::Empty;
            }
            if *budget == 0 {
                return Turn::More;
            }
            *budget -= 1;
            if let Err(fault) = self.fetch(now, fenced) {
                self.fault(now, fault);
            }
        }
        match self.phase {
            Phase::Waiting { .. } => Turn::Waits,
            Phase::Queued(_) => Turn::Queued,
            Phase::Faulted => Turn::Faulted,
            Phase::Fetching | Phase::Running => Turn::Empty,
        }
    }

    /// Copies the next command out of the ring, once, and acts on the copy.
    fn fetch(&mut self, now: Moment, fenced: &mut bool) -> Result<(), ChannelFault> {
        let index = u64::from(self.get % self.config.entries);
        let at = GuestAddress(self.config.ring_gpa + index * COMMAND_BYTES as u64);
        let mut bytes = [0; COMMAND_BYTES];
        let not_guest = |gpa| ChannelFault {
            code: ErrorCode::NotGuestMemory,
            info: gpa,
        };
        let guest = &self.resources.guest;
        guest
            .read_slice(&mut bytes, at)
            .map_err(|_| not_guest(at.0))?;
        let command = Command::decode(&bytes).map_err(|code| ChannelFault { code, info: 0 })?;
        match command {
            Command::Nop => self.complete(now),
            Command::Fence {
                gpa,
                value,
                interrupt,
            } => {
                write_fence(guest, gpa, value, now).ok_or(not_guest(gpa))?;
                *fenced = true;
                self.complete(now);
                if interrupt {
                    self.resources.interrupts.raise(self.config.vector);
                }
            }
            Command::Wait { gpa, value } => {
                if !in_guest(guest, gpa, 8) {
                    return Err(not_guest(gpa));
                }
                if word_reached(guest, gpa, value) {
                    self.complete(now);
                } else {
                    self.phase = Phase::Waiting { gpa, value };
                }
            }
            Command::Copy {
                direction,
                source,
                destination,
                bytes,
            } => {
                let gpa = match direction {
                    CopyDirection::GuestToGpu => Some(source),
                    CopyDirection::GpuToGuest => Some(destination),
                    CopyDirection::GpuToGpu => None,
                };
                if let Some(gpa) = gpa.filter(|gpa| !in_guest(guest, *gpa, bytes)) {
                    return Err(not_guest(gpa));
                }
                self.enqueue(Work::Copy {
                    direction,
                    source,
                    destination,
                    bytes,
                });
            }
            Command::Fill { va, bytes, pattern } => {
                self.enqueue(Work::Fill { va, bytes, pattern });
            }
            Command::Launch(launch) => {
                // CAST: the decoder bounds it to PARAM_BYTES_MAX.
                let mut params = vec![0; launch.param_bytes as usize].into_boxed_slice();
                guest
                    .read_slice(&mut params, GuestAddress(launch.params_gpa))
                    .map_err(|_| not_guest(launch.params_gpa))?;
                let refused = |code| ChannelFault {
                    code,
                    info: launch.module.into(),
                };
                let kernel: Kernel = self.context.resolve(launch, params).map_err(refused)?;
                self.enqueue(Work::Kernel(kernel));
            }
        }
        Ok(())
    }

    fn enqueue(&mut self, work: Work) {
        self.phase = Phase::Queued(Job {
            work: Arc::new(work),
            progress: Progress::default(),
        });
    }
}

/// Whether the word at `gpa` is at least `value`. One that cannot be read is not waited for.
pub(super) fn word_reached(guest: &GuestMemory, gpa: u64, value: u64) -> bool {
    guest
        .load::<u64>(GuestAddress(gpa), Ordering::Acquire)
        .map_or(true, |word| u64::from_le(word) >= value)
}

/// Writes a fence record: first the time, then, with release order, the value.
fn write_fence(guest: &GuestMemory, gpa: u64, value: u64, now: Moment) -> Option<()> {
    if !in_guest(guest, gpa, FENCE_BYTES) {
        return None;
    }
    let time = GuestAddress(gpa + 8);
    guest.store(now.0.to_le(), time, Ordering::Relaxed).ok()?;
    guest
        .store(value.to_le(), GuestAddress(gpa), Ordering::Release)
        .ok()
}
