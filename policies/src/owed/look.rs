//! Input and output of a poll of the engine.
//!
//! The mediator reads the input from the GPU: channel status, the log of context switches and the
//! busy counter. It contains nothing that a tenant writes (`GP_GET`, `GP_PUT`, work-submit tokens).

use crate::policy::HoldReason;
use serde::Serialize;
use turnstile_accounting::{Moment, Nanos, Reading, TenantId};

/// Readings of the time that ended with one poll. A tenant that is not listed did nothing in it.
///
/// A meter in time has those of this poll; a late one has those of earlier polls, in their order.
/// If a tenant has neither `worked` nor `resident`, all of that time is unknown: nothing is owed
/// for it, and nothing is charged. The time of a poll that is skipped, or more than 1 s old, is
/// unknown too.
#[derive(Clone, Copy, Debug)]
pub struct Measured<'a> {
    /// The end of the time.
    pub until: Moment,
    /// At most one entry per tenant, in any order.
    pub tenants: &'a [Reading],
}

/// What applies to a tenant until the next poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TenantOrder {
    /// The tenant.
    pub tenant: TenantId,
    /// Why it is held; none if it is admitted.
    pub hold: Option<HoldReason>,
    /// Time slice of its channel groups.
    pub slice_ns: Nanos,
}

/// What applies to all tenants until the next poll.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Orders {
    /// Each tenant, by ascending account and tenant.
    pub tenants: Vec<TenantOrder>,
    /// When the next poll is due.
    pub next_look: Moment,
    /// The next poll may begin or end an own turn, or end a quota: it needs all readings up to
    /// then.
    pub exact: bool,
}

/// The state of a tenant, for its operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Standing {
    /// Its part of what it would have worked alone, less what it worked.
    pub owed_ns: i64,
    /// What it would work alone, in parts of a thousand of the engine's time.
    pub alone_permille: u32,
    /// An own turn of it or of its account runs.
    pub own_turn: bool,
}
