//! The driver's functions that submit kernels. They pass at once, even if chunks are missing; the
//! first one while chunks are missing is reported to the daemon. The work of a suspended program is
//! not visible elsewhere.
#![allow(non_snake_case)]

use super::tenant;

/// Submits work.
fn noted(call: impl Fn() -> u32) -> u32 {
    // Before the call: work that is queued when chunks leave is known.
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
