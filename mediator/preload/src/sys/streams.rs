//! The driver's stream-ordered functions, and captures, which they must not disturb.
#![allow(non_snake_case)]

use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;

use turnstile_preload_wire::Pin;

use super::calls::{alloc, collect, cuMemFree_v2, result};
use super::driver::call;
use super::tenant::{Tenant, here, known, lock};
use crate::abi::{INVALID_VALUE, SUCCESS};
use crate::heap::Outcome;
use crate::ordered::Block;
use crate::slabs::rounded;

/// SOURCE: cuda.h: CU_STREAM_PER_THREAD.
const OWN_STREAM: usize = 2;
/// SOURCE: cuda.h: CU_EVENT_DISABLE_TIMING.
const NO_TIMING: u32 = 2;

/// A stream by its handle; no handle means the thread's own stream.
const fn own(stream: usize) -> usize {
    if stream == 0 { OWN_STREAM } else { stream }
}

/// Whether work in a stream is captured into a graph, or is not possible now.
fn captures(stream: usize) -> bool {
    let mut status = 0;
    // SAFETY: the place is borrowed for the whole call; an invalid stream is refused.
    let result = unsafe { call::is_capturing(stream, &mut status) };
    result != SUCCESS || status != 0
}

fn is_done(event: usize) -> bool {
    // SAFETY: an event that was made here and is destroyed with its block.
    unsafe { call::event_query(event) == SUCCESS }
}

fn destroy(event: usize) {
    // SAFETY: as above; the driver keeps it as long as it needs it.
    unsafe { call::event_destroy(event) };
}

/// Frees blocks that are not in use.
fn free(tenant: &Tenant, blocks: Vec<Block>) {
    for block in blocks {
        destroy(block.event);
        tenant.heap.free(block.address);
    }
}

/// Frees everything that is only kept for reuse.
pub(super) fn give_back_all(tenant: &Tenant) {
    let blocks = lock(&tenant.streams).trim_all(is_done);
    free(tenant, blocks);
    tenant.heap.shrink();
}

/// The pool from which the device allocates.
fn current_pool(tenant: &Tenant) -> usize {
    let mut pool = 0;
    // SAFETY: the place is borrowed for the whole call.
    unsafe { call::current_pool(&mut pool, tenant.device) };
    pool
}

fn take(tenant: &Tenant, pool: usize, bytes: usize, stream: usize) -> Outcome<u64> {
    let bytes = rounded(bytes as u64).ok_or(INVALID_VALUE)?;
    let kept = lock(&tenant.streams).take(pool, bytes, stream, is_done);
    if let Some(block) = kept {
        // The handle may belong to another stream by now.
        // SAFETY: the event was made here, the stream is the caller's.
        let waits = unsafe { call::wait_event(stream, block.event, 0) };
        destroy(block.event);
        if waits != SUCCESS {
            lock(&tenant.streams).forget(block.address);
            tenant.heap.defer(block.address);
            return Err(waits);
        }
        return Ok(block.address);
    }
    // CAST: the driver is for 64-bit machines.
    let address = alloc(tenant, bytes as usize)?;
    lock(&tenant.streams).made(pool, address, bytes);
    Ok(address)
}

/// Whether a pool has memory of the driver's own.
fn is_drivers(tenant: &Tenant, pool: usize) -> bool {
    lock(&tenant.streams).pool(pool).is_foreign
}

unsafe fn alloc_async(out: *mut u64, bytes: usize, pool: Option<usize>, stream: usize) -> u32 {
    // SAFETY: the caller's own call.
    let theirs = || unsafe {
        match pool {
            Some(pool) => call::alloc_from_pool(out, bytes, pool, stream),
            None => call::alloc_async(out, bytes, stream),
        }
    };
    let Some(tenant) = here().filter(|_| !out.is_null() && bytes > 0) else {
        return theirs();
    };
    let pin = if captures(stream) {
        Some(Pin::Graph)
    } else {
        pool.filter(|pool| is_drivers(tenant, *pool))
            .map(|_| Pin::Pool)
    };
    if let Some(pin) = pin {
        let result = theirs();
        if result == SUCCESS {
            // SAFETY: the driver has written there.
            tenant.native(unsafe { *out }, pin, bytes as u64);
        }
        return result;
    }
    let pool = pool.unwrap_or_else(|| current_pool(tenant));
    result(take(tenant, pool, bytes, stream).map(|address| {
        // SAFETY: not null; the caller's place for it.
        unsafe { *out = address };
    }))
}

