//! Memory of tenants that together own more than the GPU has: the daemon's use of the memory
//! keeper.

use std::collections::BTreeMap;

use turnstile_accounting::{Ledger, Metric, Moment, Nanos, TenantId, Usage};

use super::peer::{Kind, Tenant};
use super::snapshot::MemorySnapshot;
use crate::memory::{Entitlement, EntitlementError, MemoryKeeper};
use turnstile_gpu::Gpu;
use turnstile_mediation::{COMPUTE, Mediation};

/// Minimum time between two log lines about refused allocations, which guests cause.
const LOG_INTERVAL: Nanos = Nanos::from_ms(10_000);

/// Memory of one GPU.
#[derive(Debug)]
pub(crate) struct Memory {
    keeper: MemoryKeeper,
    /// Refused allocations that were not logged yet, and the time of the latest log line.
    unlogged: u64,
    logged_at: Option<Moment>,
    /// Since when memory has kept every tenant from running, if it does.
    idle_from: Option<Moment>,
    /// How long it did before that, and since that was last taken.
    idle_ns: Nanos,
}

impl Memory {
    /// None where memory does not move.
    pub(crate) fn of(gpu: &dyn Gpu) -> Option<Self> {
        Some(Self {
            keeper: MemoryKeeper::of(gpu)?,
            unlogged: 0,
            logged_at: None,
            idle_from: None,
            idle_ns: Nanos::ZERO,
        })
    }

    /// A tenant appears. Limits that were set and do not fit beside the others' give way to none.
    pub(crate) fn add(&mut self, tenant: TenantId, entitlement: Entitlement) {
        // It may run at once.
        self.idle_from = None;
        let none = Entitlement::by_weight(entitlement.weight, entitlement.max_bytes);
        for entitlement in [entitlement, none] {
            match self.keeper.add(tenant, entitlement) {
                Ok(()) => return,
                Err(error) => log::error!("Memory of {tenant}: {error}"),
            }
        }
    }

    /// Whether a tenant could be entitled to this.
    pub(crate) fn check(
        &self,
        tenant: TenantId,
        entitlement: Entitlement,
    ) -> Result<(), EntitlementError> {
        self.keeper
            .manager()
            .check_entitlement(tenant, &entitlement)
    }

    /// Changes the entitlement of a connected tenant.
    pub(crate) fn set(
        &mut self,
        tenant: TenantId,
        entitlement: Entitlement,
    ) -> Result<(), EntitlementError> {
        self.keeper.add(tenant, entitlement)
    }

    /// Limit of a tenant that names none: the card without the others' reserves.
    pub(crate) fn unreserved_bytes(&self) -> u64 {
        self.keeper.manager().unreserved_bytes()
    }

    pub(crate) fn remove(&mut self, tenant: TenantId) {
        self.keeper.manager_mut().remove(tenant);
    }

    /// Whether a tenant may run, as far as memory goes.
    pub(crate) fn may_run(&self, tenant: TenantId) -> bool {
        self.keeper.manager().may_run(tenant)
    }

    /// A program was admitted: at the daemon's end its memory is brought back like the others'.
    pub(crate) fn comes_back(&mut self, tenant: TenantId) {
        self.keeper.manager_mut().bring_back_too(tenant);
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.keeper.manager().is_busy()
    }

    /// Takes the engine use of a period that ended, and reports to the policy which tenants wait
    /// for memory.
    pub(crate) fn period(&mut self, mediation: &mut Mediation, observed: &Usage) {
        let manager = self.keeper.manager_mut();
        for part in observed
            .engine(COMPUTE)
            .iter()
            .flat_map(|engine| &engine.tenants)
        {
            manager.used(part.tenant, part.metric_ns(Metric::Total));
        }
        mediation.memory_waits(observed.window.to(), |tenant| manager.waits(tenant));
    }

