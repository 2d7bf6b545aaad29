//! What is read of each tenant when an engine that divides its time by itself is polled.

use crate::units::{Nanos, TenantId};

/// The state of one tenant at a poll. A tenant that is not listed has no work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The tenant.
    pub tenant: TenantId,
    /// One of its channels has work queued or executing: bit 3 of the channel status.
    pub has_work: bool,
    /// Time since it last had work; [`Seen::NEVER`] if it never had any.
    pub idle: Nanos,
    /// It does not work, and waits in a way that keeps the engine's host unit from its neighbours.
    pub blocks: bool,
}

impl Seen {
    /// `idle` of a tenant that never had work.
    pub const NEVER: Nanos = Nanos(u64::MAX);
}

/// What one tenant did between two polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The tenant. One that left in this time may be listed, and is charged.
    pub tenant: TenantId,
    /// Time in which it kept the engine busy; none if the meter has no value.
    pub worked: Option<Nanos>,
    /// Time in which it was resident; none if the log has no value. Replaces `worked` where that is
    /// not known.
    pub resident: Option<Nanos>,
    /// Time in which it had work and was not resident.
    pub waited: Nanos,
}
