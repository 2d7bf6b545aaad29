//! Engines and the dispatcher: round-robin over the channels that have work, one command each, no
//! preemption.
//!
//! Fair per command only, as channel hardware is: tenants with longer commands get more of the
//! engine.
//!
//! ```text
//!            other tenant's work            switched
//!   Idle ------------------------> Switching -------> Running --- fault ---> Stalled
//!    ^ \____________________________________________/   |                       |
//!    |               same tenant's work                 | done                  |
//!    +--------------------------------------------------+-----------------------+
//! ```

use std::sync::Arc;

use turnstile_accounting::{EngineId, EngineState, Moment, Nanos, TenantId};

use super::{Core, SlotRef, demand, front_end, moves};
use crate::channel::Phase;
use crate::config::{COMPUTE, ENGINES};
use crate::execute::transfer_bytes;
use crate::execute::work::{Class, Job, Outcome, Start, Stop, Work};
use turnstile_gpu::Suspend;
use turnstile_gpu::ring::ChannelFault;

/// What an engine has been given.
#[derive(Debug)]
pub(crate) struct Load {
    /// The tenant that is charged.
    pub(crate) tenant: TenantId,
    /// Channel of the command, which may be gone; none for moves of the mediator.
    pub(crate) channel: Option<SlotRef>,
    job: Job,
    pub(crate) stop: Arc<Stop>,
}

impl Load {
    /// Work without a channel.
    pub(crate) fn for_mediator(tenant: TenantId, job: Job) -> Self {
        Self {
            tenant,
            channel: None,
            job,
            stop: Arc::default(),
        }
    }

    /// Whether it is a command of this tenant.
    pub(crate) fn is_command_of(&self, tenant: TenantId) -> bool {
        self.tenant == tenant && self.channel.is_some()
    }
}

/// An engine's state.
#[derive(Debug, Default)]
pub(crate) enum State {
    /// Free.
    #[default]
    Idle,
    /// Loads another tenant's context.
    Switching { until: Moment, load: Load },
    /// Executes.
    Running {
        since: Moment,
        /// When a kernel is ended.
        deadline: Option<Moment>,
        load: Load,
    },
    /// Recovers from a fault.
    Stalled { until: Moment, tenant: TenantId },
}

/// An engine.
#[derive(Debug, Default)]
pub(crate) struct Engine {
    /// The tenant of the loaded context.
    pub(crate) context: Option<TenantId>,
    pub(crate) state: State,
}

impl Engine {
    fn visible(&self) -> EngineState {
        match &self.state {
            State::Idle => EngineState::Idle,
            State::Switching { .. } => EngineState::Switching,
            State::Running { load, .. } => EngineState::Running(load.tenant),
            State::Stalled { tenant, .. } => EngineState::Fault(*tenant),
        }
    }

    pub(crate) fn load(&self) -> Option<&Load> {
        match &self.state {
            State::Switching { load, .. } | State::Running { load, .. } => Some(load),
            State::Idle | State::Stalled { .. } => None,
        }
    }
}

/// Saturates, because a configured limit may be practically infinite.
fn later(now: Moment, length: Nanos) -> Moment {
    Moment(now.0.saturating_add(length.0))
}

impl Core {
    /// Gives work to free engines and advances states that end with time. `starts` receives the
    /// work that engines are to begin now.
    pub(crate) fn dispatch(&mut self, now: Moment, starts: &mut Vec<Start>) {
        let now = self.tick(now);
        for index in 0..ENGINES {
            self.elapse(now, index, starts);
        }
        if self.memory_log.is_some() {
            moves::assign(self, now, moves::copies_wait(self), starts);
        }
        let mut started = [false; ENGINES];
        for class in [Class::Compute, Class::Copy] {
            while let Some((slot, engine)) = self.next_match(class) {
                started[engine] = true;
                self.assign(now, slot, engine, class, starts);
            }
        }
        if self.memory_log.is_some() {
            moves::assign(self, now, false, starts);
        }
        self.settle(now);
        demand::notice_starved(self, started);
    }

