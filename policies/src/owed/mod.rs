//! Disengaged fair queuing on hardware that slices by itself: the rule of NVIDIA GPUs.
//!
//! In: at each poll the state of each tenant ([`Seen`]) and what it worked since the poll before
//! ([`turnstile_accounting::Reading`]). Out: for each tenant whether it is held and its time slice,
//! and when the next poll is due ([`Orders`]). Between polls the hardware shares the engine in time
//! slices, and the mediator is not involved.
//!
//! All tenants run together. A *node* is an account or a tenant. Each node is *owed* its part of
//! what it would work if it were *alone*, less what it worked. A node that is owed a turn's length
//! has an *own turn*: the other tenants are held for 20 ms, or for 50 ms if readings are late. The
//! second half of an own turn measures `alone`. The worked time of a tenant is the GPU's own
//! reading. So nothing that a tenant writes changes the decisions about a tenant of another
//! account.
//!
//! A *gang* has windows at the same times on each of its GPUs, in which the others are held.
//!
//! `node.rs` has the owed time, `alone.rs` the estimate of `alone`, `turn.rs` the own turn.
//! `choose.rs` has the choice of its node, `settle.rs` the charges, `spell.rs` when owed time is
//! void, `gang.rs` the windows of gangs.
//!
//! # Invariants
//! - *Bounded*: a node is owed at most 3 units of 4 to 20 ms, and has at most one turn in advance.
//! - *One own turn* runs at most.
//! - *Work conserving, except between polls*: a tenant is held only in an own turn of another, or
//!   by a cap. An own turn of a tenant without work ends at the next poll, at most half a turn
//!   later.
//! - *No endless holds*: own turns that take most of the time end after 60 s, and owed time is
//!   void.
//! - *Charge what worked*: unknown time is neither owed nor charged.
//!
//! Called by the core of a GPU that slices by itself, from one thread. This rule is no
//! [`crate::Policy`]: that one decides by the events of a dispatcher that the mediator holds.

mod account;
mod alone;
mod choose;
mod fraction;
mod gang;
mod look;
mod node;
mod orders;
mod settle;
mod slices;
mod spell;
mod target;
mod turn;

use crate::params::{Cap, Membership, TenantParams, Weight};
use crate::policy::PolicyError;
use crate::table::Tuning;
use account::{Account, Tenant, set_quota};
use choose::{Ending, choose, ending};
use gang::{Gang, Window};
pub use look::{Measured, Orders, Standing, TenantOrder};
use orders::Turn;
use settle::{LoadWindow, Past};
use slices::Bounds;
use spell::Spell;
use std::collections::{BTreeMap, VecDeque};
use target::Credit;
use turn::{HOLDER_IDLE_MAX, Holder, Turns};
use turnstile_accounting::{AccountId, Moment, Nanos, Seen, TenantId};

/// Longest time between two polls while a node may soon be owed a turn.
/// SOURCE: simulation `lab corun`.
pub const LOOK_INTERVAL: Nanos = Nanos::from_ms(20);
/// Longest time between two polls while no node can be owed a turn before. Each poll costs the
/// daemon 0.2 to 0.35 ms of processor time (H200, two programs of 1,100 changes a second).
pub const CALM_INTERVAL: Nanos = Nanos::from_ms(60);

/// Admits all tenants together, and gives own turns to those that are owed one.
#[derive(Debug)]
pub struct Owed {
    accounts: BTreeMap<AccountId, Account>,
    owners: BTreeMap<TenantId, AccountId>,
    turns: Turns,
    spell: Spell,
    /// Time up to polls with readings that are not known yet.
    past: VecDeque<Past>,
    /// The poll up to which all readings are known.
    settled: Moment,
    /// The unknown time at the last poll that needed all readings, beside the time since the poll
    /// before.
    lag: Nanos,
    window: LoadWindow,
    /// The last poll; none before the first.
    polled_at: Option<Moment>,
    orders: Orders,
}

impl Owed {
    /// A rule without tenants. It has no tunable constants yet.
    pub fn new(_tuning: &Tuning) -> Self {
        Self {
            accounts: BTreeMap::new(),
            owners: BTreeMap::new(),
            turns: Turns::default(),
            spell: Spell::default(),
            past: VecDeque::new(),
            settled: Moment(0),
            lag: Nanos::ZERO,
            window: LoadWindow::default(),
            polled_at: None,
            orders: Orders::default(),
        }
    }

