//! The engine: channel groups in round robin with a slice each, and the cost of changes.
//!
//! SOURCE: the times are those measured on H100 and H200, or fitted to them.

use crate::host::Host;
use crate::programs::SLICE;
use crate::{MS, NEVER, Ns, Program, Random, US};
use core::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Duration of a change of context.
const CHANGE: Ns = 140 * US;
/// Added if it stops a kernel.
const SAVE: Ns = 30 * US;
/// Added when a stopped kernel becomes resident again.
const RESTORE: Ns = 45 * US;
/// Time after which a group without work is left, and the range added to it.
const LEAVE: (Ns, Ns) = (3 * US, 8 * US);
/// A lone kernel of 10 ms or more exceeds its slice by this.
const LONE_KERNEL_LATE: Ns = 400 * US;
const LONE_KERNEL: Ns = 10 * MS;
/// From the end of one tenant's kernels to the start of another's, if the first is held.
const HANDOVER: Ns = 500 * US;
/// Worked time is kept for windows of this length.
pub(crate) const BIN: Ns = 100 * MS;

/// A kernel in a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernel {
    pub(crate) left: Ns,
    /// Copies that have to finish before it.
    pub(crate) after_copies: u64,
    /// It polls until this time.
    pub(crate) polls_until: Option<Ns>,
    pub(crate) stopped: bool,
    pub(crate) lone: bool,
}

impl Kernel {
    pub(crate) fn is_lone(length: Ns) -> bool {
        length >= LONE_KERNEL
    }

    fn late(&self) -> Ns {
        if self.lone { LONE_KERNEL_LATE } else { 0 }
    }
}

/// A tenant's channel group, and its statistics.
#[derive(Debug)]
// FIELDS: the state of a channel group, with its measurements.
pub(crate) struct Group {
    pub(crate) host: Host,
    pub(crate) queue: VecDeque<Kernel>,
    pub(crate) slice: Ns,
    pub(crate) held: bool,
    /// When its queue last became empty; none if it never had work.
    pub(crate) empty_since: Option<Ns>,
    pub(crate) resident: Ns,
    pub(crate) worked: Ns,
    /// Time with work, but not resident.
    pub(crate) waited: Ns,
    /// Worked time by windows of [`BIN`].
    pub(crate) bins: Vec<Ns>,
    pub(crate) held_at: Ns,
    pub(crate) longest_hold: Ns,
}

impl Group {
    fn new(program: Program) -> Self {
        Self {
            host: Host::new(program),
            queue: VecDeque::new(),
            slice: SLICE,
            held: false,
            empty_since: None,
            resident: 0,
            worked: 0,
            waited: 0,
            bins: Vec::new(),
            held_at: 0,
            longest_hold: 0,
        }
    }

    fn is_runnable(&self) -> bool {
        let front = self.queue.front();
        !self.held && front.is_some_and(|kernel| kernel.after_copies <= self.host.copied)
    }

    fn work(&mut self, from: Ns, length: Ns) {
        self.worked += length;
        if let Some(kernel) = self.queue.front_mut() {
            kernel.left -= length;
        }
        let bin = (from / BIN) as usize;
        self.bins.resize(self.bins.len().max(bin + 1), 0);
        self.bins[bin] += length;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    /// The host of this group continues.
    Host(usize),
    /// The engine's state of this version is over.
    Engine(u64),
    /// A copy of this group is done.
    Copied(usize),
    /// The host of this group has left or returned.
    Connection(usize),
    Poll,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Idle,
    Runs,
    Restores,
    /// Waits briefly for more work of the resident group.
    Lingers,
    Changes(Option<usize>),
}

/// The poller of the engine.
pub trait Poller: std::fmt::Debug {
    /// Polls, and returns the time to the next poll.
    fn poll(&mut self, sim: &mut Sim) -> Ns;

