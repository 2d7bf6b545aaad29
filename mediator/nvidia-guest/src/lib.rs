//! CUDA in guests: a device process issues the driver calls of programs without an NVIDIA node.
//!
//! ```text
//!   libcuda -> guest side --Message--> device process -> check -> driver
//!              (a preloaded library)        one per VM, alone opens the nodes
//! ```
//!
//! - [`abi`]: what a driver release has: sizes, addresses, descriptors, clients, and what of it a
//!   guest may use. The layout of a call, which both sides compute.
//! - [`proto`]: requests and answers between guest side and device process.
//! - [`check`]: decides about each call. Pure; all values of guests pass it.
//! - [`device`]: the device process.
#![deny(unsafe_code)]

pub mod abi;
pub mod check;
pub mod device;
pub mod proto;
mod sys;
