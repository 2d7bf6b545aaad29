//! Tests of the GPU as a whole, in both times.

mod kernels;
mod moves;
mod real;
mod timeline;
mod virtual_random;
mod virtual_runs;

use std::sync::Arc;

use turnstile_abi::{Command, Dim3, Launch};
use turnstile_accounting::{Nanos, TenantId};

use super::plain::{PlainChannel, PlainVm};
use crate::gpu::Gpu;

const A: TenantId = TenantId(1);
const B: TenantId = TenantId(2);

/// A VM with a context on the GPU.
fn tenant(gpu: &dyn Gpu, tenant: TenantId) -> Arc<PlainVm> {
    let vm = Arc::new(PlainVm::new(16 << 20));
    gpu.create_context(tenant, vm.resources(64 << 20, 8))
        .unwrap();
    vm
}

/// A tenant with one channel.
fn channel(gpu: &dyn Gpu, id: TenantId, entries: u32) -> PlainChannel {
    let vm = tenant(gpu, id);
    vm.open_channel(gpu, id, entries, 3).unwrap()
}

/// A kernel of given length.
fn kernel(vm: &PlainVm, length: Nanos) -> Command {
    let params_gpa = vm.put(&length.0.to_le_bytes());
    Command::Launch(Launch {
        module: 0,
        function: 0,
        grid: Dim3::line(1),
        block: Dim3::line(1),
        shared_bytes: 0,
        param_bytes: 8,
        params_gpa,
    })
}
