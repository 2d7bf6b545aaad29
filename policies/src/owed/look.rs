//! What goes into a look at the engine, and what comes out of it.
//!
//! All of it is read by the mediator from the GPU: channel status, the log of context switches and
//! the busy counter. Nothing here is written by a tenant (`GP_GET`, `GP_PUT`, work-submit tokens).

use crate::policy::HoldReason;
use serde::Serialize;
use turnstile_accounting::{Moment, Nanos, Reading, TenantId};

/// Readings of the time that ended with one look. Tenants that are not listed did nothing in it.
///
/// A meter that is in time has those of this look; one that is late has those of earlier looks, in
/// their order. A tenant without `worked` and `resident` makes all of that time unknown: nothing is
/// owed for it, and nothing is charged. So does a look that is skipped, or is 1 s ago.
#[derive(Clone, Copy, Debug)]
pub struct Measured<'a> {
    /// The look.
    pub until: Moment,
    /// At most one entry per tenant, in any order.
    pub tenants: &'a [Reading],
}

/// What holds for a tenant until the next look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TenantOrder {
    /// The tenant.
    pub tenant: TenantId,
    /// Why it is held; none if it is admitted.
    pub hold: Option<HoldReason>,
    /// Time slice of its channel groups.
    pub slice_ns: Nanos,
}

/// What holds for all tenants until the next look.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Orders {
    /// Each tenant, by ascending account and tenant.
    pub tenants: Vec<TenantOrder>,
    /// When the next look is due.
    pub next_look: Moment,
    /// The next look may begin or end an own turn, or end a quota: it wants all readings up to then.
    pub exact: bool,
}

/// What the rule keeps of a tenant, for its operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Standing {
    /// Its part of what it would have worked alone, less what it worked.
    pub owed_ns: i64,
    /// What it would work alone, in parts of a thousand of the engine's time.
    pub alone_permille: u32,
    /// An own turn of it or of its account runs.
    pub own_turn: bool,
}
