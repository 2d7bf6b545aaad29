//! How far what was read of the log is all that there is.

use turnstile_accounting::{Moment, Nanos, TenantId};

use super::Watch;
use crate::gpu::nvidia::look::JUST_NOW;

/// The driver moves records of the log to its ring by itself, within so long. SOURCE: `fecs_event_list.c`: 30 times a second; and a little.
const SHOWN: Nanos = Nanos::from_ms(40);

impl Watch {
    /// All that was logged until then was read.
    pub(in crate::gpu::nvidia) fn caught_up(&mut self, at: Moment) {
        let resident = self.residency.resident_since();
        let free = resident.filter(|(tenant, _)| !self.demand.is_held(*tenant));
        self.moves.caught_up(at, free);
        let is_held = |tenant| self.demand.is_held(tenant);
        for tenant in self.hosts.stayed_away(at, is_held) {
            self.demand.idle(tenant, at);
        }
    }

    /// The same of what the driver moves by itself.
    pub(in crate::gpu::nvidia) fn caught_up_by_itself(&mut self, now: Moment) {
        self.caught_up(Moment(now.0.saturating_sub(SHOWN.0)));
    }

    /// Whether nobody was held or let go of whom there is more in the log than was read, and nobody is there who is no tenant.
    pub(in crate::gpu::nvidia) fn is_still(&self) -> bool {
        self.moves.are_over() && self.knows_all()
    }

    /// Until now another reading of the log would say nothing new: that need not be found out again just now.
    pub(in crate::gpu::nvidia) fn confirm(&mut self, now: Moment) {
        self.confirmed = now;
    }

    /// Whether that was found out just now.
    pub(in crate::gpu::nvidia) fn is_confirmed(&self, now: Moment) -> bool {
        now.since(self.confirmed) < JUST_NOW
    }

    /// Whether this one was heard to go to sleep, as he is whenever he stops, and was seen to have just now.
    pub(in crate::gpu::nvidia) fn has_just_stopped(&self, tenant: TenantId, now: Moment) -> bool {
        let just = |(seen, at): (TenantId, Moment)| seen == tenant && now.since(at) < JUST_NOW;
        self.residency.is_idle() && self.hosts.has_told_stop() && self.seen.is_some_and(just)
    }

    /// Whether nobody is there who is no tenant.
    pub(in crate::gpu::nvidia) fn knows_all(&self) -> bool {
        self.residency.untracked().is_empty()
    }
}
