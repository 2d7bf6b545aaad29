//! The driver's functions that check addresses at the call: they wait while chunks are missing
//! ([`crate::gate`]).
#![allow(non_snake_case)]

use super::tenant;
use crate::abi::INVALID_VALUE;

/// Makes a call that checks addresses.
pub(super) fn gated(call: impl Fn() -> u32) -> u32 {
    match tenant::known() {
        Some(tenant) => tenant.heap.gated(call, |result| result == INVALID_VALUE),
        None => call(),
    }
}

// SOURCE: cuda.h of CUDA 13.0. Names that end in _ptds or _ptsz use the thread's own stream where
// none is given.
forwarded! { gated;
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
