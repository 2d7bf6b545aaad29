//! How far what was read of the log is all that there is.

use turnstile_accounting::{Moment, Nanos, TenantId};

use super::Watch;
use crate::RECORD;
use crate::look::JUST_NOW;
use crate::residency::{TIME_SLICE, UNTRACKED};

/// The driver moves records of the log to its ring by itself, within so long. SOURCE: `fecs_event_list.c`: 30 times a second; and a little.
const SHOWN: Nanos = Nanos::from_ms(40);

impl Watch {
    /// All that was logged until then was read.
    pub(crate) fn caught_up(&mut self, at: Moment) {
        let resident = self.residency.resident_since();
        let free = resident.filter(|(tenant, _)| !self.demand.is_held(*tenant));
        self.moves.caught_up(at, free);
        let is_held = |tenant| self.demand.is_held(tenant);
        for tenant in self.hosts.stayed_away(at, is_held) {
            self.demand.idle(tenant, at);
        }
        self.demand.caught_up(at);
    }

    /// The same of what the driver moves by itself.
    pub(crate) fn caught_up_by_itself(&mut self, now: Moment) {
        self.caught_up(Moment(now.0.saturating_sub(SHOWN.0)));
    }

    /// Whether nobody was held or let go of whom there is more in the log than was read, and nobody is there who is no tenant.
    pub(crate) fn is_still(&self) -> bool {
        self.moves.are_over() && self.knows_all()
    }

    /// Until now another reading of the log would say nothing new: that need not be found out again just now.
    pub(crate) fn confirm(&mut self, now: Moment) {
        self.confirmed = now;
    }

    /// Whether that was found out just now.
    pub(crate) fn is_confirmed(&self, now: Moment) -> bool {
        now.since(self.confirmed) < JUST_NOW
    }

    /// Whether this one was heard to go to sleep, as he is whenever he stops, and was seen to have just now.
    pub(crate) fn has_just_stopped(&self, tenant: TenantId, now: Moment) -> bool {
        let just = |(seen, at): (TenantId, Moment)| seen == tenant && now.since(at) < JUST_NOW;
        self.residency.is_idle() && self.hosts.has_told_stop() && self.seen.is_some_and(just)
    }

    /// Whether nobody is there who is no tenant.
    pub(crate) fn knows_all(&self) -> bool {
        self.residency.untracked().is_empty()
    }

    /// Of those who are no tenants, who has ended is forgotten.
    pub(crate) fn forget_gone(&mut self, is_gone: impl Fn(u32) -> bool) {
        self.residency.forget_gone(is_gone);
        // Another may have its number.
        let untracked = self.residency.untracked();
        self.strangers.retain(|pid| untracked.contains_key(pid));
    }

    /// Whether something is to be known of this one: counters and stretches tell of who is gone for a while.
    pub(crate) fn minds(&self, tenant: TenantId) -> bool {
        tenant == UNTRACKED || self.demand.knows(tenant)
    }

    /// The usher's process, of which there may be another now.
    pub(crate) fn set_own(&mut self, pid: Option<u32>) {
        log::trace!(target: RECORD, "own {}", pid.unwrap_or(0));
        self.residency.set_own(pid);
    }

    /// The usher is told to take the engine (`true`), or that this is over.
    pub(crate) fn own(&mut self, takes: bool, at: Moment) {
        let word = if takes { "takes" } else { "leaves" };
        log::trace!(target: RECORD, "{word} {}", at.0);
        if takes {
            self.residency.own_takes(at);
        } else {
            self.residency.own_leaves(at);
        }
    }

    /// Whether this one is at work on the engine, has had a time slice, and nobody else waits for it, who would follow him: then the usher can stop him.
    pub(crate) fn is_to_be_ushered(&self, tenant: TenantId, now: Moment) -> bool {
        let works = self.residency.works_since(tenant);
        let others = self.demand.wanting(now).filter(|other| *other != tenant);
        let mut waiting = others.filter(|other| !self.demand.is_held(*other));
        works.is_some_and(|since| now.since(since) > TIME_SLICE) && waiting.next().is_none()
    }
}
