//! Disengaged fair queuing with patience: the rule of channel hardware, and the default policy.
//!
//! In: when each tenant has work and what the engine does ([`EngineEvent`]), in order of time. Out:
//! for each tenant, whether its next command may be started ([`Policy::decide`]). The mediator
//! writes that to the dispatcher ahead of time and is not involved in a command (disengaged).
//!
//! Accounts are chosen first, then the tenants of an account, by the same rule (`level.rs`). An
//! entity has a *virtual time*, which advances by its service over its weight. It may be started
//! while it is ahead of no other by more than `ahead` ([`Tuning::slack_ns`], at least the
//! patience).
//!
//! A tenant that launches and waits has no work for a moment after each command. While its pauses
//! are short it keeps its *place*: others may not get further ahead meanwhile. Where a running
//! kernel cannot be stopped, the engine is left idle for it, for at most the *patience* at a time.
//! Such *reserved* time is billed to no tenant. It counts in the virtual time of each entity that
//! it was left for. That entity's burst, its service since its last pause, pays for a part of it.
//! `time.rs` has these charges, `account.rs` the places and the allowances that bound them.
//!
//! # Invariants
//! - *No saving up*: an absent entity returns at the larger of its own and the system virtual time.
//!   Only a lag ahead survives: it belongs to the account, and to the tenant's name within it.
//! - *Bounded lag*: a command starts only if its entity is at most `ahead` ahead of each entity
//!   that has work or keeps its place. The bound is service of the lighter of the two.
//! - *Work conserving*: while no place is kept, an entity with work is allowed.
//! - *Charge what ran*: virtual time follows the engine's log, or what the ledger charges.
//!
//! Called by the mediator's accounting thread, from the events of one engine.

mod account;
mod decide;
mod entity;
mod level;
mod names;
mod pauses;
mod tenant;
mod time;

use crate::params::{Cap, Membership, TenantParams, Weight};
use crate::policy::{
    Basis, Debt, Decision, EngineEvent, HoldReason, PeriodUsage, Policy, PolicyError,
    TenantDecision,
};
use crate::table::Tuning;
use crate::virtual_time::{VirtualSpan, VirtualTime};
use account::Account;
use entity::Entity;
use level::{Level, Rules};
use std::collections::BTreeMap;
use tenant::Tenant;
use time::{Served, charge_reserved, serve};
use turnstile_accounting::{AccountId, Demand, EngineState, Moment, Nanos, TenantId};

/// Weighted, capped, disengaged fair queuing over accounts and tenants.
#[derive(Debug)]
// FIELDS: the state of one rule; its parts change together at an event.
pub struct Dfq {
    rules: Rules,
    /// The bound on being ahead where the engine is logged.
    ahead: Nanos,
    accounts: BTreeMap<AccountId, Account>,
    owners: BTreeMap<TenantId, AccountId>,
    level: Level<AccountId>,
    /// The least virtual time of the accounts that take part; never decreases.
    system: VirtualTime,
    /// What the engine does; none where it is not logged.
    engine: Option<EngineState>,
    now: Moment,
    /// Something was observed since accounts and levels were updated.
    changed: bool,
    preemption: decide::Preemption,
    /// Tenants that left while the engine ran them.
    leaving: Vec<TenantId>,
    /// Tenants without a decision yet.
    fresh: Vec<TenantId>,
    held: BTreeMap<TenantId, HoldReason>,
    decisions: Vec<TenantDecision>,
}

/// The weight at which system virtual time advances while no account takes part.
const IDLE_WEIGHT: u64 = 100;

/// Service by which an entity may be ahead of one with a waiting command. It sets the order in
/// which queued commands start; a late decision costs no engine time.
const ORDER: Nanos = Nanos::from_us(100);

impl Dfq {
    /// A policy without tenants.
    pub fn new(tuning: &Tuning) -> Self {
        let patience = tuning.patience_ns;
        let ahead = tuning.slack_ns.max(patience);
        Self {
            rules: Rules {
                patience,
                ahead,
                order: ORDER,
                preemption: tuning.preemption_ns,
            },
            ahead,
            accounts: BTreeMap::new(),
            owners: BTreeMap::new(),
            level: Level::default(),
            system: VirtualTime::default(),
            engine: None,
            now: Moment(0),
            changed: false,
            preemption: decide::Preemption::default(),
            leaving: Vec::new(),
            fresh: Vec::new(),
            held: BTreeMap::new(),
            decisions: Vec::new(),
        }
    }

