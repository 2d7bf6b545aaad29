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

use turnstile_abi::{Command, ErrorCode};
use turnstile_accounting::{Moment, TenantId};

use super::board::Board;
use super::execute::context::Context;
use super::execute::work::{Class, Job, Kernel, Progress, Work};
use turnstile_gpu::ring::{ChannelFault, Ring, word_reached};
use turnstile_gpu::{ChannelActivity, ChannelConfig, GuestMemory, TenantResources};

/// Commands after the running one that are searched for the next engine work.
const PREFETCH: u32 = 4;

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

/// Result of a turn of the front end.
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

/// A channel.
#[derive(Debug)]
// FIELDS: the state of a channel: its ring, its phase, its place in line.
pub(super) struct Channel {
    pub(super) tenant: TenantId,
    pub(super) number: u32,
    pub(super) context: Arc<Context>,
    resources: TenantResources,
    ring: Ring,
    pub(super) phase: Phase,
    /// Closed by the guest while a command runs.
    pub(super) closing: bool,
    /// In the core's queue of channels for the front end.
    pub(super) in_line: bool,
    last_active: Moment,
    /// As [`ChannelActivity::stalls`].
    stalls: u32,
    board: Option<Arc<dyn Board>>,
}

impl Channel {
    /// Opens a channel. Precondition: ring and state block lie in the VM's memory.
    pub(super) fn new(
        now: Moment,
        number: u32,
        context: Arc<Context>,
        resources: TenantResources,
        config: ChannelConfig,
        board: Option<Arc<dyn Board>>,
    ) -> Self {
        resources.doorbells.clear(number);
        let (guest, interrupts) = (resources.guest.clone(), resources.interrupts.clone());
        let channel = Self {
            tenant: context.tenant,
            number,
            context,
            resources,
            ring: Ring::open(guest, interrupts, config),
            phase: Phase::Fetching,
            closing: false,
            in_line: false,
            last_active: now,
            stalls: 0,
            board,
        };
        channel.show();
        channel
    }

    fn show(&self) {
        if let Some(board) = &self.board {
            board.channel(self.tenant, self.activity());
        }
    }

    /// Shows a channel without anything to do, as it goes.
    pub(super) fn show_gone(&self) {
        if let Some(board) = &self.board {
            let activity = self.activity();
            board.channel(
                self.tenant,
                ChannelActivity {
                    pending: 0,
                    ..activity
                },
            );
        }
    }

    /// The put index last taken.
    pub(super) fn put(&self) -> u32 {
        self.ring.put()
    }

    /// The channel's activity, as the meter reads it.
    pub(super) fn activity(&self) -> ChannelActivity {
        let pending = match self.phase {
            Phase::Faulted => 0,
            _ => self.ring.pending(),
        };
        ChannelActivity {
            channel: self.number,
            pending,
            finished: Some(self.ring.get()),
            stalls: self.stalls,
            last_active: self.last_active,
        }
    }

    /// The put index that the doorbell page shows now.
    pub(super) fn doorbell(&self) -> u32 {
        self.resources.doorbells.put(self.number)
    }

    /// Takes a put index. True if there is something new to fetch.
    pub(super) fn announce(&mut self, now: Moment, put: u32) -> Result<bool, ChannelFault> {
        let news = self.ring.announce(put)?;
        if news {
            self.last_active = now;
            self.show();
        }
        Ok(news)
    }

    /// Counts the command at `get` as finished and notifies the guest.
    pub(super) fn complete(&mut self, now: Moment) {
        self.last_active = now;
        self.stall(false);
        // Count first: a guest that sees the new `get` must find nothing pending.
        self.ring.count();
        self.show();
        self.ring.report_get();
    }

    /// Ends the channel with an error of the command at `get`.
    pub(super) fn fault(&mut self, now: Moment, fault: ChannelFault) {
        self.phase = Phase::Faulted;
        self.last_active = now;
        self.show();
        if let (Some(board), ErrorCode::NotGuestMemory) = (&self.board, fault.code) {
            board.strayed(self.tenant);
        }
        self.context.count_fault(fault.code);
        self.ring.fault(fault);
    }

    /// Reports to the guest that the device no longer touches the channel's memory.
    pub(super) fn report_closed(&self) {
        self.ring.report_closed();
    }

    /// Whether the word has reached the value that the channel waits for. An unreadable word counts
    /// as reached.
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
            if self.ring.pending() == 0 {
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

    /// Whether work of this class follows the running command: it can start as soon as that ends.
    pub(super) fn is_followed_by(&self, class: Class) -> bool {
        let ahead = 1..self.ring.pending().min(PREFETCH + 1);
        let commands = ahead.map_while(|ahead| {
            let command = self.ring.command(self.ring.get().wrapping_add(ahead));
            command.ok()
        });
        let mut commands =
            commands.skip_while(|command| matches!(command, Command::Nop | Command::Fence { .. }));
        match commands.next() {
            Some(Command::Launch(_)) => class == Class::Compute,
            Some(Command::Copy { .. } | Command::Fill { .. }) => class == Class::Copy,
            _ => false,
        }
    }

    /// Fetches the next command and acts on it.
    fn fetch(&mut self, now: Moment, fenced: &mut bool) -> Result<(), ChannelFault> {
        match self.ring.command(self.ring.get())? {
            Command::Nop => self.complete(now),
            Command::Fence {
                gpa,
                value,
                interrupt,
            } => {
                self.ring.write_fence(gpa, value, now)?;
                *fenced = true;
                self.complete(now);
                if interrupt {
                    self.ring.interrupt();
                }
            }
            Command::Wait { gpa, value } => {
                if word_reached(&self.resources.guest, gpa, value) {
                    self.complete(now);
                } else {
                    self.phase = Phase::Waiting { gpa, value };
                    self.stall(true);
                }
            }
            Command::Copy {
                direction,
                source,
                destination,
                bytes,
            } => self.enqueue(Work::Copy {
                direction,
                source,
                destination,
                bytes,
            }),
            Command::Fill { va, bytes, pattern } => {
                self.enqueue(Work::Fill { va, bytes, pattern });
            }
            Command::Launch(launch) => {
                let params = self.ring.params(&launch)?;
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

    /// From now on the channel can use the compute engine, or cannot.
    fn stall(&mut self, stalled: bool) {
        if (self.stalls % 2 == 1) != stalled {
            self.stalls = self.stalls.wrapping_add(1);
            self.show();
        }
    }

    fn enqueue(&mut self, work: Work) {
        self.stall(work.class() != Class::Compute);
        self.phase = Phase::Queued(Job {
            work: Arc::new(work),
            progress: Progress::default(),
        });
    }
}
