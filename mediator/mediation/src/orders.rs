//! What goes into the mediation at the end of a period, and the orders that come out there and at
//! polls.

use turnstile_accounting::{Moment, TenantId};
use turnstile_vmm::gate::GateState;

/// How decisions reach a tenant's commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Gates close, and queued work is suspended as far as the GPU can.
    Gates,
    /// The dispatcher holds the tenant on one engine; gates stay open.
    Holds,
}

/// All gates of a tenant are to be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateOrder {
    /// The tenant.
    pub tenant: TenantId,
    /// Where to.
    pub state: GateState,
}

/// State of a tenant's channels at the end of a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Activity {
    /// The tenant.
    pub tenant: TenantId,
    /// Commands announced and not finished, all channels together.
    pub pending: u64,
    /// When one was last announced or finished; none before the first.
    pub last_active: Option<Moment>,
}

/// Result of a poll.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Polled {
    /// How gates are to be moved.
    pub gates: Vec<GateOrder>,
    /// When the next poll is due.
    pub next: Moment,
    /// Whether the next poll has to read all that it can.
    pub exact: bool,
}
