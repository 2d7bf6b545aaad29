//! What each tenant was entitled to of one engine, beside what it used: the same for all views.
//!
//! **In**: a [`Claimant`] per tenant, for each window. **Out**: running totals, [`Due`] per tenant.
//! A view shows the difference of two totals, over the window length that it states.
//!
//! In each window the time that all tenants used is divided by weighted max-min fairness: first
//! among accounts, then among the tenants of each account. A tenant's *demand* is what it used and
//! what it waited. So a starved tenant has a shortfall, and one that wants little leaves the rest.
//!
//! # Properties
//! - Entitlements of a window add up to what was used in it, or to all demands if these are less.
//! - No tenant and no account is entitled to more than its demand.
//! - In each of its periods a quota is the most that its tenant or account is entitled to. A quota
//!   begins with the first window in which it is set.
//!
//! Within a period of the policy the two columns differ, as an engine runs one tenant at a time.

mod allowance;

use std::collections::BTreeMap;

use crate::share::{Claim, water_fill};
use crate::units::{AccountId, Nanos, TenantId};
use allowance::Allowances;

/// An upper limit: engine time in each period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Engine time.
    pub quota_ns: Nanos,
    /// Length of a period; more than 0.
    pub period_ns: Nanos,
}

/// The account of a tenant; the same for all its tenants in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    /// Its number.
    pub id: AccountId,
    /// Its weight against other accounts; 0 is entitled to nothing.
    pub weight: u32,
    /// Its upper limit, over all its tenants.
    pub quota: Option<Quota>,
}

/// One tenant in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claimant {
    /// Its number.
    pub tenant: TenantId,
    /// Its account.
    pub account: Account,
    /// Its weight against other tenants of the account; 0 is entitled to nothing.
    pub weight: u32,
    /// Its upper limit.
    pub quota: Option<Quota>,
    /// Engine time that it used.
    pub used_ns: Nanos,
    /// Time in which it had work that the engine executed or could have started. Less than
    /// `used_ns` counts as `used_ns`.
    pub wanted_ns: Nanos,
}

/// Totals of a tenant since its first window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Due {
    /// Engine time that it was entitled to.
    pub entitled_ns: Nanos,
    /// Time in which it had work and did not run.
    pub waited_ns: Nanos,
}

/// Running totals of [`Due`], of one engine. Memory grows with tenants, not time.
#[derive(Clone, Debug, Default)]
pub struct Entitlements {
    due: BTreeMap<TenantId, Due>,
    tenants: Allowances<TenantId>,
    accounts: Allowances<AccountId>,
}

impl Entitlements {
    /// A window of `length_ns` ended in which `claimants` were present, each at most once. Sorts
    /// them by account.
    pub fn window(&mut self, length_ns: Nanos, claimants: &mut [Claimant]) {
        claimants.sort_by_key(|claimant| claimant.account.id);
        for claimant in &*claimants {
            let account = claimant.account;
            self.tenants.set(claimant.tenant, claimant.quota);
            self.accounts.set(account.id, account.quota);
        }
        let parts = self.divide(length_ns, claimants);
        for (claimant, part) in claimants.iter().zip(parts) {
            self.tenants.take(claimant.tenant, part);
            self.accounts.take(claimant.account.id, part);
            let due = self.due.entry(claimant.tenant).or_default();
            // CAST: no part exceeds what was used, a few u64 nanoseconds of one engine
            due.entitled_ns += Nanos(part as u64);
            due.waited_ns += claimant.wanted_ns.saturating_sub(claimant.used_ns);
        }
        self.tenants.pass(length_ns);
        self.accounts.pass(length_ns);
    }

    /// The part of each claimant, in their order. Claimants of one account are adjacent.
    fn divide(&self, length_ns: Nanos, claimants: &[Claimant]) -> Vec<u128> {
        let used = |claimant: &Claimant| u128::from(claimant.used_ns.0);
        let claim = |claimant: &Claimant| {
            let demand = used(claimant).max(claimant.wanted_ns.0.into());
            let demand = self.tenants.bound(claimant.tenant, length_ns, demand);
            (claimant.weight, demand)
        };
        let accounts = || claimants.chunk_by(|a, b| a.account.id == b.account.id);
        let of_account = |members: &[Claimant]| {
            let account = members[0].account;
            let claims = members.iter().map(claim);
            let demand = claims.map(|(weight, demand)| if weight > 0 { demand } else { 0 });
            let demand = self.accounts.bound(account.id, length_ns, demand.sum());
            (account.weight, demand)
        };
        let of_accounts = level(claimants.iter().map(used).sum(), accounts().map(of_account));
        let mut parts = Vec::with_capacity(claimants.len());
        for (members, part) in accounts().zip(of_accounts) {
            match members {
                [_] => parts.push(part),
                _ => parts.extend(level(part, members.iter().map(claim))),
            }
        }
        parts
    }

    /// A tenant's totals; zero if it was in no window.
    pub fn of(&self, tenant: TenantId) -> Due {
        self.due.get(&tenant).copied().unwrap_or_default()
    }

    /// Drops the totals of a tenant that left.
    pub fn forget(&mut self, tenant: TenantId) {
        self.due.remove(&tenant);
    }
}

/// Weighted max-min division of `capacity` by weights and demands.
fn level(capacity: u128, claims: impl Iterator<Item = (u32, u128)>) -> Vec<u128> {
    let claims: Vec<Claim> = claims
        .map(|(weight, demand)| Claim {
            weight,
            demand: Some(demand),
        })
        .collect();
    water_fill(capacity, &claims)
}

#[cfg(test)]
mod tests;
