//! Interface through which a GPU publishes its state as it changes. Needed by a device on a bus,
//! which cannot be inspected in any other way.

use std::fmt;

use turnstile_accounting::{DemandEvent, SwitchEvent, TenantId};

use turnstile_gpu::ChannelActivity;

/// What is shown. Called under the core's lock: quick, and without a call back.
pub trait Board: Send + Sync + fmt::Debug {
    /// The status register of an engine has changed to this.
    fn status(&self, engine: usize, register: u64);
    /// An engine has changed its state.
    fn switched(&self, event: &SwitchEvent);
    /// A tenant's demand for an engine has changed.
    fn demand(&self, event: &DemandEvent);
    /// The mediator is to be woken.
    fn notice(&self);
    /// A channel has more to do, or less. One that is gone has nothing.
    fn channel(&self, tenant: TenantId, activity: ChannelActivity);
    /// A command named memory that is not its VM's; its channel has ended.
    fn strayed(&self, tenant: TenantId);
}
