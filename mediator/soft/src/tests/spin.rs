//! Kernels that spin for a given time, in one block.

use turnstile_abi::{Command, CopyDirection};
use turnstile_accounting::{EngineId, Moment};
use turnstile_gpu::Suspend;
use vm_memory::GuestAddress;

use super::kernels::launch;
use super::*;
use crate::{SoftConfig, SoftGpu, VirtualGpu};

const SPIN: &str = include_str!("../../../../images/kernels/spin.ptx");

/// A kernel of one block that spins for `ns`; returns where it writes.
fn push_spin(gpu: &dyn Gpu, id: TenantId, channel: &mut PlainChannel, ns: u64) -> u64 {
    channel.vm.take(64);
    let (module, _) = gpu.load_module(id, SPIN, None).unwrap();
    let (function, bytes) = gpu.find_function(id, module, "spin").unwrap();
    assert_eq!(bytes, 24);
    let out = gpu.allocate(id, 64).unwrap().va;
    let params = [ns, out, 0x99 << 32 | 1];
    channel.push(&launch(&channel.vm, (module, function), 1, 1, &params));
    out
}

#[test]
fn a_kernel_of_one_block_is_stopped_in_its_middle() {
    let gpu = SoftGpu::new(SoftConfig {
        suspend: Suspend::MidKernel,
        ..SoftConfig::default()
    })
    .unwrap();
    let (mut long, mut short) = (channel(&gpu, A, 8), channel(&gpu, B, 8));
    push_spin(&gpu, A, &mut long, 10_000_000_000);
    long.push_fence(false);
    long.ring_watched(&gpu);
    let runs = |id| gpu.engine_status(EngineId(0)).running == Some(id);
    for round in 1..=3 {
        wait("kernel", || runs(A));
        gpu.carry_out(&[Order::Suspend(A)]);
        wait("stop", || !runs(A));
        push_spin(&gpu, B, &mut short, 100_000);
        short.push_fence(false);
        short.ring_watched(&gpu);
        wait("other tenant", || short.fence().value == round);
        assert_eq!(long.fence().value, 0, "its kernel is of ten seconds");
        gpu.carry_out(&[Order::Resume(A)]);
    }
    gpu.destroy_context(A);
    assert_eq!(long.state().error, 0);
}

#[test]
fn a_spinning_kernel_takes_its_time_in_both_times() {
    let spin = |gpu: &dyn Gpu, channel: &mut PlainChannel, ns: u64| {
        let out = push_spin(gpu, A, channel, ns);
        channel.push(&Command::Copy {
            direction: CopyDirection::GpuToGuest,
            source: out + 4,
            destination: channel.fence_gpa + 16,
            bytes: 4,
        });
        channel.push_fence(false);
        channel.ring_watched(gpu);
    };
    let check = |gpu: &dyn Gpu, channel: &PlainChannel, lengths: std::ops::Range<u64>| {
        let events = EngineReading::of(gpu).switches;
        let at: Vec<_> = events
            .iter()
            .filter(|e| e.engine == EngineId(0))
            .map(|e| e.at.0)
            .collect();
        assert!(lengths.contains(&(at[2] - at[1])), "{at:?}");
        let token: u32 = channel
            .vm
            .guest
            .read_obj(GuestAddress(channel.fence_gpa + 16))
            .unwrap();
        assert_eq!(token, 0x99);
    };
    let gpu = SoftGpu::new(SoftConfig::default()).unwrap();
    let mut real = channel(&gpu, A, 8);
    spin(&gpu, &mut real, 5_000_000);
    wait("fence", || real.fence().value == 1);
    check(&gpu, &real, 5_000_000..200_000_000);

    let gpu = VirtualGpu::new(SoftConfig::default());
    let mut virt = channel(&gpu, A, 8);
    spin(&gpu, &mut virt, 5_000_000);
    gpu.run_until_quiet(Moment(1 << 40));
    check(&gpu, &virt, 5_000_000..5_010_000);
}
