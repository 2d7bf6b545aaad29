//! The driver's functions that this library replaces: allocation, and functions that report about
//! it.
//!
//! Each behaves as the driver's documentation describes, and passes calls on other memory to the
//! driver. Copies pass through `copies.rs`, launches through `launches.rs`.
#![allow(non_snake_case)]

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::Ordering;

use turnstile_preload_wire::Pin;

use super::copies::gated;
use super::driver::call;
use super::link::LINK;
use super::streams;
use super::tenant::{Tenant, greet, here, known, lock};
use crate::abi::{NOT_SUPPORTED, OUT_OF_MEMORY, SUCCESS};
use crate::heap::Outcome;

/// A result as the driver returns it.
pub(super) fn result(outcome: Outcome<()>) -> u32 {
    outcome.err().unwrap_or(SUCCESS)
}

/// Allocates; retries after everything that is only kept for reuse was freed.
pub(super) fn alloc(tenant: &Tenant, bytes: usize) -> Outcome<u64> {
    collect(tenant);
    let (bytes, prop) = (bytes as u64, tenant.prop());
    match tenant.heap.alloc(bytes, prop) {
        Err(OUT_OF_MEMORY) => {
            streams::give_back_all(tenant);
            tenant.heap.alloc(bytes, prop)
        }
        outcome => outcome,
    }
}

/// Frees memory that had to wait for the end of a capture.
pub(super) fn collect(tenant: &Tenant) {
    if tenant.captures.load(Ordering::Relaxed) > 0 {
        return;
    }
    let deferred = tenant.heap.take_deferred();
    if deferred.is_empty() {
        return;
    }
    // SAFETY: waits for the context's work.
    unsafe { call::ctx_synchronize() };
    for address in deferred {
        tenant.heap.free(address);
    }
}

/// # Safety
/// As the driver's; the same for all functions below.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(super) unsafe extern "C" fn cuMemAlloc_v2(out: *mut u64, bytes: usize) -> u32 {
    let tenant = here().filter(|_| !out.is_null() && bytes > 0);
    let Some(tenant) = tenant else {
        // SAFETY: the caller's own call.
        let result = unsafe { call::alloc(out, bytes) };
        // SAFETY: the driver has written there.
        elsewhere(result, || unsafe { *out }, bytes);
        return result;
    };
    result(alloc(tenant, bytes).map(|address| {
        // SAFETY: not null; the caller's place for it.
        unsafe { *out = address };
    }))
}

