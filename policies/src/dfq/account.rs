//! An account and its tenants: the second level of the tree.

use super::entity::{Entity, Standing};
use super::level::{Level, Part, Rules};
use super::names::{Names, Retired};
use super::pauses::Pauses;
use super::tenant::Tenant;
use crate::cap::Quota;
use crate::params::{Cap, TenantParams, Weight};
use crate::virtual_time::{VirtualSpan, VirtualTime};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use turnstile_accounting::{Allowance, Demand, Moment, Nanos, TenantId};

/// Most time saved up for reservations.
const RESERVED_MAX: Nanos = Nanos::from_ms(10);
/// With less saved time, a place is kept for at most twice the usual pause.
const RESERVED_LOW: Nanos = Nanos::from_ms(5);
/// Most preemptions that an account may save up.
const PREEMPTIONS_MAX: u64 = 10;
/// An account earns one part in `PREEMPTION_PART` of what it runs for preemptions.
const PREEMPTION_PART: u64 = 8;

/// An account.
#[derive(Clone, Debug)]
// FIELDS: the state of an account; its parts change together at an event.
pub(crate) struct Account {
    pub(crate) entity: Entity,
    pub(crate) quota: Option<Quota>,
    pub(crate) tenants: BTreeMap<TenantId, Tenant>,
    /// The tenants that take part.
    pub(crate) present: BTreeSet<TenantId>,
    /// Tenants that have not taken part since they were added.
    fresh: BTreeSet<TenantId>,
    /// Tenants in `fresh` would be ahead if they took part now.
    fresh_ahead: bool,
    pub(crate) level: Level<TenantId>,
    /// The least virtual time of the tenants that take part; never decreases.
    system: VirtualTime,
    names: Names,
    reservations: Allowance,
    preemptions: Allowance,
    /// When the first place expires, if some tenant keeps one.
    expires_at: Option<Moment>,
    /// Number of quotas of the account and its tenants.
    limited: usize,
    /// Something changed since the last update.
    stale: bool,
}

impl Account {
    /// An account without tenants.
    pub(crate) fn new(params: TenantParams, rules: &Rules, at: VirtualTime, now: Moment) -> Self {
        let latency = rules.preemption.unwrap_or(Nanos::ZERO);
        let preemptions_max = Nanos(latency.0 * PREEMPTIONS_MAX);
        Self {
            entity: Entity::new(params.weight, at),
            quota: params.cap.map(|cap| Quota::starting(cap, now)),
            tenants: BTreeMap::new(),
            present: BTreeSet::new(),
            fresh: BTreeSet::new(),
            fresh_ahead: false,
            level: Level::default(),
            system: VirtualTime::default(),
            names: Names::default(),
            reservations: Allowance::new(RESERVED_MAX, RESERVED_MAX, now),
            preemptions: Allowance::new(Nanos::ZERO, preemptions_max, now),
            expires_at: None,
            limited: usize::from(params.cap.is_some()),
            stale: true,
        }
    }

    /// Adds a tenant. It starts at the larger of two virtual times: the highest that a tenant of
    /// the account had lately, and the one kept under its name.
    pub(crate) fn add(&mut self, id: TenantId, name: Arc<str>, params: TenantParams, now: Moment) {
        let (at, pauses, ran_at) = match self.names.take(&name) {
            Some(retired) => (retired.at, retired.pauses, retired.ran_at),
            None => {
                let at = self.highest_lately(now).unwrap_or(self.system);
                (at, Pauses::default(), None)
            }
        };
        let tenant = Tenant {
            name,
            entity: Entity::new(params.weight, at),
            quota: params.cap.map(|cap| Quota::starting(cap, now)),
            pauses,
            demand: Demand::Nothing,
            idle_since: None,
            place_until: None,
            reserved_ns: Nanos::ZERO,
            ran_at,
        };
        self.tenants.insert(id, tenant);
        self.fresh.insert(id);
        self.count_quotas();
    }

    /// The highest virtual time of the account's tenants that ran lately, present or gone.
    fn highest_lately(&self, now: Moment) -> Option<VirtualTime> {
        let here = self.tenants.values().map(|t| (t.entity.at(), t.ran_at));
        self.names.highest_lately(here, now)
    }

    /// Removes a tenant; its virtual time is kept under its name.
    pub(crate) fn remove(&mut self, id: TenantId) {
        self.present.remove(&id);
        self.fresh.remove(&id);
        let Some(tenant) = self.tenants.remove(&id) else {
            return;
        };
        let retired = Retired {
            at: tenant.entity.at(),
            pauses: tenant.pauses,
            ran_at: tenant.ran_at,
        };
        self.names.retire(tenant.name, retired);
        self.count_quotas();
        self.changed();
    }

