//! Orders to a GPU about tenants' queued work.

use turnstile_accounting::{EngineId, Nanos, TenantId};

/// An order of the mediator. Each stays in force until another one revokes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Holds a tenant on an engine, or releases it ([`crate::Capabilities::engine_holds`]). While
    /// it is held, no further command of it is started there, and a running kernel stops if
    /// [`crate::Suspend::MidKernel`] is possible. The order of commands within a channel stays.
    Hold {
        /// The tenant.
        tenant: TenantId,
        /// The engine.
        engine: EngineId,
        /// Whether it is held from now on.
        held: bool,
    },
    /// Stops the tenant's queued work as far as [`crate::Capabilities::suspend`] allows.
    Suspend(TenantId),
    /// Lets the tenant's work continue.
    Resume(TenantId),
    /// Sets the timeslice of a tenant's channel groups ([`crate::Capabilities::time_slices`]).
    Slice(TenantId, Nanos),
}