    /// Advances to `to`. Places that expire before that do so in order; time never goes back.
    fn advance_to(&mut self, to: Moment) {
        while let Some(at) = self.expires_at().filter(|at| *at <= to) {
            self.pass(at);
            let (now, rules) = (self.now, self.rules);
            for account in self.accounts.values_mut() {
                account.expire(now, &rules);
            }
            self.changed = true;
        }
        self.pass(to);
    }

    /// When the next place of any account expires.
    fn expires_at(&self) -> Option<Moment> {
        self.accounts.values().filter_map(Account::expires_at).min()
    }

    /// Charges the time until `to`, in which the engine and the tenants did not change.
    fn pass(&mut self, to: Moment) {
        let length = to.since(self.now);
        if length == Nanos::ZERO {
            return;
        }
        self.update();
        self.now = to;
        match self.engine {
            Some(EngineState::Running(tenant) | EngineState::Fault(tenant)) => {
                let served = Served {
                    now: to,
                    length,
                    weight: self.level.runnable_weight(),
                    preempts: self.rules.preemption.is_some(),
                    fills: self.preemption.fills(),
                };
                if let Some(id) = self.owners.get(&tenant) {
                    serve(&mut self.accounts, (*id, tenant), &served);
                }
            }
            Some(EngineState::Switching) => {
                // A preemption is charged to the account that it was for.
                let payer = self.preemption.payer();
                if let Some(account) = payer.and_then(|id| self.accounts.get_mut(&id)) {
                    let weight = account.entity.share();
                    account.entity.clock.charge(length, weight);
                }
            }
            Some(EngineState::Idle) => charge_reserved(&mut self.accounts, &self.level, length),
            None => {}
        }
        let present = self.accounts.values().map(|account| &account.entity);
        let least = present
            .filter(|entity| entity.is_present())
            .map(Entity::at)
            .min();
        // While no account takes part, a lag ahead is forgiven as time passes.
        let passed = || self.system + VirtualSpan::of(length, IDLE_WEIGHT);
        self.system = self.system.max(least.unwrap_or_else(passed));
    }

    fn account_of(&mut self, tenant: TenantId) -> Option<&mut Account> {
        let account = self.owners.get(&tenant)?;
        self.accounts.get_mut(account)
    }

    fn tenant(&mut self, tenant: TenantId) -> Result<&mut Tenant, PolicyError> {
        let known = self
            .account_of(tenant)
            .and_then(|account| account.tenants.get_mut(&tenant));
        known.ok_or(PolicyError::Unknown(tenant))
    }

    fn account(&mut self, id: AccountId) -> &mut Account {
        let (rules, system, now) = (self.rules, self.system, self.now);
        let new = || Account::new(TenantParams::default(), &rules, system, now);
        self.accounts.entry(id).or_insert_with(new)
    }

    fn runs(&self, tenant: TenantId) -> bool {
        matches!(self.engine, Some(EngineState::Running(t) | EngineState::Fault(t)) if t == tenant)
    }

    fn retire(&mut self, tenant: TenantId) {
        if let Some(account) = self.account_of(tenant) {
            account.remove(tenant);
        }
        self.owners.remove(&tenant);
        self.held.remove(&tenant);
    }

    fn wake(&mut self, tenant: TenantId, demand: Demand, now: Moment) {
        let system = self.system;
        if let Some(account) = self.account_of(tenant)
            && account.wake(tenant, demand, now)
        {
            if !account.is_capped() {
                account.entity.arrive(now, system);
            }
            self.preemption.arrived(tenant);
        }
    }

    fn set_engine(&mut self, state: EngineState) {
        self.preemption.engine_changed(state);
        self.engine = Some(state);
        self.note_fill();
        let leaving = std::mem::take(&mut self.leaving);
        let runs = |tenant: &TenantId| self.runs(*tenant);
        let (running, over): (Vec<_>, Vec<_>) = leaving.into_iter().partition(runs);
        self.leaving = running;
        for tenant in over {
            self.retire(tenant);
        }
    }
}

impl Policy for Dfq {
    fn set_account(&mut self, id: AccountId, params: TenantParams) {
        let now = self.now;
        let account = self.account(id);
        account.entity.weight = params.weight;
        account.set_cap(params.cap, now);
        self.changed = true;
    }

    fn add(
        &mut self,
        id: TenantId,
        membership: Membership<'_>,
        params: TenantParams,
        now: Moment,
    ) -> Result<(), PolicyError> {
        if self.owners.contains_key(&id) {
            return Err(PolicyError::Known(id));
        }
        self.advance_to(now);
        let now = self.now;
        self.account(membership.account)
            .add(id, membership.name.into(), params, now);
        self.owners.insert(id, membership.account);
        self.fresh.push(id);
        Ok(())
    }

