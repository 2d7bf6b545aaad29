//! Stock machines: guests in stock QEMU and in stock Cloud Hypervisor, and a host of the nested lab with VFIO and KVM of its own.
//!
//! `images/lab/build` fetches and makes what is booted; where it cannot, this is skipped with its reason.
#![allow(missing_docs)]

mod cloud;
mod nested;
mod stock;

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use turnstile_tests::cloud::Cloud;
use turnstile_tests::machine::{Lab, LabError};

/// One of these tests at a time: each uses the whole machine.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is booted; says so aloud if there is nothing.
fn lab() -> Option<Lab> {
    match Lab::make(Path::new(env!("CARGO_BIN_EXE_nested")), Cloud::program()) {
        Ok(lab) => Some(lab),
        Err(LabError::Skipped(reason)) => {
            println!("SKIPPED: {reason}");
            None
        }
        Err(failed) => panic!("{failed}"),
    }
}

/// Cloud Hypervisor; says so aloud if there is none.
fn cloud() -> Option<Cloud> {
    match Cloud::find() {
        Ok(cloud) => Some(cloud),
        Err(reason) => {
            println!("SKIPPED: {reason}");
            None
        }
    }
}
