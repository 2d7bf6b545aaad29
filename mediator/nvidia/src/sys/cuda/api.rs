//! The functions in use, found once when the library is loaded.
//!
//! SOURCE: `cuda.h` of CUDA 12.4 to 13.0; names carry the version suffix that the header gives
//! them.

use std::ffi::{c_char, c_void};

use libloading::Library;

use super::CudaFailure;

/// CUDA's own result code; zero is success.
pub(super) type Code = i32;
/// An object of the driver.
pub(super) type Handle = *mut c_void;

/// CUmemLocation.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Location {
    pub(super) kind: i32,
    pub(super) id: i32,
}

/// CUmemAllocationProp.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct AllocationProp {
    pub(super) kind: i32,
    pub(super) handle_types: i32,
    pub(super) location: Location,
    pub(super) win32: *mut c_void,
    pub(super) flags: [u8; 8],
}

/// CUmemAccessDesc.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct AccessDesc {
    pub(super) location: Location,
    pub(super) flags: i32,
}

/// Declares the table: `field: symbol(argument types)`; some supported drivers lack those after
/// `may lack`.
macro_rules! api {
    ($($field:ident: $symbol:ident($($type:ty),*);)* ; may lack: $($opt:ident: $opt_symbol:ident($($opt_type:ty),*);)*) => {
        /// The library and its functions.
        #[derive(Debug)]
        pub(super) struct Api {
            $(pub(super) $field: unsafe extern "C" fn($($type),*) -> Code,)*
            $(pub(super) $opt: Option<unsafe extern "C" fn($($opt_type),*) -> Code>,)*
            /// Last, so that the functions are dropped first.
            _library: Library,
        }

        impl Api {
            /// Loads the library and finds its functions.
            pub(super) fn load() -> Result<Self, CudaFailure> {
                // SAFETY: the vendor's library under its versioned name; its initialisers are made
                // for any process.
                let library = unsafe { Library::new("libcuda.so.1") }.map_err(CudaFailure::Missing)?;
                Ok(Self {
                    // SAFETY: the types are those that cuda.h declares for this symbol.
                    $($field: *unsafe { library.get(concat!(stringify!($symbol), "\0").as_bytes()) }
                        .map_err(CudaFailure::Missing)?,)*
                    // SAFETY: as above.
                    $($opt: unsafe { library.get(concat!(stringify!($opt_symbol), "\0").as_bytes()) }.ok().map(|f| *f),)*
                    _library: library,
                })
            }
        }
    };
}

