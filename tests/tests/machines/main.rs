//! Stock machines: guests in stock QEMU and in stock Cloud Hypervisor, and a host of the nested lab
//! with its own VFIO and KVM.
//!
//! `images/lab/build` fetches and makes the files that are booted; if it cannot, these tests are
//! skipped with the reason.
#![allow(missing_docs)]

mod cloud;
mod cuda;
mod nested;
mod stock;

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use turnstile_tests::cloud::Cloud;
use turnstile_tests::machine::{Lab, LabError};

/// One of these tests runs at a time: each uses the whole machine.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The files that are booted; prints the reason if there are none.
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

/// Cloud Hypervisor; prints the reason if there is none.
fn cloud() -> Option<Cloud> {
    match Cloud::find() {
        Ok(cloud) => Some(cloud),
        Err(reason) => {
            println!("SKIPPED: {reason}");
            None
        }
    }
}
