//! Orders to a GPU about tenants' queued work.

use turnstile_accounting::{EngineId, Nanos, TenantId};

/// An order of the mediator. Each stays in force until another one revokes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Holds a tenant on an engine ([`crate::Capabilities::engine_holds`]): no further command of
    /// it is started there, and a running kernel stops if [`crate::Suspend::MidKernel`] is
    /// possible. The order of commands within a channel stays.
    Hold(TenantId, EngineId),
    /// Ends a hold.
    Release(TenantId, EngineId),
    /// Stops the tenant's queued work as far as [`crate::Capabilities::suspend`] allows.
    Suspend(TenantId),
    /// Lets the tenant's work continue.
    Resume(TenantId),
    /// Sets the timeslice of a tenant's channel groups ([`crate::Capabilities::time_slices`]).
    Slice(TenantId, Nanos),
}

impl Order {
    /// Holds a tenant on an engine, or releases it.
    pub const fn holding(tenant: TenantId, engine: EngineId, held: bool) -> Self {
        match held {
            true => Self::Hold(tenant, engine),
            false => Self::Release(tenant, engine),
        }
    }
}