    /// Sets weight and cap of an account, which may be added later.
    pub fn set_account(&mut self, id: AccountId, params: TenantParams) {
        let now = self.now();
        let account = self.accounts.entry(id).or_insert_with(Account::new);
        account.weight = params.weight;
        set_quota(&mut account.node, params.cap, now);
    }

    /// Adds a tenant to its account. A name that the account knows continues with its state.
    /// Returns what applies to it until the next poll.
    ///
    /// # Errors
    /// If it is known.
    pub fn add(
        &mut self,
        id: TenantId,
        membership: Membership<'_>,
        params: TenantParams,
        now: Moment,
    ) -> Result<TenantOrder, PolicyError> {
        if self.owners.contains_key(&id) {
            return Err(PolicyError::Known(id));
        }
        let now = now.max(self.now());
        let account = self.accounts.entry(membership.account);
        let account = account.or_insert_with(Account::new);
        account.add(id, membership.name.into(), params, now);
        self.owners.insert(id, membership.account);
        Ok(self.order_of_new(id, now))
    }

    /// Removes a tenant. Its owed time is kept under its name. Its last readings are still charged,
    /// and its id is known until then.
    ///
    /// # Errors
    /// If it is unknown.
    pub fn remove(&mut self, id: TenantId, now: Moment) -> Result<(), PolicyError> {
        self.tenant(id)?;
        let now = now.max(self.now());
        if let Some(account) = self.account_of(id) {
            account.leave(id, now);
        }
        Ok(())
    }

    /// Drops the state of a name of an account.
    pub fn forget_name(&mut self, account: AccountId, name: &str) {
        if let Some(account) = self.accounts.get_mut(&account) {
            account.forget_name(name);
        }
    }

    /// Sets its weight within its account.
    ///
    /// # Errors
    /// If it is unknown.
    pub fn set_weight(&mut self, id: TenantId, weight: Weight) -> Result<(), PolicyError> {
        self.tenant(id)?.weight = weight;
        Ok(())
    }

    /// Sets its cap; `None` removes it. A new cap begins with an unused quota.
    ///
    /// # Errors
    /// If it is unknown.
    pub fn set_cap(&mut self, id: TenantId, cap: Option<Cap>) -> Result<(), PolicyError> {
        let now = self.now();
        set_quota(&mut self.tenant(id)?.node, cap, now);
        Ok(())
    }

    /// Sets whether it has a latency target.
    ///
    /// # Errors
    /// If it is unknown.
    pub fn set_target(&mut self, id: TenantId, target: bool) -> Result<(), PolicyError> {
        let tenant = self.tenant(id)?;
        tenant.kind.credit = match tenant.kind.credit {
            Some(credit) if target => Some(credit),
            _ => target.then(Credit::new),
        };
        Ok(())
    }

    /// Sets whether its turns coincide with those that it has on other GPUs.
    ///
    /// # Errors
    /// If it is unknown.
    pub fn set_gang(&mut self, id: TenantId, gang: bool) -> Result<(), PolicyError> {
        self.tenant(id)?.kind.gang = gang;
        Ok(())
    }

    /// The state of a tenant; none if it is unknown.
    pub fn standing(&self, id: TenantId) -> Option<Standing> {
        let account_id = *self.owners.get(&id)?;
        let tenant = self.accounts.get(&account_id)?.tenants.get(&id)?;
        Some(Standing {
            owed_ns: tenant.node.owed,
            alone_permille: tenant.node.alone.permille(),
            own_turn: self
                .turns
                .holder()
                .is_some_and(|h| h.admits(account_id, id)),
        })
    }

    /// What applies until the next poll.
    pub const fn orders(&self) -> &Orders {
        &self.orders
    }

    /// When the next poll is due. A poll may be earlier; a late one decides late.
    pub const fn next_look(&self) -> Moment {
        self.orders.next_look
    }

