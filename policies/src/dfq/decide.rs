//! The decisions: which tenants are held, when a running kernel is stopped, and when to decide
//! again.

use super::Dfq;
use super::account::Account;
use super::level::{Level, Part, QUANTUM, lead};
use crate::cap::Quota;
use crate::policy::{Decision, HoldReason, TenantDecision};
use turnstile_accounting::{AccountId, EngineState, Moment, Nanos, TenantId};

/// Preemptions, where running kernels can be stopped.
#[derive(Clone, Debug, Default)]
pub(super) struct Preemption {
    /// The running tenant that is being stopped, and the account that pays for it.
    under_way: Option<(TenantId, AccountId)>,
    /// The account that pays for the engine's next switch.
    payer: Option<AccountId>,
    /// Tenants with work that arrived since the last decision.
    arrivals: Vec<TenantId>,
    /// The running command started although its account, or its tenant within it, was ahead.
    fills: (bool, bool),
}

impl Preemption {
    pub(super) fn arrived(&mut self, tenant: TenantId) {
        self.arrivals.push(tenant);
    }

    pub(super) const fn fills(&self) -> (bool, bool) {
        self.fills
    }

    pub(super) const fn payer(&self) -> Option<AccountId> {
        self.payer
    }

    /// The state of the engine changed.
    pub(super) fn engine_changed(&mut self, state: EngineState) {
        let still_runs = |(tenant, _): &(TenantId, AccountId)| matches!(state, EngineState::Running(running) if running == *tenant);
        let ended = self.under_way.take_if(|under_way| !still_runs(under_way));
        self.payer = match state {
            EngineState::Switching => ended.map(|(_, payer)| payer).or(self.payer),
            EngineState::Idle => ended.map(|(_, payer)| payer),
            EngineState::Running(_) | EngineState::Fault(_) => None,
        };
    }
}

impl Dfq {
    /// Updates accounts and levels if something changed.
    pub(super) fn update(&mut self) {
        if !std::mem::take(&mut self.changed) {
            return;
        }
        let (now, rules, system) = (self.now, self.rules, self.system);
        let idle = self.engine == Some(EngineState::Idle);
        let busy = self.running().and_then(|tenant| self.owners.get(&tenant));
        let busy = busy.copied();
        for (id, account) in &mut self.accounts {
            let busy = busy == Some(*id);
            if account.may_have_changed(busy) {
                account.update(now, &rules, idle, busy, system);
            }
        }
        let entities = self.accounts.iter().filter(|(_, a)| a.entity.is_present());
        let entities = entities.map(|(id, account)| Part {
            key: *id,
            entity: &account.entity,
            queued: account.is_queued(),
            longest: account.longest_pause(),
        });
        self.level.update(&rules, now, idle, entities);
    }

    /// The tenant that the engine executes.
    pub(super) const fn running(&self) -> Option<TenantId> {
        match self.engine {
            Some(EngineState::Running(tenant) | EngineState::Fault(tenant)) => Some(tenant),
            _ => None,
        }
    }

    /// A command starts: notes whether it starts only because entities behind it pause.
    pub(super) fn note_fill(&mut self) {
        let Some(EngineState::Running(tenant)) = self.engine else {
            return;
        };
        let ahead = self.rules.ahead;
        let owner = self.owners.get(&tenant).copied();
        let Some((id, account)) = owner.and_then(|id| Some((id, self.accounts.get(&id)?))) else {
            return;
        };
        let (at, weight) = (account.entity.at(), account.entity.share());
        let others = self.accounts.iter().filter(|(other, _)| **other != id);
        let mut others = others.map(|(_, other)| &other.entity);
        let beyond = |of: &super::entity::Entity, at, weight| {
            of.is_present() && at > of.at() + lead(ahead, of.share(), weight)
        };
        let fills_account = others.any(|other| beyond(other, at, weight));
        let fills_tenant = account.tenants.get(&tenant).is_some_and(|runner| {
            let (at, weight) = (runner.entity.at(), runner.entity.share());
            let others = account.present.iter().filter(|other| **other != tenant);
            let mut others = others.filter_map(|other| account.tenants.get(other));
            others.any(|other| beyond(&other.entity, at, weight))
        });
        let stops = self.rules.preemption.is_some();
        self.preemption.fills = (stops && fills_account, stops && fills_tenant);
    }

