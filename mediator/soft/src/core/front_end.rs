//! The front end: fetches commands of all channels in turn, within a budget of each account.
//!
//! In: channels in line (a doorbell was rung, a command finished, a word was reached). Out: work
//! queued for the engines, fences written, channels that wait.
//!
//! A command that needs no engine (NOP, FENCE, WAIT) spends [`CostModel::front_end`]: first of what
//! its tenant was granted, then of the budget that its account has for all its tenants. A command
//! for an engine spends nothing, and grants its tenant [`EARNED`] commands when it is done. So a
//! tenant with at most [`EARNED`] such commands for each launch or copy is never limited, whatever
//! the other tenants of its account do.
//!
//! A channel without grant and budget is parked. While an account has parked channels, its budget
//! is given to them alone: a turn at a time, to one tenant after the other.
//!
//! # Invariants
//! - The tenants of an account together execute at most (1 ms + 1 % of time) / cost + [`EARNED`]
//!   for each engine command. Tenants that come and go change nothing.
//! - A channel with commands to fetch is in line, parked, or waits for an engine or a word.
//! - A parked channel has a wake-up ([`Core::next_refill`]), so that every fence is written.
//! - A tenant is in [`Budget::waiting`] once if it has parked channels, else not at all.
//!
//! Called by [`Core`]'s drivers.
//!
//! [`CostModel::front_end`]: super::CostModel::front_end

use std::collections::{BTreeMap, VecDeque};

use turnstile_accounting::{AccountId, Allowance, Moment, Nanos, TenantId};

use super::Core;
use crate::channel::{Phase, Turn};

/// Commands that the front end fetches of one channel before it serves the next.
const TURN_BUDGET: u32 = 16;
/// Commands that the front end fetches in one pass: bounds how long the core is locked.
const PASS_BUDGET: u32 = 256;
/// Commands without an engine that are free for each command that an engine has finished.
const EARNED: u32 = 4;
/// Commands that a tenant may be granted and not have executed.
const GRANTED_MAX: u32 = 4 * TURN_BUDGET;
/// What a budget saves up, if that is more than a turn.
const SAVED_MAX: Nanos = Nanos(1_000_000);

/// An account's budget for commands that need no engine.
#[derive(Debug)]
pub(crate) struct Budget {
    cost: Nanos,
    time: Allowance,
    max: Nanos,
    /// Tenants of the account.
    tenants: usize,
    /// Those with parked channels, the next in turn first.
    waiting: VecDeque<TenantId>,
}

/// A tenant's part in the front end.
#[derive(Debug)]
pub(crate) struct Part {
    account: AccountId,
    /// Commands that the account's budget does not pay for, or has paid for.
    granted: u32,
    /// Channels that wait for the budget to grow, the next in turn first.
    parked: VecDeque<u32>,
}

/// Budgets of all accounts: of those with tenants, and of those that left one that is not full.
#[derive(Debug, Default)]
pub(crate) struct Budgets(BTreeMap<AccountId, Budget>);

impl Budgets {
    /// A tenant of `account` comes. The first one of an account finds a full budget of commands
    /// that cost `cost` each, or what its predecessors left.
    pub(crate) fn add(&mut self, account: AccountId, cost: Nanos, now: Moment) -> Part {
        self.0
            .retain(|_, budget| budget.tenants > 0 || !budget.is_full(now));
        let budget = self.0.entry(account);
        budget.or_insert_with(|| Budget::new(cost, now)).tenants += 1;
        Part {
            account,
            granted: 0,
            parked: VecDeque::new(),
        }
    }

    /// A tenant has left.
    pub(crate) fn remove(&mut self, tenant: TenantId, part: &Part) {
        if let Some(budget) = self.0.get_mut(&part.account) {
            budget.tenants -= 1;
            budget.waiting.retain(|other| *other != tenant);
        }
    }

    /// A channel of the tenant is gone.
    pub(crate) fn forget(&mut self, tenant: TenantId, part: &mut Part, slot: u32) {
        part.parked.retain(|other| *other != slot);
        self.leave_if_served(tenant, part);
    }

    /// Takes a tenant without parked channels out of the queue of its account.
    fn leave_if_served(&mut self, tenant: TenantId, part: &Part) {
        if let Some(budget) = self.0.get_mut(&part.account)
            && part.parked.is_empty()
        {
            budget.waiting.retain(|other| *other != tenant);
        }
    }

    /// Commands that the tenant may execute now.
    fn left(&self, part: &Part, now: Moment) -> u32 {
        let budget = self.0.get(&part.account);
        let shared = budget.filter(|budget| budget.waiting.is_empty());
        let shared = shared.map_or(0, |budget| budget.left(now));
        part.granted.saturating_add(shared)
    }

    fn spend(&mut self, part: &mut Part, now: Moment, commands: u32) {
        let granted = part.granted.min(commands);
        part.granted -= granted;
        if let Some(budget) = self.0.get_mut(&part.account) {
            budget.spend(now, commands - granted);
        }
    }

    fn park(&mut self, tenant: TenantId, part: &mut Part, slot: u32) {
        part.parked.push_back(slot);
        if let Some(budget) = self.0.get_mut(&part.account)
            && part.parked.len() == 1
        {
            budget.waiting.push_back(tenant);
        }
    }

    /// An engine has finished a command of the tenant. Returns a parked channel that may go on.
    fn engine_finished(&mut self, tenant: TenantId, part: &mut Part) -> Option<u32> {
        part.grant(EARNED);
        let slot = part.parked.pop_front()?;
        self.leave_if_served(tenant, part);
        Some(slot)
    }

