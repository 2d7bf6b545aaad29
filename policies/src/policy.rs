//! The events a policy is told and the decisions it answers with.

use crate::params::{Cap, Membership, TenantParams, Weight};
use core::fmt;
use serde::Serialize;
use thiserror::Error;
use turnstile_accounting::{AccountId, Demand, EngineState, Moment, Nanos, TenantId};

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
    /// Engine time in the whole period as the ledger charges it.
    pub charged_ns: Nanos,
    /// Its gates were open at some time in the part of the period that was not polled.
    pub admitted: bool,
    /// At the end of the period it had commands queued or executing, before or behind its gates.
    pub backlogged: bool,
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

/// Something that happened on the engine of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineEvent {
    /// From now on the tenant has this work for the engine.
    Demand(TenantId, Demand),
    /// From now on the engine is in this state.
    State(EngineState),
}

/// Decides which tenants may run on one engine.
///
/// Calls come from one thread, in the order in which things happened. A policy that knows no weights
/// or caps (see its row in [`crate::POLICIES`]) accepts and ignores them.
pub trait Policy: fmt::Debug + Send {
    /// Its name in [`crate::POLICIES`].
    fn name(&self) -> &'static str;

    /// Sets weight and cap of an account, present or to come. An account that was never set has the
    /// default weight and no cap.
    fn set_account(&mut self, _account: AccountId, _params: TenantParams) {}

    /// A tenant appears in its account; idle until it wakes.
    ///
    /// # Errors
    /// If it is known.
    fn add(
        &mut self,
        tenant: TenantId,
        membership: Membership<'_>,
        params: TenantParams,
        now: Moment,
    ) -> Result<(), PolicyError>;

    /// A tenant leaves. What it is ahead by stays with its account, under its name.
    ///
    /// # Errors
    /// If it is unknown.
    fn remove(&mut self, tenant: TenantId, now: Moment) -> Result<(), PolicyError>;

    /// Drops what a name of an account is ahead by.
    fn forget_name(&mut self, _account: AccountId, _name: &str) {}

    /// From now on its share of its account is this one; what it is ahead or behind by stays.
    ///
    /// # Errors
    /// If it is unknown.
    fn set_weight(&mut self, tenant: TenantId, weight: Weight) -> Result<(), PolicyError>;

    /// From now on its limit is this one; `None` lifts it. A new cap begins with an unused quota.
    ///
    /// # Errors
    /// If it is unknown.
    fn set_cap(&mut self, tenant: TenantId, cap: Option<Cap>) -> Result<(), PolicyError>;

    /// Something happened at `at`, no earlier than what was observed before. Policies that decide
    /// by periods alone ignore it.
    fn observe(&mut self, _at: Moment, _event: EngineEvent) {}

    /// The decisions that differ from those that stand, as of `now`.
    fn decide(&mut self, _now: Moment) -> &[TenantDecision] {
        &[]
    }

    /// A doorbell write of this tenant was trapped, at a watched or a closed gate: it has work.
    ///
    /// The decision stands until the next one. Calling it again for a tenant known to have work
    /// changes nothing.
    ///
    /// # Errors
    /// If it is unknown.
    fn woke(&mut self, tenant: TenantId, now: Moment) -> Result<Decision, PolicyError>;

    /// The engine has nothing to execute, while these tenants have work and are held: the one to
    /// admit at once, for policies that decide by periods.
    fn ran_dry(&mut self, _waiting: &[TenantId], _now: Moment) -> Option<TenantId> {
        None
    }

    /// A period ended: its charges, and decisions about the tenants for which they may differ, by
    /// ascending id.
    fn period_end(&mut self, usage: &PeriodUsage<'_>) -> &[TenantDecision];

    /// When the next decision is due at the latest, if that is before the end of a period.
    fn decide_at(&self) -> Option<Moment> {
        None
    }
}
