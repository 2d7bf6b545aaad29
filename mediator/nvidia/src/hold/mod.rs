//! Holding tenants: from an order to suspended channels, and back.
//!
//! ```text
//!   submit(tenant, hold or release) -> queue -> executor -> carry_out -> holder -> the driver
//!                                                              '-> resumed: does it run again?
//! ```
//!
//! In: orders of the rule and of memory that moves. Out: calls of the driver, and the callbacks of
//! [`Callbacks`]. Called by [`crate::sharing`]. A hold has a lease with the watchdog.

mod carry_out;
mod channels;
mod executor;
pub mod holder;
pub mod lease;
mod queue;
mod resumed;
pub mod watchdog;

pub use channels::{Channel, ChannelSwitch, HardwareSwitch};
pub(crate) use channels::{resume_all, suspend_all};
pub(crate) use executor::{Callbacks, SharedHolder, SuspendExecutor};
pub(crate) use resumed::{Activity, ActivityProbe};
