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

impl DemandLog {
    /// Some channel of the tenant has changed.
    pub(crate) fn touch(&mut self, tenant: TenantId) {
        if !self.changed.contains(&tenant) {
            self.changed.push(tenant);
        }
    }

    /// Takes the notice.
    pub(crate) fn take_notice(&mut self) -> bool {
        std::mem::take(&mut self.notice)
    }
}

/// Logs the demand of tenants that have changed.
pub(crate) fn log(core: &mut Core, now: Moment) {
    for tenant in std::mem::take(&mut core.demand.changed) {
        for engine in 0..ENGINES {
            let demand = demand_of(core, tenant, engine);
            set_demand(core, now, tenant, engine, demand);
        }
    }
}

fn set_demand(core: &mut Core, now: Moment, tenant: TenantId, engine: usize, demand: Demand) {
    let stops = core.config.suspend == Suspend::MidKernel;
    let occupied = !matches!(core.engines[engine].state, State::Idle);
    let Some(entry) = core.tenants.get_mut(&tenant) else {
        return;
    };
    let before = std::mem::replace(&mut entry.demand[engine], demand);
    if before == demand {
        return;
    }
    let arrives = before == Demand::Nothing;
    core.demand.notice |= arrives && (entry.held[engine] || stops && occupied);
    let event = DemandEvent {
        at: now,
        // CAST: there are three engines.
        engine: EngineId(engine as u8),
        tenant,
        demand,
    };
    if let Some(board) = &core.board {
        board.demand(&event);
    }
    if core.demand.records.len() == core.config.log_capacity {
        core.demand.records.pop_front();
        core.demand.lost = true;
    }
    core.demand.records.push_back(event);
}

fn demand_of(core: &Core, tenant: TenantId, engine: usize) -> Demand {
    let Some(entry) = core.tenants.get(&tenant) else {
        return Demand::Nothing;
    };
    let class = class_of(engine);
    let queued = |slot: &u32| {
        let channel = core.slots[*slot as usize].channel.as_ref();
        channel.is_some_and(
            |channel| matches!(&channel.phase, Phase::Queued(job) if job.work.class() == class),
        )
    };
    match &core.engines[engine].state {
        _ if entry.slots().any(|slot| queued(&slot)) => Demand::Queued,
        State::Switching { load, .. } if load.is_command_of(tenant) => Demand::Queued,
        State::Running { load, .. } if load.is_command_of(tenant) => {
            let channel = core.find(load.channel);
            match channel.is_some_and(|channel| channel.is_followed_by(class)) {
                true => Demand::Queued,
                false => Demand::Executes,
            }
        }
        _ => Demand::Nothing,
    }
}

/// Gives a notice for each engine that has nothing more to start though held tenants have work
/// for it: when that begins, when a command starts meanwhile, and when the last one ends.
/// `started` are the engines on which one did.
pub(crate) fn notice_starved(core: &mut Core, started: [bool; ENGINES]) {
    for (engine, started) in started.into_iter().enumerate() {
        let idle = matches!(core.engines[engine].state, State::Idle);
        let starved = is_starved(core, engine).then_some(idle);
        let before = std::mem::replace(&mut core.demand.starved[engine], starved);
        core.demand.notice |= starved.is_some() && (started || starved != before);
    }
}

fn is_starved(core: &Core, engine: usize) -> bool {
    let mut any = false;
    for slot in &core.ready[class_of(engine) as usize] {
        if core.is_away(*slot) {
            continue;
        }
        if !core.is_held_on(*slot, engine) {
            return false;
        }
        any = true;
    }
    any
}

/// Moves the changes since the last call to the end of `events`.
pub(crate) fn read(core: &mut Core, events: &mut Vec<DemandEvent>) {
    events.extend(core.demand.records.drain(..));
    if std::mem::take(&mut core.demand.lost) {
        let now = core.now;
        let present = core.tenants.iter().flat_map(|(tenant, entry)| {
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
