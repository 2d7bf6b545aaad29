//! What is known of the tenants of a GPU that divides its engine by itself.
//!
//! - [`processes`]: the processes of each tenant, and the channels that the driver made for them.
//! - [`control_files`]: the driver's calls on objects of those processes.
//! - [`groups`]: the numbers that the hardware gives to channels and channel groups.
//! - [`state`]: one state per tenant, by what was read and what was ordered.
//! - [`waits`]: waits that keep the host unit from the neighbours of a tenant.

pub(crate) mod control_files;
pub(crate) mod groups;
pub(crate) mod processes;
pub(crate) mod state;
pub(crate) mod waits;