    /// What its names are ahead by, as service at the default weight.
    pub(crate) fn debts(&self) -> impl Iterator<Item = (Arc<str>, Nanos)> {
        let here = self.tenants.values().map(|t| (&t.name, t.entity.at()));
        let all = here.chain(self.names.iter());
        let ahead = |at| self.system.service_until(at, Weight::DEFAULT.get().into());
        all.map(move |(name, at)| (name.clone(), ahead(at)))
    }

    /// A name without a tenant is ahead by `ahead` from an earlier run.
    pub(crate) fn owe(&mut self, name: Arc<str>, ahead: Nanos, now: Moment) {
        let span = VirtualSpan::of(ahead, Weight::DEFAULT.get().into());
        let retired = Retired {
            at: self.system + span,
            pauses: Pauses::default(),
            ran_at: Some(now),
        };
        self.names.retire(name, retired);
    }

    /// Drops the debt of a name.
    pub(crate) fn forget_name(&mut self, name: &str) {
        self.names.take(name);
    }

    /// A tenant has work from now on. Returns true if it had none before.
    pub(crate) fn wake(&mut self, id: TenantId, demand: Demand, now: Moment) -> bool {
        let Some(tenant) = self.tenants.get_mut(&id) else {
            return false;
        };
        let had_none = !tenant.wants();
        tenant.demand = demand;
        self.stale = true;
        if !had_none {
            return false;
        }
        if let Some(since) = tenant.idle_since.take() {
            tenant.pauses.push(now.since(since));
        }
        if !tenant.is_capped() {
            self.enter(id, now);
        }
        true
    }

    fn enter(&mut self, id: TenantId, now: Moment) {
        let mut system = self.system;
        if self.fresh.remove(&id) {
            // Neither an early arrival nor a return under another name gains anything.
            system = system.max(self.highest_lately(now).unwrap_or(system));
        }
        if let Some(tenant) = self.tenants.get_mut(&id) {
            tenant.entity.arrive(now, system);
            (tenant.place_until, tenant.reserved_ns) = (None, Nanos::ZERO);
            self.present.insert(id);
        }
        self.changed();
    }

    /// A tenant has no work from now on. Its place is kept if its pauses are short.
    pub(crate) fn sleep(&mut self, id: TenantId, now: Moment, rules: &Rules) {
        let allowed = self.reservations.left(now);
        let Some(tenant) = self.tenants.get_mut(&id).filter(|tenant| tenant.wants()) else {
            return;
        };
        (tenant.demand, tenant.idle_since) = (Demand::Nothing, Some(now));
        let usual = tenant.pauses.usual().unwrap_or(rules.patience);
        let keeps = rules.patience > Nanos::ZERO
            && usual <= rules.patience
            && allowed > rules.patience
            && tenant.entity.is_runnable();
        if keeps {
            let long = if allowed < RESERVED_LOW {
                rules.patience.min(Nanos(2 * usual.0))
            } else {
                rules.patience
            };
            tenant.entity.pause(now);
            tenant.place_until = Some(now + long);
            self.changed();
        } else {
            self.drop_place(id, now);
        }
    }

    /// A tenant no longer takes part.
    pub(crate) fn drop_place(&mut self, id: TenantId, now: Moment) {
        self.present.remove(&id);
        if let Some(tenant) = self.tenants.get_mut(&id) {
            tenant.entity.leave(now);
            tenant.place_until = None;
        }
        self.changed();
    }

    /// When the next place expires.
    pub(crate) const fn expires_at(&self) -> Option<Moment> {
        self.expires_at
    }

    /// To be called when tenants begin or cease to take part, or a parameter of one changes.
    fn changed(&mut self) {
        self.stale = true;
        let present = self.present.iter().filter_map(|id| self.tenants.get(id));
        self.expires_at = present.filter_map(|tenant| tenant.place_until).min();
    }

    /// Sets the account's own cap.
    pub(crate) fn set_cap(&mut self, cap: Option<Cap>, now: Moment) {
        if self.quota.map(|quota| quota.cap()) != cap {
            self.quota = cap.map(|cap| Quota::starting(cap, now));
            self.count_quotas();
        }
    }

    /// Sets a tenant's weight.
    pub(crate) fn set_weight(&mut self, id: TenantId, weight: Weight) {
        if let Some(tenant) = self.tenants.get_mut(&id) {
            tenant.entity.weight = weight;
            self.stale = true;
        }
    }