    /// Polls the engine. `measured` has the readings that became known since the last poll, in
    /// order of time.
    ///
    /// A poll with a time before the last one counts as at the last one's time.
    pub fn look(&mut self, now: Moment, seen: &[Seen], measured: &[Measured<'_>]) -> &Orders {
        let last = self.polled_at.unwrap_or(now);
        let now = now.max(last);
        self.polled_at = Some(now);
        self.see(now, seen);
        if now > last {
            self.note_past(last, now);
        }
        let unknown = self.settle(now, measured);
        if self.orders.exact {
            self.lag = last.since(self.settled);
        }
        self.renew_quotas(now);
        self.turns.window = self.window_at(now);
        let in_turn = self.turns.holder().is_some_and(|of| !self.is_gang(of));
        self.end_turn(now, unknown);
        if self.spell.pass(now, now.since(last), in_turn) {
            self.void();
        }
        if !unknown {
            self.begin_turn(now);
        }
        self.give_orders(now);
        self.retire(now);
        &self.orders
    }

    fn now(&self) -> Moment {
        self.polled_at.unwrap_or(Moment(0))
    }

    fn account_of(&mut self, tenant: TenantId) -> Option<&mut Account> {
        let account = self.owners.get(&tenant)?;
        self.accounts.get_mut(account)
    }

    fn tenant(&mut self, id: TenantId) -> Result<&mut Tenant, PolicyError> {
        let account = self.account_of(id);
        let tenant = account.and_then(|account| account.tenants.get_mut(&id));
        let connected = tenant.filter(|tenant| tenant.is_connected());
        connected.ok_or(PolicyError::Unknown(id))
    }

    /// Takes the state of all tenants, and divides the engine among those that take part.
    fn see(&mut self, now: Moment, seen: &[Seen]) {
        let seen: BTreeMap<TenantId, &Seen> = seen.iter().map(|seen| (seen.tenant, seen)).collect();
        for (id, account) in &self.owners {
            if let Some(account) = self.accounts.get_mut(account) {
                account.see(*id, seen.get(id).copied(), now);
            }
        }
        let weight = |account: &Account| u64::from(account.weight.get());
        let live = self.accounts.values().filter(|account| account.live() > 0);
        let all: u64 = live.map(weight).sum();
        for account in self.accounts.values_mut() {
            let own = if account.live() > 0 {
                weight(account)
            } else {
                0
            };
            account.divide(all.saturating_sub(own));
        }
    }

    /// The window of this poll, where a gang takes part beside another tenant.
    fn window_at(&self, now: Moment) -> Option<Window> {
        let mut live = 0;
        let mut gangs = Vec::new();
        for (account_id, account) in &self.accounts {
            for (id, tenant) in account.connected().filter(|(_, t)| t.state.live) {
                live += 1;
                if tenant.kind.gang {
                    gangs.push(Gang {
                        name: tenant.name(),
                        account: *account_id,
                        tenant: id,
                        part: tenant.state.part,
                    });
                }
            }
        }
        gang::window(gangs, now).filter(|_| live > 1)
    }

    /// Begins the turn of the gang that has the window, or that of the node that is owed one.
    fn begin_turn(&mut self, now: Moment) {
        let current = self.turns.holder();
        if let Some((gang, until)) = self.gang_turn() {
            if current != Some(gang) {
                self.turns.cut();
                self.turns.begin(gang, now, until.since(now));
            }
        } else if current.is_none()
            && let Some(holder) = choose(&self.accounts, self.turn_length())
        {
            self.turns.begin(holder, now, self.turn_length());
        }
    }

    /// The gang that has the window, if it can use it, and when that ends.
    fn gang_turn(&self) -> Option<(Holder, Moment)> {
        let window = self.turns.window?;
        let (account_id, id) = window.gang?;
        let account = self.accounts.get(&account_id)?;
        let tenant = account.tenants.get(&id)?;
        let works = tenant.state.has_work || tenant.state.idle < HOLDER_IDLE_MAX;
        let able = works && !account.is_capped(tenant);
        able.then_some((Holder::Tenant(account_id, id), window.until))
    }

    fn is_gang(&self, holder: Holder) -> bool {
        let Holder::Tenant(account, id) = holder else {
            return false;
        };
        let tenant = |account: &Account| Some(account.tenants.get(&id)?.kind.gang);
        self.accounts
            .get(&account)
            .and_then(tenant)
            .unwrap_or(false)
    }

    /// What decides which tenants are held until the next poll.
    fn turn(&self) -> Turn {
        let mut tenants = self.accounts.values().flat_map(Account::connected);
        let mut wanted = || tenants.any(|(_, of)| !of.kind.gang && of.state.has_work);
        Turn {
            holder: self.turns.holder(),
            gangs_wait: self.turns.window.is_some() && wanted(),
        }
    }

    fn renew_quotas(&mut self, now: Moment) {
        for account in self.accounts.values_mut() {
            let tenants = account.tenants.values_mut().map(|tenant| &mut tenant.node);
            for node in tenants.chain([&mut account.node]) {
                if let Some(quota) = &mut node.quota {
                    quota.advance_to(now);
                }
            }
        }
    }

    /// Ends the own turn, or its first half, if that is due at this poll.
    fn end_turn(&mut self, now: Moment, unknown: bool) {
        let Some(turn) = self.turns.current() else {
            return;
        };
        let (holder, half) = (turn.holder, turn.is_half_over(now));
        let ending = ending(&self.accounts, turn, now);
        if half {
            self.turns.half(now);
        }
        if unknown {
            self.turns.cut();
        } else if let Some(ending) = ending {
            self.turns.end(now, ending == Ending::Idle);
        } else {
            return;
        }
        if let Some(account) = self.accounts.get_mut(&holder.account()) {
            match holder {
                Holder::Account(_) => account.node.own_turn_at = Some(now),
                Holder::Tenant(_, id) => {
                    if let Some(tenant) = account.tenants.get_mut(&id) {
                        tenant.node.own_turn_at = Some(now);
                    }
                }
            }
        }
        self.learn_alone();
    }

    /// Voids all owed time and ends the own turn.
    fn void(&mut self) {
        self.turns.cut();
        for account in self.accounts.values_mut() {
            let tenants = account.tenants.values_mut().map(|tenant| &mut tenant.node);
            for node in tenants.chain([&mut account.node]) {
                node.owed = node.owed.min(0);
            }
        }
    }

    /// Gives the orders that apply until the next poll.
    fn give_orders(&mut self, now: Moment) {
        let mut list = std::mem::take(&mut self.orders.tenants);
        list.clear();
        let turn = self.turn();
        let least = orders::least_part(&self.accounts);
        let short = orders::is_target_due(&self.accounts);
        for (id, account) in &self.accounts {
            for (tenant_id, tenant) in account.connected() {
                let bounds = Bounds {
                    blocks: tenant.state.blocks,
                    beside_target: short && tenant.kind.credit.is_none(),
                };
                list.push(TenantOrder {
                    tenant: tenant_id,
                    hold: orders::hold(turn, (*id, account), (tenant_id, tenant), now),
                    slice_ns: slices::slice(tenant.state.part, least, bounds),
                });
            }
        }
        for order in &list {
            if let Ok(tenant) = self.tenant(order.tenant) {
                tenant.held = order.hold.is_some();
            }
        }
        self.orders.tenants = list;
        let turns = (self.turns.current(), self.turn_length());
        let next_look = orders::next_look_after(&self.accounts, turns, now);
        let until = self.turns.window.map(|window| window.until);
        self.orders.next_look = until.map_or(next_look, |until| next_look.min(until));
        let in_turn = self.turns.current().is_some();
        self.orders.exact = in_turn || self.accounts.values().any(orders::is_exact);
    }

    /// What applies to a tenant that was just added.
    fn order_of_new(&mut self, id: TenantId, now: Moment) -> TenantOrder {
        let turn = self.turn();
        let account_id = self.owners.get(&id);
        let account = account_id.and_then(|id| Some((*id, self.accounts.get(id)?)));
        let hold = account.and_then(|(account_id, account)| {
            let tenant = account.tenants.get(&id)?;
            orders::hold(turn, (account_id, account), (id, tenant), now)
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

    /// Removes tenants that left, once their readings are known.
    fn retire(&mut self, now: Moment) {
        for account in self.accounts.values_mut() {
            account.note_least(now);
            for id in account.retire(self.settled) {
                self.owners.remove(&id);
            }
        }
    }
}

#[cfg(test)]
mod gang_tests;
#[cfg(test)]
mod tests;
