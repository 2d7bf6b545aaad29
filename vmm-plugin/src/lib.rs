//! What a VMM embeds: the virtual GPU as a PCI device, and a small reference VMM.
#![deny(unsafe_code)]

pub mod device;
pub mod front;
pub mod gate;
#[allow(unsafe_code)]
mod sys;
pub mod vfio_user;
pub mod vmm;
pub mod wire;
