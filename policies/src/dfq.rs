//! Disengaged fair queuing, repaired: the default policy.
//!
//! Every tenant has a virtual time that advances by the engine time it used, divided by its weight.
//! System virtual time is that of the tenant who is furthest behind among those who wait for the
//! engine. Whoever is too far ahead of it is held until the next decision.
//!
//! What is repaired against the paper (A1.4, see `dfq_literal.rs`):
//! - a tenant is charged only for time to which it was admitted: what was measured, or of a sampled
//!   period's unobserved part its portion among those admitted in it;
//! - a tenant with work behind a closed gate waits, and does not count as idle; one that uses the GPU
//!   lightly does not wait, and its low virtual time holds nobody back;
//! - system virtual time never decreases.
//!
//! # Properties
//! - *Conservation*: the charges of a period add up to the time used, or to the sampled period.
//! - *No saving up*: who does not wait is lifted to system virtual time.
//! - *Bounded lag*: one who waits is behind nobody, or those ahead of it are held. Held tenants are
//!   charged what their queued commands take, so they exceed the level by that much and no more.
//! - *Work conserving*: the tenant furthest behind is never held, so that somebody who wants the engine
//!   is admitted; when nobody waits, all are even and nobody is held (caps aside). Between two decisions
//!   [`Policy::ran_dry`] keeps the engine busy.
//!
//! # How far ahead is too far
//! LoGA forgives a whole period to each, as it decides by a sample; so do sampled periods here. Where
//! usage is exact, the *level* is what the fluid ideal would do next: pour the coming period's service
//! into those furthest behind until they are even; who is above that level would get nothing of it and
//! is held. One lone laggard thus catches up without overtaking all others, and among tenants that
//! are even each may be ahead by one period's virtual time, whatever their number and weights.

use crate::member::Member;
use crate::params::{Cap, TenantParams, Weight};
use crate::policy::{
    Basis, Decision, HoldReason, PeriodUsage, Policy, PolicyError, TenantDecision, TenantPeriod,
};
use crate::roster::Roster;
use crate::table::Tuning;
use crate::virtual_time::{VirtualTime, pour};
use turnstile_accounting::share::apportion;
use turnstile_accounting::{Moment, Nanos, TenantId};

/// Weighted, capped, disengaged fair queuing.
#[derive(Debug)]
pub struct Dfq {
    slack_ns: Nanos,
    tenants: Roster<Tenant>,
    /// System virtual time, as of `decided`.
    system: VirtualTime,
    decided: Moment,
    /// Length of the last period: how long its findings are good for.
    period_ns: Nanos,
    /// Weight of all who waited then.
    waiting_weight: u64,
    /// Whoever was ahead of this then is held; `None` if nobody waited.
    level: Option<VirtualTime>,
    /// Those who wait, for `pour`; kept for its memory.
    waiting: Vec<(VirtualTime, u64)>,
    decisions: Vec<TenantDecision>,
}

type Tenant = Member<Own>;

/// What this policy keeps of a tenant.
#[derive(Debug)]
struct Own {
    /// Its cap held it in the period that just ended: it has no claim to that time.
    shut_out: bool,
}

impl Dfq {
    /// A policy without tenants.
    pub fn new(tuning: &Tuning) -> Self {
        Self {
            slack_ns: tuning.slack_ns,
            tenants: Roster::default(),
            system: VirtualTime::default(),
            decided: Moment(0),
            period_ns: Nanos::ZERO,
            waiting_weight: 0,
            level: None,
            waiting: Vec::new(),
            decisions: Vec::new(),
        }
    }

    /// How a point of virtual time has moved since the last decision.
    fn moved(&self, then: VirtualTime, now: Moment) -> VirtualTime {
        match self.waiting_weight {
            0 => then,
            weight => then.after(now.since(self.decided).min(self.period_ns), weight),
        }
    }

    fn decide(&self, tenant: &Tenant, now: Moment) -> Decision {
        if tenant.capped() {
            Decision::Hold(HoldReason::Capped)
        } else if self
            .level
            .is_some_and(|level| tenant.clock.now() > self.moved(level, now))
        {
            Decision::Hold(HoldReason::Ahead)
        } else {
            Decision::Admit
        }
    }

    fn charge(&mut self, usage: &PeriodUsage<'_>) {
        let sampled = (usage.basis == Basis::PollSample).then(|| sampled_charges(usage));
        for tenant in self.tenants.values_mut() {
            tenant.backlogged = false;
        }
        for (index, part) in usage.tenants.iter().enumerate() {
            let Ok(tenant) = self.tenants.get_mut(part.tenant) else {
                continue; // removed within the period
            };
            let charge = sampled
                .as_ref()
                .map_or(part.used_ns, |charges| charges[index]);
            tenant.charge(charge);
            tenant.backlogged = part.backlogged;
            tenant.pass(Nanos::ZERO, estimated_use(usage, part));
        }
        for tenant in self.tenants.values_mut() {
            tenant.pass(usage.length_ns(), Nanos::ZERO);
        }
    }

