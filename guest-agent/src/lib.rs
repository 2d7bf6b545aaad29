//! What runs in the guest: the driver core.
#![no_std]
#![forbid(unsafe_code)]
