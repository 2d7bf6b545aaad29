//! Kernels that are computed, in both times.

use turnstile_abi::{Command, CopyDirection, ErrorCode};
use turnstile_accounting::{EngineId, Moment};
use vm_memory::GuestAddress;

use super::*;
use crate::{CostModel, SoftConfig, SoftGpu, VirtualGpu};

const VECADD: &str = include_str!("../../../../images/kernels/vecadd.ptx");
const HEADER: &str = ".version 8.0\n.target sm_90\n.address_size 64\n";

/// A module with one entry `k` of one u64 parameter, which is in %rd0.
fn small(body: &str) -> String {
    format!(
        "{HEADER}.global .align 8 .u64 counter = 41;\n.visible .entry k(.param .u64 p) {{\n\
         .reg .b64 %rd<8>; .reg .b32 %r<8>; .reg .pred %p<4>;\n\
         ld.param.u64 %rd0, [p];\n{body}\nret;\n}}\n"
    )
}

pub(super) fn launch(
    vm: &PlainVm,
    (module, function): (u32, u32),
    blocks: u32,
    threads: u32,
    params: &[u64],
) -> Command {
    let bytes: Vec<u8> = params.iter().flat_map(|word| word.to_le_bytes()).collect();
    Command::Launch(Launch {
        module,
        function,
        grid: Dim3::line(blocks),
        block: Dim3::line(threads),
        shared_bytes: 0,
        param_bytes: bytes.len() as u32,
        params_gpa: vm.put(&bytes),
    })
}

fn small_launch(gpu: &dyn Gpu, channel: &PlainChannel, body: &str, param: u64) -> Command {
    let (module, functions) = gpu.load_module(channel.tenant, &small(body), None).unwrap();
    assert_eq!(functions, 1);
    let (function, bytes) = gpu.find_function(channel.tenant, module, "k").unwrap();
    assert_eq!(bytes, 8);
    launch(&channel.vm, (module, function), 1, 1, &[param])
}

/// Pushes copies to the card, the kernel, a copy back and a fence; returns the address of the
/// result.
fn push_vecadd(gpu: &dyn Gpu, channel: &mut PlainChannel, n: u32) -> u64 {
    let vm = channel.vm.clone();
    let (module, _) = gpu.load_module(channel.tenant, VECADD, None).unwrap();
    let (function, param_bytes) = gpu.find_function(channel.tenant, module, "vecadd").unwrap();
    let bytes = u64::from(n) * 4;
    let card: Vec<u64> = (0..3)
        .map(|_| gpu.allocate(channel.tenant, bytes).unwrap().va)
        .collect();
    for (i, va) in card.iter().take(2).enumerate() {
        let values = (0..n).flat_map(|v| ((v * (i as u32 + 1)) as f32).to_le_bytes());
        channel.push(&Command::Copy {
            direction: CopyDirection::GuestToGpu,
            source: vm.put(&values.collect::<Vec<u8>>()),
            destination: *va,
            bytes,
        });
    }
    let mut params: Vec<u8> = card.iter().flat_map(|va| va.to_le_bytes()).collect();
    params.extend(n.to_le_bytes());
    assert_eq!(params.len(), param_bytes as usize);
    channel.push(&Command::Launch(Launch {
        module,
        function,
        grid: Dim3::line(n.div_ceil(128)),
        block: Dim3::line(128),
        shared_bytes: 0,
        param_bytes,
        params_gpa: vm.put(&params),
    }));
    let back = vm.take(bytes);
    channel.push(&Command::Copy {
        direction: CopyDirection::GpuToGuest,
        source: card[2],
        destination: back,
        bytes,
    });
    channel.push_fence(true);
    channel.ring_watched(gpu);
    back
}

fn assert_sums(vm: &PlainVm, back: u64, n: u32) {
    for i in 0..n {
        let sum: u32 = vm
            .guest
            .read_obj(GuestAddress(back + u64::from(i) * 4))
            .unwrap();
        assert_eq!(f32::from_bits(sum), (3 * i) as f32);
    }
}

