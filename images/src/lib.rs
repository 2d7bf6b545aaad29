//! Guests and kernels that the tests and the demo run.
//!
//! A VM runs [`GUEST_ELF`] with [`files`] in its memory and an encoded [`Workload`] as arguments,
//! and leaves a [`Report`]. Without KVM, [`run`] runs the same workload in a host thread.

use std::fmt;

pub use turnstile_workload::{
    ARGS_BYTES, During, FILES, Fail, Load, Misbehaviour, Outcome, PATIENCE_NS, REPORT_BYTES,
    Report, Session, Test, Workload, run,
};

/// The freestanding guest, for the reference VMM. Empty where the build had no target for it
/// ([`guest_built`]).
pub static GUEST_ELF: &[u8] = include_bytes!(env!("TURNSTILE_GUEST_ELF"));

/// The build has no freestanding guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoGuest;

impl fmt::Display for NoGuest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "this build has no KVM guest; run `rustup target add x86_64-unknown-none`, then build again",
        )
    }
}

impl std::error::Error for NoGuest {}

/// Whether this build has the freestanding guest.
///
/// # Errors
/// If the compiler's target for it was not installed.
pub fn guest_built() -> Result<(), NoGuest> {
    if GUEST_ELF.is_empty() {
        return Err(NoGuest);
    }
    Ok(())
}

/// Loads for a real GPU that record when they ran: PTX of `load/truth.cu`.
pub static TRUTH_PTX: &str = include_str!("../load/truth.ptx");

/// Kernels of a tenant with memory that is moved while a kernel runs.
pub static SWAP_PTX: &str = include_str!("../load/swap.ptx");

macro_rules! kernels {
    ($($name:literal),*) => {
        /// PTX texts by the name of their CUDA source.
        pub const KERNELS: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../kernels/", $name, ".ptx")))),*];
    };
}

kernels!(
    "vecadd",
    "saxpy",
    "matmul",
    "histogram",
    "nbody",
    "reduce",
    "sha256",
    "spin"
);

/// The files that the workload expects in guest memory: name and contents.
pub fn files() -> Vec<(String, Vec<u8>)> {
    KERNELS
        .iter()
        .map(|(name, text)| (format!("{name}.ptx"), text.as_bytes().to_vec()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workload_finds_its_files() {
        let names: Vec<String> = files().into_iter().map(|(name, _)| name).collect();
        assert!(
            FILES
                .iter()
                .all(|file| names.iter().any(|name| name == file))
        );
    }

    #[test]
    fn the_guest_is_a_static_executable() {
        if let Err(reason) = guest_built() {
            println!("SKIPPED: {reason}");
            return;
        }
        assert_eq!(GUEST_ELF[..4], *b"\x7fELF");
        // e_type: ET_EXEC, so that it runs where it was linked.
        assert_eq!(GUEST_ELF[16..18], [2, 0]);
    }
}
