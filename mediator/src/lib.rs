//! The Turnstile daemon: GPUs, gates, accounting, scheduling.
#![deny(unsafe_code)]

pub mod accounts;
pub mod api;
pub mod config;
pub mod daemon;
pub mod histogram;
pub mod launch;
pub mod memory;
pub mod metrics;
pub mod socket;
pub mod tenant;
pub mod view;
