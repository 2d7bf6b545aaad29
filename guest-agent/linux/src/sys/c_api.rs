//! The library for C: `include/turnstile_guest.h`. A handle belongs to one thread at a time.

use std::ffi::{CStr, c_char, c_int};
use std::slice;

use turnstile_abi::Dim3;
use turnstile_guest::{Kernel, Params};

use crate::{Bus, Gpu, GuestError, Memory};

/// A device that is driven, with the mapping that it is driven through.
#[derive(Debug)]
pub struct TurnstileGpu {
    // Dropped first: it uses the bus.
    gpu: Gpu<'static>,
    bus: *mut Bus,
}

/// As `struct turnstile_usage`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TurnstileUsage {
    compute_ns: u64,
    copy_ns: u64,
    held_ns: u64,
    weight: u32,
    admitted: u32,
}

/// As `struct turnstile_kernel`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TurnstileKernel {
    module: u32,
    function: u32,
    param_bytes: u32,
}

const INVALID: c_int = -libc::EINVAL;

/// A negative errno, and the reason on standard error: C has no room for it.
fn code(result: Result<(), GuestError>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("turnstile: {error}");
            match error {
                GuestError::NoDevice => -libc::ENODEV,
                GuestError::File { .. } | GuestError::Vfio { .. } => -libc::EACCES,
                GuestError::Bound(_) => -libc::EBUSY,
                GuestError::Memory(_) => -libc::ENOMEM,
                GuestError::Driver(_) => -libc::EIO,
                GuestError::TooLong(_) => -libc::E2BIG,
            }
        }
    }
}

/// Opens the device.
///
/// # Safety
/// `out` points to room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn turnstile_open(out: *mut *mut TurnstileGpu) -> c_int {
    let opened = Bus::open(Gpu::DMA_BYTES).and_then(|bus| {
        let bus = Box::into_raw(Box::new(bus));
        // SAFETY: the allocation was just made, and `turnstile_close` frees it only after
        // everything that refers to it.
        match Gpu::new(unsafe { &*bus }) {
            Ok(gpu) => Ok(TurnstileGpu { gpu, bus }),
            Err(error) => {
                // SAFETY: as above; nothing refers to it.
                drop(unsafe { Box::from_raw(bus) });
                Err(error)
            }
        }
    });
    code(opened.map(|gpu| {
        // SAFETY: the caller's promise.
        unsafe { out.write(Box::into_raw(Box::new(gpu))) };
    }))
}

/// Closes it; what it had allocated is lost.
///
/// # Safety
/// `gpu` is from [`turnstile_open`] and is not used afterwards, or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn turnstile_close(gpu: *mut TurnstileGpu) {
    if gpu.is_null() {
        return;
    }
    // SAFETY: the caller's promise.
    let TurnstileGpu { gpu, bus } = *unsafe { Box::from_raw(gpu) };
    drop(gpu);
    // SAFETY: made by `turnstile_open`; what referred to it is gone.
    drop(unsafe { Box::from_raw(bus) });
}

/// The device behind a handle.
///
/// # Safety
/// `gpu` is from [`turnstile_open`], is open, and used by no other thread; or it is null.
unsafe fn of<'g>(gpu: *mut TurnstileGpu) -> Option<&'g mut Gpu<'static>> {
    // SAFETY: the caller's promise.
    unsafe { gpu.as_mut() }.map(|handle| &mut handle.gpu)
}

/// Loads PTX text of `bytes` bytes.
///
/// # Safety
/// `gpu` as for all; `text` has `bytes` bytes; `module` points to room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn turnstile_load(
    gpu: *mut TurnstileGpu,
    text: *const c_char,
    bytes: usize,
    module: *mut u32,
) -> c_int {
    // SAFETY: the caller's promise.
    let (Some(gpu), false) = (unsafe { of(gpu) }, text.is_null()) else {
        return INVALID;
    };
    // SAFETY: the caller's promise.
    let text = unsafe { slice::from_raw_parts(text.cast(), bytes) };
    // SAFETY: the caller's promise.
    code(gpu.load(text).map(|loaded| unsafe { module.write(loaded) }))
}

/// Finds a function of a module.
///
/// # Safety
/// `gpu` as for all; `name` is a C string; `kernel` points to room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn turnstile_find(
    gpu: *mut TurnstileGpu,
    module: u32,
    name: *const c_char,
    kernel: *mut TurnstileKernel,
) -> c_int {
    // SAFETY: the caller's promise.
    let (Some(gpu), false) = (unsafe { of(gpu) }, name.is_null()) else {
        return INVALID;
    };
    // SAFETY: the caller's promise.
    let Ok(name) = unsafe { CStr::from_ptr(name) }.to_str() else {
        return INVALID;
    };
    code(gpu.find(module, name).map(|found| {
        let found = TurnstileKernel {
            module: found.module,
            function: found.function,
            param_bytes: found.param_bytes,
        };
        // SAFETY: the caller's promise.
        unsafe { kernel.write(found) };
    }))
}