    /// Sets a tenant's cap.
    pub(crate) fn set_tenant_cap(&mut self, id: TenantId, cap: Option<Cap>, now: Moment) {
        if let Some(tenant) = self.tenants.get_mut(&id) {
            tenant.quota = cap.map(|cap| Quota::starting(cap, now));
        }
        self.count_quotas();
        // A tenant that its cap excluded takes part again.
        let wants = self.tenants.get(&id).is_some_and(Tenant::wants);
        if cap.is_none() && wants {
            self.enter(id, now);
        }
    }

    fn count_quotas(&mut self) {
        let quotas = self
            .tenants
            .values()
            .filter_map(|tenant| tenant.quota.as_ref());
        self.limited = quotas.chain(self.quota.as_ref()).count();
        self.stale = true;
    }

    /// Ends the places that have expired by `now`.
    pub(crate) fn expire(&mut self, now: Moment, rules: &Rules) {
        let over = |id: &TenantId| {
            let until = self.tenants.get(id).and_then(|tenant| tenant.place_until);
            until.is_some_and(|until| until <= now)
        };
        for id in self
            .present
            .iter()
            .copied()
            .filter(over)
            .collect::<Vec<_>>()
        {
            let reserved = self.tenants.get(&id).map_or(Nanos::ZERO, |t| t.reserved_ns);
            self.drop_place(id, now);
            self.reservations.spend(now, reserved);
            if self.reservations.left(now) <= rules.patience {
                self.drop_all_places(now);
            }
        }
    }

    fn drop_all_places(&mut self, now: Moment) {
        let pausing = |id: &TenantId| {
            let tenant = self.tenants.get(id);
            tenant.is_some_and(|tenant| tenant.entity.standing() == Standing::Pausing)
        };
        for id in self
            .present
            .iter()
            .copied()
            .filter(pausing)
            .collect::<Vec<_>>()
        {
            self.drop_place(id, now);
        }
    }

    /// Raises the tenants that have not taken part yet to where they would start now, if that is
    /// ahead: their first command must not start then.
    fn raise_fresh(&mut self, now: Moment) {
        let start = (!self.fresh.is_empty()).then(|| self.highest_lately(now));
        let ahead = |at: &VirtualTime| !self.level.allows(*at, Weight::DEFAULT.get().into());
        let start = start.flatten().filter(ahead);
        self.fresh_ahead = start.is_some();
        for id in start.iter().flat_map(|_| &self.fresh) {
            if let Some((tenant, at)) = self.tenants.get_mut(id).zip(start) {
                tenant.entity.clock.raise(at);
            }
        }
    }

    /// Excludes tenants with a used-up quota, and includes them again once it is renewed.
    fn update_caps(&mut self, now: Moment) {
        if self.limited == 0 {
            return;
        }
        if let Some(quota) = &mut self.quota {
            quota.advance_to(now);
        }
        let limited = self.tenants.iter_mut().filter(|(_, t)| t.quota.is_some());
        let mut changes = Vec::new();
        for (id, tenant) in limited {
            if let Some(quota) = &mut tenant.quota {
                quota.advance_to(now);
            }
            let capped = tenant.is_capped();
            if capped && tenant.entity.is_present() {
                changes.push((*id, false));
            } else if !capped && tenant.wants() && !tenant.entity.is_runnable() {
                changes.push((*id, true));
            }
        }
        for (id, takes_part) in changes {
            if takes_part {
                self.enter(id, now);
            } else {
                self.drop_place(id, now);
            }
        }
    }

