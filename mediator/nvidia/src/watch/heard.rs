//! What tenants' hosts tell, and what comes of it: [`Hosts`](crate::hosts::Hosts) says how far it is believed.

use turnstile_accounting::{Moment, Nanos, TenantId};

use super::Watch;
use crate::RECORD;
use crate::hosts::Listens;
use crate::progress::Located;

/// Who is heard when he stops is looked at again after so long all the same.
pub(crate) const TOLD: Nanos = Nanos::from_ms(60);
/// Who rings is on the engine so soon, if another is. SOURCE: facts sheet section 1: a time slice is 2.048 ms.
const COMES: Nanos = Nanos::from_us(2_500);
/// Who is heard has stopped, or begun, to within so long, if what he launched says the same to within the other.
pub(super) const HEARD: Nanos = Nanos::from_us(100);
const NEAR: Nanos = Nanos::from_ms(2);
/// The same of one of whose launches nothing is known, who was seen at work so long before: from one look to the next, and a little.
const CLOSE: Nanos = Nanos::from_ms(13);

impl Watch {
    /// Whether one who rests, and would have been heard, has rung only after that.
    pub(super) fn is_silent_until(&self, tenant: TenantId, at: Moment) -> bool {
        let rang = self.hosts.may_have_begun(tenant);
        rang.is_some_and(|rang| rang > at) && self.hosts.is_known(tenant)
    }

    /// Asks one's channels that say what they said when they were last asked, if that is known: he had stopped then, sleeps since, and would have been heard. Whether it is.
    pub(crate) fn ask_who_sleeps(&mut self, tenant: TenantId, now: Moment) -> bool {
        let stopped = self.demand.rests_since(tenant);
        let sleeps = stopped.filter(|_| self.hosts.is_silent(tenant, now));
        let same = sleeps.and_then(|stopped| self.progress.said_since(tenant, stopped));
        if let Some(same) = &same {
            self.ask(tenant, same, now);
        }
        same.is_some()
    }

    /// Whether anybody may stop of those who work.
    pub(crate) fn another_may_stop(&self, now: Moment) -> bool {
        let mut works = self.demand.tenants().filter(|id| !self.demand.rests(*id));
        works.any(|tenant| !self.trusted(tenant, now))
    }

    /// Whether all who may run, and want to, are heard when they stop.
    pub(crate) fn all_tell(&self, now: Moment, held: impl Fn(TenantId) -> bool) -> bool {
        let mut running = self.demand.wanting(now).filter(|tenant| !held(*tenant));
        running.all(|tenant| self.hosts.tells(tenant, Listens::Stop))
    }

    /// What is to be listened for from now on that was not until now, of those who may run.
    pub(crate) fn listens(
        &mut self,
        now: Moment,
        held: impl Fn(TenantId) -> bool,
    ) -> Vec<(TenantId, Listens)> {
        if log::log_enabled!(target: RECORD, log::Level::Trace) {
            let not = self.demand.tenants().filter(|tenant| held(*tenant));
            let not: String = not.map(|tenant| format!(" {}", tenant.0)).collect();
            log::trace!(target: RECORD, "listens {}{not}", now.0);
        }
        if self.demand.is_alone() {
            return Vec::new();
        }
        let free: Vec<TenantId> = self.demand.tenants().filter(|id| !held(*id)).collect();
        let listens = free.into_iter().filter_map(|tenant| {
            let rests = self.demand.rests(tenant);
            let of = self.comes_and_goes(tenant);
            let listens = of.then(|| self.hosts.listens(tenant, rests, now));
            Some((tenant, listens??))
        });
        listens.collect()
    }

    /// Whether it may be listened before long for one's going to sleep.
    pub(crate) fn may_sleep(&self, tenant: TenantId, now: Moment) -> bool {
        self.comes_and_goes(tenant)
            && !self.demand.is_alone()
            && !self.hosts.is_deaf_to(tenant, Listens::Stop, now)
    }

    /// Whether it rests, or will. Who hardly ever does pauses now and then, which is no matter.
    fn comes_and_goes(&self, tenant: TenantId) -> bool {
        self.demand.rests(tenant) || self.demand.is_bursty(tenant)
    }

    /// This was heard of a tenant: how soon that is to be decided about; none if he is to be looked at.
    pub(crate) fn heard(&mut self, tenant: TenantId, what: Listens, at: Moment) -> Option<Nanos> {
        log::trace!(target: RECORD, "heard {} {} {}", tenant.0, u8::from(what == Listens::Stop), at.0);
        if !self.hosts.heard(tenant, what, at) {
            return None;
        }
        match what {
            Listens::Stop => None,
            Listens::Begin if self.begins_at_once(tenant, at) => {
                self.hosts.presume(tenant);
                self.demand.presume(tenant, at);
                Some(Nanos::ZERO)
            }
            // Who rings without work keeps the engine from nobody.
            Listens::Begin => Some(COMES + self.demand.steady(tenant)),
        }
    }

    /// Whether one who was heard is to have turns at once: he is on the engine whenever he is heard, and works for long then, and another is there now. That he comes is seen by the
    /// engine's own status.
    fn begins_at_once(&self, tenant: TenantId, now: Moment) -> bool {
        let mut others = self.demand.wanting(now).filter(|other| *other != tenant);
        self.mapped
            && self.residency.resident() != Some(tenant)
            && self.demand.rests(tenant)
            && self.demand.steady(tenant) == Nanos::ZERO
            && self.hosts.is_prompt(tenant)
            && others.next().is_some()
    }

    /// For how long nobody is expected to begin unheard, by what they did lately; `most` if they are not heard.
    pub(crate) fn rests_on(&self, now: Moment, most: Nanos, told: Nanos) -> Nanos {
        let tells = |tenant| self.hosts.tells(tenant, Listens::Begin);
        self.demand.rests_on(
            now,
            |tenant, habit| {
                if tells(tenant) { told } else { habit.min(most) }
            },
        )
    }

    /// When one stopped who is on the engine since `resident`, was seen without work, and is found to have stopped by his launches: as he was heard, if that agrees. Whether that is by his
    /// channels' words.
    pub(super) fn heard_to_stop(
        &mut self,
        tenant: TenantId,
        located: Option<Located>,
        (resident, now): (Moment, Moment),
    ) -> (Option<Located>, bool) {
        // Who went to sleep before he came has been awake since.
        let heard = self.hosts.may_have_stopped(tenant);
        let Some(heard) = heard.filter(|heard| *heard >= resident) else {
            return (located, true);
        };
        let then = Some(Located {
            at: heard,
            within: HEARD,
        });
        let Some(located) = located else {
            // What he launched meanwhile, or how long each takes, is not known.
            if self.hosts.is_believed(tenant) {
                return (then, false);
            }
            let worked = self.stops.worked_at(tenant);
            let close = worked.is_some_and(|worked| heard.since(worked) <= CLOSE);
            self.hosts.stopped(tenant, close, now);
            return (None, false);
        };
        let agrees = located.at.0.abs_diff(heard.0) <= NEAR.0.max(located.within.0 / 2);
        // Whose words say that he stopped before, for once, may have launched what they do not tell.
        let believed = agrees || self.hosts.is_believed(tenant);
        self.hosts.stopped(tenant, agrees, now);
        if believed {
            (then, false)
        } else {
            (Some(located), true)
        }
    }
}
