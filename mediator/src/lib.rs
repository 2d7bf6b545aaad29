//! The Turnstile daemon: GPUs, gates, accounting, scheduling.
