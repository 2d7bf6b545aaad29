//! What goes into the mediation at the end of a period, and the orders that come out.

use turnstile_accounting::{EngineId, Moment, TenantId};
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

/// The dispatcher is to hold a tenant on an engine, or to let it go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoldOrder {
    /// The tenant.
    pub tenant: TenantId,
    /// The engine.
    pub engine: EngineId,
    /// Whether it is held from now on.
    pub held: bool,
}

/// What a tenant's channels look like at the end of a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Activity {
    /// The tenant.
    pub tenant: TenantId,
    /// Commands announced and not finished, all channels together.
    pub pending: u64,
    /// When one was last announced or finished; none before the first.
    pub last_active: Option<Moment>,
    /// By how much it was charged too much, as is known by now; negative: too little.
    pub overcharged_ns: i64,
}
