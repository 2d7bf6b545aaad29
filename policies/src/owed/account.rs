//! An account, its tenants, and the state kept of tenants that left.
//!
//! # Invariants
//! - A tenant that left is charged until the readings of the time in which it left are known.
//! - A new name gains nothing: it is owed at most the least that a tenant of the account was owed
//!   in the last 10 s. The node of the account stays.

use super::fraction::Fraction;
use super::node::Node;
use super::target::Credit;
use crate::cap::Quota;
use crate::params::{Cap, TenantParams, Weight};
use std::collections::BTreeMap;
use std::sync::Arc;
use turnstile_accounting::{Moment, Nanos, Seen, TenantId};

/// A new name is owed at most the least that a tenant of its account was owed in this time.
/// SOURCE: simulation `lab corun`.
const RENAME_WINDOW: Nanos = Nanos::from_ms(10_000);
/// Names of tenants that left, kept for each account. A name that is dropped counts as new.
const NAMES_MAX: usize = 1_024;
/// A tenant takes part for this time after it last had work. SOURCE: simulation `lab corun`.
const LIVE_TIME: Nanos = Nanos::from_ms(1_000);
/// A tenant counts as present for this time after its work ended. SOURCE: simulation `lab corun`.
const PRESENT_TIME: Nanos = Nanos::from_ms(1);

/// A tenant.
#[derive(Debug)]
pub(crate) struct Tenant {
    name: Arc<str>,
    pub(crate) weight: Weight,
    pub(crate) node: Node,
    pub(crate) kind: Kind,
    pub(crate) usage: Usage,
    /// When it left; it is kept until the readings of that time are known.
    left_at: Option<Moment>,
    /// A tenant that returned under the same name before that; charges are passed on to it.
    pub(crate) successor: Option<TenantId>,
    /// At the last poll.
    pub(crate) state: State,
    /// When it last was present.
    present_at: Option<Moment>,
    pub(crate) held: bool,
}

/// What an operator set of a tenant beside weight and cap.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Kind {
    /// It has a latency target.
    pub(crate) credit: Option<Credit>,
    /// Its turns coincide with those that it has on other GPUs.
    pub(crate) gang: bool,
}

/// State of a tenant at a poll.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct State {
    pub(crate) has_work: bool,
    /// It has work, or had work in the last [`PRESENT_TIME`].
    pub(crate) has_lately: bool,
    pub(crate) idle: Nanos,
    pub(crate) live: bool,
    /// It waits in a way that costs its neighbours.
    pub(crate) blocks: bool,
    /// Its part of the engine.
    pub(crate) part: Fraction,
}

/// The fraction of time for which a tenant is resident while it is not held.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    pub(crate) fraction: Fraction,
    resident: Nanos,
    admitted: Nanos,
}

/// Least time from which [`Usage`] is computed. SOURCE: simulation `lab corun`.
const USAGE_TIME_MIN: Nanos = Nanos::from_ms(200);

impl Usage {
    /// The usage of a new tenant, which is taken to use the engine all the time.
    const fn new() -> Self {
        Self {
            fraction: Fraction::ONE,
            resident: Nanos::ZERO,
            admitted: Nanos::ZERO,
        }
    }

    pub(crate) fn add(&mut self, resident: Nanos, admitted: Nanos) {
        self.resident = Nanos(self.resident.0.saturating_add(resident.0));
        self.admitted = Nanos(self.admitted.0.saturating_add(admitted.0));
    }

    /// A window of loads has ended. After a long hold the window continues until enough time was
    /// admitted.
    pub(crate) fn close_window(&mut self) {
        if self.admitted >= USAGE_TIME_MIN {
            self.fraction = Fraction::ratio(self.resident.0, self.admitted.0);
            (self.resident, self.admitted) = (Nanos::ZERO, Nanos::ZERO);
        }
    }
}

impl Tenant {
    /// It has not left.
    pub(crate) const fn is_connected(&self) -> bool {
        self.left_at.is_none()
    }

    pub(crate) fn name(&self) -> Arc<str> {
        self.name.clone()
    }
}

/// An account.
#[derive(Debug)]
pub(crate) struct Account {
    pub(crate) weight: Weight,
    pub(crate) node: Node,
    pub(crate) tenants: BTreeMap<TenantId, Tenant>,
    /// Its part of the engine at the last poll.
    pub(crate) part: Fraction,
    names: BTreeMap<Arc<str>, Node>,
    /// The least that one of its tenants was owed lately, and when.
    least: Option<(i64, Moment)>,
}

impl Account {
    pub(crate) fn new() -> Self {
        Self {
            weight: Weight::DEFAULT,
            node: Node::new(0, None),
            tenants: BTreeMap::new(),
            part: Fraction::ZERO,
            names: BTreeMap::new(),
            least: None,
        }
    }

    /// Tenants that have not left.
    pub(crate) fn connected(&self) -> impl Iterator<Item = (TenantId, &Tenant)> {
        let tenants = self.tenants.iter().map(|(id, tenant)| (*id, tenant));
        tenants.filter(|(_, tenant)| tenant.is_connected())
    }

    /// Tenants that take part.
    pub(crate) fn live(&self) -> usize {
        self.connected().filter(|(_, t)| t.state.live).count()
    }

    /// Whether the account or the tenant has used up its quota.
    pub(crate) fn is_capped(&self, tenant: &Tenant) -> bool {
        self.node.is_capped() || tenant.node.is_capped()
    }

    /// Whether the tenant has work, or had some just now, and no cap holds it.
    pub(crate) fn is_present(&self, tenant: &Tenant) -> bool {
        tenant.is_connected() && tenant.state.has_lately && !self.is_capped(tenant)
    }

