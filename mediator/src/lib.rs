//! The Turnstile daemon: GPUs, gates, accounting, scheduling.
#![deny(unsafe_code)]

pub mod api;
pub mod bench;
pub mod config;
pub mod daemon;
pub mod gpu;
pub mod launch;
pub mod mediation;
pub mod memory;
mod memory_file;
mod process;
pub mod socket;
pub mod tenant;