    /// What time alone does to an engine.
    fn elapse(&mut self, now: Moment, index: usize, starts: &mut Vec<Start>) {
        match &self.engines[index].state {
            State::Switching { until, .. } if *until <= now => {
                let state = std::mem::take(&mut self.engines[index].state);
                if let State::Switching { load, .. } = state {
                    self.begin(now, index, load, starts);
                }
            }
            State::Stalled { until, .. } if *until <= now => {
                self.engines[index].state = State::Idle;
            }
            State::Running {
                deadline: Some(deadline),
                load,
                ..
            } if *deadline <= now => load.stop.time_out(),
            _ => {}
        }
    }

    /// The next channel in round-robin order that may use a free engine, with that engine. Prefers
    /// an engine that has the tenant's context loaded.
    fn next_match(&self, class: Class) -> Option<(u32, usize)> {
        let engines = match class {
            Class::Compute => COMPUTE..COMPUTE + 1,
            Class::Copy => COMPUTE + 1..ENGINES,
        };
        let free = |engine: &usize| matches!(self.engines[*engine].state, State::Idle);
        if !engines.clone().any(|engine| free(&engine)) {
            return None;
        }
        let ready = &self.ready[class as usize];
        let after = self.cursor[class as usize].saturating_add(1);
        let in_turn = ready.range(after..).chain(ready.range(..after));
        in_turn.copied().find_map(|slot| {
            let tenant = self.slots[slot as usize].channel.as_ref()?.tenant;
            if self.is_away(slot) {
                return None;
            }
            let may = |engine: &usize| free(engine) && !self.is_held_on(slot, *engine);
            let warm = |engine: &usize| self.engines[*engine].context == Some(tenant);
            let mut all = engines.clone().filter(may);
            let any = engines.clone().find(may)?;
            Some((slot, all.find(warm).unwrap_or(any)))
        })
    }

    /// Whether the channel's tenant is suspended, or not all of its memory is on the card.
    pub(crate) fn is_away(&self, slot: u32) -> bool {
        let channel = self.slots[slot as usize].channel.as_ref();
        let tenant = channel.and_then(|channel| self.tenants.get(&channel.tenant));
        tenant.is_none_or(|t| t.suspended || t.moving > 0 || t.context.space.absent() > 0)
    }

    /// Whether the channel's tenant is held on an engine.
    pub(crate) fn is_held_on(&self, slot: u32, engine: usize) -> bool {
        let channel = self.slots[slot as usize].channel.as_ref();
        let tenant = channel.and_then(|channel| self.tenants.get(&channel.tenant));
        tenant.is_none_or(|tenant| tenant.held[engine])
    }

    /// Gives the queued work of a channel to an engine.
    fn assign(
        &mut self,
        now: Moment,
        slot: u32,
        index: usize,
        class: Class,
        starts: &mut Vec<Start>,
    ) {
        self.ready[class as usize].remove(&slot);
        self.cursor[class as usize] = slot;
        let entry = &mut self.slots[slot as usize];
        let channel_ref = SlotRef {
            slot,
            generation: entry.generation,
        };
        let Some(channel) = &mut entry.channel else {
            return;
        };
        let job = match std::mem::replace(&mut channel.phase, Phase::Running) {
            Phase::Queued(job) => job,
            // Only queued channels are in the ready sets.
            other => {
                channel.phase = other;
                return;
            }
        };
        let tenant = channel.tenant;
        let load = Load {
            tenant,
            channel: Some(channel_ref),
            job,
            stop: Arc::default(),
        };
        let engine = &mut self.engines[index];
        let changes = engine.context.replace(load.tenant) != Some(load.tenant);
        if changes && self.config.switch > Nanos::ZERO {
            let until = later(now, self.config.switch);
            engine.state = State::Switching { until, load };
        } else {
            self.begin(now, index, load, starts);
        }
        self.demand.touch(tenant);
    }

    /// An engine begins to execute.
    fn begin(&mut self, now: Moment, index: usize, load: Load, starts: &mut Vec<Start>) {
        self.demand.touch(load.tenant);
        let slot = load.channel.map(|channel| channel.slot);
        let Some((channel, slot)) = self.find(load.channel).zip(slot) else {
            return;
        };
        channel.context.space.runs();
        let left = self
            .config
            .kernel_limit
            .saturating_sub(load.job.progress.ran);
        starts.push(Start {
            engine: index,
            starts_at: now,
            work: load.job.work.clone(),
            progress: load.job.progress,
            context: channel.context.clone(),
            stop: load.stop.clone(),
        });
        self.registers.set_busy(index, slot, load.tenant);
        let is_kernel = load.job.work.class() == Class::Compute;
        self.engines[index].state = State::Running {
            since: now,
            deadline: is_kernel.then(|| later(now, left)),
            load,
        };
    }

