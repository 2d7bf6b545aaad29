//! The vendor's library as the program has loaded it.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::OnceLock;

use super::loader;
use crate::abi::{Access, NOT_FOUND, POSIX_HANDLE, Prop, SUCCESS};
use crate::heap::{Device, Outcome};

/// An outcome from a result of the driver.
pub(super) fn outcome<T>(result: u32, value: T) -> Outcome<T> {
    if result == SUCCESS {
        Ok(value)
    } else {
        Err(result)
    }
}

/// Declares the functions that are called, by the names that the library exports. SOURCE: cuda.h of
/// CUDA 13.0.
macro_rules! driver {
    ($($field:ident: $name:literal fn($($argument:ty),*);)*) => {
        /// The library's functions.
        #[derive(Clone, Copy, Debug)]
        pub(super) struct Driver {
            $($field: Option<unsafe extern "C" fn($($argument),*) -> u32>,)*
        }

        impl Driver {
            fn load(library: *mut c_void) -> Self {
                Self {
                    $($field: {
                        let found = loader::find(library, $name);
                        // SAFETY: the library's function of this name has this type; null is None.
                        unsafe { std::mem::transmute::<*mut c_void, Option<_>>(found) }
                    },)*
                }
            }
        }

        /// Calls to each of the functions; `NOT_FOUND` if the library lacks one.
        pub(super) mod call {
            #![allow(clippy::too_many_arguments)]
            use super::*;
            $(driver!(@one $field, $($argument),*);)*
        }
    };
    (@one $field:ident,) => { driver!(@fn $field,); };
    (@one $field:ident, $a:ty) => { driver!(@fn $field, a: $a); };
    (@one $field:ident, $a:ty, $b:ty) => { driver!(@fn $field, a: $a, b: $b); };
    (@one $field:ident, $a:ty, $b:ty, $c:ty) => { driver!(@fn $field, a: $a, b: $b, c: $c); };
    (@one $field:ident, $a:ty, $b:ty, $c:ty, $d:ty) => { driver!(@fn $field, a: $a, b: $b, c: $c, d: $d); };
    (@one $field:ident, $a:ty, $b:ty, $c:ty, $d:ty, $e:ty) => { driver!(@fn $field, a: $a, b: $b, c: $c, d: $d, e: $e); };
    (@one $field:ident, $a:ty, $b:ty, $c:ty, $d:ty, $e:ty, $f:ty) => { driver!(@fn $field, a: $a, b: $b, c: $c, d: $d, e: $e, f: $f); };
    (@fn $field:ident, $($argument:ident: $type:ty),*) => {
        /// # Safety
        /// As the driver's.
        pub(in crate::sys) unsafe fn $field($($argument: $type),*) -> u32 {
            let Some(function) = driver().and_then(|driver| driver.$field) else {
                return NOT_FOUND;
            };
            // SAFETY: by the caller's contract.
            unsafe { function($($argument),*) }
        }
    };
}

driver! {
    alloc: "cuMemAlloc_v2" fn(*mut u64, usize);
    alloc_pitch: "cuMemAllocPitch_v2" fn(*mut u64, *mut usize, usize, usize, c_uint);
    free: "cuMemFree_v2" fn(u64);
    alloc_managed: "cuMemAllocManaged" fn(*mut u64, usize, c_uint);
    get_info: "cuMemGetInfo_v2" fn(*mut usize, *mut usize);
    address_range: "cuMemGetAddressRange_v2" fn(*mut u64, *mut usize, u64);
    total_memory: "cuDeviceTotalMem_v2" fn(*mut usize, c_int);
    ipc_handle: "cuIpcGetMemHandle" fn(*mut c_void, u64);
    alloc_async: "cuMemAllocAsync" fn(*mut u64, usize, usize);
    free_async: "cuMemFreeAsync" fn(u64, usize);
    alloc_from_pool: "cuMemAllocFromPoolAsync" fn(*mut u64, usize, usize, usize);
    pool_create: "cuMemPoolCreate" fn(*mut usize, *const c_int);
    pool_destroy: "cuMemPoolDestroy" fn(usize);
    pool_trim: "cuMemPoolTrimTo" fn(usize, usize);
    pool_get: "cuMemPoolGetAttribute" fn(usize, c_int, *mut c_void);
    pool_set: "cuMemPoolSetAttribute" fn(usize, c_int, *mut c_void);
    current_pool: "cuDeviceGetMemPool" fn(*mut usize, c_int);
    create: "cuMemCreate" fn(*mut u64, usize, *const Prop, u64);
    release: "cuMemRelease" fn(u64);
    map: "cuMemMap" fn(u64, usize, usize, u64, u64);
    unmap: "cuMemUnmap" fn(u64, usize);
    permit: "cuMemSetAccess" fn(u64, usize, *const Access, usize);
    export: "cuMemExportToShareableHandle" fn(*mut c_void, u64, c_int, u64);
    import: "cuMemImportFromShareableHandle" fn(*mut u64, *mut c_void, c_int);
    bind: "cuMulticastBindMem" fn(u64, usize, u64, usize, usize, u64);
    retain: "cuMemRetainAllocationHandle" fn(*mut u64, *mut c_void);
    handle_prop: "cuMemGetAllocationPropertiesFromHandle" fn(*mut Prop, u64);
    reserve: "cuMemAddressReserve" fn(*mut u64, usize, usize, u64, u64);
    unreserve: "cuMemAddressFree" fn(u64, usize);
    array_create: "cuArrayCreate_v2" fn(*mut usize, *const c_void);
    array_create_3d: "cuArray3DCreate_v2" fn(*mut usize, *const c_void);
    array_destroy: "cuArrayDestroy" fn(usize);
    mipmapped_create: "cuMipmappedArrayCreate" fn(*mut usize, *const c_void, c_uint);
    mipmapped_destroy: "cuMipmappedArrayDestroy" fn(usize);
    begin_capture: "cuStreamBeginCapture_v2" fn(usize, c_int);
    begin_capture_to: "cuStreamBeginCaptureToGraph" fn(usize, usize, *const usize, *const c_void, usize, c_int);
    end_capture: "cuStreamEndCapture" fn(usize, *mut usize);
    is_capturing: "cuStreamIsCapturing" fn(usize, *mut c_int);
    wait_event: "cuStreamWaitEvent" fn(usize, usize, c_uint);
    event_create: "cuEventCreate" fn(*mut usize, c_uint);
    event_destroy: "cuEventDestroy_v2" fn(usize);
    event_record: "cuEventRecord" fn(usize, usize);
    event_query: "cuEventQuery" fn(usize);
    pointer_attribute: "cuPointerGetAttribute" fn(*mut c_void, c_int, u64);
    pointer_attributes: "cuPointerGetAttributes" fn(c_uint, *const c_int, *const *mut c_void, u64);
    ctx_current: "cuCtxGetCurrent" fn(*mut usize);
    ctx_set: "cuCtxSetCurrent" fn(usize);
    ctx_device: "cuCtxGetDevice" fn(*mut c_int);
    ctx_synchronize: "cuCtxSynchronize" fn();
    ctx_destroy: "cuCtxDestroy_v2" fn(usize);
    primary_reset: "cuDevicePrimaryCtxReset_v2" fn(c_int);
    proc_address: "cuGetProcAddress" fn(*const c_char, *mut *mut c_void, c_int, u64);
    proc_address_v2: "cuGetProcAddress_v2" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_int);
}

