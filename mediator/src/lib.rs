//! The Turnstile daemon: GPUs, gates, accounting, scheduling.
#![deny(unsafe_code)]

pub mod accounts;
pub mod api;
pub mod bench;
pub mod config;
pub mod daemon;
pub mod gpu;
pub mod histogram;
pub mod launch;
pub mod mediation;
pub mod memory;
pub mod memory_file;
pub mod metrics;
mod process;
pub mod socket;
pub mod tenant;
pub mod view;