    /// Whether one of its tenants is present.
    pub(crate) fn any_present(&self) -> bool {
        self.connected().any(|(_, tenant)| self.is_present(tenant))
    }

    /// Adds a tenant. A known name continues with its node.
    pub(crate) fn add(&mut self, id: TenantId, name: Arc<str>, params: TenantParams, now: Moment) {
        let leaving =
            |t: &&mut Tenant| !t.is_connected() && t.successor.is_none() && t.name == name;
        let before = self.tenants.values_mut().find(leaving).map(|tenant| {
            tenant.successor = Some(id);
            tenant.node.clone()
        });
        let lately = |at: Moment| now.since(at) < RENAME_WINDOW;
        let least = self.least.filter(|(_, at)| lately(*at));
        let new = || Node::new(least.map_or(0, |(owed, _)| owed.min(0)), None);
        let known = before.or_else(|| self.names.remove(&name));
        let mut node = known.unwrap_or_else(new);
        set_quota(&mut node, params.cap, now);
        let tenant = Tenant {
            name,
            weight: params.weight,
            node,
            kind: Kind::default(),
            usage: Usage::new(),
            left_at: None,
            successor: None,
            state: State::default(),
            present_at: None,
            held: false,
        };
        self.tenants.insert(id, tenant);
    }

    /// A tenant leaves.
    pub(crate) fn leave(&mut self, id: TenantId, now: Moment) {
        if let Some(tenant) = self.tenants.get_mut(&id) {
            tenant.left_at = Some(now);
            tenant.state = State::default();
            tenant.held = false;
        }
    }

    /// Removes tenants that left, if the readings up to `settled` include their time; returns them.
    pub(crate) fn retire(&mut self, settled: Moment) -> Vec<TenantId> {
        let over = |t: &Tenant| t.left_at.is_some_and(|left_at| left_at <= settled);
        let over = self.tenants.iter().filter(|(_, tenant)| over(tenant));
        let retired: Vec<TenantId> = over.map(|(id, _)| *id).collect();
        for id in &retired {
            if let Some(tenant) = self.tenants.remove(id)
                && tenant.successor.is_none()
            {
                self.remember(tenant);
            }
        }
        retired
    }

    fn remember(&mut self, tenant: Tenant) {
        let mut node = tenant.node;
        node.load.restart();
        if let Some(known) = self.names.remove(&tenant.name) {
            // Of tenants with one name, the least owed time is kept.
            node.owed = node.owed.min(known.owed);
        }
        if self.names.len() >= NAMES_MAX {
            // Drops the name that is owed most: as a new name it is owed no more.
            let most = self.names.iter().max_by_key(|(_, node)| node.owed);
            if let Some(name) = most.map(|(name, _)| name.clone()) {
                self.names.remove(&name);
            }
        }
        self.names.insert(tenant.name, node);
    }

    /// Drops what is kept under a name.
    pub(crate) fn forget_name(&mut self, name: &str) {
        self.names.remove(name);
    }

    /// Keeps the least that its tenants are owed at this poll.
    pub(crate) fn note_least(&mut self, now: Moment) {
        for tenant in self.tenants.values() {
            let owed = tenant.node.owed;
            let replaces =
                |(least, at): (i64, Moment)| owed <= least || now.since(at) >= RENAME_WINDOW;
            if self.least.is_none_or(replaces) {
                self.least = Some((owed, now));
            }
        }
    }

    /// Takes the state of a tenant at a poll.
    pub(crate) fn see(&mut self, id: TenantId, seen: Option<&Seen>, now: Moment) {
        let account_takes_part = !self.node.is_capped() && self.node.alone > Fraction::ZERO;
        let Some(tenant) = self.tenants.get_mut(&id).filter(|t| t.is_connected()) else {
            return;
        };
        let (has_work, idle) = seen.map_or((false, Seen::NEVER), |seen| (seen.has_work, seen.idle));
        let has_lately = has_work || idle < PRESENT_TIME;
        if has_lately {
            tenant.present_at = Some(now);
        }
        let lately = tenant
            .present_at
            .is_some_and(|at| now.since(at) < LIVE_TIME);
        let takes_part = !tenant.node.is_capped() && tenant.node.alone > Fraction::ZERO;
        tenant.state = State {
            has_work,
            has_lately,
            idle,
            live: lately && takes_part && account_takes_part,
            blocks: seen.is_some_and(|seen| seen.blocks),
            part: Fraction::ZERO,
        };
    }

    /// Divides its part of the engine among its tenants. `others`: the weight of the other live
    /// accounts. A node that does not take part has the part that it would have if it did.
    pub(crate) fn divide(&mut self, others: u64) {
        let weight = u64::from(self.weight.get());
        self.part = Fraction::ratio(weight, others.saturating_add(weight));
        let live = |tenant: &&Tenant| tenant.is_connected() && tenant.state.live;
        let weights = self.tenants.values().filter(live);
        let inside: u64 = weights.map(|tenant| u64::from(tenant.weight.get())).sum();
        for tenant in self.tenants.values_mut() {
            let weight = u64::from(tenant.weight.get());
            let more = if live(&&*tenant) { 0 } else { weight };
            let part = Fraction::ratio(weight, inside + more);
            tenant.state.part = self.part.times(part);
        }
    }
}

/// Sets the cap of a node; if the cap does not change, its quota continues.
pub(crate) fn set_quota(node: &mut Node, cap: Option<Cap>, now: Moment) {
    if node.quota.map(|quota| quota.cap()) != cap {
        node.quota = cap.map(|cap| Quota::starting(cap, now));
    }
}

#[cfg(test)]
mod tests;