/// The library, which the program has loaded or is linked with; loaded here if neither is done yet.
/// Null if there is none.
pub(super) fn library() -> *mut c_void {
    static LIBRARY: OnceLock<usize> = OnceLock::new();
    let library = *LIBRARY.get_or_init(|| {
        const NAME: &CStr = c"libcuda.so.1";
        // SAFETY: a C string; the library's initialisers run as if the program had loaded it.
        unsafe { libc::dlopen(NAME.as_ptr(), libc::RTLD_LAZY) }.expose_provenance()
    });
    ptr::with_exposed_provenance_mut(library)
}

fn driver() -> Option<&'static Driver> {
    static DRIVER: OnceLock<Option<Driver>> = OnceLock::new();
    let load = || {
        let library = library();
        (!library.is_null()).then(|| Driver::load(library))
    };
    DRIVER.get_or_init(load).as_ref()
}

/// The driver for the heap.
#[derive(Clone, Copy, Debug)]
pub(super) struct Real;

/// Bytes in the driver's type.
const fn size(bytes: u64) -> usize {
    // CAST: the driver is for 64-bit machines.
    bytes as usize
}

impl Device for Real {
    fn create(&self, bytes: u64, prop: &Prop) -> Outcome<u64> {
        let mut handle = 0;
        // SAFETY: both are borrowed for the whole call.
        let result = unsafe { call::create(&mut handle, size(bytes), prop, 0) };
        outcome(result, handle)
    }

    fn release(&self, handle: u64) -> Outcome<()> {
        // SAFETY: takes a number; the heap passes a handle that it got here.
        outcome(unsafe { call::release(handle) }, ())
    }

    fn export(&self, handle: u64) -> Outcome<OwnedFd> {
        let mut fd: c_int = -1;
        // SAFETY: for this handle type the driver writes one descriptor; it is borrowed for the
        // whole call.
        let result = unsafe { call::export((&raw mut fd).cast(), handle, POSIX_HANDLE, 0) };
        outcome(result, ())?;
        // SAFETY: the driver returned a new descriptor without another owner.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    fn import(&self, fd: OwnedFd) -> Outcome<u64> {
        let mut handle = 0;
        // CAST: the driver takes the descriptor in place of an address.
        let os = ptr::without_provenance_mut(fd.as_raw_fd() as usize);
        // SAFETY: the descriptor is open for the whole call; one that is not of a handle is
        // refused.
        let result = unsafe { call::import(&mut handle, os, POSIX_HANDLE) };
        outcome(result, handle)
    }

    fn reserve(&self, bytes: u64) -> Outcome<u64> {
        let mut address = 0;
        // SAFETY: the address is borrowed for the whole call.
        let result = unsafe { call::reserve(&mut address, size(bytes), 0, 0, 0) };
        outcome(result, address)
    }

    fn unreserve(&self, address: u64, bytes: u64) -> Outcome<()> {
        // SAFETY: takes numbers.
        outcome(unsafe { call::unreserve(address, size(bytes)) }, ())
    }

    fn map(&self, address: u64, bytes: u64, handle: u64) -> Outcome<()> {
        // SAFETY: takes numbers.
        outcome(unsafe { call::map(address, size(bytes), 0, handle, 0) }, ())
    }

    fn permit(&self, address: u64, bytes: u64, access: &[Access]) -> Outcome<()> {
        // SAFETY: the descriptions are borrowed for the whole call.
        let result = unsafe { call::permit(address, size(bytes), access.as_ptr(), access.len()) };
        outcome(result, ())
    }

    fn unmap(&self, address: u64, bytes: u64) -> Outcome<()> {
        // SAFETY: takes numbers; the caller ensures that the memory is not in use.
        outcome(unsafe { call::unmap(address, size(bytes)) }, ())
    }
}
