//! What starting to share a GPU needs: facts of the GPU, and why it fails.

use std::io;

use turnstile_abi::CHUNK_BYTES;

use crate::guardian::GuardianError;
use crate::mover::MoverError;
use crate::probe::CudaError;
use crate::rm::RmError;
use crate::sys::Cuda;
use crate::version::VersionError;
use crate::worker::Facts;

/// Why the GPU cannot be shared.
#[derive(Debug, thiserror::Error)]
pub enum NvidiaError {
    /// The driver's version is not known.
    #[error("The driver's privileged calls are not used")]
    Version(#[from] VersionError),
    /// The driver refused something.
    #[error("The driver failed (turnstile doctor says what is missing)")]
    Rm(#[from] RmError),
    /// There is no watchdog, which resumes tenants when the daemon is gone.
    #[error("No tenant can be held without a watchdog")]
    Guardian(#[from] GuardianError),
    /// The CUDA driver library is needed for what VMs do.
    #[error(
        "The CUDA driver library cannot be used (install the vendor's user libraries, libcuda.so.1)"
    )]
    Cuda(#[from] CudaError),
    /// Memory is to move, and there is no mover.
    #[error("GPU memory cannot be moved to the host")]
    Mover(#[from] MoverError),
    /// There is no thread.
    #[error("Starting a thread failed")]
    Thread(#[source] io::Error),
    /// There is no event descriptor.
    #[error("Making an event descriptor failed")]
    Wake(#[from] rustix::io::Errno),
}

/// What the GPU is.
pub(super) fn facts(index: u32) -> Result<Facts, CudaError> {
    /// SOURCE: cuda.h: CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK.
    const SHARED_BYTES: i32 = 8;
    /// SOURCE: cuda.h: CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT.
    const MULTIPROCESSORS: i32 = 16;
    let cuda = Cuda::load()?;
    let number = |attribute| {
        let number = cuda.attribute(index, attribute)?;
        Ok::<u32, CudaError>(number.try_into().unwrap_or(0))
    };
    Ok(Facts {
        multiprocessors: number(MULTIPROCESSORS)?,
        shared_bytes_max: number(SHARED_BYTES)?,
        memory_bytes: cuda.total_bytes(index)? / CHUNK_BYTES * CHUNK_BYTES,
        pinned: false,
    })
}
