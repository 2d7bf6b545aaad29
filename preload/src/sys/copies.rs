//! The driver's functions that look at addresses when they are called: they wait while memory is away ([`crate::gate`]).
#![allow(non_snake_case)]

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::{driver, loader, tenant};
use crate::abi::{INVALID_VALUE, NOT_FOUND};

/// Functions of so many arguments, all of which are numbers or addresses.
macro_rules! copies {
    ($($name:ident($($argument:ident)*);)*) => {
        $(
            /// # Safety
            /// As the driver's.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub(super) unsafe extern "C" fn $name($($argument: usize),*) -> u32 {
                static REAL: AtomicPtr<std::ffi::c_void> = AtomicPtr::new(ptr::null_mut());
                let mut real = REAL.load(Ordering::Relaxed);
                if real.is_null() {
                    real = loader::find(driver::library(), stringify!($name));
                    REAL.store(real, Ordering::Relaxed);
                }
                // SAFETY: the library's function of this name takes so many arguments of at most a register; null is None.
                let real = unsafe {
                    std::mem::transmute::<
                        *mut std::ffi::c_void,
                        Option<unsafe extern "C" fn($(copies!(@word $argument)),*) -> u32>,
                    >(real)
                };
                let Some(real) = real else { return NOT_FOUND };
                // SAFETY: the caller's own call; one that was refused has done nothing.
                let call = || unsafe { real($($argument),*) };
                match tenant::known() {
                    Some(tenant) => tenant.heap.gate().call(call, |result| result == INVALID_VALUE),
                    None => call(),
                }
            }
        )*

        /// Ours of a name that the library exports.
        pub(super) fn by_name(name: &str) -> Option<*mut std::ffi::c_void> {
            Some(match name {
                $(stringify!($name) => ($name as *const ()).cast_mut().cast(),)*
                _ => return None,
            })
        }
    };
    (@word $argument:ident) => { usize };
}

// SOURCE: cuda.h of CUDA 13.0. Those that end in _ptds and _ptsz mean the thread's own stream where none is named.
copies! {
    cuMemcpy(a b c);
    cuMemcpy_ptds(a b c);
    cuMemcpyAsync(a b c d);
    cuMemcpyAsync_ptsz(a b c d);
    cuMemcpyPeer(a b c d e);
    cuMemcpyPeer_ptds(a b c d e);
    cuMemcpyPeerAsync(a b c d e f);
    cuMemcpyPeerAsync_ptsz(a b c d e f);
    cuMemcpyHtoD_v2(a b c);
    cuMemcpyHtoD_v2_ptds(a b c);
    cuMemcpyHtoDAsync_v2(a b c d);
    cuMemcpyHtoDAsync_v2_ptsz(a b c d);
    cuMemcpyDtoH_v2(a b c);
    cuMemcpyDtoH_v2_ptds(a b c);
    cuMemcpyDtoHAsync_v2(a b c d);
    cuMemcpyDtoHAsync_v2_ptsz(a b c d);
    cuMemcpyDtoD_v2(a b c);
    cuMemcpyDtoD_v2_ptds(a b c);
    cuMemcpyDtoDAsync_v2(a b c d);
    cuMemcpyDtoDAsync_v2_ptsz(a b c d);
    cuMemcpyDtoA_v2(a b c d);
    cuMemcpyDtoA_v2_ptds(a b c d);
    cuMemcpyAtoD_v2(a b c d);
    cuMemcpyAtoD_v2_ptds(a b c d);
    cuMemcpy2D_v2(a);
    cuMemcpy2D_v2_ptds(a);
    cuMemcpy2DUnaligned_v2(a);
    cuMemcpy2DUnaligned_v2_ptds(a);
    cuMemcpy2DAsync_v2(a b);
    cuMemcpy2DAsync_v2_ptsz(a b);
    cuMemcpy3D_v2(a);
    cuMemcpy3D_v2_ptds(a);
    cuMemcpy3DAsync_v2(a b);
    cuMemcpy3DAsync_v2_ptsz(a b);
    cuMemcpy3DPeer(a);
    cuMemcpy3DPeer_ptds(a);
    cuMemcpy3DPeerAsync(a b);
    cuMemcpy3DPeerAsync_ptsz(a b);
    cuMemcpyBatchAsync_v2(a b c d e f g h);
    cuMemcpyBatchAsync_v2_ptsz(a b c d e f g h);
    cuMemsetD8_v2(a b c);
    cuMemsetD8_v2_ptds(a b c);
    cuMemsetD16_v2(a b c);
    cuMemsetD16_v2_ptds(a b c);
    cuMemsetD32_v2(a b c);
    cuMemsetD32_v2_ptds(a b c);
    cuMemsetD2D8_v2(a b c d e);
    cuMemsetD2D8_v2_ptds(a b c d e);
    cuMemsetD2D16_v2(a b c d e);
    cuMemsetD2D16_v2_ptds(a b c d e);
    cuMemsetD2D32_v2(a b c d e);
    cuMemsetD2D32_v2_ptds(a b c d e);
    cuMemsetD8Async(a b c d);
    cuMemsetD8Async_ptsz(a b c d);
    cuMemsetD16Async(a b c d);
    cuMemsetD16Async_ptsz(a b c d);
    cuMemsetD32Async(a b c d);
    cuMemsetD32Async_ptsz(a b c d);
    cuMemsetD2D8Async(a b c d e f);
    cuMemsetD2D8Async_ptsz(a b c d e f);
    cuMemsetD2D16Async(a b c d e f);
    cuMemsetD2D16Async_ptsz(a b c d e f);
    cuMemsetD2D32Async(a b c d e f);
    cuMemsetD2D32Async_ptsz(a b c d e f);
    cuStreamWriteValue32_v2(a b c d);
    cuStreamWriteValue32_v2_ptsz(a b c d);
    cuStreamWriteValue64_v2(a b c d);
    cuStreamWriteValue64_v2_ptsz(a b c d);
    cuStreamWaitValue32_v2(a b c d);
    cuStreamWaitValue32_v2_ptsz(a b c d);
    cuStreamWaitValue64_v2(a b c d);
    cuStreamWaitValue64_v2_ptsz(a b c d);
    cuStreamBatchMemOp_v2(a b c d);
    cuStreamBatchMemOp_v2_ptsz(a b c d);
    cuGraphAddMemcpyNode(a b c d e f);
    cuGraphAddMemsetNode(a b c d e f);
    cuGraphExecMemcpyNodeSetParams(a b c d);
    cuGraphExecMemsetNodeSetParams(a b c d);
    cuGraphInstantiateWithFlags(a b c);
    cuGraphInstantiateWithParams(a b c);
    cuGraphInstantiateWithParams_ptsz(a b c);
    cuTexObjectCreate(a b c d);
    cuPointerSetAttribute(a b c);
}
