//! The Turnstile daemon: GPUs, gates, accounting, scheduling.

pub mod gpu;