    /// Reports to the manager which tenants want the engine.
    pub(crate) fn wishes<'a>(
        &mut self,
        mediation: &Mediation,
        tenants: impl Iterator<Item = &'a TenantId>,
        now: Moment,
    ) {
        for tenant in tenants {
            let wants = mediation.wants(*tenant);
            self.keeper.manager_mut().wants(now, *tenant, wants);
        }
    }

    /// Runs a step of the keeper, and charges what was moved.
    pub(crate) fn step(&mut self, mediation: &mut Mediation, gpu: &dyn Gpu, now: Moment) {
        let news = self
            .keeper
            .step(gpu, now, |tenant| mediation.may_go_on(tenant));
        for (tenant, bytes, took) in &news.charged {
            mediation.charge_moved(*tenant, *bytes, *took);
        }
        self.unlogged += news.refused.len() as u64;
        let due = self
            .logged_at
            .is_none_or(|at| now.since(at) >= LOG_INTERVAL);
        if let Some((tenant, bytes)) = news.refused.last().filter(|_| due) {
            log::warn!(
                "{tenant} was refused {bytes} bytes of GPU memory: GPU and host pool have no more room ({} such refusals since the last line)",
                self.unlogged
            );
            self.unlogged = 0;
            self.logged_at = Some(now);
        }
        if !self.keeper.manager().all_still() {
            // One was released in this step.
            let idle_from = self.idle_from.take();
            self.idle_ns += idle_from.map_or(Nanos::ZERO, |from| now.since(from));
        } else if self.idle_from.is_none() && gpu.engine_status(COMPUTE).running.is_none() {
            self.idle_from = Some(gpu.now());
        }
    }

    /// How long memory kept every tenant from running until `now`, since the last call: the compute
    /// engine executed nothing.
    pub(crate) fn take_idle(&mut self, now: Moment) -> Nanos {
        let idle = std::mem::take(&mut self.idle_ns);
        let from = self.idle_from.map(|from| now.since(from));
        self.idle_from = self.idle_from.map(|from| from.max(now));
        idle + from.unwrap_or_default()
    }

    /// Before the end, brings programs' memory to the GPU as far as it fits, since they would fail
    /// without it. Turns end. VMs' memory makes way, as it is gone with the daemon in any case.
    pub(crate) fn bring_back(&mut self, tenants: &BTreeMap<TenantId, Tenant>) {
        let programs = tenants
            .iter()
            .filter(|(_, tenant)| matches!(tenant.kind, Kind::Program(_)));
        let manager = self.keeper.manager_mut();
        manager.bring_back(programs.map(|(id, _)| *id));
    }

    /// Progress of [`Self::bring_back`].
    pub(crate) fn homecoming(&self, tenants: &BTreeMap<TenantId, Tenant>) -> Homecoming {
        let (left_bytes, lost) = self.keeper.manager().still_to_come();
        let name = |id: &TenantId| Some(tenants.get(id)?.name.clone());
        Homecoming {
            left_bytes,
            lost: lost.iter().filter_map(name).collect(),
        }
    }

    pub(crate) fn snapshot(&self, tenant: TenantId, ledger: &Ledger) -> MemorySnapshot {
        let totals = self.keeper.manager().totals(tenant);
        let moved = ledger.tenant(tenant);
        MemorySnapshot {
            resident_bytes: totals.bytes.on_card(),
            swapped_bytes: totals.bytes.swapped,
            swapped_out_bytes: totals.swapped_out_bytes,
            swapped_in_bytes: totals.swapped_in_bytes,
            moved_bytes: moved.moved_bytes,
            moved_ns: moved.moved_ns,
            pinned_bytes: totals.bytes.pinned + totals.bytes.fixed,
        }
    }
}

/// Progress of bringing memory back before the end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Homecoming {
    /// Bytes that still have to move.
    pub left_bytes: u64,
    /// Programs for which the GPU has no room: they end with the daemon.
    pub lost: Vec<String>,
}

impl Homecoming {
    /// Of two GPUs.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.left_bytes += other.left_bytes;
        self.lost.extend(other.lost);
        self
    }
}

#[cfg(test)]
#[path = "memory_tests.rs"]
mod tests;
