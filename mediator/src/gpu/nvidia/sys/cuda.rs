//! The CUDA driver library, loaded at run time.

use libloading::{Library, Symbol};

/// CUDA's own result code; zero is success.
type Code = i32;

/// The library, initialised. It makes no context.
#[derive(Debug)]
pub(in crate::gpu::nvidia) struct Cuda {
    library: Library,
}

/// Why a function of it has no answer.
#[derive(Debug)]
pub(in crate::gpu::nvidia) enum CudaFailure {
    /// The library or the function is not there.
    Missing(libloading::Error),
    /// The function says no.
    Code(Code),
}

fn checked(code: Code) -> Result<(), CudaFailure> {
    match code {
        0 => Ok(()),
        code => Err(CudaFailure::Code(code)),
    }
}

impl Cuda {
    /// Loads and initialises it.
    pub(in crate::gpu::nvidia) fn load() -> Result<Self, CudaFailure> {
        // SAFETY: the vendor's library under its versioned name: its initialisers are made to run in any process.
        let library = unsafe { Library::new("libcuda.so.1") }.map_err(CudaFailure::Missing)?;
        // SAFETY: the type is that of `cuInit` in cuda.h.
        let init: Symbol<'_, unsafe extern "C" fn(u32) -> Code> =
            unsafe { library.get(b"cuInit\0") }.map_err(CudaFailure::Missing)?;
        // SAFETY: takes flags, which are zero by its documentation, and no address.
        checked(unsafe { init(0) })?;
        Ok(Self { library })
    }

    /// An attribute of a device.
    pub(in crate::gpu::nvidia) fn attribute(
        &self,
        device: u32,
        attribute: i32,
    ) -> Result<i32, CudaFailure> {
        // SAFETY: the type is that of `cuDeviceGetAttribute` in cuda.h.
        let get: Symbol<'_, unsafe extern "C" fn(*mut i32, i32, i32) -> Code> =
            unsafe { self.library.get(b"cuDeviceGetAttribute\0") }.map_err(CudaFailure::Missing)?;
        let mut value = 0;
        // CAST: a device number is small; one that is none is refused.
        // SAFETY: `value` is borrowed for the whole call; devices are numbers from zero, others are refused.
        checked(unsafe { get(&mut value, attribute, device as i32) })?;
        Ok(value)
    }
}
