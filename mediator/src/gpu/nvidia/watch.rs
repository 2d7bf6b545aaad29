//! What is known of the engine and its tenants: log, residency, demand, counters and handles together.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::Arc;
use std::time::Instant;

use turnstile_accounting::meter::IdleShares;
use turnstile_accounting::{Moment, Nanos, Signals, SwitchEvent, TenantId, TenantUsage, Usage};
use turnstile_vmm::wire::ObjectChange;

use super::demand::Demand;
use super::events::{Change, EventLog, SwitchRecord};
use super::handles::Handles;
use super::hold::Channel;
use super::residency::{Residency, UNTRACKED};
use super::rm::{RmClient, RmError};
use super::utilisation::Utilisation;
use crate::gpu::Untracked;
use crate::mediation::COMPUTE;
use crate::process;

/// Residency is told up to here before the end of what was read: the GPU may yet deliver a record of a little earlier.
///
/// SOURCE: the log is flushed before it is read; a switch takes 80 us (facts sheet section 1).
const SETTLED: Nanos = Nanos::from_us(100);

/// Processes whose ancestors were looked at without finding a tenant, that are remembered.
const STRANGERS_MAX: usize = 4096;

/// The engine's occupancy and whom it belongs to.
#[derive(Debug)]
pub(super) struct Watch {
    client: Arc<RmClient>,
    log: EventLog,
    pub(super) residency: Residency,
    pub(super) demand: Demand,
    pub(super) handles: Handles,
    utilisation: Option<Utilisation>,
    idle: IdleShares,
    tenants: BTreeSet<TenantId>,
    strangers: BTreeSet<u32>,
    records: Vec<SwitchRecord>,
    events: Vec<SwitchEvent>,
    /// A part of the log was lost since the events were last taken.
    lost: bool,
    pub(super) reads: Reads,
}

/// What watching costs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reads {
    /// Times that the log was read, and how long that took.
    pub(super) log: u64,
    pub(super) log_ns: u64,
    /// Records in it.
    pub(super) records: u64,
    /// The same of the counters.
    pub(super) counters: u64,
    pub(super) counters_ns: u64,
}

/// Counts one reading that began then.
fn count(times: &mut u64, ns: &mut u64, begin: Instant) {
    *times += 1;
    // CAST: 584 years.
    *ns += begin.elapsed().as_nanos() as u64;
}

impl Watch {
    pub(super) fn new(
        client: Arc<RmClient>,
        log: EventLog,
        utilisation: Option<Utilisation>,
    ) -> Self {
        Self {
            client,
            log,
            residency: Residency::new(COMPUTE),
            demand: Demand::default(),
            handles: Handles::default(),
            utilisation,
            idle: IdleShares::default(),
            tenants: BTreeSet::new(),
            strangers: BTreeSet::new(),
            records: Vec::new(),
            events: Vec::new(),
            lost: false,
            reads: Reads::default(),
        }
    }

    pub(super) fn add(&mut self, tenant: TenantId, pid: u32, now: Moment) {
        self.tenants.insert(tenant);
        self.demand.add(tenant, now);
        self.assign(pid, tenant);
    }

    /// A process, and what it starts, is a tenant's.
    pub(super) fn assign(&mut self, pid: u32, tenant: TenantId) {
        self.residency.assign(pid, tenant);
        self.strangers.clear();
    }

    pub(super) fn exited(&mut self, pid: u32) {
        self.handles.forget(pid);
        self.residency.forget(pid);
    }

    pub(super) fn remove(&mut self, tenant: TenantId) {
        self.tenants.remove(&tenant);
        self.demand.remove(tenant);
        self.idle.forget(tenant);
        for pid in self.residency.forget_tenant(tenant) {
            self.handles.forget(pid);
        }
    }

    /// Takes what a process was handed out; whether a tenant that is held has something new to be stopped.
    pub(super) fn changed(&mut self, tenant: TenantId, pid: u32, changes: &[ObjectChange]) -> bool {
        if self.residency.tenant(pid) != Some(tenant) {
            self.assign(pid, tenant);
        }
        let mut any = false;
        for change in changes {
            match self.handles.apply(pid, change) {
                Ok(changed) => any |= changed,
                Err(error) => log::debug!("{error}"),
            }
        }
        any
    }

    /// Channels by which a tenant is held: those on the compute engine, of all its processes.
    pub(super) fn channels(&self, tenant: TenantId) -> Vec<Channel> {
        self.handles
            .pids()
            .filter(|pid| self.residency.tenant(*pid) == Some(tenant))
            .flat_map(|pid| self.handles.compute_channels(pid))
            .collect()
    }

