//! What a VMM embeds: the virtual GPU as a PCI device, and a small reference VMM.
//!
//! Features: `device` and `gate` are what a VMM with an emulation of PCI of its own needs
//! (docs/EMBEDDING.md), `kvm` lays it into a VM of KVM; `vfio-user` serves the device to stock
//! VMMs; `reference-vmm` runs guests.
#![deny(unsafe_code)]

#[cfg(all(feature = "device", feature = "gate"))]
pub mod attach;
#[cfg(feature = "device")]
pub mod device;
#[cfg(feature = "vfio-user")]
pub mod front;
pub mod gate;
#[cfg(feature = "kvm")]
pub mod kvm;
// Each part uses some of it.
#[cfg_attr(
    not(all(feature = "vfio-user", feature = "reference-vmm")),
    allow(dead_code)
)]
#[allow(unsafe_code)]
mod sys;
#[cfg(feature = "vfio-user")]
pub mod vfio_user;
#[cfg(feature = "reference-vmm")]
pub mod vmm;
pub mod wire;

pub use turnstile_abi as abi;
