//! Tests of the GPU as a whole, in both times.

mod conformance;
mod copied;
mod front_end;
mod kernels;
mod moves;
mod real;
mod spin;
mod timeline;
mod virtual_random;
mod virtual_runs;

use std::sync::Arc;
use std::time::{Duration, Instant};

use turnstile_abi::{Command, Dim3, Launch};
use turnstile_accounting::{Nanos, TenantId};

use turnstile_gpu::plain::{PlainChannel, PlainVm, given_length as kernel};
use turnstile_gpu::prelude::*;
use turnstile_gpu::{DoorbellChange, EngineReading, Gpu, Order};

const A: TenantId = TenantId(1);
const B: TenantId = TenantId(2);

/// A VM with a context on the GPU.
fn tenant(gpu: &dyn Gpu, tenant: TenantId) -> Arc<PlainVm> {
    PlainVm::enter(gpu, tenant, 16 << 20, 64 << 20, 8).unwrap()
}

/// A tenant with one channel.
fn channel(gpu: &dyn Gpu, id: TenantId, entries: u32) -> PlainChannel {
    let vm = tenant(gpu, id);
    vm.open_channel(gpu, id, entries, 3).unwrap()
}

/// Waits until `done`, at most ten seconds.
fn wait(what: &str, done: impl Fn() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < Duration::from_secs(10), "no {what}");
        std::thread::sleep(Duration::from_micros(100));
    }
}