    /// A program has disconnected, or connected again.
    fn connect(&mut self, _sim: &mut Sim, _index: usize) {}
}

/// No mediator: the hardware alone.
#[derive(Debug)]
pub(crate) struct Native;

impl Poller for Native {
    fn poll(&mut self, _: &mut Sim) -> Ns {
        NEVER
    }
}

/// The model.
#[derive(Debug)]
// FIELDS: the state of a simulated engine, with its measurements.
pub struct Sim {
    pub(crate) now: Ns,
    sequence: u64,
    events: BinaryHeap<Reverse<(Ns, u64, Event)>>,
    pub(crate) groups: Vec<Group>,
    resident: Option<usize>,
    state: State,
    version: u64,
    until: Ns,
    slice_end: Ns,
    pub(super) random: Random,
    pub(crate) polls: u64,
}

impl Sim {
    /// The engine, with these programs.
    pub fn new(programs: &[Program], seed: u64) -> Self {
        let mut sim = Self {
            now: 0,
            sequence: 0,
            events: BinaryHeap::new(),
            groups: programs.iter().cloned().map(Group::new).collect(),
            resident: None,
            state: State::Idle,
            version: 0,
            until: NEVER,
            slice_end: 0,
            random: Random::new(seed),
            polls: 0,
        };
        for (index, program) in programs.iter().enumerate() {
            sim.push(program.start + index as Ns * 137 * US, Event::Host(index));
        }
        sim.push(0, Event::Poll);
        sim
    }

    pub(super) fn push(&mut self, at: Ns, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((at, self.sequence, event)));
    }

    /// What a program worked from one moment to another, in steps of [`BIN`].
    pub fn worked(&self, program: usize, from: Ns, to: Ns) -> Ns {
        let bins = self.groups[program].bins.iter();
        let (from, to) = ((from / BIN) as usize, (to / BIN) as usize);
        bins.take(to).skip(from).sum()
    }

    /// Runs the model up to `until`.
    pub fn run(&mut self, until: Ns, poller: &mut dyn Poller) {
        while let Some(Reverse((at, sequence, event))) = self.events.pop() {
            if at > until {
                self.events.push(Reverse((at, sequence, event)));
                self.advance(until);
                break;
            }
            if matches!(event, Event::Engine(version) if version != self.version) {
                continue;
            }
            self.advance(at);
            match event {
                Event::Host(index) => self.run_host(index),
                Event::Engine(_) => self.end_state(),
                Event::Copied(index) => self.end_copy(index),
                Event::Connection(index) => poller.connect(self, index),
                Event::Poll => {
                    self.polls += 1;
                    let next = poller.poll(self);
                    self.push(at + next, Event::Poll);
                }
            }
        }
    }

    fn advance(&mut self, to: Ns) {
        let length = to - self.now;
        if length <= 0 {
            return;
        }
        let resident = match self.state {
            State::Changes(_) => None,
            _ => self.resident,
        };
        for (index, group) in self.groups.iter_mut().enumerate() {
            if resident != Some(index) {
                group.waited += if group.queue.is_empty() { 0 } else { length };
                continue;
            }
            group.resident += length;
            if self.state == State::Runs {
                group.work(self.now, length);
            }
        }
        self.now = to;
    }

    /// The group that is next in round robin after the resident one.
    fn next_runnable(&self) -> Option<usize> {
        let count = self.groups.len();
        let from = self.resident.unwrap_or(count - 1);
        let mut round = (1..=count).map(|step| (from + step) % count);
        round.find(|&index| Some(index) != self.resident && self.groups[index].is_runnable())
    }

    fn set(&mut self, state: State, until: Ns) {
        (self.state, self.until) = (state, until);
        self.version += 1;
        if until < NEVER {
            self.push(until, Event::Engine(self.version));
        }
    }

    fn change(&mut self, to: Option<usize>, cost: Ns) {
        let stops = self.resident.is_some_and(|resident| {
            let running = matches!(self.state, State::Runs | State::Restores);
            let Some(kernel) = self.groups[resident].queue.front_mut() else {
                return false;
            };
            kernel.stopped |= running && kernel.left > 0;
            kernel.stopped
        });
        let save = if stops && cost == CHANGE { SAVE } else { 0 };
        self.set(State::Changes(to), self.now + cost + save);
    }