    /// Why a tenant's next command may not start, or its running one is to be stopped.
    pub(super) fn hold(&self, tenant: TenantId) -> Option<HoldReason> {
        let account = self.accounts.get(self.owners.get(&tenant)?)?;
        let entry = account.tenants.get(&tenant)?;
        if account.is_capped() || entry.is_capped() {
            return Some(HoldReason::Capped);
        }
        if self.rules.preemption.is_some() && self.runs(tenant) {
            let stopped = self.preemption.under_way.map(|(stopped, _)| stopped);
            return (stopped == Some(tenant)).then_some(HoldReason::Ahead);
        }
        let entity = &account.entity;
        let allowed = self.level.allows(entity.at(), entity.share()) && account.allows(entry);
        (!allowed).then_some(HoldReason::Ahead)
    }

    pub(super) fn decide_now(&mut self, now: Moment) -> &[TenantDecision] {
        self.advance_to(now);
        // Service alone changes virtual times.
        self.changed = true;
        self.update();
        self.preempt();
        let ahead = |account: &Account| {
            let entity = &account.entity;
            !self.level.allows(entity.at(), entity.share())
        };
        let accounts = self.accounts.values();
        let present = accounts.flat_map(|account| account.decided(ahead(account)));
        let held = self.held.keys().copied();
        let mut all: Vec<TenantId> = present.chain(held).chain(self.fresh.drain(..)).collect();
        all.sort_unstable();
        all.dedup();
        self.decisions.clear();
        for tenant in all {
            let reason = self.hold(tenant);
            if self.note_hold(tenant, reason) {
                let decision = reason.map_or(Decision::Admit, Decision::Hold);
                self.decisions.push(TenantDecision { tenant, decision });
            }
        }
        &self.decisions
    }

    /// Stores the decision about a tenant; true if it differs from the one before.
    pub(super) fn note_hold(&mut self, tenant: TenantId, reason: Option<HoldReason>) -> bool {
        let before = match reason {
            Some(reason) => self.held.insert(tenant, reason),
            None => self.held.remove(&tenant),
        };
        before != reason
    }

    /// Stops the running tenant if work has arrived that goes before it, or if it is a quantum
    /// ahead of waiting work.
    fn preempt(&mut self) {
        let arrivals = std::mem::take(&mut self.preemption.arrivals);
        let (Some(latency), Some(running)) = (self.rules.preemption, self.running()) else {
            return;
        };
        let Some(own) = self.owners.get(&running).copied() else {
            return;
        };
        if self.preemption.under_way.is_some() {
            return;
        }
        let now = self.now;
        let arrived = arrivals.into_iter().find_map(|tenant| {
            let id = self.owners.get(&tenant).copied()?;
            self.goes_before(tenant, id, running, own).then_some(id)
        });
        let pays = |policy: &mut Self, id: AccountId| {
            let account = policy.accounts.get_mut(&id);
            account.is_some_and(|account| account.pay_preemption(now, latency))
        };
        let overtaken = self.overtaken(running, own);
        // If one account cannot pay, the next one may.
        let mut payers = arrived.into_iter().chain(overtaken);
        let payer = payers.find(|id| pays(self, *id));
        self.preemption.under_way = payer.map(|payer| (running, payer));
        if payer.is_some() {
            // If it was held when its command started, it is to be stopped nevertheless.
            self.held.remove(&running);
        }
    }

