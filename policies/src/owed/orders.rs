//! What applies until the next poll, and when that is due.
//!
//! A tenant is held by a cap, or in the own turn of another node. Its part determines its slice.

use super::account::{Account, Tenant};
use super::choose::is_held_in_turn;
use super::fraction::Fraction;
use super::node::Node;
use super::target::Credit;
use super::turn::{EARLY, Holder, OwnTurn};
use super::{CALM_INTERVAL, LOOK_INTERVAL};
use crate::policy::HoldReason;
use std::collections::BTreeMap;
use turnstile_accounting::{AccountId, Moment, Nanos, TenantId};

/// Shortest time between two polls. SOURCE: simulation `lab corun`.
const LOOK_INTERVAL_MIN: Nanos = Nanos::from_us(50);
/// Shortest time to the next poll for the end of a quota. SOURCE: simulation `lab corun`.
const QUOTA_INTERVAL_MIN: Nanos = Nanos::from_us(250);

/// What decides which tenants are held.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    /// The node of the own turn, or the gang that has the window.
    pub(super) holder: Option<Holder>,
    /// Gangs wait for their windows, since others have work.
    pub(super) gangs_wait: bool,
}

/// Why a tenant is held, if it is.
pub(super) fn hold(
    turn: Turn,
    (account_id, account): (AccountId, &Account),
    (id, tenant): (TenantId, &Tenant),
    now: Moment,
) -> Option<HoldReason> {
    if account.is_capped(tenant) {
        return Some(HoldReason::Capped);
    }
    let has_turn = |holder: Holder| holder.admits(account_id, id);
    let waits = match turn.holder {
        Some(holder) => !has_turn(holder) && is_held_in_turn(account, tenant, now),
        None => false,
    };
    let outside = turn.gangs_wait && tenant.kind.gang && !turn.holder.is_some_and(has_turn);
    (waits || outside).then_some(HoldReason::Turn)
}

/// Whether a tenant with a latency target was resident for less than its part.
pub(super) fn is_target_due(accounts: &BTreeMap<AccountId, Account>) -> bool {
    let mut tenants = accounts.values().flat_map(Account::connected);
    tenants.any(|(_, tenant)| tenant.kind.credit.is_some_and(Credit::is_positive))
}

/// The least part of a tenant that takes part.
pub(super) fn least_part(accounts: &BTreeMap<AccountId, Account>) -> Fraction {
    let tenants = accounts.values().flat_map(Account::connected);
    let live = tenants.filter(|(_, tenant)| tenant.state.live);
    let least = live.map(|(_, tenant)| tenant.state.part).min();
    least.unwrap_or(Fraction::ONE)
}

/// The least time in which a node can be owed a turn; the longest time if at most one tenant
/// takes part.
fn until_owed(accounts: &BTreeMap<AccountId, Account>, turn: Nanos) -> Nanos {
    let live: usize = accounts.values().map(Account::live).sum();
    let accounts = accounts.values().filter(|account| account.live() > 0);
    let nodes = accounts.flat_map(|account| {
        let tenants = account.connected().filter(|(_, tenant)| tenant.state.live);
        let tenants = tenants.map(|(_, tenant)| (&tenant.node, tenant.state.part));
        tenants.chain([(&account.node, account.part)])
    });
    let until = nodes.map(|(node, part)| node.until_owed(part, turn)).min();
    until.filter(|_| live > 1).unwrap_or(CALM_INTERVAL)
}

/// The next poll after this one: for an own turn, for a quota, or the usual one.
pub(super) fn next_look_after(
    accounts: &BTreeMap<AccountId, Account>,
    (current, length): (Option<&OwnTurn>, Nanos),
    now: Moment,
) -> Moment {
    let intervals = until_owed(accounts, length).0 / LOOK_INTERVAL.0;
    let calm = Nanos(LOOK_INTERVAL.0.saturating_mul(intervals));
    let mut wait = calm.clamp(LOOK_INTERVAL, CALM_INTERVAL);
    if let Some(turn) = current {
        let passed = now.since(turn.from);
        let to_half = Nanos(turn.length.0 / 2).saturating_sub(passed);
        let to_end = turn.length.saturating_sub(passed);
        let due = if to_half > EARLY { to_half } else { to_end };
        // A turn that has reached its length continues while no other tenant has work.
        let again = Nanos(turn.length.0 / 2);
        wait = wait.min(if due < LOOK_INTERVAL_MIN { again } else { due });
    }
    for account in accounts.values() {
        let admitted = |tenant: &Tenant| !tenant.held;
        let mut nodes = vec![(&account.node, account.connected().any(|(_, t)| admitted(t)))];
        nodes.extend(account.connected().map(|(_, t)| (&t.node, admitted(t))));
        for (node, runs) in nodes {
            let Some(quota) = &node.quota else { continue };
            wait = wait.min(quota.renews_at().since(now));
            if runs && !quota.exhausted() {
                wait = wait.min(quota.left().max(QUOTA_INTERVAL_MIN));
            }
        }
    }
    Moment(now.0.saturating_add(wait.max(LOOK_INTERVAL_MIN).0))
}

/// Whether a poll needs all readings of an account and its tenants: one of them is owed time, or
/// runs on a quota.
pub(super) fn is_exact(account: &Account) -> bool {
    let due = |node: &Node| node.owed > 0 || node.quota.is_some();
    let mut tenants = account.connected().filter(|(_, tenant)| tenant.state.live);
    tenants.any(|(_, tenant)| !tenant.held && (due(&tenant.node) || due(&account.node)))
}
