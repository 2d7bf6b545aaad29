//! The guest's driver as a program of a stock Linux kernel, without a kernel module.
//!
//! ```text
//! Bus::open    finds the device in /sys/bus/pci, maps registers and doorbells, takes memory for it
//! Gpu::new     drives it: modules, memory, launches
//! ```
//!
//! If vfio-pci has the device, this library drives it through vfio-pci. The device then interrupts,
//! and reaches only the memory that is mapped for it. This needs no root, only the group's file in
//! /dev/vfio.
//!
//! If no driver has the device, registers and doorbells are the `resource` files of the PCI device.
//! Memory for the device is huge pages, with physical addresses from /proc/self/pagemap. There are
//! no interrupts: the program polls. This needs root, and trusts the program as much as the kernel:
//! a device without an IOMMU writes to any address that it gets.
//!
//! `include/turnstile_guest.h` is the same for C.
#![deny(unsafe_code)]

mod bus;
mod dma;
mod gpu;
#[allow(unsafe_code)]
mod sys;
mod vfio;

pub use bus::Bus;
pub use dma::Dma;
pub use gpu::{Gpu, Memory, Usage};
pub use sys::c_api;

use std::io;
use std::path::PathBuf;

use turnstile_guest::DriverError;

/// What can go wrong before and while the device is driven.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// There is none.
    #[error("No Turnstile GPU (PCI 7a51:0001) in this machine; does the VMM have its device?")]
    NoDevice,
    /// A file of the device cannot be used.
    #[error("{} cannot be used (as root?)", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A driver of the kernel has the device.
    #[error("The kernel's driver {0} has the device; unbind it first, or bind it to vfio-pci")]
    Bound(String),
    /// VFIO does not give it.
    #[error("VFIO: {what} failed")]
    Vfio {
        /// What was tried.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
    /// Memory for the device cannot be had.
    #[error("Memory for the device: {0}")]
    Memory(&'static str),
    /// The device or the driver refused.
    #[error("{0}")]
    Driver(DriverError),
    /// More than was taken for the device.
    #[error("{0} bytes are more than the driver moves at once")]
    TooLong(usize),
}

impl From<DriverError> for GuestError {
    fn from(error: DriverError) -> Self {
        Self::Driver(error)
    }
}