#[test]
fn vecadd_through_a_ring_in_real_time() {
    let gpu = SoftGpu::new(SoftConfig::default()).unwrap();
    let mut channel = channel(&gpu, A, 8);
    let back = push_vecadd(&gpu, &mut channel, 10_000);
    wait("interrupt", || channel.vm.interrupts.count(3) == 1);
    assert_sums(&channel.vm, back, 10_000);
}

#[test]
fn vecadd_in_virtual_time_matches_the_cost_model() {
    let cost = CostModel {
        warp_instruction_ps: 1_000,
        sector_ps: 10_000,
        launch: Nanos(5_000),
        transfer: Nanos::ZERO,
        ..CostModel::default()
    };
    let length = |multiprocessors, block_slots| {
        let gpu = VirtualGpu::new(SoftConfig {
            cost,
            multiprocessors,
            block_slots,
            ..SoftConfig::default()
        });
        let mut channel = channel(&gpu, A, 8);
        let back = push_vecadd(&gpu, &mut channel, 128 * 16);
        gpu.run_until_quiet(Moment(1 << 40));
        assert_sums(&channel.vm, back, 128 * 16);
        let events = EngineReading::of(&gpu).switches;
        let at: Vec<_> = events
            .iter()
            .filter(|e| e.engine == EngineId(0))
            .map(|e| e.at.0)
            .collect();
        assert_eq!(at.len(), 3);
        at[2] - at[1] - 5_000
    };
    let one = length(16, 1);
    // Four warps of three accesses with four sectors each, and some instructions.
    assert!((480 + 4 * 10..480 + 4 * 60).contains(&one), "{one}");
    assert_eq!(length(8, 1), 2 * one);
    assert_eq!(length(1, 1), 16 * one);
    assert_eq!(length(2, 2), 4 * one);
}

#[test]
fn errors_of_kernels_have_their_code() {
    let gpu = VirtualGpu::new(SoftConfig {
        kernel_limit: Nanos::from_us(100),
        ..SoftConfig::default()
    });
    let mut of_b = channel(&gpu, B, 8);
    for (body, param, code, info) in [
        (
            "st.global.u32 [%rd0], 1;",
            0x1234_5678,
            ErrorCode::PageFault,
            0x1234_5678,
        ),
        (
            "ld.global.u32 %r0, [%rd0];",
            u64::MAX - 3,
            ErrorCode::PageFault,
            u64::MAX - 3,
        ),
        (
            "ld.global.u64 %rd1, [%rd0+4];",
            turnstile_abi::GPU_VA_BASE,
            ErrorCode::MisalignedAccess,
            turnstile_abi::GPU_VA_BASE + 4,
        ),
        ("trap;", 0, ErrorCode::KernelTrap, 8),
        ("again: bra again;", 0, ErrorCode::KernelTimeout, 0),
        (
            "again: nanosleep.u32 1000; bra again;",
            0,
            ErrorCode::KernelTimeout,
            0,
        ),
    ] {
        let mut of_a = channel(&gpu, A, 8);
        gpu.allocate(A, 64).unwrap();
        let command = small_launch(&gpu, &of_a, body, param);
        of_a.push(&command);
        of_a.push_fence(false);
        of_a.ring_watched(&gpu);
        of_b.push(&Command::Nop);
        of_b.push_fence(false);
        of_b.ring_watched(&gpu);
        gpu.run_until_quiet(Moment(1 << 40));
        let state = of_a.state();
        assert_eq!(ErrorCode::from_u32(state.error), Some(code), "{body}");
        assert_eq!((state.error_info, of_a.fence().value), (info, 0), "{body}");
        gpu.destroy_context(A);
    }
    assert_eq!((of_b.fence().value, of_b.state().error), (6, 0));
}

#[test]
fn variables_of_modules_are_within_the_limit_of_the_operator() {
    let gpu = VirtualGpu::new(SoftConfig::default());
    let _vm = tenant(&gpu, A);
    let text = small("");
    let max_bytes = Some(2 * turnstile_abi::CHUNK_BYTES);
    let load = || {
        let loaded = gpu.load_module(A, &text, max_bytes);
        loaded.map_err(|refusal| refusal.code)
    };
    load().unwrap();
    let first = load().unwrap();
    assert_eq!(load(), Err(ErrorCode::OutOfGpuMemory));
    assert_eq!(Some(gpu.memory(A).held_bytes), max_bytes);
    gpu.unload_module(A, first.0).unwrap();
    load().unwrap();
}

