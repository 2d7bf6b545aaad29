//! Charges for service, for reserved time, and for pauses during commands of others.

use super::account::Account;
use super::entity::{Entity, Standing};
use super::level::Level;
use crate::virtual_time::{VirtualSpan, VirtualTime};
use std::collections::BTreeMap;
use turnstile_accounting::{AccountId, Moment, Nanos, TenantId};

/// Service of the engine in a time in which neither it nor the tenants changed.
pub(super) struct Served {
    pub(super) now: Moment,
    pub(super) length: Nanos,
    /// Weight of the accounts with work.
    pub(super) weight: u64,
    /// Whether running kernels can be stopped.
    pub(super) preempts: bool,
    /// See [`super::decide::Preemption::fills`].
    pub(super) fills: (bool, bool),
}

/// Charges `length` of service to `tenant`.
pub(super) fn serve(
    accounts: &mut BTreeMap<AccountId, Account>,
    (id, tenant): (AccountId, TenantId),
    served: &Served,
) {
    let Served { now, length, .. } = *served;
    let (fills_account, fills_tenant) = served.fills;
    let span = VirtualSpan::of(length, served.weight);
    let Some(account) = accounts.get_mut(&id) else {
        return;
    };
    account.serve(tenant, now, length);
    let account_at = account.entity.at();
    let counts = |entity: &Entity, runner: VirtualTime, fills: bool| {
        let beyond = !served.preempts && runner > entity.beyond_burst();
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
    let others = accounts.iter_mut().filter(|(other, _)| **other != id);
    for (_, other) in others {
        if counts(&other.entity, account_at, fills_account) {
            other.entity.pause_behind(span, account_at);
        }
    }
}

/// The engine was idle for `length`. Time reserved for entities counts at the rate at which the
/// waiting ones would have advanced.
pub(super) fn charge_reserved(
    accounts: &mut BTreeMap<AccountId, Account>,
    level: &Level<AccountId>,
    length: Nanos,
) {
    let weight = level.runnable_weight();
    let span = VirtualSpan::of(length, weight);
    for id in level.reserved_for() {
        if let Some(account) = accounts.get_mut(id)
            && account.entity.standing() == Standing::Pausing
        {
            account.entity.reserve(span);
            account.note_reserved(length);
        }
    }
    let others_wait = weight > 0;
    let reserved: Vec<AccountId> = level.reserved_for().to_vec();
    for (id, account) in accounts {
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