    /// The channel, if it is still there.
    pub(crate) fn find(&self, channel: Option<SlotRef>) -> Option<&crate::channel::Channel> {
        let channel = channel?;
        let slot = &self.slots[channel.slot as usize];
        slot.channel
            .as_ref()
            .filter(|_| slot.generation == channel.generation)
    }

    /// The work of an engine has ended. Call [`Core::front_end`] and [`Core::dispatch`] next, with
    /// the same time.
    pub(crate) fn finished(&mut self, now: Moment, index: usize, outcome: Outcome) {
        let now = self.tick(now);
        let (since, load) = match std::mem::take(&mut self.engines[index].state) {
            State::Running { since, load, .. } => (since, load),
            other => {
                self.engines[index].state = other;
                return;
            }
        };
        if let Outcome::Fault { .. } = outcome
            && self.config.fault > Nanos::ZERO
        {
            self.engines[index].state = State::Stalled {
                until: later(now, self.config.fault),
                tenant: load.tenant,
            };
        }
        let Load {
            tenant,
            channel,
            job,
            ..
        } = load;
        let bytes = transfer_bytes(&job.work);
        if outcome == Outcome::Done && bytes > 0 {
            let copied = self.copied.entry(tenant).or_default();
            *copied = copied.saturating_add(bytes);
        }
        if let Work::Move(moving) = &*job.work {
            return moves::moved(self, moving, now.since(since));
        }
        self.demand.touch(tenant);
        if self.memory_log.is_some() {
            self.settle_limbo(tenant);
        }
        let Some(slot) = self.find(channel).and(channel).map(|c| c.slot) else {
            return;
        };
        let Some(channel) = &mut self.slots[slot as usize].channel else {
            return;
        };
        if channel.closing {
            channel.report_closed();
            return self.vacate(slot);
        }
        if matches!(channel.phase, Phase::Faulted) {
            return;
        }
        match outcome {
            Outcome::Done => {
                // Dropped first: a guest that sees the command finished must be able to unload its
                // module.
                drop(job);
                channel.phase = Phase::Fetching;
                channel.complete(now);
                front_end::engine_finished(self, tenant);
                front_end::line_up(self, slot);
            }
            Outcome::Preempted(mut progress) => {
                progress.ran = job.progress.ran + now.since(since);
                let class = job.work.class();
                let work = job.work;
                channel.phase = Phase::Queued(Job { work, progress });
                self.ready[class as usize].insert(slot);
            }
            Outcome::Fault { code, info } => {
                drop(job);
                self.fault_channel(now, slot, ChannelFault { code, info });
            }
            // Occurs only for work of a removed tenant, and when the GPU itself is dropped.
            Outcome::Stopped => {
                let code = turnstile_abi::ErrorCode::DeviceLost;
                self.fault_channel(now, slot, ChannelFault { code, info: 0 });
            }
        }
    }

    /// Holds a tenant's queued work back, or lets it go on, as far as this GPU can.
    pub(crate) fn set_suspended(&mut self, now: Moment, tenant: TenantId, suspended: bool) {
        let now = self.tick(now);
        if self.config.suspend == Suspend::Drains {
            return;
        }
        let Some(entry) = self.tenants.get_mut(&tenant) else {
            return;
        };
        entry.suspended = suspended;
        for engine in 0..ENGINES {
            self.stop_or_go_on(engine, tenant);
        }
        self.settle(now);
    }

    /// Holds a tenant on one engine, or lets it go on, as far as this GPU can.
    pub(crate) fn set_held(&mut self, now: Moment, tenant: TenantId, engine: EngineId, held: bool) {
        let (now, engine) = (self.tick(now), usize::from(engine.0));
        let holds = self.config.suspend != Suspend::Drains && engine < ENGINES;
        let Some(entry) = self.tenants.get_mut(&tenant).filter(|_| holds) else {
            return;
        };
        entry.held[engine] = held;
        self.stop_or_go_on(engine, tenant);
        self.settle(now);
    }

