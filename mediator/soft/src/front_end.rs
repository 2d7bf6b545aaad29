//! The front end: fetches commands of all channels in turn, within a budget of each tenant.
//!
//! In: channels in line (a doorbell was rung, a command finished, a word was reached). Out: work
//! queued for the engines, fences written, channels that wait.
//!
//! A command that needs no engine (NOP, FENCE, WAIT) spends [`CostModel::front_end`] of its
//! tenant's budget. A command for an engine spends nothing, and earns the cost of [`EARNED`]
//! commands when it is done: a tenant with at most [`EARNED`] such commands for each launch or copy
//! is never limited. Once the budget is spent, the tenant's channels are parked until it has grown
//! to one turn.
//!
//! # Invariants
//! - A tenant executes at most (1 ms + 1 % of time) / cost + [`EARNED`] for each engine command.
//! - A channel with commands to fetch is in line, parked, or waits for an engine or a word.
//! - A parked channel has a wake-up ([`Core::next_refill`]), so that every fence is written.
//!
//! Called by [`Core`]'s drivers.
//!
//! [`CostModel::front_end`]: super::CostModel::front_end

use turnstile_accounting::{Allowance, Moment, Nanos};

use super::channel::{Phase, Turn};
use super::core::Core;

/// Commands that the front end fetches of one channel before it serves the next.
const TURN_BUDGET: u32 = 16;
/// Commands that the front end fetches in one pass: bounds how long the core is locked.
const PASS_BUDGET: u32 = 256;
/// Commands without an engine that are free for each command that an engine has finished.
const EARNED: u32 = 4;
/// What a budget saves up, if that is more than a turn.
const SAVED_MAX: Nanos = Nanos(1_000_000);

/// A tenant's budget for commands that need no engine.
#[derive(Debug)]
pub(super) struct Budget {
    cost: Nanos,
    time: Allowance,
    /// Channels that wait for the budget to grow.
    parked: Vec<u32>,
}

impl Budget {
    /// A full budget, of commands that cost `cost` each.
    pub(super) fn new(cost: Nanos, now: Moment) -> Self {
        let max = SAVED_MAX.max(turn_cost(cost));
        Self {
            cost,
            time: Allowance::new(max, max, now),
            parked: Vec::new(),
        }
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

    /// An engine has finished a command of the tenant.
    pub(super) fn engine_finished(&mut self, now: Moment) {
        self.time.earn(now, Nanos(self.cost.0 * u64::from(EARNED)));
    }

    /// A channel is gone.
    pub(super) fn forget(&mut self, slot: u32) {
        self.parked.retain(|other| *other != slot);
    }

    /// When the parked channels go on; none without any.
    fn refill(&self, now: Moment) -> Option<Moment> {
        let parked = !self.parked.is_empty();
        parked.then(|| self.time.reaches(now, turn_cost(self.cost)))
    }
}

/// What a turn costs at most.
fn turn_cost(cost: Nanos) -> Nanos {
    Nanos(cost.0.saturating_mul(TURN_BUDGET.into()))
}

impl Core {
    /// Puts a channel in line for the front end.
    pub(super) fn line_up(&mut self, slot: u32) {
        if let Some(channel) = &mut self.slots[slot as usize].channel
            && !channel.in_line
        {
            channel.in_line = true;
            self.line.push_back(slot);
        }
    }

    /// Whether a channel of a tenant with budget is in line.
    pub(super) fn has_backlog(&self) -> bool {
        !self.line.is_empty()
    }

    /// When the first parked channel goes on.
    pub(super) fn next_refill(&self) -> Option<Moment> {
        let budgets = self.tenants.values().map(|tenant| &tenant.budget);
        budgets.filter_map(|budget| budget.refill(self.now)).min()
    }

    /// Puts channels back in line once the budget of the tenant has grown to a turn.
    fn unpark(&mut self, now: Moment) {
        let waiting = self.line.len();
        for tenant in self.tenants.values_mut() {
            if tenant.budget.refill(now).is_some_and(|at| at <= now) {
                self.line.extend(tenant.budget.parked.drain(..));
            }
        }
        if self.line.len() > waiting {
            // Words that parked channels wait for were not watched.
            self.changed();
        }
    }

    /// Fetches commands of the channels in line, [`TURN_BUDGET`] of each in turn.
    pub(super) fn front_end(&mut self, now: Moment) {
        let now = self.tick(now);
        self.unpark(now);
        let mut left = PASS_BUDGET;
        while left > 0
            && let Some(slot) = self.line.pop_front()
        {
            let Some(channel) = &mut self.slots[slot as usize].channel else {
                continue;
            };
            let tenant = channel.tenant;
            let Some(owner) = self.tenants.get_mut(&tenant) else {
                continue;
            };
            let affordable = owner.budget.left(now);
            if affordable == 0 {
                // It stays marked as in line, so that it is parked once.
                owner.budget.parked.push(slot);
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
            owner.budget.spend(now, fetched.saturating_sub(for_engine));
            let queued = match &channel.phase {
                Phase::Queued(job) => Some(job.work.class()),
                _ => None,
            };
            if (turn == Turn::Waits) != self.waits.contains(&slot) {
                self.changed();
            }
            if turn == Turn::Waits {
                self.waits.insert(slot);
            } else {
                self.waits.remove(&slot);
            }
            match turn {
                Turn::More => self.line_up(slot),
                Turn::Faulted => self.changed(),
                Turn::Empty | Turn::Waits | Turn::Queued => {}
            }
            if let Some(class) = queued {
                self.ready[class as usize].insert(slot);
                self.touch(tenant);
            }
            if fenced {
                self.queue_waits(Some(tenant));
            }
            // Even a turn that fetched nothing is one.
            left = left.saturating_sub(fetched + 1);
        }
    }
}