    /// Decides what the engine does next after work arrived or ended, time was over, or holds
    /// changed.
    pub(super) fn dispatch(&mut self) {
        if matches!(self.state, State::Changes(_)) {
            return;
        }
        let other = self.next_runnable();
        let Some(resident) = self.resident else {
            if other.is_some() {
                self.change(other, CHANGE);
            }
            return;
        };
        let running = matches!(self.state, State::Runs | State::Restores);
        if self.groups[resident].held {
            if other.is_some() || running {
                self.change(other, HANDOVER);
            }
        } else if self.groups[resident].is_runnable() {
            if running {
                self.limit(resident, other);
            } else {
                self.start(resident, other);
            }
        } else if other.is_some() {
            if self.state != State::Lingers {
                let linger = LEAVE.0 + (self.random.uniform() * LEAVE.1 as f64) as Ns;
                self.set(State::Lingers, self.now + linger);
            } else if self.now >= self.until {
                self.change(other, CHANGE);
            }
        } else if self.state != State::Idle {
            self.set(State::Idle, NEVER);
        }
    }

    /// Runs a kernel; while other groups have work, the slice limits it.
    fn limit(&mut self, resident: usize, other: Option<usize>) {
        let kernel = self.groups[resident].queue[0];
        let slice_end = self.slice_end + kernel.late();
        if other.is_some() && self.now >= slice_end {
            self.change(other, CHANGE);
        } else if self.state == State::Runs {
            let end = self.now + kernel.left;
            let until = if other.is_some() {
                end.min(slice_end)
            } else {
                end
            };
            if until != self.until {
                self.set(State::Runs, until);
            }
        }
    }

    /// Starts the next kernel of the resident group, or changes to another group.
    fn start(&mut self, resident: usize, other: Option<usize>) {
        if self.now >= self.slice_end {
            if other.is_some() {
                self.change(other, CHANGE);
                return;
            }
            self.slice_end = self.now + self.groups[resident].slice;
        }
        let kernel = &mut self.groups[resident].queue[0];
        if kernel.stopped {
            kernel.stopped = false;
            self.set(State::Restores, self.now + RESTORE);
            return;
        }
        if let Some(until) = kernel.polls_until {
            kernel.left = (until - self.now).max(1);
        }
        let (end, slice_end) = (self.now + kernel.left, self.slice_end + kernel.late());
        let until = if other.is_some() {
            end.min(slice_end)
        } else {
            end
        };
        self.set(State::Runs, until);
    }

    /// The time of the engine's state is over.
    fn end_state(&mut self) {
        match self.state {
            State::Changes(to) => {
                let runnable = |index: &usize| self.groups[*index].is_runnable();
                let any = (0..self.groups.len()).find(runnable);
                self.resident = to.filter(runnable).or(any).or(to);
                self.state = State::Idle;
                if let Some(resident) = self.resident {
                    self.slice_end = self.now + self.groups[resident].slice;
                }
            }
            State::Runs => self.end_run(),
            State::Restores => self.state = State::Idle,
            State::Lingers | State::Idle => {}
        }
        self.dispatch();
    }

    fn end_run(&mut self) {
        let Some(resident) = self.resident else {
            return;
        };
        let now = self.now;
        let group = &mut self.groups[resident];
        if group.queue.front().is_some_and(|kernel| kernel.left <= 0) {
            group.queue.pop_front();
            if group.queue.is_empty() {
                group.empty_since = Some(now);
            }
            let goes_on = group.host.end_kernel();
            (self.state, self.until) = (State::Idle, NEVER);
            if goes_on {
                self.push(now + 2 * US, Event::Host(resident));
            }
        } else if self.next_runnable().is_none() {
            self.until = 0;
        }
    }

    fn end_copy(&mut self, index: usize) {
        let host = &mut self.groups[index].host;
        host.copied += 1;
        host.copies_queued.pop_front();
        if let Some(&length) = host.copies_queued.front() {
            self.push(self.now + length, Event::Copied(index));
        }
        self.dispatch();
    }

    /// Holds these groups and no others.
    pub(crate) fn hold(&mut self, held: &[bool]) {
        let now = self.now;
        let mut changed = false;
        for (group, &held) in self.groups.iter_mut().zip(held) {
            if group.held == held {
                continue;
            }
            (group.held, changed) = (held, true);
            if held {
                group.held_at = now;
            } else {
                group.longest_hold = group.longest_hold.max(now - group.held_at);
            }
        }
        if changed {
            self.until = 0;
            self.dispatch();
        }
    }
}
