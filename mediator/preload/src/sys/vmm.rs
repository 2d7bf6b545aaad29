//! The driver's functions for memory that the program maps itself.
#![allow(non_snake_case)]

use std::ffi::{c_int, c_void};
use std::os::fd::IntoRawFd;

use turnstile_preload_wire::Pin;

use super::calls::result;
use super::driver::call;
use super::streams::give_back_all;
use super::tenant::{here, known};
use crate::abi::{Access, ON_DEVICE, OUT_OF_MEMORY, POSIX_HANDLE, Prop, SUCCESS};

/// # Safety
/// As the driver's; the same for all functions below.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(super) unsafe extern "C" fn cuMemCreate(
    handle: *mut u64,
    bytes: usize,
    prop: *const Prop,
    flags: u64,
) -> u32 {
    let readable = !handle.is_null() && !prop.is_null() && flags == 0;
    let found = here().filter(|_| readable);
    // SAFETY: not null; the caller's description.
    let found = found.map(|tenant| (tenant, unsafe { *prop }));
    let movable = found.filter(|(tenant, prop)| {
        let kinds = prop.handle_types & !POSIX_HANDLE == 0;
        let here = (prop.location.kind, prop.location.id) == (ON_DEVICE, tenant.device);
        kinds && here
    });
    let Some((tenant, prop)) = movable else {
        // SAFETY: the caller's own call.
        let result = unsafe { call::create(handle, bytes, prop, flags) };
        if let (Some((tenant, prop)), SUCCESS) = (found, result)
            && prop.location.kind == ON_DEVICE
        {
            // SAFETY: the driver has written there.
            tenant.native(unsafe { *handle }, Pin::Shared, bytes as u64);
        }
        return result;
    };
    let made = match tenant.heap.create(bytes as u64, prop) {
        Err(OUT_OF_MEMORY) => {
            give_back_all(tenant);
            tenant.heap.create(bytes as u64, prop)
        }
        outcome => outcome,
    };
    result(made.map(|made| {
        // SAFETY: not null; the caller's place for it.
        unsafe { *handle = made };
    }))
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(super) unsafe extern "C" fn cuMemRelease(handle: u64) -> u32 {
    match known() {
        Some(tenant) if tenant.heap.is_ours(handle) => result(tenant.heap.let_go(handle)),
        tenant => {
            // SAFETY: the caller's own call.
            let result = unsafe { call::release(handle) };
            if let (Some(tenant), SUCCESS) = (tenant, result) {
                tenant.native_freed(handle);
            }
            result
        }
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(super) unsafe extern "C" fn cuMemMap(
    address: u64,
    bytes: usize,
    offset: usize,
    handle: u64,
    flags: u64,
) -> u32 {
    match known() {
        Some(tenant) if offset == 0 && flags == 0 && tenant.heap.is_ours(handle) => {
            result(tenant.heap.map(address, bytes as u64, handle))
        }
        // SAFETY: the caller's own call; the driver refuses a handle of this library.
        _ => unsafe { call::map(address, bytes, offset, handle, flags) },
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(super) unsafe extern "C" fn cuMemUnmap(address: u64, bytes: usize) -> u32 {
    let ours = known().and_then(|tenant| tenant.heap.unmap(address, bytes as u64));
    // SAFETY: the caller's own call.
    ours.map_or_else(|| unsafe { call::unmap(address, bytes) }, result)
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(super) unsafe extern "C" fn cuMemSetAccess(
    address: u64,
    bytes: usize,
    access: *const Access,
    count: usize,
) -> u32 {
    /// More GPUs than a host has.
    const COUNT_MAX: usize = 256;
    let ours = known().filter(|_| !access.is_null() && (1..=COUNT_MAX).contains(&count));
    let ours = ours.and_then(|tenant| {
        // SAFETY: not null; the caller passes `count` descriptions.
        let access = unsafe { std::slice::from_raw_parts(access, count) };
        tenant.heap.permit(address, bytes as u64, access)
    });
    // SAFETY: the caller's own call.
    ours.map_or_else(
        || unsafe { call::permit(address, bytes, access, count) },
        result,
    )
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(super) unsafe extern "C" fn cuMemExportToShareableHandle(
    to: *mut c_void,
    handle: u64,
    kind: c_int,
    flags: u64,
) -> u32 {
    match known() {
        Some(tenant) if kind == POSIX_HANDLE && !to.is_null() && tenant.heap.is_ours(handle) => {
            result(tenant.heap.export(handle).map(|fd| {
                // SAFETY: not null; for this kind it is a place for a descriptor.
                unsafe { to.cast::<c_int>().write(fd.into_raw_fd()) };
            }))
        }
        // SAFETY: the caller's own call; the driver refuses a handle of this library.
        _ => unsafe { call::export(to, handle, kind, flags) },
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(super) unsafe extern "C" fn cuMemRetainAllocationHandle(
    handle: *mut u64,
    address: *mut c_void,
) -> u32 {
    let ours = known().filter(|_| !handle.is_null());
    match ours.and_then(|tenant| tenant.heap.retain(address as u64)) {
        Some(retained) => {
            // SAFETY: not null; the caller's place for it.
            unsafe { *handle = retained };
            SUCCESS
        }
        // SAFETY: the caller's own call.
        None => unsafe { call::retain(handle, address) },
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(super) unsafe extern "C" fn cuMemGetAllocationPropertiesFromHandle(
    prop: *mut Prop,
    handle: u64,
) -> u32 {
    let ours = known().filter(|_| !prop.is_null());
    match ours.and_then(|tenant| tenant.heap.prop(handle)) {
        Some(found) => {
            // SAFETY: not null; the caller's place for it.
            unsafe { *prop = found };
            SUCCESS
        }
        // SAFETY: the caller's own call.
        None => unsafe { call::handle_prop(prop, handle) },
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(super) unsafe extern "C" fn cuMulticastBindMem(
    multicast: u64,
    offset: usize,
    handle: u64,
    memory_offset: usize,
    bytes: usize,
    flags: u64,
) -> u32 {
    // SAFETY: the caller's own call.
    let bind =
        |handle| unsafe { call::bind(multicast, offset, handle, memory_offset, bytes, flags) };
    match known() {
        Some(tenant) if tenant.heap.is_ours(handle) => {
            let kept = tenant.heap.keep(handle, Pin::Shared);
            kept.map_or_else(|result| result, bind)
        }
        _ => bind(handle),
    }
}