    /// The tenants that a decision may concern: those that take part, and those with a cap. If the
    /// account is `ahead`, also those without work, as their next command must not start.
    pub(crate) fn decided(&self, ahead: bool) -> impl Iterator<Item = TenantId> + '_ {
        let concerned = self.tenants.iter();
        let concerned = concerned.filter(move |(_, t)| ahead || t.quota.is_some());
        let fresh = self.fresh.iter().filter(|_| self.fresh_ahead);
        self.present
            .iter()
            .chain(concerned.map(|(id, _)| id))
            .chain(fresh)
            .copied()
    }

    /// Whether its quota is used up.
    pub(crate) fn is_capped(&self) -> bool {
        self.quota.as_ref().is_some_and(Quota::exhausted)
    }

    /// Whether [`Account::update`] may find a change. `busy`: the engine runs one of its tenants.
    pub(crate) fn may_have_changed(&self, busy: bool) -> bool {
        busy || self.stale || self.limited > 0 || self.level.any_pausing()
    }

    /// Updates the level from the tenants that take part, and the account from its level. `busy`:
    /// the engine runs one of them; `system` is the least virtual time among accounts.
    pub(crate) fn update(
        &mut self,
        now: Moment,
        rules: &Rules,
        engine_idle: bool,
        busy: bool,
        system: VirtualTime,
    ) {
        // Another update is needed after the engine switches to another account.
        self.stale = busy;
        self.update_caps(now);
        let tenants = &self.tenants;
        let present = self.present.iter().filter_map(|id| {
            let tenant = tenants.get(id)?;
            Some(Part {
                key: *id,
                entity: &tenant.entity,
                queued: tenant.is_queued(),
                longest: tenant.pauses.longest(),
            })
        });
        self.level.update(rules, now, engine_idle, present);
        self.raise_fresh(now);
        let runs = busy || self.may_start().next().is_some();
        let standing = self.entity.standing();
        if self.is_capped() {
            if standing != Standing::Absent {
                self.entity.leave(now);
            }
        } else if runs {
            self.entity.go_on(now, system);
        } else if self.level.any_pausing() && standing != Standing::Absent {
            if standing != Standing::Pausing {
                self.entity.pause(now);
            }
        } else if standing != Standing::Absent {
            self.entity.leave(now);
        }
    }

    /// Tenants with work that the account permits to start now.
    pub(crate) fn may_start(&self) -> impl Iterator<Item = TenantId> + '_ {
        let present = self.present.iter().copied();
        present.filter(|id| {
            let tenant = self.tenants.get(id);
            tenant.is_some_and(|t| t.entity.is_runnable() && self.allows(t))
        })
    }

    /// Whether a command of one of its tenants waits to be started.
    pub(crate) fn is_queued(&self) -> bool {
        let mut present = self.present.iter().filter_map(|id| self.tenants.get(id));
        self.entity.is_runnable() && present.any(Tenant::is_queued)
    }

    /// Whether the account permits a command of the tenant to start.
    pub(crate) fn allows(&self, tenant: &Tenant) -> bool {
        self.level.allows(tenant.entity.at(), tenant.entity.share())
    }

    /// The longest remembered pause among its tenants that keep their places.
    pub(crate) fn longest_pause(&self) -> Option<Nanos> {
        let pausing = |tenant: &&Tenant| tenant.entity.standing() == Standing::Pausing;
        let present = self.present.iter().filter_map(|id| self.tenants.get(id));
        let longest = present.filter(pausing).map(|t| t.pauses.longest());
        // The pause of a tenant without a history may have any length.
        longest
            .reduce(|one, other| Some(one?.max(other?)))
            .flatten()
    }

    /// Charges the tenant and the account for `service`.
    pub(crate) fn serve(&mut self, id: TenantId, now: Moment, service: Nanos) {
        self.stale = true;
        self.entity.serve(service);
        self.preemptions
            .earn(now, Nanos(service.0 / PREEMPTION_PART));
        if let Some(quota) = &mut self.quota {
            quota.charge(service);
        }
        if let Some(tenant) = self.tenants.get_mut(&id) {
            tenant.entity.serve(service);
            tenant.ran_at = Some(now);
            if let Some(quota) = &mut tenant.quota {
                quota.charge(service);
            }
        }
    }

    /// Raises system virtual time to that of the tenant that is furthest behind.
    pub(crate) fn raise_system(&mut self) {
        let present = self.present.iter().filter_map(|id| self.tenants.get(id));
        if let Some(least) = present.map(|tenant| tenant.entity.at()).min() {
            self.system = self.system.max(least);
        }
    }

    /// The engine was idle for the account for `length`: counts it for its pausing tenants.
    pub(crate) fn note_reserved(&mut self, length: Nanos) {
        for id in &self.present {
            if let Some(tenant) = self.tenants.get_mut(id)
                && tenant.entity.standing() == Standing::Pausing
            {
                tenant.reserved_ns += length;
            }
        }
    }

    /// Pays for one preemption; false if the account has not saved enough.
    pub(crate) fn pay_preemption(&mut self, now: Moment, latency: Nanos) -> bool {
        let pays = self.preemptions.left(now) >= latency;
        if pays {
            self.preemptions.spend(now, latency);
        }
        pays
    }

    /// When it can pay for a preemption.
    pub(crate) fn pays_at(&self, now: Moment, latency: Nanos) -> Moment {
        self.preemptions.reaches(now, latency)
    }
}

#[cfg(test)]
mod tests;
