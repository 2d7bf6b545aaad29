//! The Turnstile daemon: GPUs, gates, accounting, scheduling.
#![deny(unsafe_code)]

pub mod daemon;
pub mod gpu;
pub mod mediation;
mod sys;
pub mod tenant;