#[test]
fn launches_that_do_not_fit_are_refused() {
    let gpu = VirtualGpu::new(SoftConfig::default());
    let vm = tenant(&gpu, A);
    let (module, _) = gpu.load_module(A, &small(""), None).unwrap();
    let good = match launch(&vm, (module, 0), 1, 1, &[0]) {
        Command::Launch(launch) => launch,
        other => panic!("{other:?}"),
    };
    let cases = [
        (Launch { module: 99, ..good }, ErrorCode::NoSuchModule),
        (
            Launch {
                function: 1,
                ..good
            },
            ErrorCode::NoSuchFunction,
        ),
        (
            Launch {
                param_bytes: 4,
                ..good
            },
            ErrorCode::BadLaunch,
        ),
        (
            Launch {
                shared_bytes: 1 << 20,
                ..good
            },
            ErrorCode::BadLaunch,
        ),
        (
            Launch {
                grid: Dim3 {
                    x: 1,
                    y: 1 << 16,
                    z: 1,
                },
                ..good
            },
            ErrorCode::BadLaunch,
        ),
        (
            Launch {
                block: Dim3 { x: 1, y: 1, z: 65 },
                ..good
            },
            ErrorCode::BadLaunch,
        ),
        (
            Launch {
                params_gpa: 1 << 50,
                ..good
            },
            ErrorCode::NotGuestMemory,
        ),
    ];
    for (bad, code) in cases {
        let mut channel = vm.open_channel(&gpu, A, 8, 0).unwrap();
        channel.push(&Command::Launch(bad));
        channel.ring_watched(&gpu);
        assert_eq!(
            ErrorCode::from_u32(channel.state().error),
            Some(code),
            "{bad:?}"
        );
        gpu.close_channel(A, channel.number).unwrap();
    }
}

#[test]
fn modules_have_variables_handles_and_limits() {
    let gpu = VirtualGpu::new(SoftConfig {
        modules_max: 3,
        ..SoftConfig::default()
    });
    let mut channel = channel(&gpu, A, 8);
    let free = gpu.memory(A).free_bytes;
    // The variable begins at 41, and each run returns one more.
    let body = "ld.global.u64 %rd1, [counter]; add.u64 %rd1, %rd1, 1;\n\
                st.global.u64 [counter], %rd1; st.global.u64 [%rd0], %rd1;";
    let out = gpu.allocate(A, 8).unwrap().va;
    let command = small_launch(&gpu, &channel, body, out);
    assert_eq!(gpu.memory(A).free_bytes, free - (4 << 20));
    channel.push(&command);
    channel.push(&command);
    channel.push(&Command::Copy {
        direction: CopyDirection::GpuToGuest,
        source: out,
        destination: 0,
        bytes: 8,
    });
    channel.ring_watched(&gpu);
    assert_eq!(
        gpu.unload_module(A, 0).unwrap_err().code,
        ErrorCode::ModuleInUse
    );
    gpu.run_until_quiet(Moment(1 << 40));
    let word: u64 = channel.vm.guest.read_obj(GuestAddress(0)).unwrap();
    assert_eq!(word, 43);
    // The guest cannot free what a module has.
    let base = out + turnstile_abi::CHUNK_BYTES;
    assert_eq!(
        gpu.free(A, base).unwrap_err().code,
        ErrorCode::NoSuchAllocation
    );
    assert_eq!(gpu.load_module(A, &small(""), None).unwrap().0, 1);
    assert_eq!(gpu.load_module(A, &small(""), None).unwrap().0, 2);
    assert_eq!(
        gpu.load_module(A, &small(""), None).unwrap_err().code,
        ErrorCode::TooManyModules
    );
    gpu.unload_module(A, 0).unwrap();
    assert_eq!(
        gpu.unload_module(A, 0).unwrap_err().code,
        ErrorCode::NoSuchModule
    );
    let refused = gpu
        .load_module(A, &small("wgmma.fence;"), None)
        .unwrap_err();
    assert_eq!(refused.code, ErrorCode::ModuleRefused);
    assert!(refused.detail.starts_with("Line 8"), "{refused}");
    assert_eq!(
        gpu.find_function(A, 1, "l").unwrap_err().code,
        ErrorCode::NoSuchFunction
    );
    gpu.unload_module(A, 1).unwrap();
    gpu.unload_module(A, 2).unwrap();
    gpu.free(A, out).unwrap();
    assert_eq!(gpu.memory(A).free_bytes, free);
}