    fn remove(&mut self, id: TenantId, now: Moment) -> Result<(), PolicyError> {
        self.tenant(id)?;
        self.advance_to(now);
        let now = self.now;
        if let Some(account) = self.account_of(id) {
            account.drop_place(id, now);
            if let Some(tenant) = account.tenants.get_mut(&id) {
                tenant.demand = Demand::Nothing;
            }
        }
        self.held.remove(&id);
        if self.runs(id) {
            self.leaving.push(id);
        } else {
            self.retire(id);
        }
        self.changed = true;
        Ok(())
    }

    fn debts(&self) -> Vec<Debt> {
        let mut debts = Vec::new();
        for (id, account) in &self.accounts {
            let at = account.entity.at();
            let own = self.system.service_until(at, Weight::DEFAULT.get().into());
            let names = account.debts().map(|(name, ahead)| (Some(name), ahead));
            for (name, ahead_ns) in [(None, own)].into_iter().chain(names) {
                let account = *id;
                debts.push(Debt {
                    account,
                    name,
                    ahead_ns,
                });
            }
        }
        debts.retain(|debt| debt.ahead_ns > Nanos::ZERO);
        debts
    }

    fn owe(&mut self, debt: &Debt, now: Moment) {
        self.advance_to(now);
        let (system, now) = (self.system, self.now);
        let span = VirtualSpan::of(debt.ahead_ns, Weight::DEFAULT.get().into());
        let account = self.account(debt.account);
        match &debt.name {
            Some(name) => account.owe(name.clone(), debt.ahead_ns, now),
            None => account.entity.clock.raise(system + span),
        }
        self.changed = true;
    }

    fn forget_name(&mut self, account: AccountId, name: &str) {
        if let Some(account) = self.accounts.get_mut(&account) {
            account.forget_name(name);
        }
    }

    fn set_weight(&mut self, tenant: TenantId, weight: Weight) -> Result<(), PolicyError> {
        self.tenant(tenant)?;
        if let Some(account) = self.account_of(tenant) {
            account.set_weight(tenant, weight);
        }
        self.changed = true;
        Ok(())
    }

    fn set_cap(&mut self, tenant: TenantId, cap: Option<Cap>) -> Result<(), PolicyError> {
        self.tenant(tenant)?;
        let now = self.now;
        if let Some(account) = self.account_of(tenant) {
            account.set_tenant_cap(tenant, cap, now);
        }
        self.changed = true;
        Ok(())
    }

    fn observe(&mut self, at: Moment, event: EngineEvent) {
        self.advance_to(at);
        let (now, rules) = (self.now, self.rules);
        match event {
            EngineEvent::Demand(tenant, demand) if demand != Demand::Nothing => {
                self.wake(tenant, demand, now);
            }
            EngineEvent::Demand(tenant, _) => {
                let logged = self.engine.is_some();
                if let Some(account) = self.account_of(tenant) {
                    // Reserved time cannot be charged on an engine that is not logged.
                    let patience = if logged { rules.patience } else { Nanos::ZERO };
                    account.sleep(tenant, now, &Rules { patience, ..rules });
                }
            }
            EngineEvent::State(state) => self.set_engine(state),
        }
        self.changed = true;
    }

    fn woke(&mut self, tenant: TenantId, now: Moment) -> Result<Decision, PolicyError> {
        self.tenant(tenant)?;
        self.observe(now, EngineEvent::Demand(tenant, Demand::Queued));
        self.update();
        let hold = self.hold(tenant);
        self.note_hold(tenant, hold);
        Ok(hold.map_or(Decision::Admit, Decision::Hold))
    }

    fn period_end(&mut self, usage: &PeriodUsage<'_>) -> &[TenantDecision] {
        self.advance_to(usage.end);
        if usage.basis == Basis::PollSample {
            // The error of a sample is at most one period.
            self.rules.ahead = self.ahead.max(usage.length_ns());
            for part in usage.tenants {
                let now = self.now;
                if let Some(account) = self.account_of(part.tenant) {
                    account.serve(part.tenant, now, part.charged_ns);
                }
            }
            for account in self.accounts.values_mut() {
                account.raise_system();
            }
        }
        self.decide(usage.end)
    }

    fn decide(&mut self, now: Moment) -> &[TenantDecision] {
        self.decide_now(now)
    }

    fn decide_at(&self) -> Option<Moment> {
        self.next_decision()
    }
}

#[cfg(test)]
mod tests;