/// Allocates zeroed GPU memory.
///
/// # Safety
/// `gpu` as for all; `va` points to room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn turnstile_allocate(
    gpu: *mut TurnstileGpu,
    bytes: u64,
    va: *mut u64,
) -> c_int {
    // SAFETY: the caller's promise.
    let Some(gpu) = (unsafe { of(gpu) }) else {
        return INVALID;
    };
    // SAFETY: the caller's promise.
    code(
        gpu.allocate(bytes)
            .map(|given| unsafe { va.write(given.va) }),
    )
}

/// Gives GPU memory back.
///
/// # Safety
/// `gpu` as for all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn turnstile_free(gpu: *mut TurnstileGpu, va: u64) -> c_int {
    // SAFETY: the caller's promise.
    let Some(gpu) = (unsafe { of(gpu) }) else {
        return INVALID;
    };
    code(gpu.free(Memory {
        va,
        aperture_offset: 0,
        bytes: 0,
    }))
}

/// Copies to the GPU.
///
/// # Safety
/// `gpu` as for all; `from` has `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn turnstile_copy_in(
    gpu: *mut TurnstileGpu,
    va: u64,
    from: *const u8,
    bytes: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    let (Some(gpu), false) = (unsafe { of(gpu) }, from.is_null()) else {
        return INVALID;
    };
    // SAFETY: the caller's promise.
    code(gpu.copy_in(va, unsafe { slice::from_raw_parts(from, bytes) }))
}

/// Copies from the GPU.
///
/// # Safety
/// `gpu` as for all; `to` has room for `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn turnstile_copy_out(
    gpu: *mut TurnstileGpu,
    va: u64,
    to: *mut u8,
    bytes: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    let (Some(gpu), false) = (unsafe { of(gpu) }, to.is_null()) else {
        return INVALID;
    };
    // SAFETY: the caller's promise; any byte is a valid value, so never-written memory does no
    // harm.
    code(gpu.copy_out(va, unsafe { slice::from_raw_parts_mut(to, bytes) }))
}

/// Launches a kernel: grid and block in three dimensions, parameters as words of 32 bits in the
/// kernel's layout.
///
/// # Safety
/// `gpu` as for all; `grid` and `block` have three words, `params` has `kernel.param_bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn turnstile_launch(
    gpu: *mut TurnstileGpu,
    kernel: TurnstileKernel,
    grid: *const u32,
    block: *const u32,
    shared_bytes: u32,
    params: *const u32,
) -> c_int {
    // SAFETY: the caller's promise.
    let Some(gpu) = (unsafe { of(gpu) }) else {
        return INVALID;
    };
    if grid.is_null() || block.is_null() || params.is_null() && kernel.param_bytes != 0 {
        return INVALID;
    }
    // SAFETY: the caller's promise.
    let three = |at: *const u32| unsafe { [at.read(), at.add(1).read(), at.add(2).read()] };
    let dim = |[x, y, z]: [u32; 3]| Dim3 { x, y, z };
    let (grid, block) = (dim(three(grid)), dim(three(block)));
    let words = (kernel.param_bytes / 4) as usize;
    let mut laid = Params::new();
    for word in 0..words {
        // SAFETY: the caller's promise.
        laid = laid.u32(unsafe { params.add(word).read_unaligned() });
    }
    let kernel = Kernel {
        module: kernel.module,
        function: kernel.function,
        param_bytes: kernel.param_bytes,
    };
    code(gpu.launch(kernel, grid, block, shared_bytes, &laid))
}

/// Waits for all that was launched.
///
/// # Safety
/// `gpu` as for all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn turnstile_finish(gpu: *mut TurnstileGpu) -> c_int {
    // SAFETY: the caller's promise.
    let Some(gpu) = (unsafe { of(gpu) }) else {
        return INVALID;
    };
    code(gpu.finish())
}

/// What this VM has used.
///
/// # Safety
/// `gpu` as for all; `usage` points to room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn turnstile_usage(
    gpu: *mut TurnstileGpu,
    usage: *mut TurnstileUsage,
) -> c_int {
    // SAFETY: the caller's promise.
    let Some(gpu) = (unsafe { of(gpu) }) else {
        return INVALID;
    };
    let known = gpu.usage();
    let reported = TurnstileUsage {
        compute_ns: known.compute_ns,
        copy_ns: known.copy_ns,
        held_ns: known.held_ns,
        weight: known.weight,
        admitted: known.admitted.into(),
    };
    // SAFETY: the caller's promise.
    unsafe { usage.write(reported) };
    0
}