    /// What an engine is at for the tenant is stopped if the tenant may not run, as far as it can
    /// be.
    fn stop_or_go_on(&mut self, engine: usize, tenant: TenantId) {
        let entry = self.tenants.get(&tenant);
        let stops = entry.is_some_and(|entry| entry.suspended || entry.held[engine]);
        match &self.engines[engine].state {
            State::Switching { load, .. } if stops && load.tenant == tenant => {
                self.cancel_switch(engine);
            }
            State::Running { load, .. }
                if load.tenant == tenant && self.config.suspend == Suspend::MidKernel =>
            {
                let is_kernel = load.job.work.class() == Class::Compute;
                load.stop.set_pause(stops && is_kernel);
            }
            _ => {}
        }
    }

    /// Cancels a context switch. The work returns to the queue if its channel still exists.
    fn cancel_switch(&mut self, index: usize) {
        if !matches!(self.engines[index].state, State::Switching { .. }) {
            return;
        }
        let engine = &mut self.engines[index];
        engine.context = None;
        if let State::Switching { load, .. } = std::mem::take(&mut engine.state)
            && let Some(slot) = self.find(load.channel).and(load.channel).map(|c| c.slot)
            && let Some(channel) = &mut self.slots[slot as usize].channel
        {
            let class = load.job.work.class();
            channel.phase = Phase::Queued(load.job);
            self.ready[class as usize].insert(slot);
            self.demand.touch(load.tenant);
        }
    }

    /// No engine is to switch to this channel.
    pub(crate) fn cancel_switch_to(&mut self, slot: u32) {
        let to = |state: &State| matches!(state, State::Switching { load, .. } if load.channel.is_some_and(|c| c.slot == slot));
        for index in 0..ENGINES {
            if to(&self.engines[index].state) {
                self.cancel_switch(index);
            }
        }
    }

    /// Whether an engine executes a command of this channel.
    pub(crate) fn is_on_engine(&self, slot: u32) -> bool {
        let generation = self.slots[slot as usize].generation;
        let channel = SlotRef { slot, generation };
        let mut loads = self.engines.iter().filter_map(Engine::load);
        loads.any(|load| load.channel == Some(channel))
    }

    /// Requests a stop of all engine work of a removed tenant.
    pub(crate) fn stop_engines_of(&mut self, tenant: TenantId) {
        for index in 0..ENGINES {
            if self.engines[index].context == Some(tenant) {
                self.engines[index].context = None;
            }
            match &self.engines[index].state {
                State::Running { load, .. } if load.is_command_of(tenant) => load.stop.end(),
                State::Switching { load, .. } if load.tenant == tenant => self.cancel_switch(index),
                _ => {}
            }
        }
    }

    /// Whether one of the tenant's commands on an engine is known to touch these addresses.
    pub(crate) fn in_use(&self, tenant: TenantId, range: &std::ops::Range<u64>) -> bool {
        let loads = self.engines.iter().filter_map(Engine::load);
        loads
            .filter(|load| load.tenant == tenant)
            .any(|load| load.job.work.touches(range))
    }

    /// When [`Core::dispatch`] has to be called though nothing happens.
    pub(crate) fn next_wakeup(&self) -> Option<Moment> {
        let due = self
            .engines
            .iter()
            .filter_map(|engine| match &engine.state {
                State::Switching { until, .. } | State::Stalled { until, .. } => Some(*until),
                // A stop that was already requested is not requested again.
                State::Running { deadline, load, .. } => deadline.filter(|_| !load.stop.is_ended()),
                State::Idle => None,
            });
        due.chain(self.budgets.next_refill(self.now)).min()
    }

    /// Logs the changes up to now, so that states of zero length leave no record; then updates the
    /// registers: an engine that is seen idle has its last record in the log.
    pub(crate) fn settle(&mut self, now: Moment) {
        for index in 0..ENGINES {
            let state = self.engines[index].visible();
            if state != self.logged[index] {
                self.logged[index] = state;
                let event = self.log.push(now, index, state);
                if let Some(board) = &self.board {
                    board.switched(&event);
                }
            }
        }
        demand::log(self, now);
        for index in 0..ENGINES {
            if !matches!(self.engines[index].visible(), EngineState::Running(_)) {
                self.registers.clear_busy(index);
            }
        }
    }
}
