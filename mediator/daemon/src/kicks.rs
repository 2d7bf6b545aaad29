//! One VM's kick: an eventfd that its VMM writes after a doorbell write, and the bound on its cost.
//!
//! In: events of the control loop's epoll. Out: when to read the VM's doorbells. The VMs of an
//! account share a budget: [`KICKS_MAX`] events at once, and one more in each [`COST`]. An event is
//! always taken; without budget for another one its kick is muted until the budget is full, so that
//! a storm of kicks takes no more of the control loop. Debt is at most one event for each VM. The
//! kick stays readable once it was written, so that watching it again yields an event: the last
//! kick is never lost.
//!
//! The daemon never reads a kick: its VMM has it open as well, and could make the read block the
//! loop. The count overflows after 2^64 kicks.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use event_manager::{EventOps, Events};
use turnstile_accounting::AccountId;
use vmm_sys_util::epoll::EventSet;

/// Kicks of an account that its full budget pays for.
const KICKS_MAX: u32 = 20;
/// In which an empty budget becomes full. The timeouts of the control loop are whole milliseconds.
const WINDOW: Duration = Duration::from_millis(1);
/// What a kick takes of the budget.
const COST: Duration = Duration::from_micros(50);

const _: () = assert!(COST.as_nanos() * KICKS_MAX as u128 == WINDOW.as_nanos());

/// Budgets of all accounts, by when they are full. One that is full need not be there: an account
/// finds what its VMs left, whichever of them are still connected.
#[derive(Debug, Default)]
pub(super) struct KickBudgets(BTreeMap<Payer, Instant>);

/// A GPU, by its place among the daemon's, and an account on it.
type Payer = (usize, AccountId);

impl KickBudgets {
    /// Takes a kick. Returns when the budget is full, if it pays for no other one now.
    fn take(&mut self, account: Payer, now: Instant) -> Option<Instant> {
        if !self.0.contains_key(&account) {
            self.0.retain(|_, full_at| *full_at > now);
        }
        let full_at = self.0.entry(account).or_insert(now);
        *full_at = now.max(*full_at) + COST;
        let missing = full_at.saturating_duration_since(now);
        (missing > WINDOW - COST).then_some(*full_at)
    }
}

/// A VM's kick in the control loop.
#[derive(Debug)]
pub(super) struct Kick {
    file: File,
    data: u32,
    account: Payer,
    /// When it is watched again, if it is muted.
    muted_until: Option<Instant>,
}

impl Kick {
    /// A kick of a VM of `account`, with events that carry `data`.
    pub(super) fn new(file: File, data: u32, account: Payer) -> Self {
        Self {
            file,
            data,
            account,
            muted_until: None,
        }
    }

    fn events(&self, events: EventSet) -> Events {
        // Each write is an event of its own, without a read.
        Events::with_data(&self.file, self.data, events | EventSet::EDGE_TRIGGERED)
    }

    /// Begins to watch it.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn watch(&self, ops: &mut EventOps) -> event_manager::Result<()> {
        ops.add(self.events(EventSet::IN))
    }

    /// Ends watching it.
    pub(super) fn forget(&self, ops: &mut EventOps) {
        let _ = ops.remove(Events::empty_raw(self.file.as_raw_fd()));
    }

    /// Takes an event, and mutes the kick if its account can pay for no other one.
    pub(super) fn kicked(&mut self, budgets: &mut KickBudgets, now: Instant, ops: &mut EventOps) {
        // A kick that cannot be muted is served as it comes.
        if let Some(full_at) = budgets.take(self.account, now)
            && ops.modify(self.events(EventSet::empty())).is_ok()
        {
            self.muted_until = Some(full_at);
        }
    }

    /// When [`Self::tick`] is due, if it is muted.
    pub(super) fn due(&self) -> Option<Instant> {
        self.muted_until
    }

    /// Watches a muted kick again, if that is due; it then yields an event.
    pub(super) fn tick(&mut self, now: Instant, ops: &mut EventOps) {
        if self.muted_until.is_some_and(|until| until <= now)
            && ops.modify(self.events(EventSet::IN)).is_ok()
        {
            self.muted_until = None;
        }
    }
}

#[cfg(test)]
#[path = "kicks_tests.rs"]
mod tests;