api! {
    init: cuInit(u32);
    driver_version: cuDriverGetVersion(*mut i32);
    error_name: cuGetErrorName(Code, *mut *const c_char);
    device_count: cuDeviceGetCount(*mut i32);
    device_get: cuDeviceGet(*mut i32, i32);
    device_name: cuDeviceGetName(*mut c_char, i32, i32);
    device_uuid: cuDeviceGetUuid_v2(*mut [u8; 16], i32);
    device_bytes: cuDeviceTotalMem_v2(*mut usize, i32);
    device_attribute: cuDeviceGetAttribute(*mut i32, i32, i32);
    context_retain: cuDevicePrimaryCtxRetain(*mut Handle, i32);
    context_release: cuDevicePrimaryCtxRelease_v2(i32);
    context_set_current: cuCtxSetCurrent(Handle);
    context_synchronize: cuCtxSynchronize();
    context_set_limit: cuCtxSetLimit(i32, usize);
    module_load: cuModuleLoadDataEx(*mut Handle, *const c_void, u32, *mut i32, *mut *mut c_void);
    module_unload: cuModuleUnload(Handle);
    module_function: cuModuleGetFunction(*mut Handle, Handle, *const c_char);
    function_attribute: cuFuncGetAttribute(*mut i32, i32, Handle);
    function_set_attribute: cuFuncSetAttribute(Handle, i32, i32);
    launch: cuLaunchKernel(Handle, u32, u32, u32, u32, u32, u32, u32, Handle, *mut *mut c_void, *mut *mut c_void);
    stream_create: cuStreamCreate(*mut Handle, u32);
    stream_destroy: cuStreamDestroy_v2(Handle);
    stream_query: cuStreamQuery(Handle);
    stream_synchronize: cuStreamSynchronize(Handle);
    stream_write: cuStreamWriteValue64_v2(Handle, u64, u64, u32);
    stream_wait: cuStreamWaitValue64_v2(Handle, u64, u64, u32);
    stream_wait_event: cuStreamWaitEvent(Handle, Handle, u32);
    event_create: cuEventCreate(*mut Handle, u32);
    event_destroy: cuEventDestroy_v2(Handle);
    event_record: cuEventRecord(Handle, Handle);
    event_query: cuEventQuery(Handle);
    event_synchronize: cuEventSynchronize(Handle);
    event_elapsed: cuEventElapsedTime(*mut f32, Handle, Handle);
    memory_alloc: cuMemAlloc_v2(*mut u64, usize);
    memory_free: cuMemFree_v2(u64);
    memory_info: cuMemGetInfo_v2(*mut usize, *mut usize);
    host_alloc: cuMemHostAlloc(*mut *mut c_void, usize, u32);
    host_free: cuMemFreeHost(*mut c_void);
    host_register: cuMemHostRegister_v2(*mut c_void, usize, u32);
    host_unregister: cuMemHostUnregister(*mut c_void);
    host_device_address: cuMemHostGetDevicePointer_v2(*mut u64, *mut c_void, u32);
    copy_to_device: cuMemcpyHtoDAsync_v2(u64, *const c_void, usize, Handle);
    copy_from_device: cuMemcpyDtoHAsync_v2(*mut c_void, u64, usize, Handle);
    copy_on_device: cuMemcpyDtoDAsync_v2(u64, u64, usize, Handle);
    fill_words: cuMemsetD32Async(u64, u32, usize, Handle);
    address_reserve: cuMemAddressReserve(*mut u64, usize, usize, u64, u64);
    address_free: cuMemAddressFree(u64, usize);
    chunk_create: cuMemCreate(*mut u64, usize, *const AllocationProp, u64);
    chunk_release: cuMemRelease(u64);
    chunk_map: cuMemMap(u64, usize, usize, u64, u64);
    chunk_unmap: cuMemUnmap(u64, usize);
    chunk_access: cuMemSetAccess(u64, usize, *const AccessDesc, usize);
    chunk_export: cuMemExportToShareableHandle(*mut c_void, u64, i32, u64);
    chunk_import: cuMemImportFromShareableHandle(*mut u64, *mut c_void, i32);
    chunk_granularity: cuMemGetAllocationGranularity(*mut usize, *const AllocationProp, i32);
    ; may lack:
    module_function_count: cuModuleGetFunctionCount(*mut u32, Handle);
    module_functions: cuModuleEnumerateFunctions(*mut Handle, u32, Handle);
    function_name: cuFuncGetName(*mut *const c_char, Handle);
    function_param: cuFuncGetParamInfo(Handle, usize, *mut usize, *mut usize);
    checkpoint_lock: cuCheckpointProcessLock(i32, *mut c_void);
    checkpoint_out: cuCheckpointProcessCheckpoint(i32, *mut c_void);
    checkpoint_back: cuCheckpointProcessRestore(i32, *mut c_void);
    checkpoint_unlock: cuCheckpointProcessUnlock(i32, *mut c_void);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::{offset_of, size_of};

    #[test]
    fn structures_have_the_drivers_layout() {
        assert_eq!(size_of::<AllocationProp>(), 32);
        assert_eq!(offset_of!(AllocationProp, location), 8);
        assert_eq!(offset_of!(AllocationProp, win32), 16);
        assert_eq!(offset_of!(AllocationProp, flags), 24);
        assert_eq!(size_of::<AccessDesc>(), 12);
        assert_eq!(offset_of!(AccessDesc, flags), 8);
    }
}
