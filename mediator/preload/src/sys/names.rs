//! Finds this library's function by the name of the driver's, as dlsym and cuGetProcAddress do.
//!
//! In: the name of a function of the driver; for cuGetProcAddress also a version of the API and
//! flags. Out: the address of the function here, if there is one. The loader's functions call it,
//! and the program calls cuGetProcAddress.
#![allow(non_snake_case)]

use std::ffi::{CStr, c_char, c_int, c_void};

use super::driver::call;
use super::tenant::is_on;
use super::{calls, copies, launches, streams, vmm};
use crate::abi::SUCCESS;

/// SOURCE: cuda.h: CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM.
const PER_THREAD: u64 = 2;
/// From this version of the API on, cuGetProcAddress has its second form. SOURCE: cuda.h.
const SECOND_FORM: c_int = 12_000;

/// Names and functions of this library.
macro_rules! table {
    ($($module:ident :: $name:ident),* $(,)?) => {
        /// The function here of a name that the driver's library exports.
        pub(super) fn by_name(name: &[u8]) -> Option<*mut c_void> {
            if !name.starts_with(b"cu") {
                return None;
            }
            let name = std::str::from_utf8(name).ok()?;
            Some(match name {
                $(stringify!($name) => ($module::$name as *const ()).cast_mut().cast(),)*
                other => return copies::by_name(other).or_else(|| launches::by_name(other)),
            })
        }

        #[cfg(test)]
        const NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}

use super::names as own;

table! {
    calls::cuMemAlloc_v2, calls::cuMemAllocPitch_v2, calls::cuMemFree_v2, calls::cuMemAllocManaged,
    calls::cuMemGetInfo_v2, calls::cuMemGetAddressRange_v2, calls::cuDeviceTotalMem_v2, calls::cuIpcGetMemHandle,
    calls::cuArrayCreate_v2, calls::cuArray3DCreate_v2, calls::cuArrayDestroy,
    calls::cuMipmappedArrayCreate, calls::cuMipmappedArrayDestroy,
    calls::cuPointerGetAttribute, calls::cuPointerGetAttributes,
    calls::cuCtxDestroy_v2, calls::cuDevicePrimaryCtxReset_v2,
    own::cuGetProcAddress, own::cuGetProcAddress_v2,
    streams::cuMemAllocAsync, streams::cuMemAllocAsync_ptsz,
    streams::cuMemAllocFromPoolAsync, streams::cuMemAllocFromPoolAsync_ptsz,
    streams::cuMemFreeAsync, streams::cuMemFreeAsync_ptsz,
    streams::cuMemPoolCreate, streams::cuMemPoolDestroy, streams::cuMemPoolTrimTo,
    streams::cuMemPoolGetAttribute, streams::cuMemPoolSetAttribute,
    streams::cuStreamBeginCapture_v2, streams::cuStreamBeginCapture_v2_ptsz,
    streams::cuStreamBeginCaptureToGraph, streams::cuStreamBeginCaptureToGraph_ptsz,
    streams::cuStreamEndCapture, streams::cuStreamEndCapture_ptsz,
    vmm::cuMemCreate, vmm::cuMemRelease, vmm::cuMemMap, vmm::cuMemUnmap, vmm::cuMemSetAccess,
    vmm::cuMemExportToShareableHandle, vmm::cuMemRetainAllocationHandle,
    vmm::cuMemGetAllocationPropertiesFromHandle, vmm::cuMulticastBindMem,
}

/// Replaces the driver's function by the one here of that name.
///
/// # Safety
/// `symbol` is a C string or null, `function` a place that the driver has written to.
unsafe fn replace(symbol: *const c_char, function: *mut *mut c_void, version: c_int, flags: u64) {
    if !is_on() || symbol.is_null() || function.is_null() {
        return;
    }
    // SAFETY: by the caller's contract.
    let (name, theirs) = unsafe { (CStr::from_ptr(symbol), *function) };
    if theirs.is_null() {
        return;
    }
    if let Some(ours) = latest(name.to_bytes(), version, flags & PER_THREAD != 0) {
        // SAFETY: by the caller's contract.
        unsafe { *function = ours };
    }
}

/// The function here of a name without a version, as cuGetProcAddress takes it.
fn latest(name: &[u8], version: c_int, per_thread: bool) -> Option<*mut c_void> {
    if name == b"cuGetProcAddress" {
        let exported: &[u8] = if version >= SECOND_FORM {
            b"cuGetProcAddress_v2"
        } else {
            name
        };
        return by_name(exported);
    }
    let with = |ending: &[u8]| by_name(&[name, ending].concat());
    let own_stream = || {
        let endings: [&[u8]; 4] = [b"_v2_ptsz", b"_v2_ptds", b"_ptsz", b"_ptds"];
        endings.into_iter().find_map(with)
    };
    per_thread
        .then(own_stream)
        .flatten()
        .or_else(|| with(b"_v2"))
        .or_else(|| with(b""))
}

/// # Safety
/// As the driver's; the same for the function below.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(super) unsafe extern "C" fn cuGetProcAddress(
    symbol: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    flags: u64,
) -> u32 {
    // SAFETY: the caller's own call.
    let result = unsafe { call::proc_address(symbol, function, version, flags) };
    if result == SUCCESS {
        // SAFETY: the driver has read the one and written the other.
        unsafe { replace(symbol, function, version, flags) };
    }
    result
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(super) unsafe extern "C" fn cuGetProcAddress_v2(
    symbol: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    flags: u64,
    status: *mut c_int,
) -> u32 {
    // SAFETY: the caller's own call.
    let result = unsafe { call::proc_address_v2(symbol, function, version, flags, status) };
    if result == SUCCESS {
        // SAFETY: the driver has read the one and written the other.
        unsafe { replace(symbol, function, version, flags) };
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_with_and_without_their_versions() {
        for name in NAMES {
            assert!(by_name(name.as_bytes()).is_some(), "{name}");
        }
        let ours = |name: &str| by_name(name.as_bytes());
        assert_eq!(ours("cuMemAlloc"), None, "of 32 bits");
        assert!(ours("cuLaunchKernel_ptsz").is_some());
        assert_eq!(ours("cuStreamSynchronize"), None, "waits are not ours");
        let latest = |name: &str, thread| latest(name.as_bytes(), 13_000, thread);
        assert_eq!(latest("cuMemAlloc", false), ours("cuMemAlloc_v2"));
        assert_eq!(latest("cuMemCreate", true), ours("cuMemCreate"));
        assert_eq!(latest("cuMemFreeAsync", false), ours("cuMemFreeAsync"));
        assert_eq!(latest("cuMemFreeAsync", true), ours("cuMemFreeAsync_ptsz"));
        let begin = latest("cuStreamBeginCapture", true);
        assert_eq!(begin, ours("cuStreamBeginCapture_v2_ptsz"));
        assert_eq!(
            latest("cuGetProcAddress", false),
            ours("cuGetProcAddress_v2")
        );
        assert_eq!(
            super::latest(b"cuGetProcAddress", 11_030, false),
            ours("cuGetProcAddress")
        );
    }
}