    /// When the first parked channel goes on.
    pub(crate) fn next_refill(&self, now: Moment) -> Option<Moment> {
        let budgets = self.0.values();
        budgets.filter_map(|budget| budget.refill(now)).min()
    }
}

impl Part {
    fn grant(&mut self, commands: u32) {
        self.granted = (self.granted + commands).min(GRANTED_MAX);
    }
}

impl Budget {
    /// A full budget.
    fn new(cost: Nanos, now: Moment) -> Self {
        let max = SAVED_MAX.max(turn_cost(cost));
        Self {
            cost,
            time: Allowance::new(max, max, now),
            max,
            tenants: 0,
            waiting: VecDeque::new(),
        }
    }

    fn is_full(&self, now: Moment) -> bool {
        self.time.left(now) == self.max
    }

    /// Commands that are left.
    fn left(&self, now: Moment) -> u32 {
        let left = self.time.left(now).0.checked_div(self.cost.0);
        left.map_or(u32::MAX, |left| u32::try_from(left).unwrap_or(u32::MAX))
    }

    fn spend(&mut self, now: Moment, commands: u32) {
        self.time
            .spend(now, Nanos(self.cost.0 * u64::from(commands)));
    }

    /// When the next parked channel goes on; none without any.
    fn refill(&self, now: Moment) -> Option<Moment> {
        let parked = !self.waiting.is_empty();
        parked.then(|| self.time.reaches(now, turn_cost(self.cost)))
    }
}

/// What a turn costs at most.
fn turn_cost(cost: Nanos) -> Nanos {
    Nanos(cost.0.saturating_mul(TURN_BUDGET.into()))
}

/// Puts a channel in line for the front end.
pub(crate) fn line_up(core: &mut Core, slot: u32) {
    if let Some(channel) = &mut core.slots[slot as usize].channel
        && !channel.in_line
    {
        channel.in_line = true;
        core.line.push_back(slot);
    }
}

/// Puts parked channels back in line, with a turn of their account's budget each.
fn unpark(core: &mut Core, now: Moment) {
    let waiting = core.line.len();
    for budget in core.budgets.0.values_mut() {
        while budget.refill(now).is_some_and(|at| at <= now)
            && let Some(tenant) = budget.waiting.pop_front()
        {
            let Some(owner) = core.tenants.get_mut(&tenant) else {
                continue;
            };
            let part = &mut owner.front_end;
            if let Some(slot) = part.parked.pop_front() {
                budget.spend(now, TURN_BUDGET);
                part.grant(TURN_BUDGET);
                core.line.push_back(slot);
            }
            if !part.parked.is_empty() {
                budget.waiting.push_back(tenant);
            }
        }
    }
    if core.line.len() > waiting {
        // Words that parked channels wait for were not watched.
        core.changed();
    }
}

/// An engine has finished a command of the tenant.
pub(crate) fn engine_finished(core: &mut Core, tenant: TenantId) {
    if let Some(owner) = core.tenants.get_mut(&tenant)
        && let Some(slot) = core.budgets.engine_finished(tenant, &mut owner.front_end)
    {
        core.line.push_back(slot);
        core.changed();
    }
}

/// Fetches commands of the channels in line, [`TURN_BUDGET`] of each in turn.
pub(crate) fn pass(core: &mut Core, now: Moment) {
    let now = core.tick(now);
    unpark(core, now);
    let mut left = PASS_BUDGET;
    while left > 0
        && let Some(slot) = core.line.pop_front()
    {
        let Some(channel) = &mut core.slots[slot as usize].channel else {
            continue;
        };
        let tenant = channel.tenant;
        let Some(owner) = core.tenants.get_mut(&tenant) else {
            continue;
        };
        let part = &mut owner.front_end;
        let affordable = core.budgets.left(part, now);
        if affordable == 0 {
            // It stays marked as in line, so that it is parked once.
            core.budgets.park(tenant, part, slot);
            continue;
        }
        channel.in_line = false;
        let budget = TURN_BUDGET.min(left).min(affordable);
        let mut rest = budget;
        let mut fenced = false;
        let turn = channel.turn(now, &mut rest, &mut fenced);
        let fetched = budget - rest;
        // The last command of such a turn is one for an engine.
        let for_engine = u32::from(turn == Turn::Queued);
        let spent = fetched.saturating_sub(for_engine);
        core.budgets.spend(part, now, spent);
        let queued = match &channel.phase {
            Phase::Queued(job) => Some(job.work.class()),
            _ => None,
        };
        if (turn == Turn::Waits) != core.waits.contains(&slot) {
            core.changed();
        }
        if turn == Turn::Waits {
            core.waits.insert(slot);
        } else {
            core.waits.remove(&slot);
        }
        match turn {
            Turn::More => line_up(core, slot),
            Turn::Faulted => core.changed(),
            Turn::Empty | Turn::Waits | Turn::Queued => {}
        }
        if let Some(class) = queued {
            core.ready[class as usize].insert(slot);
            core.demand.touch(tenant);
        }
        if fenced {
            for slot in waits_over(core, Some(tenant)) {
                line_up(core, slot);
            }
        }
        // Even a turn that fetched nothing is one.
        left = left.saturating_sub(fetched + 1);
    }
}

/// Channels (of one tenant, or of all) with an awaited word that was reached.
pub(super) fn waits_over(core: &Core, tenant: Option<TenantId>) -> Vec<u32> {
    let over = |slot: &&u32| {
        let channel = core.slots[**slot as usize].channel.as_ref();
        channel.is_some_and(|c| tenant.is_none_or(|t| t == c.tenant) && c.wait_is_over())
    };
    core.waits.iter().filter(over).copied().collect()
}
