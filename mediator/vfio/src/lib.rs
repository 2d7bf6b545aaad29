//! A PCI GPU that implements the device contract itself (`docs/DEVICE.md`, second part), driven
//! through VFIO.
//!
//! ```text
//!   guest --> doorbell page (BAR 1, laid into the guest by the gate) --------> device
//!   mediator -- commands, suspend, resume (BAR 0) ---------------------------> device
//!   mediator <-- status page (BAR 0, mapped: polled as LoGA does) ------------ device
//!   mediator <-- switch log, channel table, demand (host memory, by DMA) ----- device
//!   mediator -- holds (BAR 0) --> device -- notices (MSI-X, an eventfd) --> mediator
//!   guest memory <-- windows of its context, through the IOMMU -------------- device
//!   guest <-- MSI-X, as an eventfd of the VM's own --------------------------- device
//! ```
//!
//! The device is on a [`Bus`]. The mediator decides which context can access which memory; the
//! IOMMUs of the device and of the host enforce that. [`VfioGpu`] is a [`turnstile_gpu::Gpu`] like
//! any other.
#![deny(unsafe_code)]

mod admin;
mod area;
mod begin;
mod bus;
mod clock;
mod demand;
mod device;
mod error;
pub mod fake;
mod features;
pub mod kernel;
mod notices;
mod pages;
mod sys;
mod tenants;
#[cfg(test)]
mod tests;
pub mod user;

pub use bus::{Bus, BusError, Region, RegionFile};
pub use device::VfioGpu;
pub use error::StartError;
