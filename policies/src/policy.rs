//! The events that a policy takes, and its decisions.

use crate::params::{Cap, Membership, TenantParams, Weight};
use core::fmt;
use serde::Serialize;
use std::sync::Arc;
use thiserror::Error;
use turnstile_accounting::{AccountId, Demand, EngineState, Moment, Nanos, TenantId};

/// The source of a period's `used_ns`.
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
    /// The tenant.
    pub tenant: TenantId,
    /// Engine time in the poll phase ([`Basis::PollSample`]) or in the period
    /// ([`Basis::Measured`]).
    pub used_ns: Nanos,
    /// Engine time in the whole period as the ledger charges it.
    pub charged_ns: Nanos,
    /// Its gates were open at some time in the part of the period that was not polled.
    pub admitted: bool,
    /// At the end of the period it had commands queued or executing, before or behind its gates.
    pub backlogged: bool,
}

/// Usage of a period that has ended.
///
/// A policy schedules one engine: the usage is that of the GPU's compute engine, or of the engine
/// that the mediator takes to be the contended one. A tenant that is not listed was idle.
#[derive(Clone, Copy, Debug)]
pub struct PeriodUsage<'a> {
    /// When it ended.
    pub end: Moment,
    /// The source of `used_ns`.
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
    /// Closed; commands that are queued already execute and are charged.
    Hold(HoldReason),
}

/// Why a tenant is held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HoldReason {
    /// It had more than its share, and others have work.
    Ahead,
    /// Another tenant has the engine for a slice of time.
    Turn,
    /// It used up its quota; held even if the engine is idle.
    Capped,
}

/// A decision about one tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TenantDecision {
    /// The tenant.
    pub tenant: TenantId,
    /// What may happen to its doorbells.
    pub decision: Decision,
}

/// Why an event is refused; the policy is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PolicyError {
    /// The tenant was added before.
    #[error("{0} is known already")]
    Known(TenantId),
    /// The tenant was never added, or was removed.
    #[error("{0} is unknown")]
    Unknown(TenantId),
}

/// An event on the engine of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineEvent {
    /// From now on the tenant has this work for the engine.
    Demand(TenantId, Demand),
    /// From now on the engine is in this state.
    State(EngineState),
}

/// What an account, or a name within it, is ahead of the system virtual time by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Debt {
    /// The account.
    pub account: AccountId,
    /// The name within it; none for the account as a whole.
    pub name: Option<Arc<str>>,
    /// Service at the default weight.
    pub ahead_ns: Nanos,
}

/// Decides which tenants may run on one engine.
///
/// Calls are made from one thread, in the order of the events. A policy without weights or caps
/// (see its row in [`crate::POLICIES`]) accepts and ignores them.
pub trait Policy: fmt::Debug + Send {
    /// Sets weight and cap of an account, which may be added later. An account without a call has
    /// the default weight and no cap.
    fn set_account(&mut self, _account: AccountId, _params: TenantParams) {}

    /// Adds a tenant to its account; it is idle until it wakes.
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

    /// Removes a tenant. What it is ahead by is kept in its account, under its name.
    ///
    /// # Errors
    /// If it is unknown.
    fn remove(&mut self, tenant: TenantId, now: Moment) -> Result<(), PolicyError>;

    /// What accounts and names are ahead by, for a policy of a later run. None where a policy keeps
    /// no virtual time.
    fn debts(&self) -> Vec<Debt> {
        Vec::new()
    }

    /// An account, or a name without a tenant, is ahead by this from an earlier run.
    fn owe(&mut self, _debt: &Debt, _now: Moment) {}

    /// Drops what a name of an account is ahead by.
    fn forget_name(&mut self, _account: AccountId, _name: &str) {}

    /// Sets its weight within its account; what it is ahead or behind by does not change.
    ///
    /// # Errors
    /// If it is unknown.
    fn set_weight(&mut self, tenant: TenantId, weight: Weight) -> Result<(), PolicyError>;

    /// Sets its cap; `None` removes it. A new cap begins with an unused quota.
    ///
    /// # Errors
    /// If it is unknown.
    fn set_cap(&mut self, tenant: TenantId, cap: Option<Cap>) -> Result<(), PolicyError>;

    /// An event at `at`, no earlier than the one before. Policies that decide by periods alone
    /// ignore it.
    fn observe(&mut self, _at: Moment, _event: EngineEvent) {}

    /// The decisions that have changed, as of `now`.
    fn decide(&mut self, _now: Moment) -> &[TenantDecision] {
        &[]
    }

    /// A doorbell write of this tenant was trapped, at a watched or a closed gate: it has work.
    ///
    /// The decision stands until the next one. A repeated call for a tenant that has work changes
    /// nothing.
    ///
    /// # Errors
    /// If it is unknown.
    fn woke(&mut self, tenant: TenantId, now: Moment) -> Result<Decision, PolicyError>;

    /// A period ended: its charges, and decisions about the tenants for which they may differ, by
    /// ascending id.
    fn period_end(&mut self, usage: &PeriodUsage<'_>) -> &[TenantDecision];

    /// When the next decision is due at the latest, if that is before the end of a period.
    fn decide_at(&self) -> Option<Moment> {
        None
    }
}
