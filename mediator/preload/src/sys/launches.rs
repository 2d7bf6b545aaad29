//! The driver's functions that submit kernels: they pass at once, memory or none, and the daemon is told of the first that comes
//! while memory is away. Nobody else sees what a stopped program submits.
#![allow(non_snake_case)]

use super::tenant;

/// Submits something.
fn noted(call: impl Fn() -> u32) -> u32 {
    // Before: what is queued when memory goes is known.
    if let Some(tenant) = tenant::any() {
        tenant.heap.submits();
    }
    call()
}

// SOURCE: cuda.h of CUDA 13.0.
forwarded! { noted;
    cuLaunchKernel(a b c d e f g h i j k);
    cuLaunchKernel_ptsz(a b c d e f g h i j k);
    cuLaunchKernelEx(a b c d);
    cuLaunchKernelEx_ptsz(a b c d);
    cuLaunchCooperativeKernel(a b c d e f g h i j);
    cuLaunchCooperativeKernel_ptsz(a b c d e f g h i j);
    cuGraphLaunch(a b);
    cuGraphLaunch_ptsz(a b);
}
