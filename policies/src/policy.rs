//! The events a policy is told and the decisions it answers with.

use crate::params::{Cap, TenantParams, Weight};
use core::fmt;
use serde::Serialize;
use thiserror::Error;
use turnstile_accounting::{Moment, Nanos, TenantId};

/// How a period's `used_ns` came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// Measured in the poll phase only, and standing for the whole period (LoGA, A1.4).
    PollSample,
    /// Measured throughout the period.
    Measured,
}

/// One tenant's part of a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantPeriod {
    /// Whose part.
    pub tenant: TenantId,
    /// Engine time in the poll phase ([`Basis::PollSample`]) or in the period ([`Basis::Measured`]).
    pub used_ns: Nanos,
    /// Its gates were open at some time in the part of the period that was not polled.
    pub admitted: bool,
    /// At the end of the period it had commands queued or executing, before or behind its gates.
    pub backlogged: bool,
    /// It was charged so much more than it used, as is known by now, and will be charged so much less of what it uses next; negative: less, and more. A policy may plan with it, and
    /// charges it no one.
    pub overcharged_ns: i64,
}

/// What happened in a period that has just ended.
///
/// A policy schedules one engine: the usage is that of the GPU's compute engine, or of whichever
/// engine the mediator takes to be the contended one. Tenants not listed were idle.
#[derive(Clone, Copy, Debug)]
pub struct PeriodUsage<'a> {
    /// When it ended.
    pub end: Moment,
    /// What `used_ns` means.
    pub basis: Basis,
    /// Measured length of the observed part: the poll phase, or the whole period.
    pub poll_ns: Nanos,
    /// Measured length of the part not observed; zero if measured throughout.
    pub nonpoll_ns: Nanos,
    /// At most one entry per tenant, in any order.
    pub tenants: &'a [TenantPeriod],
}

impl PeriodUsage<'_> {
    /// The period's length.
    pub fn length_ns(&self) -> Nanos {
        self.poll_ns + self.nonpoll_ns
    }
}

/// Whether a tenant's gates may be open until the next decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// Open, or watched while it is idle.
    Admit,
    /// Closed; what is queued already drains and is charged.
    Hold(HoldReason),
}

/// Why a tenant is held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HoldReason {
    /// It had more than its share, and others wait.
    Ahead,
    /// Another has the engine for a slice of time.
    Turn,
    /// It used up its quota; held even if the engine is idle.
    Capped,
}

/// A decision about one tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TenantDecision {
    /// Whom it is about.
    pub tenant: TenantId,
    /// What may happen to its doorbells.
    pub decision: Decision,
}

/// Why an event is refused; the policy is as before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PolicyError {
    /// Added before.
    #[error("{0} is known already")]
    Known(TenantId),
    /// Never added, or removed.
    #[error("{0} is unknown")]
    Unknown(TenantId),
}

/// Decides who may run on one engine.
///
/// Calls come from one thread, in the order in which things happened. A policy that knows no weights
/// or caps (see its row in [`crate::POLICIES`]) accepts and ignores them.
pub trait Policy: fmt::Debug + Send {
    /// Its name in [`crate::POLICIES`].
    fn name(&self) -> &'static str;

    /// A tenant appeared; idle until it wakes.
    fn add(&mut self, tenant: TenantId, params: TenantParams) -> Result<(), PolicyError>;

    /// A tenant is gone; nothing of it stays.
    fn remove(&mut self, tenant: TenantId) -> Result<(), PolicyError>;

    /// From now on its share is this one; what it is ahead or behind by stays as it is.
    fn set_weight(&mut self, tenant: TenantId, weight: Weight) -> Result<(), PolicyError>;

    /// From now on its limit is this one; `None` lifts it. A new cap begins with an unused quota.
    fn set_cap(&mut self, tenant: TenantId, cap: Option<Cap>) -> Result<(), PolicyError>;

    /// A doorbell write of this tenant was trapped, at a watched or a closed gate: it has work.
    ///
    /// The decision stands until the next one. Calling it again for a tenant known to have work
    /// changes nothing.
    fn woke(&mut self, tenant: TenantId, now: Moment) -> Result<Decision, PolicyError>;

    /// The engine has nothing to execute, while these tenants have work behind closed gates: whom to
    /// admit at once (law 4). `None` if all of them have to stay (caps). Whoever may run wants nothing any more, and who is let in may
    /// have no use for it: everybody who waits comes before anybody a second time.
    fn ran_dry(&mut self, waiting: &[TenantId], now: Moment) -> Option<TenantId>;

    /// Whether there is something to be decided because of that, beyond who is admitted: the period ends.
    fn decides_when_dry(&self) -> bool {
        true
    }

    /// A period ended: one decision for every tenant, by ascending id.
    fn period_end(&mut self, usage: &PeriodUsage<'_>) -> &[TenantDecision];

    /// When the next decision is due at the latest, if that is before the end of a period.
    fn decide_at(&self) -> Option<Moment> {
        None
    }
}