    fn advance(&mut self, usage: &PeriodUsage<'_>) {
        let all = || self.tenants.iter().map(|(_, tenant)| tenant);
        let waiting = all().filter(|t| t.waits() && !t.own.shut_out);
        let furthest_behind = waiting.map(|t| t.clock.now()).min();
        // When nobody waits, nobody was hurt by those ahead: all start evenly again.
        let furthest_ahead = || all().map(|t| t.clock.now()).max();
        let system = furthest_behind
            .or_else(furthest_ahead)
            .unwrap_or(self.system);
        self.system = self.system.max(system);
        self.decided = usage.end;
        self.period_ns = usage.length_ns();
        for tenant in self.tenants.values_mut() {
            if tenant.own.shut_out || !tenant.waits() {
                tenant.clock.lift(self.system);
            }
            tenant.own.shut_out = tenant.capped();
        }
        self.set_level(usage.basis);
    }

    fn set_level(&mut self, basis: Basis) {
        self.waiting.clear();
        let waiting = self.tenants.iter().filter(|(_, t)| t.waits());
        self.waiting
            .extend(waiting.map(|(_, tenant)| tenant.standing()));
        self.waiting_weight = self.waiting.iter().map(|w| w.1).sum();
        self.level = match basis {
            Basis::Measured => pour(self.period_ns.max(self.slack_ns), &mut self.waiting),
            // One period at the mean weight: the paper's rule, if weights are equal.
            Basis::PollSample => (!self.waiting.is_empty()).then(|| {
                let lead = self.period_ns.0.saturating_mul(self.waiting.len() as u64);
                self.system.after(Nanos(lead), self.waiting_weight)
            }),
        };
    }
}

impl Policy for Dfq {
    fn name(&self) -> &'static str {
        "dfq"
    }

    fn add(&mut self, id: TenantId, params: TenantParams) -> Result<(), PolicyError> {
        let own = Own { shut_out: false };
        let tenant = Tenant::new(params, self.system, own);
        self.tenants.add(id, tenant)
    }

    fn remove(&mut self, tenant: TenantId) -> Result<(), PolicyError> {
        self.tenants.remove(tenant).map(drop)
    }

    fn set_weight(&mut self, tenant: TenantId, weight: Weight) -> Result<(), PolicyError> {
        self.tenants.get_mut(tenant)?.weight = weight;
        Ok(())
    }

    fn set_cap(&mut self, tenant: TenantId, cap: Option<Cap>) -> Result<(), PolicyError> {
        self.tenants.get_mut(tenant)?.set_cap(cap);
        Ok(())
    }

    fn woke(&mut self, tenant: TenantId, now: Moment) -> Result<Decision, PolicyError> {
        let system = self.moved(self.system, now);
        let woken = self.tenants.get_mut(tenant)?;
        if !woken.backlogged {
            woken.backlogged = true;
            woken.clock.lift(system);
        }
        Ok(self.decide(self.tenants.get(tenant)?, now))
    }

    fn ran_dry(&mut self, waiting: &[TenantId], now: Moment) -> Option<TenantId> {
        self.tenants.let_in(waiting, now)
    }

    fn period_end(&mut self, usage: &PeriodUsage<'_>) -> &[TenantDecision] {
        self.charge(usage);
        self.advance(usage);
        let mut decisions = core::mem::take(&mut self.decisions);
        decisions.clear();
        decisions.extend(self.tenants.iter().map(|(id, tenant)| TenantDecision {
            tenant: id,
            decision: self.decide(tenant, self.decided),
        }));
        self.decisions = decisions;
        &self.decisions
    }
}

/// The charges of a sampled period, in the order of `usage.tenants`:
/// `t / sum(t) * poll + (admitted ? t / sum over admitted of t * nonpoll : 0)` (A1.4, repaired).
///
/// They add up to the period, less its non-poll part if nobody admitted in it was seen running.
fn sampled_charges(usage: &PeriodUsage<'_>) -> Vec<Nanos> {
    let all: Vec<u64> = usage.tenants.iter().map(|t| t.used_ns.0).collect();
    let admitted: Vec<u64> = usage
        .tenants
        .iter()
        .map(|t| if t.admitted { t.used_ns.0 } else { 0 })
        .collect();
    let poll = apportion(usage.poll_ns.0, &all);
    let nonpoll = apportion(usage.nonpoll_ns.0, &admitted);
    poll.into_iter()
        .zip(nonpoll)
        .map(|(poll, nonpoll)| Nanos(poll + nonpoll))
        .collect()
}

/// Engine time that counts against a cap: unlike a charge, idle time is nobody's.
fn estimated_use(usage: &PeriodUsage<'_>, part: &TenantPeriod) -> Nanos {
    match usage.basis {
        Basis::PollSample if part.admitted && usage.poll_ns > Nanos::ZERO => {
            let unseen = u128::from(part.used_ns.0) * u128::from(usage.nonpoll_ns.0)
                / u128::from(usage.poll_ns.0);
            // CAST: used <= poll, so this is at most the non-poll phase.
            part.used_ns + Nanos(unseen as u64)
        }
        Basis::PollSample | Basis::Measured => part.used_ns,
    }
}

#[cfg(test)]
mod tests;
