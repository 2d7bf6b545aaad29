//! What applies until the next poll, and when that is due.
//!
//! A tenant is held by a cap, or in the own turn of another node. Its part determines its slice.

use super::account::{Account, Tenant};
use super::fraction::Fraction;
use super::look::TenantOrder;
use super::node::Node;
use super::slices::Bounds;
use super::target::Credit;
use super::turn::EARLY;
use super::{CALM_INTERVAL, LOOK_INTERVAL, Owed, slices};
use crate::policy::HoldReason;
use turnstile_accounting::{AccountId, Moment, Nanos, TenantId};

/// Shortest time between two polls. SOURCE: simulation `lab corun`.
const LOOK_INTERVAL_MIN: Nanos = Nanos::from_us(50);
/// Shortest time to the next poll for the end of a quota. SOURCE: simulation `lab corun`.
const QUOTA_INTERVAL_MIN: Nanos = Nanos::from_us(250);

impl Owed {
    pub(super) fn give_orders(&mut self, now: Moment) {
        let mut orders = std::mem::take(&mut self.orders.tenants);
        orders.clear();
        let least = self.least_part();
        let short = self.is_target_due();
        for (id, account) in &self.accounts {
            for (tenant_id, tenant) in account.connected() {
                let bounds = Bounds {
                    blocks: tenant.state.blocks,
                    beside_target: short && tenant.credit.is_none(),
                };
                orders.push(TenantOrder {
                    tenant: tenant_id,
                    hold: self.hold(*id, account, tenant_id, tenant, now),
                    slice_ns: slices::slice(tenant.state.part, least, bounds),
                });
            }
        }
        for order in &orders {
            if let Ok(tenant) = self.tenant(order.tenant) {
                tenant.held = order.hold.is_some();
            }
        }
        self.orders.tenants = orders;
        self.orders.next_look = self.next_look_after(now);
        let in_turn = self.turns.current().is_some();
        self.orders.exact = in_turn || self.accounts.values().any(is_exact);
    }

    /// What applies to a tenant that was just added.
    pub(super) fn order_of_new(&mut self, id: TenantId, now: Moment) -> TenantOrder {
        let account_id = self.owners.get(&id);
        let account = account_id.and_then(|id| Some((*id, self.accounts.get(id)?)));
        let hold = account.and_then(|(account_id, account)| {
            let tenant = account.tenants.get(&id)?;
            self.hold(account_id, account, id, tenant, now)
        });
        if let Ok(tenant) = self.tenant(id) {
            tenant.held = hold.is_some();
        }
        TenantOrder {
            tenant: id,
            hold,
            slice_ns: slices::SLICE_MIN,
        }
    }

    /// Why a tenant is held, if it is.
    fn hold(
        &self,
        account_id: AccountId,
        account: &Account,
        id: TenantId,
        tenant: &Tenant,
        now: Moment,
    ) -> Option<HoldReason> {
        if account.is_capped(tenant) {
            return Some(HoldReason::Capped);
        }
        let holder = self.turns.holder()?;
        let waits = !holder.admits(account_id, id) && self.is_held_in_turn(account, tenant, now);
        waits.then_some(HoldReason::Turn)
    }

    /// Whether a tenant with a latency target was resident for less than its part.
    fn is_target_due(&self) -> bool {
        let mut tenants = self.accounts.values().flat_map(Account::connected);
        tenants.any(|(_, tenant)| tenant.credit.is_some_and(Credit::is_positive))
    }

    /// The least part of a tenant that takes part.
    fn least_part(&self) -> Fraction {
        let tenants = self.accounts.values().flat_map(Account::connected);
        let live = tenants.filter(|(_, tenant)| tenant.state.live);
        let least = live.map(|(_, tenant)| tenant.state.part).min();
        least.unwrap_or(Fraction::ONE)
    }

    /// The least time in which a node can be owed a turn; the longest time if at most one tenant
    /// takes part.
    fn until_owed(&self) -> Nanos {
        let turn = self.turn_length();
        let live: usize = self.accounts.values().map(Account::live).sum();
        let accounts = self.accounts.values().filter(|account| account.live() > 0);
        let nodes = accounts.flat_map(|account| {
            let tenants = account.connected().filter(|(_, tenant)| tenant.state.live);
            let tenants = tenants.map(|(_, tenant)| (&tenant.node, tenant.state.part));
            tenants.chain([(&account.node, account.part)])
        });
        let until = nodes.map(|(node, part)| node.until_owed(part, turn)).min();
        until.filter(|_| live > 1).unwrap_or(CALM_INTERVAL)
    }

    /// The next poll after this one: for an own turn, for a quota, or the usual one.
    fn next_look_after(&self, now: Moment) -> Moment {
        let intervals = self.until_owed().0 / LOOK_INTERVAL.0;
        let calm = Nanos(LOOK_INTERVAL.0.saturating_mul(intervals));
        let mut wait = calm.clamp(LOOK_INTERVAL, CALM_INTERVAL);
        if let Some(turn) = self.turns.current() {
            let passed = now.since(turn.from);
            let to_half = Nanos(turn.length.0 / 2).saturating_sub(passed);
            let to_end = turn.length.saturating_sub(passed);
            let due = if to_half > EARLY { to_half } else { to_end };
            // A turn that has reached its length continues while no other tenant has work.
            let again = Nanos(turn.length.0 / 2);
            wait = wait.min(if due < LOOK_INTERVAL_MIN { again } else { due });
        }
        for account in self.accounts.values() {
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
}

/// Whether a poll needs all readings of an account and its tenants: one of them is owed time, or
/// runs on a quota.
fn is_exact(account: &Account) -> bool {
    let due = |node: &Node| node.owed > 0 || node.quota.is_some();
    let mut tenants = account.connected().filter(|(_, tenant)| tenant.state.live);
    tenants.any(|(_, tenant)| !tenant.held && (due(&tenant.node) || due(&account.node)))
}
