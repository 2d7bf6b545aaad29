//! What runs in the guest: the driver core.
//!
//! No allocation, no unsafe, no operating system: the driver uses
//! [`Platform`](turnstile_abi::Platform) for everything outside itself. A kernel module, a freestanding guest or a host thread implements it.
//!
//! ```text
//! Device::probe -> load_module, find_function, allocate
//!               -> open_channel -> Channel: launch, copy, fill, fence, ring -> wait_fence
//! ```
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

mod bump;
mod channel;
mod device;
mod error;
mod params;

pub use bump::Bump;
pub use channel::{Channel, ChannelMemory, Kernel};
pub use device::{Allocation, Device};
pub use error::{DriverError, TEXT_BYTES, Text};
pub use params::{PARAMS_BYTES_MAX, Params};
