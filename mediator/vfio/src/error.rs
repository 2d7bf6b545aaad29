//! Why a device cannot be driven.

use std::io;

use super::bus::BusError;

/// Why a device cannot be driven.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The bus failed.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// It is another device.
    #[error(
        "The device is {vendor:04x}:{device:04x}, contract version {version:#x}; a Turnstile GPU is 7a51:0002, version 1.x"
    )]
    Foreign {
        /// Vendor.
        vendor: u16,
        /// Device.
        device: u16,
        /// The version of its contract.
        version: u32,
    },
    /// A device that was taken back is another one.
    #[error("The device reports other engines and memory than before it failed")]
    Changed,
    /// The engines that it reports are contradictory, or beyond the contract.
    #[error("The device reports engines that cannot be ({word:#010x})")]
    Engines {
        /// The register.
        word: u32,
    },
    /// It cannot reach memory that was mapped for it.
    #[error("The device does not reach the host's memory through the IOMMU")]
    NoDma,
    /// The host gave no memory.
    #[error("The host area could not be made")]
    Memory(#[source] io::Error),
}
