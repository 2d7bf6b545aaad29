//! A GPU under a driver version without a table, with VMs' workers.

use std::process::Command;

use turnstile_gpu::prelude::*;
use turnstile_gpu::{COMPUTE, Gpu, ProgramEvent, Suspend};

use super::*;
use crate::version::abi_of;
use crate::vms_only::VmsOnly;
use crate::worker::Facts;

const OTHER: TenantId = TenantId(2);

fn gpu() -> VmsOnly {
    let lacks = abi_of("999.1").unwrap_err().lacks().unwrap();
    let facts = Facts {
        multiprocessors: 1,
        shared_bytes_max: 1 << 16,
        memory_bytes: 64 * CHUNK_BYTES,
        pinned: true,
    };
    let command: fn() -> Command = command;
    VmsOnly::of(config(), command, facts, lacks)
}

/// A VM with a kernel that runs until the word at the returned address is not zero.
fn busy(gpu: &VmsOnly, tenant: TenantId) -> (PlainChannel, u64) {
    let vm = PlainVm::enter(gpu, tenant, 16 << 20, 8 * CHUNK_BYTES, 4).unwrap();
    gpu.doorbells_changed(tenant, turnstile_gpu::DoorbellChange::AnyOpen(true));
    let (module, _) = gpu.load_module(tenant, "wait until", None).unwrap();
    let mut channel = vm.open_channel(gpu, tenant, 64, 3).unwrap();
    let word = vm.put(&0_u64.to_le_bytes());
    channel.push(&Ring::Launch(Launch {
        module,
        function: 0,
        grid: Dim3::line(1),
        block: Dim3::line(32),
        shared_bytes: 0,
        param_bytes: 8,
        params_gpa: vm.put(&word.to_le_bytes()),
    }));
    channel.push_fence(false);
    channel.ring();
    (channel, word)
}

#[test]
fn unknown_driver_version_leaves_vm_commands_and_refuses_the_rest_with_the_remedy() {
    let gpu = gpu();
    let lacks = gpu.report().lacks.unwrap();
    for part in [
        "driver 999.1",
        "nearest: ",
        "CUDA in guests",
        "docs/NVIDIA.md",
    ] {
        assert!(lacks.contains(part), "{part}: {lacks}");
    }
    let program = ProgramEvent::Started {
        root: 1,
        memory_max_bytes: None,
    };
    assert_eq!(gpu.program(OTHER, program).unwrap_err().to_string(), lacks);
    assert_eq!(gpu.capabilities().suspend, Suspend::Drains);
    let running = || gpu.engine_status(COMPUTE).running;
    assert_eq!(running(), None);
    let (first, word) = busy(&gpu, TENANT);
    assert_eq!((running(), running()), (Some(TENANT), Some(TENANT)));
    let (second, _) = busy(&gpu, OTHER);
    // Samples divide the time of two VMs with commands.
    let samples: Vec<_> = (0..100).filter_map(|_| running()).collect();
    let own = samples.iter().filter(|of| **of == TENANT).count();
    assert_eq!((samples.len(), own), (100, 50));
    let one = 1_u64.to_le_bytes();
    first
        .vm
        .guest
        .write_slice(&one, GuestAddress(word))
        .unwrap();
    wait("fence", || first.fence().value == 1);
    wait("idle VM", || {
        let mut channels = Vec::new();
        gpu.activity(TENANT, &mut channels);
        channels.iter().all(|channel| channel.pending == 0)
    });
    assert_eq!((running(), running()), (Some(OTHER), Some(OTHER)));
    assert_eq!(second.fence().value, 0);
    gpu.destroy_context(OTHER);
    assert_eq!(running(), None);
}
