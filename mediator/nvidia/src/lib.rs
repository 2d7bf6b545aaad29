//! NVIDIA GPUs under the vendor's unmodified driver.
//!
//! ```text
//!   observe/: context-switch log, engine status, busy counter, channel status
//!   sharing/: a poll every 20 to 60 ms -> accounting's meter and the rule (mediation)
//!   holds -> hold/ (executor) -> holder (suspend, resume) -> the driver's resource manager (RM)
//!                  \-> watchdog (the watchdog, which resumes all when the daemon is gone)
//!                  \-> preemptor (the preemptor, which takes the engine from a tenant at once)
//!   notify (or a preloaded library): objects that the driver hands out -> handles -> tenant/
//!      \-> police (the ioctl filter)
//! ```
//!
//! RM is the kernel driver's object interface: clients own devices, devices own channels and event
//! buffers; `ioctl`s allocate, control and free them. `sys/abi.rs` has its numbers and layouts,
//! [`version`] the differences between driver versions.
//!
//! SOURCE: constants and layouts are facts from NVIDIA's published headers
//! (open-gpu-kernel-modules) and were run on an H200 under driver 580.159.04. Comments name the
//! header or state "measured".
#![deny(unsafe_code)]

pub mod clock;
pub mod commands;
mod costs;
mod doorbells;
pub mod events;
mod groups;
pub mod handles;
pub mod hold;
pub mod identity;
mod line;
pub mod load;
mod models;
pub mod mover;
pub mod notify;
pub mod observe;
pub mod police;
pub mod preemptor;
pub mod probe;
pub mod programs;
pub mod rm;
pub mod sets;
pub mod sharing;
pub mod swapped;
mod sys;
mod tenant;
pub mod version;
pub mod vms;
pub mod vms_only;
pub mod worker;