#[test]
fn module_is_unloadable_once_its_command_is_seen_finished() {
    let gpu = SoftGpu::new(SoftConfig::default()).unwrap();
    let mut channel = channel(&gpu, A, 8);
    for n in 1..300 {
        let command = small_launch(&gpu, &channel, "", 0);
        channel.push(&command);
        channel.ring_watched(&gpu);
        while channel.state().get != n {
            std::hint::spin_loop();
        }
        gpu.unload_module(A, n - 1).unwrap();
    }
}

#[test]
fn an_endless_kernel_is_ended_in_real_time_by_the_limit_or_with_its_tenant() {
    let gpu = SoftGpu::new(SoftConfig {
        kernel_limit: Nanos::from_ms(30),
        ..SoftConfig::default()
    })
    .unwrap();
    let mut of_a = channel(&gpu, A, 8);
    let mut of_b = channel(&gpu, B, 8);
    let endless = small_launch(&gpu, &of_a, "again: bra again;", 0);
    of_a.push(&endless);
    of_a.ring_watched(&gpu);
    let back = push_vecadd(&gpu, &mut of_b, 1_000);
    wait("end", || {
        of_a.state().error == ErrorCode::KernelTimeout as u32
    });
    wait("other tenant", || of_b.fence().value == 1);
    assert_sums(&of_b.vm, back, 1_000);
    drop(gpu);

    let gpu = SoftGpu::new(SoftConfig::default()).unwrap();
    let mut of_a = channel(&gpu, A, 8);
    let mut of_b = channel(&gpu, B, 8);
    let endless = small_launch(&gpu, &of_a, "again: bra again;", 0);
    of_a.push(&endless);
    of_a.ring_watched(&gpu);
    wait("kernel", || {
        gpu.engine_status(EngineId(0)).running == Some(A)
    });
    gpu.destroy_context(A);
    let back = push_vecadd(&gpu, &mut of_b, 1_000);
    wait("other tenant", || of_b.fence().value == 1);
    assert_sums(&of_b.vm, back, 1_000);
}

#[test]
fn a_grid_is_stopped_between_blocks_and_goes_on() {
    let gpu = SoftGpu::new(SoftConfig {
        suspend: turnstile_gpu::Suspend::MidKernel,
        ..SoftConfig::default()
    })
    .unwrap();
    let mut of_a = channel(&gpu, A, 8);
    let mut of_b = channel(&gpu, B, 8);
    let out = gpu.allocate(A, 8).unwrap().va;
    let body = "nanosleep.u32 1000000; red.global.add.u32 [%rd0], 1;";
    let Command::Launch(one) = small_launch(&gpu, &of_a, body, out) else {
        unreachable!()
    };
    let grid = Dim3 { x: 5, y: 2, z: 3 };
    of_a.push(&Command::Launch(Launch { grid, ..one }));
    of_a.push(&Command::Copy {
        direction: CopyDirection::GpuToGuest,
        source: out,
        destination: 0,
        bytes: 4,
    });
    of_a.push_fence(false);
    of_a.ring_watched(&gpu);
    wait("kernel", || {
        gpu.engine_status(EngineId(0)).running == Some(A)
    });
    gpu.carry_out(&[Order::Suspend(A)]);
    let back = push_vecadd(&gpu, &mut of_b, 1_000);
    wait("other tenant", || of_b.fence().value == 1);
    assert_sums(&of_b.vm, back, 1_000);
    assert_eq!(of_a.state().get, 0);
    gpu.carry_out(&[Order::Resume(A)]);
    wait("rest", || of_a.fence().value == 1);
    let blocks: u32 = of_a.vm.guest.read_obj(GuestAddress(0)).unwrap();
    assert_eq!(blocks, 30, "each block ran once");
}