    /// Whether a tenant with work is at the same virtual time as the running one, or behind it.
    fn goes_before(
        &self,
        tenant: TenantId,
        id: AccountId,
        running: TenantId,
        own: AccountId,
    ) -> bool {
        let at = |id: AccountId, tenant: TenantId| {
            let account = self.accounts.get(&id)?;
            let entity = &account.tenants.get(&tenant)?.entity;
            let runnable = entity.is_runnable() && account.entity.is_runnable();
            Some((account.entity.at(), entity.at(), runnable))
        };
        let (Some(new), Some(old)) = (at(id, tenant), at(own, running)) else {
            return false;
        };
        let before = if id == own {
            new.1 <= old.1
        } else {
            new.0 <= old.0
        };
        tenant != running && new.2 && before
    }

    /// The accounts of the entities with work that the running one is a quantum ahead of.
    fn overtaken(&self, running: TenantId, own: AccountId) -> Vec<AccountId> {
        let Some(account) = self.accounts.get(&own) else {
            return Vec::new();
        };
        let passed = self.level.overtaken(own, &account.entity, QUANTUM);
        let within = account.tenants.get(&running).and_then(|runner| {
            let mut passed = account.level.overtaken(running, &runner.entity, QUANTUM);
            passed.next().map(|_| own)
        });
        passed.chain(within).collect()
    }

    /// When decisions change without another event.
    pub(super) fn next_decision(&self) -> Option<Moment> {
        // The first hold may wait for the end of the period: the delay costs no engine time.
        if self.held.is_empty() && self.rules.preemption.is_none() {
            return self.quota_ends();
        }
        let now = self.now;
        let expiry = self.expires_at();
        let inner = self.accounts.values().map(|account| &account.level);
        let lapses = inner.filter_map(Level::lapses_at).min();
        let crossing = self.crossing().map(|within| now + within);
        let all = [
            expiry,
            lapses,
            self.level.lapses_at(),
            crossing,
            self.pays_at(),
            self.quota_ends(),
        ];
        all.into_iter().flatten().min()
    }

    /// Service of the running tenant until a decision changes. If all tenants keep work queued, the
    /// end of the period is early enough: the engine stays busy.
    fn crossing(&self) -> Option<Nanos> {
        let tenant = self.running()?;
        let own = *self.owners.get(&tenant)?;
        let account = self.accounts.get(&own)?;
        let pauses = self.level.any_pausing() || account.level.any_pausing();
        if !pauses && self.rules.preemption.is_none() {
            return None;
        }
        let runner = account.tenants.get(&tenant)?;
        let outer = self.level.changes_within(own, &account.entity, QUANTUM);
        let inner = account
            .level
            .changes_within(tenant, &runner.entity, QUANTUM);
        outer.into_iter().chain(inner).min()
    }

    /// When the account that would preempt the running tenant can pay for it.
    fn pays_at(&self) -> Option<Moment> {
        let latency = self.rules.preemption?;
        let running = self
            .running()
            .filter(|_| self.preemption.under_way.is_none())?;
        let payers = self.overtaken(running, *self.owners.get(&running)?);
        let accounts = payers.iter().filter_map(|id| self.accounts.get(id));
        accounts
            .map(|account| account.pays_at(self.now, latency))
            .min()
    }

    /// When a quota is used up by the running tenant, or renewed.
    fn quota_ends(&self) -> Option<Moment> {
        let running = self.running();
        let owner = running.and_then(|tenant| self.owners.get(&tenant));
        let moment = |quota: &Quota, runs: bool| match quota.exhausted() {
            true => Some(quota.renews_at()),
            false => runs.then(|| self.now + quota.left()),
        };
        let of = |(id, account): (&AccountId, &Account)| {
            let own = account.quota.as_ref();
            let own = own.and_then(|quota| moment(quota, owner == Some(id)));
            let tenants = account.tenants.iter().filter_map(|(id, tenant)| {
                let quota = tenant.quota.as_ref().filter(|_| tenant.wants())?;
                moment(quota, running == Some(*id))
            });
            own.into_iter().chain(tenants).min()
        };
        self.accounts.iter().filter_map(of).min()
    }
}
