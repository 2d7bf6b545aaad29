//! The passing of time: charges for service, for reserved time, and for pauses during commands of
//! others.

use super::Dfq;
use super::account::Account;
use super::entity::{Entity, Standing};
use crate::virtual_time::{VirtualSpan, VirtualTime};
use turnstile_accounting::{AccountId, EngineState, Moment, Nanos, TenantId};

impl Dfq {
    /// Advances to `to`. Places that expire before that do so in order; time never goes back.
    pub(super) fn advance_to(&mut self, to: Moment) {
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
    pub(super) fn expires_at(&self) -> Option<Moment> {
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
                self.serve(tenant, length);
            }
            Some(EngineState::Switching) => self.charge_switch(length),
            Some(EngineState::Idle) => self.charge_reserved(length),
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

    /// Charges `length` of service to `tenant`.
    fn serve(&mut self, tenant: TenantId, length: Nanos) {
        let now = self.now;
        let Some(id) = self.owners.get(&tenant).copied() else {
            return;
        };
        let (fills_account, fills_tenant) = self.preemption.fills();
        let preempts = self.rules.preemption.is_some();
        let span = VirtualSpan::of(length, self.level.runnable_weight());
        let Some(account) = self.accounts.get_mut(&id) else {
            return;
        };
        account.serve(tenant, now, length);
        let account_at = account.entity.at();
        let counts = |entity: &Entity, runner: VirtualTime, fills: bool| {
            let beyond = !preempts && runner > entity.beyond_burst();
            entity.standing() == Standing::Pausing && (fills || beyond)
        };
        if let Some(runner) = account.tenants.get(&tenant).map(|t| t.entity.at()) {
            let span = VirtualSpan::of(length, account.level.runnable_weight());
            for id in account.present.iter().filter(|other| **other != tenant) {
                if let Some(other) = account.tenants.get_mut(id)
                    && counts(&other.entity, runner, fills_tenant)
                {
                    other.entity.pause_behind(span, runner);
                }
            }
        }
        account.raise_system();
        let others = self.accounts.iter_mut().filter(|(other, _)| **other != id);
        for (_, other) in others {
            if counts(&other.entity, account_at, fills_account) {
                other.entity.pause_behind(span, account_at);
            }
        }
    }

    /// Charges a preemption to the account that it was for.
    fn charge_switch(&mut self, length: Nanos) {
        let payer = self.preemption.payer();
        if let Some(account) = payer.and_then(|id| self.accounts.get_mut(&id)) {
            let weight = account.entity.share();
            account.entity.clock.charge(length, weight);
        }
    }

    /// The engine was idle for `length`. Time reserved for entities counts at the rate at which the
    /// waiting ones would have advanced.
    fn charge_reserved(&mut self, length: Nanos) {
        let weight = self.level.runnable_weight();
        let span = VirtualSpan::of(length, weight);
        for id in self.level.reserved_for() {
            if let Some(account) = self.accounts.get_mut(id)
                && account.entity.standing() == Standing::Pausing
            {
                account.entity.reserve(span);
                account.note_reserved(length);
            }
        }
        let others_wait = weight > 0;
        let reserved: Vec<AccountId> = self.level.reserved_for().to_vec();
        for (id, account) in &mut self.accounts {
            let left_for = account.level.reserved_for();
            if left_for.is_empty() || others_wait && !reserved.contains(id) {
                continue;
            }
            let span = VirtualSpan::of(length, account.level.runnable_weight());
            for tenant in left_for {
                if let Some(tenant) = account.tenants.get_mut(tenant)
                    && tenant.entity.standing() == Standing::Pausing
                {
                    tenant.entity.reserve(span);
                }
            }
            if !others_wait {
                account.note_reserved(length);
            }
        }
    }
}

/// The weight at which system virtual time advances while no account takes part.
const IDLE_WEIGHT: u64 = 100;