    /// Reads the log up to now.
    pub(super) fn refresh(&mut self) -> Result<(), RmError> {
        let begin = Instant::now();
        let complete = self.log.read(&self.client, &mut self.records)?;
        count(&mut self.reads.log, &mut self.reads.log_ns, begin);
        self.reads.records += self.records.len() as u64;
        for record in self.records.drain(..) {
            self.residency.take(&record, &mut self.events);
            let tenant = self.residency.tenant(record.pid).unwrap_or(UNTRACKED);
            match record.change {
                Change::Active => self.demand.active(tenant, record.at),
                Change::Saved => self.demand.saved(tenant, record.at),
            }
        }
        if !complete {
            self.residency.lose();
            self.lost = true;
        }
        Ok(())
    }

    /// The engine was seen at work, or without, at `at`, while this tenant was resident.
    pub(super) fn seen(&mut self, tenant: TenantId, works: bool, at: Moment) {
        if works {
            self.demand.busy(tenant, at);
            self.residency.busy(tenant, at, &mut self.events);
        } else {
            self.demand.idle(tenant, at);
            self.residency.idle(tenant, at, &mut self.events);
        }
    }

    /// Moves what the engine did until `now` to the end of `events`; whether nothing of it was lost.
    pub(super) fn take(
        &mut self,
        now: Moment,
        events: &mut Vec<SwitchEvent>,
    ) -> Result<bool, RmError> {
        self.refresh()?;
        let settled = Moment(now.0.saturating_sub(SETTLED.0));
        self.residency.settle(settled, &mut self.events);
        self.measure_idle(now);
        self.adopt();
        events.append(&mut self.events);
        Ok(!std::mem::take(&mut self.lost))
    }

    /// Learns from the engine's counters how much of each residency was idle.
    fn measure_idle(&mut self, now: Moment) {
        let Some(utilisation) = &mut self.utilisation else {
            return;
        };
        let begin = Instant::now();
        let busy = match utilisation.read(now) {
            Ok(Some(busy)) => busy,
            Ok(None) => return,
            Err(error) => {
                log::warn!("{error}; idle time within residency is charged from now on");
                self.utilisation = None;
                return;
            }
        };
        count(&mut self.reads.counters, &mut self.reads.counters_ns, begin);
        let mut resident = self.residency.resident_within(busy.from, busy.to);
        let length = busy.to.since(busy.from);
        let nobody = resident.remove(&None).unwrap_or_default();
        let resident: BTreeMap<TenantId, Nanos> = resident
            .into_iter()
            .filter_map(|(tenant, time)| Some((tenant?, time)))
            .collect();
        log::trace!(
            "{length:?} of which busy {:?}, {nobody:?} empty, resident {resident:?}",
            busy.busy_ns
        );
        let idle = length.saturating_sub(busy.busy_ns).saturating_sub(nobody);
        self.idle.observe(length, idle, &resident);
        for tenant in resident.into_keys() {
            let fraction = self.idle.fraction(tenant);
            self.residency.set_idle_fraction(tenant, fraction);
        }
    }

    /// Which signals a usage rests on, and how far its idle time may be in the wrong place.
    pub(super) fn qualify(&self, usage: &mut Usage) {
        if self.utilisation.is_none() {
            return;
        }
        usage.signals = Signals::EventsAndCounters;
        for engine in &mut usage.engines {
            let doubt = |part: &TenantUsage| {
                // CAST: a part of the tenant's time.
                Nanos((part.used_ns.0 as f64 * self.idle.uncertainty(part.tenant)) as u64)
            };
            let doubt = engine.tenants.iter().map(doubt).max();
            engine.error_bound_ns += doubt.unwrap_or(Nanos::ZERO);
        }
    }

    /// Processes that came up in the log and are children of a tenant are its own.
    fn adopt(&mut self) {
        let unknown = self.residency.untracked().keys();
        let new: Vec<u32> = unknown
            .filter(|pid| !self.strangers.contains(pid))
            .copied()
            .collect();
        for pid in new {
            match process::nearest(pid, process::parent, |pid| self.residency.tenant(pid)) {
                Some(tenant) => self.residency.assign(pid, tenant),
                None if self.strangers.len() < STRANGERS_MAX => {
                    self.strangers.insert(pid);
                }
                None => {}
            }
        }
    }

    pub(super) fn untracked(&self) -> Vec<Untracked> {
        let of = |(pid, switches): (&u32, &u64)| Untracked {
            pid: *pid,
            name: name(*pid),
            switches: *switches,
        };
        self.residency.untracked().iter().map(of).collect()
    }
}

/// The name that a process gave itself; empty if it is gone.
fn name(pid: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_end()
        .chars()
        .filter(|c| !c.is_control())
        .collect()
}
