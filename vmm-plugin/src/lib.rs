//! What a VMM embeds: the virtual GPU as a PCI device, and a small reference VMM.
#![deny(unsafe_code)]

pub mod gate;
pub mod wire;
