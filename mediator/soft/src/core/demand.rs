//! What work each tenant has for each engine, as it changes, and the notices for the mediator.
//!
//! In: tenants of which some channel has changed. Out: the demand log, and one flag. Invariant:
//! after [`Core::settle`] the last record of each tenant and engine is what its channels have.

use std::collections::VecDeque;

use turnstile_accounting::{Demand, DemandEvent, EngineId, Moment, TenantId};

use super::Core;
use super::dispatch::State;
use crate::channel::Phase;
use crate::config::{COMPUTE, ENGINES};
use crate::execute::work::Class;
use turnstile_gpu::Suspend;

/// Changes of demand until they are read, and the notice.
#[derive(Debug, Default)]
pub(crate) struct DemandLog {
    records: VecDeque<DemandEvent>,
    /// A record was dropped for want of room.
    lost: bool,
    /// Tenants of which some channel has changed.
    changed: Vec<TenantId>,
    /// Engines that had nothing more to start though held tenants had work for them, and whether
    /// they executed nothing either.
    starved: [Option<Idle>; ENGINES],
    notice: bool,
}

/// Whether a starved engine executes nothing.
type Idle = bool;

/// The class of work that an engine does.
fn class_of(engine: usize) -> Class {
    match engine {
        COMPUTE => Class::Compute,
        _ => Class::Copy,
    }
}

impl Core {
    /// Some channel of the tenant has changed.
    pub(crate) fn touch(&mut self, tenant: TenantId) {
        if !self.demand.changed.contains(&tenant) {
            self.demand.changed.push(tenant);
        }
    }

    /// Logs the demand of tenants that have changed.
    pub(crate) fn log_demand(&mut self, now: Moment) {
        for tenant in std::mem::take(&mut self.demand.changed) {
            for engine in 0..ENGINES {
                let demand = self.demand_of(tenant, engine);
                self.set_demand(now, tenant, engine, demand);
            }
        }
    }

    fn set_demand(&mut self, now: Moment, tenant: TenantId, engine: usize, demand: Demand) {
        let stops = self.config.suspend == Suspend::MidKernel;
        let occupied = !matches!(self.engines[engine].state, State::Idle);
        let Some(entry) = self.tenants.get_mut(&tenant) else {
            return;
        };
        let before = std::mem::replace(&mut entry.demand[engine], demand);
        if before == demand {
            return;
        }
        let arrives = before == Demand::Nothing;
        self.demand.notice |= arrives && (entry.held[engine] || stops && occupied);
        let event = DemandEvent {
            at: now,
            // CAST: there are three engines.
            engine: EngineId(engine as u8),
            tenant,
            demand,
        };
        if let Some(board) = &self.board {
            board.demand(&event);
        }
        if self.demand.records.len() == self.config.log_capacity {
            self.demand.records.pop_front();
            self.demand.lost = true;
        }
        self.demand.records.push_back(event);
    }

    fn demand_of(&self, tenant: TenantId, engine: usize) -> Demand {
        let Some(entry) = self.tenants.get(&tenant) else {
            return Demand::Nothing;
        };
        let class = class_of(engine);
        let queued = |slot: &u32| {
            let channel = self.slots[*slot as usize].channel.as_ref();
            channel.is_some_and(
                |channel| matches!(&channel.phase, Phase::Queued(job) if job.work.class() == class),
            )
        };
        match &self.engines[engine].state {
            _ if entry.slots().any(|slot| queued(&slot)) => Demand::Queued,
            State::Switching { load, .. } if load.is_command_of(tenant) => Demand::Queued,
            State::Running { load, .. } if load.is_command_of(tenant) => {
                let channel = self.find(load.channel);
                match channel.is_some_and(|channel| channel.is_followed_by(class)) {
                    true => Demand::Queued,
                    false => Demand::Executes,
                }
            }
            _ => Demand::Nothing,
        }
    }

    /// Moves the changes since the last call to the end of `events`.
    pub(crate) fn read_demand(&mut self, events: &mut Vec<DemandEvent>) {
        events.extend(self.demand.records.drain(..));
        if std::mem::take(&mut self.demand.lost) {
            let now = self.now;
            let present = self.tenants.iter().flat_map(|(tenant, entry)| {
                let engines = entry.demand.into_iter().enumerate();
                engines.map(|(engine, demand)| DemandEvent {
                    at: now,
                    // CAST: there are three engines.
                    engine: EngineId(engine as u8),
                    tenant: *tenant,
                    demand,
                })
            });
            events.extend(present);
        }
    }

    /// Gives a notice for each engine that has nothing more to start though held tenants have work
    /// for it: when that begins, when a command starts meanwhile, and when the last one ends.
    /// `started` are the engines on which one did.
    pub(crate) fn notice_starved(&mut self, started: [bool; ENGINES]) {
        for (engine, started) in started.into_iter().enumerate() {
            let idle = matches!(self.engines[engine].state, State::Idle);
            let starved = self.is_starved(engine).then_some(idle);
            let before = std::mem::replace(&mut self.demand.starved[engine], starved);
            self.demand.notice |= starved.is_some() && (started || starved != before);
        }
    }

    fn is_starved(&self, engine: usize) -> bool {
        let mut any = false;
        for slot in &self.ready[class_of(engine) as usize] {
            if self.is_away(*slot) {
                continue;
            }
            if !self.is_held_on(*slot, engine) {
                return false;
            }
            any = true;
        }
        any
    }

    /// Takes the notice.
    pub(crate) fn take_notice(&mut self) -> bool {
        std::mem::take(&mut self.demand.notice)
    }
}