/// Counts memory that the driver allocated in another context than the tenant's.
fn elsewhere(result: u32, address: impl FnOnce() -> u64, bytes: usize) {
    if result == SUCCESS
        && let Some(tenant) = known()
    {
        tenant.native(address(), Pin::OtherContext, bytes as u64);
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(super) unsafe extern "C" fn cuMemAllocPitch_v2(
    out: *mut u64,
    pitch: *mut usize,
    width: usize,
    height: usize,
    element: c_uint,
) -> u32 {
    /// Alignment of rows. SOURCE: cuMemAllocPitch on an H200 (driver 580.159.04) returns multiples
    /// of this.
    const ROW: usize = 512;
    let tenant = here().filter(|_| !out.is_null() && !pitch.is_null());
    // SOURCE: the driver API's page of cuMemAllocPitch.
    let known_element = matches!(element, 4 | 8 | 16);
    let row = width.checked_next_multiple_of(ROW).filter(|row| *row > 0);
    let bytes = row
        .and_then(|row| row.checked_mul(height))
        .filter(|b| *b > 0);
    let (Some(tenant), Some(row), Some(bytes), true) = (tenant, row, bytes, known_element) else {
        // SAFETY: the caller's own call.
        let result = unsafe { call::alloc_pitch(out, pitch, width, height, element) };
        // SAFETY: the driver has written there.
        elsewhere(result, || unsafe { *out }, bytes.unwrap_or_default());
        return result;
    };
    result(alloc(tenant, bytes).map(|address| {
        // SAFETY: not null; the caller's places for them.
        unsafe { (*out, *pitch) = (address, row) };
    }))
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(super) unsafe extern "C" fn cuMemFree_v2(address: u64) -> u32 {
    let Some(tenant) = known().filter(|_| address != 0) else {
        // SAFETY: the caller's own call.
        return unsafe { call::free(address) };
    };
    if !tenant.heap.owns(address) {
        // SAFETY: the caller's own call.
        let result = unsafe { call::free(address) };
        if result == SUCCESS {
            tenant.native_freed(address);
        }
        return result;
    }
    lock(&tenant.streams).forget(address);
    if tenant.captures.load(Ordering::Relaxed) > 0 {
        tenant.heap.defer(address);
        return SUCCESS;
    }
    // The driver's function waits as well: kernels may use the memory.
    // SAFETY: waits for the context's work.
    let waited = unsafe { call::ctx_synchronize() };
    tenant.heap.free(address);
    waited
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(super) unsafe extern "C" fn cuMemAllocManaged(
    out: *mut u64,
    bytes: usize,
    flags: c_uint,
) -> u32 {
    let tenant = here();
    // SAFETY: the caller's own call.
    let result = unsafe { call::alloc_managed(out, bytes, flags) };
    if let (Some(tenant), SUCCESS) = (tenant, result) {
        // SAFETY: the driver has written there.
        tenant.native(unsafe { *out }, Pin::Managed, bytes as u64);
    }
    result
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(super) unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> u32 {
    let tenant = here().filter(|_| !free.is_null() && !total.is_null());
    let Some((free_bytes, total_bytes)) = tenant.and_then(|tenant| tenant.heap.info()) else {
        // SAFETY: the caller's own call.
        return unsafe { call::get_info(free, total) };
    };
    // CAST: the driver is for 64-bit machines.
    // SAFETY: not null; the caller's places for them.
    unsafe { (*free, *total) = (free_bytes as usize, total_bytes as usize) };
    SUCCESS
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(super) unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) -> u32 {
    // SAFETY: the caller's own call.
    let result = unsafe { call::total_memory(bytes, device) };
    if let (Some(link), SUCCESS) = (LINK.get(), result) {
        greet(link);
        // CAST: the driver is for 64-bit machines.
        // SAFETY: the driver has written there.
        unsafe { *bytes = (*bytes).min(link.limit_bytes() as usize) };
    }
    result
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(super) unsafe extern "C" fn cuMemGetAddressRange_v2(
    base: *mut u64,
    bytes: *mut usize,
    address: u64,
) -> u32 {
    let Some((at, length)) = known().and_then(|tenant| tenant.heap.range(address)) else {
        // SAFETY: the caller's own call.
        return unsafe { call::address_range(base, bytes, address) };
    };
    if !base.is_null() {
        // SAFETY: the caller's place for it.
        unsafe { *base = at };
    }
    if !bytes.is_null() {
        // CAST: the driver is for 64-bit machines.
        // SAFETY: the caller's place for it.
        unsafe { *bytes = length as usize };
    }
    SUCCESS
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(super) unsafe extern "C" fn cuIpcGetMemHandle(handle: *mut c_void, address: u64) -> u32 {
    if let Some(tenant) = known()
        && tenant.heap.range(address).is_some()
    {
        tenant.print_once(
            0,
            "cuIpcGetMemHandle is refused: memory that moves has no such handle (run without movable memory)",
        );
        return NOT_SUPPORTED;
    }
    // SAFETY: the caller's own call.
    unsafe { call::ipc_handle(handle, address) }
}

/// Pointer attributes of the allocation. SOURCE: cuda.h: CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
/// _RANGE_SIZE.
const RANGE_START: c_int = 11;
const RANGE_SIZE: c_int = 12;

/// Writes an attribute of an allocation of this heap, if it is one of these.
///
/// # Safety
/// `to` is a place for that attribute.
unsafe fn correct(to: *mut c_void, attribute: c_int, address: u64) {
    if !matches!(attribute, RANGE_START | RANGE_SIZE) || to.is_null() {
        return;
    }
    if let Some((base, bytes)) = known().and_then(|tenant| tenant.heap.range(address)) {
        let value = if attribute == RANGE_START {
            base
        } else {
            bytes
        };
        // SAFETY: by the caller's contract; both have 64 bits.
        unsafe { to.cast::<u64>().write_unaligned(value) };
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(super) unsafe extern "C" fn cuPointerGetAttribute(
    to: *mut c_void,
    attribute: c_int,
    address: u64,
) -> u32 {
    // SAFETY: the caller's own call.
    let call = || unsafe { call::pointer_attribute(to, attribute, address) };
    let result = gated(call);
    if result == SUCCESS {
        // SAFETY: the driver has written there.
        unsafe { correct(to, attribute, address) };
    }
    result
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(super) unsafe extern "C" fn cuPointerGetAttributes(
    count: c_uint,
    attributes: *const c_int,
    to: *const *mut c_void,
    address: u64,
) -> u32 {
    // SAFETY: the caller's own call.
    let call = || unsafe { call::pointer_attributes(count, attributes, to, address) };
    let result = gated(call);
    if result == SUCCESS && !attributes.is_null() && !to.is_null() {
        for at in 0..count as usize {
            // SAFETY: the driver has read `count` of each, and written there.
            unsafe { correct(*to.add(at), *attributes.add(at), address) };
        }
    }
    result
}

/// Bytes of an array, from its description. SOURCE: cuda.h: CUDA_ARRAY_DESCRIPTOR,
/// CUDA_ARRAY3D_DESCRIPTOR, CUarray_format.
///
/// # Safety
/// `description` is one, with three sizes if `deep`.
unsafe fn array_bytes(description: *const c_void, deep: bool) -> u64 {
    let sizes = if deep { 3 } else { 2 };
    let words = description.cast::<usize>();
    let mut texels = 1_u64;
    for at in 0..sizes {
        // SAFETY: by the caller's contract.
        let size = unsafe { words.add(at).read() };
        texels = texels.saturating_mul(size.max(1) as u64);
    }
    // SAFETY: by the caller's contract the format and the number of channels follow.
    let (format, channels) = unsafe {
        let after = words.add(sizes).cast::<c_uint>();
        (after.read(), after.add(1).read())
    };
    let channel: u64 = match format {
        0x01 | 0x08 => 1,
        0x02 | 0x09 | 0x10 => 2,
        _ => 4,
    };
    texels
        .saturating_mul(channel)
        .saturating_mul(channels.into())
}

/// Counts an array that was made.
fn array(result: u32, handle: *const usize, bytes: u64) -> u32 {
    if let (Some(tenant), SUCCESS) = (here(), result) {
        // SAFETY: the driver has written there.
        tenant.native(unsafe { *handle } as u64, Pin::Array, bytes);
    }
    result
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(super) unsafe extern "C" fn cuArrayCreate_v2(
    handle: *mut usize,
    description: *const c_void,
) -> u32 {
    // SAFETY: the caller's own call.
    match unsafe { call::array_create(handle, description) } {
        // SAFETY: the driver has read it.
        SUCCESS => array(SUCCESS, handle, unsafe { array_bytes(description, false) }),
        result => result,
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(super) unsafe extern "C" fn cuArray3DCreate_v2(
    handle: *mut usize,
    description: *const c_void,
) -> u32 {
    // SAFETY: the caller's own call.
    match unsafe { call::array_create_3d(handle, description) } {
        // SAFETY: the driver has read it.
        SUCCESS => array(SUCCESS, handle, unsafe { array_bytes(description, true) }),
        result => result,
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(super) unsafe extern "C" fn cuMipmappedArrayCreate(
    handle: *mut usize,
    description: *const c_void,
    levels: c_uint,
) -> u32 {
    // SAFETY: the caller's own call.
    match unsafe { call::mipmapped_create(handle, description, levels) } {
        SUCCESS => {
            // SAFETY: the driver has read it.
            let first = unsafe { array_bytes(description, true) };
            // All further levels together are at most as large as the first.
            let bytes = if levels > 1 {
                first.saturating_mul(2)
            } else {
                first
            };
            array(SUCCESS, handle, bytes)
        }
        result => result,
    }
}

fn array_freed(result: u32, handle: usize) -> u32 {
    if let (Some(tenant), SUCCESS) = (known(), result) {
        tenant.native_freed(handle as u64);
    }
    result
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(super) unsafe extern "C" fn cuArrayDestroy(handle: usize) -> u32 {
    // SAFETY: the caller's own call.
    array_freed(unsafe { call::array_destroy(handle) }, handle)
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(super) unsafe extern "C" fn cuMipmappedArrayDestroy(handle: usize) -> u32 {
    // SAFETY: the caller's own call.
    array_freed(unsafe { call::mipmapped_destroy(handle) }, handle)
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(super) unsafe extern "C" fn cuCtxDestroy_v2(context: usize) -> u32 {
    if let Some(tenant) = known() {
        tenant.ends(Some(context), None);
    }
    // SAFETY: the caller's own call.
    unsafe { call::ctx_destroy(context) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(super) unsafe extern "C" fn cuDevicePrimaryCtxReset_v2(device: c_int) -> u32 {
    if let Some(tenant) = known() {
        tenant.ends(None, Some(device));
    }
    // SAFETY: the caller's own call.
    unsafe { call::primary_reset(device) }
}
