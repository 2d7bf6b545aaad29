//! NVIDIA GPUs under the vendor's unmodified driver.
//!
//! ```text
//!   context-switch log -> events --\
//!   counters -> utilisation ---------> watch (residency, demand, idle shares) -> accounting's event meter
//!   status register -> look --------/
//!   channels' own words -> progress -/     (if asked for)
//!   decisions -> holder (suspend, resume) -> the driver's resource manager (RM)
//!                  \-> guardian (lets go of everything when the daemon is gone)
//!                  \-> usher (takes the engine from who is to stop at once)
//!   notify (or a preloaded library): what the driver hands out -> handles -> who is a tenant, which channels to stop
//!      \-> police (what a tenant may not ask of the driver)
//! ```
//!
//! RM is the kernel driver's object interface: clients own devices, devices own channels and event buffers; `ioctl`s
//! allocate, control and free them. Numbers and layouts of it stand in `sys/abi.rs`, differences between driver versions in
//! [`version`].
//!
//! SOURCE: constants and layouts are facts from NVIDIA's published headers (open-gpu-kernel-modules) and were run on an
//! H200 under driver 580.159.04; comments name the header or say "measured".
#![deny(unsafe_code)]

mod arrivals;
mod begun;
pub mod clock;
mod costs;
mod counters;
pub mod demand;
pub mod device;
mod doorbells;
pub mod events;
mod groups;
pub mod guardian;
mod habits;
pub mod handles;
mod hands;
pub mod hold;
pub mod holder;
mod hosts;
pub mod identity;
mod latches;
mod launches;
pub mod lease;
mod line;
pub mod load;
mod look;
mod models;
pub mod mover;
pub mod notify;
pub mod observe;
pub mod police;
pub mod probe;
pub mod programs;
mod progress;
pub mod residency;
pub mod rm;
pub mod sets;
mod stops;
pub mod swapped;
mod sys;
mod userd;
pub mod usher;
pub mod utilisation;
pub mod version;
mod vms;
mod watch;
pub mod worker;

/// What is told to [`watch::Watch`] is traced under this name, in lines that `recorded.rs` reads (`turnstile bench share --record`).
const RECORD: &str = "turnstile::record";

#[cfg(test)]
mod recorded;
#[cfg(test)]
mod simulated;
