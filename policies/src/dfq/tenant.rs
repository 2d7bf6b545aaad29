//! The state of a tenant in its account.

use super::entity::Entity;
use super::pauses::Pauses;
use crate::cap::Quota;
use std::sync::Arc;
use turnstile_accounting::{Demand, Moment, Nanos};

/// A tenant.
#[derive(Clone, Debug)]
pub(crate) struct Tenant {
    pub(crate) name: Arc<str>,
    pub(crate) entity: Entity,
    pub(crate) quota: Option<Quota>,
    pub(crate) pauses: Pauses,
    /// What it wants of the engine, even if its cap excludes it.
    pub(crate) demand: Demand,
    /// When its work ended, if it has none.
    pub(crate) idle_since: Option<Moment>,
    /// When its place expires, if it keeps one.
    pub(crate) place_until: Option<Moment>,
    /// Time in this pause for which the engine was idle for it.
    pub(crate) reserved_ns: Nanos,
    /// When it last ran.
    pub(crate) ran_at: Option<Moment>,
}

impl Tenant {
    /// Whether it has work.
    pub(crate) fn wants(&self) -> bool {
        self.demand != Demand::Nothing
    }

    /// Whether a command of it waits to be started.
    pub(crate) fn is_queued(&self) -> bool {
        self.demand == Demand::Queued && self.entity.is_runnable()
    }

    /// Whether its quota is used up.
    pub(crate) fn is_capped(&self) -> bool {
        self.quota.as_ref().is_some_and(Quota::exhausted)
    }
}