/// # Safety
/// As the driver's; the same for all functions below.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(super) unsafe extern "C" fn cuMemAllocAsync(out: *mut u64, bytes: usize, stream: usize) -> u32 {
    // SAFETY: the caller's own call.
    unsafe { alloc_async(out, bytes, None, stream) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(super) unsafe extern "C" fn cuMemAllocAsync_ptsz(
    out: *mut u64,
    bytes: usize,
    stream: usize,
) -> u32 {
    // SAFETY: the caller's own call.
    unsafe { alloc_async(out, bytes, None, own(stream)) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(super) unsafe extern "C" fn cuMemAllocFromPoolAsync(
    out: *mut u64,
    bytes: usize,
    pool: usize,
    stream: usize,
) -> u32 {
    // SAFETY: the caller's own call.
    unsafe { alloc_async(out, bytes, Some(pool), stream) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(super) unsafe extern "C" fn cuMemAllocFromPoolAsync_ptsz(
    out: *mut u64,
    bytes: usize,
    pool: usize,
    stream: usize,
) -> u32 {
    // SAFETY: the caller's own call.
    unsafe { alloc_async(out, bytes, Some(pool), own(stream)) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(super) unsafe extern "C" fn cuMemFreeAsync(address: u64, stream: usize) -> u32 {
    let owns = |tenant: &&Tenant| tenant.heap.owns(address) && !captures(stream);
    let Some(tenant) = known().filter(owns) else {
        // SAFETY: the caller's own call.
        let result = unsafe { call::free_async(address, stream) };
        if let (Some(tenant), SUCCESS) = (known(), result) {
            tenant.native_freed(address);
        }
        return result;
    };
    if !lock(&tenant.streams).is_live(address) {
        // From cuMemAlloc: no stream orders its other uses.
        // SAFETY: the caller's own call.
        return unsafe { cuMemFree_v2(address) };
    }
    let mut event = 0;
    // SAFETY: the place is borrowed for the whole call; the event was made here, the stream is the
    // caller's.
    let recorded = unsafe {
        match call::event_create(&mut event, NO_TIMING) {
            SUCCESS => call::event_record(event, stream),
            result => result,
        }
    };
    if recorded != SUCCESS {
        return recorded;
    }
    let pool = lock(&tenant.streams).give(address, stream, event);
    let blocks = lock(&tenant.streams).trim_to_threshold(pool, is_done);
    free(tenant, blocks);
    SUCCESS
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(super) unsafe extern "C" fn cuMemFreeAsync_ptsz(address: u64, stream: usize) -> u32 {
    // SAFETY: the caller's own call.
    unsafe { cuMemFreeAsync(address, own(stream)) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(super) unsafe extern "C" fn cuMemPoolCreate(pool: *mut usize, props: *const c_int) -> u32 {
    let tenant = here();
    // SAFETY: the caller's own call.
    let result = unsafe { call::pool_create(pool, props) };
    if let (Some(tenant), SUCCESS) = (tenant, result) {
        // SOURCE: cuda.h: CUmemPoolProps: allocType, handleTypes, location (kind, number).
        // SAFETY: the driver has read the one and written the other.
        let (handle, handles, kind, device) =
            unsafe { (*pool, *props.add(1), *props.add(2), *props.add(3)) };
        let ours = handles == 0 && (kind, device) == (crate::abi::ON_DEVICE, tenant.device);
        let mut streams = lock(&tenant.streams);
        // The driver may reuse a handle.
        *streams.pool(handle) = crate::ordered::Pool::new(!ours);
    }
    result
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(super) unsafe extern "C" fn cuMemPoolDestroy(pool: usize) -> u32 {
    // SAFETY: the caller's own call.
    let result = unsafe { call::pool_destroy(pool) };
    if let (Some(tenant), SUCCESS) = (known(), result) {
        let mut streams = lock(&tenant.streams);
        streams.pool(pool).threshold_bytes = 0;
        let blocks = streams.trim(pool, 0, is_done);
        drop(streams);
        free(tenant, blocks);
    }
    result
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(super) unsafe extern "C" fn cuMemPoolTrimTo(pool: usize, keep: usize) -> u32 {
    // SAFETY: the caller's own call.
    let result = unsafe { call::pool_trim(pool, keep) };
    if let (Some(tenant), SUCCESS) = (known(), result) {
        let blocks = lock(&tenant.streams).trim(pool, keep as u64, is_done);
        free(tenant, blocks);
    }
    result
}

/// SOURCE: cuda.h: CU_MEMPOOL_ATTR_RELEASE_THRESHOLD and the next ones: RESERVED_MEM_CURRENT,
/// RESERVED_MEM_HIGH, USED_MEM_CURRENT, USED_MEM_HIGH; all of 64 bits.
const THRESHOLD: c_int = 4;
const RESERVED: c_int = 5;
const RESERVED_HIGH: c_int = 6;
const USED: c_int = 7;
const USED_HIGH: c_int = 8;

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(super) unsafe extern "C" fn cuMemPoolGetAttribute(
    pool: usize,
    attribute: c_int,
    value: *mut c_void,
) -> u32 {
    // SAFETY: the caller's own call.
    let result = unsafe { call::pool_get(pool, attribute, value) };
    let (Some(tenant), SUCCESS) = (known(), result) else {
        return result;
    };
    let mut streams = lock(&tenant.streams);
    let entry = streams.pool(pool);
    let own = match attribute {
        _ if entry.is_foreign => return result,
        RESERVED => entry.reserved_bytes(),
        RESERVED_HIGH => entry.reserved_high_bytes,
        USED => entry.used_bytes,
        USED_HIGH => entry.used_high_bytes,
        _ => return result,
    };
    // SAFETY: the driver has written a number of this size there: what a graph has taken from the
    // pool.
    unsafe {
        let value = value.cast::<u64>();
        value.write_unaligned(value.read_unaligned().saturating_add(own));
    }
    result
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(super) unsafe extern "C" fn cuMemPoolSetAttribute(
    pool: usize,
    attribute: c_int,
    value: *mut c_void,
) -> u32 {
    // SAFETY: the caller's own call.
    let result = unsafe { call::pool_set(pool, attribute, value) };
    let (Some(tenant), SUCCESS) = (here(), result) else {
        return result;
    };
    let mut streams = lock(&tenant.streams);
    let entry = streams.pool(pool);
    match attribute {
        // SAFETY: the driver has read a number of this size there.
        THRESHOLD => entry.threshold_bytes = unsafe { value.cast::<u64>().read_unaligned() },
        RESERVED_HIGH => entry.reserved_high_bytes = entry.reserved_bytes(),
        USED_HIGH => entry.used_high_bytes = entry.used_bytes,
        _ => {}
    }
    result
}

/// Counts a capture that has begun.
fn count_capture(result: u32) -> u32 {
    if let (Some(tenant), SUCCESS) = (here(), result) {
        tenant.captures.fetch_add(1, Ordering::Relaxed);
    }
    result
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(super) unsafe extern "C" fn cuStreamBeginCapture_v2(stream: usize, mode: c_int) -> u32 {
    // SAFETY: the caller's own call.
    count_capture(unsafe { call::begin_capture(stream, mode) })
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(super) unsafe extern "C" fn cuStreamBeginCapture_v2_ptsz(stream: usize, mode: c_int) -> u32 {
    // SAFETY: the caller's own call.
    count_capture(unsafe { call::begin_capture(own(stream), mode) })
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(super) unsafe extern "C" fn cuStreamBeginCaptureToGraph(
    stream: usize,
    graph: usize,
    nodes: *const usize,
    edges: *const c_void,
    count: usize,
    mode: c_int,
) -> u32 {
    // SAFETY: the caller's own call.
    count_capture(unsafe { call::begin_capture_to(stream, graph, nodes, edges, count, mode) })
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(super) unsafe extern "C" fn cuStreamBeginCaptureToGraph_ptsz(
    stream: usize,
    graph: usize,
    nodes: *const usize,
    edges: *const c_void,
    count: usize,
    mode: c_int,
) -> u32 {
    // SAFETY: the caller's own call.
    unsafe { cuStreamBeginCaptureToGraph(own(stream), graph, nodes, edges, count, mode) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(super) unsafe extern "C" fn cuStreamEndCapture(stream: usize, graph: *mut usize) -> u32 {
    let captured = captures(stream);
    // SAFETY: the caller's own call.
    let result = unsafe { call::end_capture(stream, graph) };
    // It has ended, with or without success.
    if let Some(tenant) = known().filter(|_| captured) {
        let less = |count: usize| Some(count.saturating_sub(1));
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        let _ = tenant.captures.fetch_update(set, fetch, less);
        collect(tenant);
    }
    result
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(super) unsafe extern "C" fn cuStreamEndCapture_ptsz(stream: usize, graph: *mut usize) -> u32 {
    // SAFETY: the caller's own call.
    unsafe { cuStreamEndCapture(own(stream), graph) }
}
