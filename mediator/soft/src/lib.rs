//! The software GPU: behaves as channel hardware does, and runs real kernels.
//!
//! ```text
//!  doorbells, words          commands             work                bytes, kernels
//!  ----------------> poll -> front end -> ready -> dispatcher -> engines -> address space
//!                    (core)  (channel)             (dispatch)    (execute)       |
//!                               ^                      |             |         card
//!                               +----------------------+- outcome ---+       (memory)
//!                                                      v
//!                                     registers, context-switch log
//! ```
//!
//! The core is a state machine that takes the time as an argument. [`SoftGpu`] drives it with
//! threads and a clock, for real guests. [`VirtualGpu`] drives it event by event, exactly and
//! repeatably, for the lab and the tests.
//!
//! Machine model (LoGA 4.1): channels are served round-robin, one command each, without preemption.
//! Tenants with longer commands therefore get more of an engine. One kernel occupies the compute
//! engine at a time. Two engines copy.
#![deny(unsafe_code)]

mod address_space;
mod board;
mod channel;
mod config;
mod core;
mod execute;
mod memory;
pub mod pci;
mod registers;
mod switch_log;
mod tenancy;
#[cfg(test)]
mod tests;

/// Ranks of locks, the outermost's first. A lock without one is taken alone, or innermost.
mod rank {
    /// Of the PCI device: its contexts, and the mappings of the IOMMU.
    pub(crate) const CONTEXTS: u8 = 1;
    pub(crate) const MAPPINGS: u8 = 2;
    pub(crate) const CORE: u8 = 3;
    pub(crate) const MODULES: u8 = 4;
    pub(crate) const LAYOUT: u8 = 5;
    pub(crate) const CARD: u8 = 6;
    /// What the PCI device shows in memory.
    pub(crate) const SHOWN: u8 = 7;
}

pub use board::Board;
pub use config::{COMPUTE, CostModel, ENGINES, Kernels, SoftConfig};
pub use tenancy::realtime::SoftGpu;
pub use tenancy::virtual_time::{KernelCost, VirtualGpu};
