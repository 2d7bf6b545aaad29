//! The Turnstile daemon: GPUs, gates, accounting, scheduling.
#![deny(unsafe_code)]

pub mod gpu;
mod sys;
