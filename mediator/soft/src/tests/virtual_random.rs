//! Random guests in virtual time, honest and hostile.

use proptest::prelude::*;
use turnstile_abi::{Command, CopyDirection};
use turnstile_accounting::{EngineId, EngineState, Moment, SwitchEvent};

use super::timeline::totals;
use super::virtual_runs::given;
use super::*;
use crate::{Kernels, SoftConfig, VirtualGpu};
use turnstile_gpu::Suspend;

/// What a random guest does next.
#[derive(Clone, Debug)]
enum Step {
    Kernel(usize, u64),
    Copy(usize, u64),
    Bad(usize),
    Wait(usize),
    Suspend(usize, bool),
    Reopen(usize),
    Destroy(usize),
    Pass(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let index = 0usize..4;
    let step = prop_oneof![
        8 => (index.clone(), 0u64..3_000).prop_map(|(i, ns)| Step::Kernel(i, ns)),
        4 => (index.clone(), 1u64..4_000).prop_map(|(i, n)| Step::Copy(i, n)),
        1 => index.clone().prop_map(Step::Bad),
        2 => index.clone().prop_map(Step::Wait),
        3 => (index.clone(), any::<bool>()).prop_map(|(i, on)| Step::Suspend(i, on)),
        1 => index.clone().prop_map(Step::Reopen),
        1 => index.prop_map(Step::Destroy),
        8 => (0u64..5_000).prop_map(Step::Pass),
    ];
    proptest::collection::vec(step, 1..120)
}

/// Plays the steps and checks after each that the registers equal the log. Returns the log.
fn play(config: SoftConfig, steps: &[Step]) -> (Vec<SwitchEvent>, Moment) {
    let gpu = VirtualGpu::new(config);
    let ids = [0, 0, 1, 2].map(TenantId);
    let mut channels: Vec<Option<PlainChannel>> = Vec::new();
    for (i, id) in ids.into_iter().enumerate() {
        let vm = match i {
            1 => channels[0].as_ref().unwrap().vm.clone(),
            _ => tenant(&gpu, id),
        };
        channels.push(Some(vm.open_channel(&gpu, id, 64, 1).unwrap()));
    }
    let mut log = Vec::new();
    for step in steps {
        let push = |channel: &mut Option<PlainChannel>, command: Command| {
            if let Some(channel) = channel
                && channel.put.wrapping_sub(channel.state().get) < 60
            {
                channel.push(&command);
                channel.push_fence(true);
                channel.ring_watched(&gpu);
            }
        };
        let copy = |source, bytes| Command::Copy {
            direction: CopyDirection::GpuToGuest,
            source,
            destination: 0x80_0000,
            bytes,
        };
        match *step {
            Step::Kernel(i, ns) => {
                if let Some(launch) = channels[i].as_ref().map(|c| kernel(&c.vm, Nanos(ns))) {
                    push(&mut channels[i], launch);
                }
            }
            Step::Copy(i, bytes) => {
                if let Ok(card) = gpu.allocate(ids[i], 1) {
                    push(&mut channels[i], copy(card.va, bytes));
                    let _ = gpu.free(ids[i], card.va);
                }
            }
            Step::Bad(i) => push(&mut channels[i], copy(1, 1)),
            Step::Wait(i) => {
                if let Some(gpa) = channels[0].as_ref().map(|c| c.fence_gpa) {
                    push(&mut channels[i], Command::Wait { gpa, value: 3 });
                }
            }
            Step::Suspend(i, true) => gpu.carry_out(&[Order::Suspend(ids[i])]),
            Step::Suspend(i, false) => gpu.carry_out(&[Order::Resume(ids[i])]),
            Step::Reopen(i) => {
                if let Some(old) = channels[i].take() {
                    gpu.close_channel(ids[i], old.number).unwrap();
                    channels[i] = old.vm.open_channel(&gpu, ids[i], 64, 1).ok();
                }
            }
            Step::Destroy(i) => {
                gpu.destroy_context(ids[i]);
                let gone = ids.iter().enumerate().filter(|(_, id)| **id == ids[i]);
                gone.for_each(|(other, _)| channels[other] = None);
            }
            Step::Pass(ns) => gpu.advance_to(gpu.now() + Nanos(ns)),
        }
        log.extend(EngineReading::of(&gpu).switches);
        for engine in 0..3 {
            let last = log
                .iter()
                .rev()
                .find(|e| e.engine == EngineId(engine))
                .unwrap();
            let running = match last.state {
                EngineState::Running(tenant) => Some(tenant),
                _ => None,
            };
            assert_eq!(gpu.engine_status(EngineId(engine)).running, running);
        }
    }
    for id in ids {
        gpu.carry_out(&[Order::Resume(id)]);
    }
    gpu.run_until_quiet(Moment(u64::MAX));
    log.extend(EngineReading::of(&gpu).switches);
    (log, gpu.now())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn every_nanosecond_is_somebodys(
        steps in steps(),
        switch in prop_oneof![Just(0u64), 1..500u64],
        fault in prop_oneof![Just(0u64), 1..500u64],
        suspend in prop_oneof![Just(Suspend::Drains), Just(Suspend::BetweenCommands), Just(Suspend::MidKernel)],
        jitter_permille in 0u32..500,
    ) {
        let config = SoftConfig {
            switch: Nanos(switch), fault: Nanos(fault), suspend, jitter_permille, seed: 7,
            kernel_limit: Nanos(2_500), ..given()
        };
        let (log, end) = play(config, &steps);
        for engine in totals(&log, end) {
            prop_assert_eq!(engine.sum(), end.0);
        }
        prop_assert_eq!(play(config, &steps), (log, end), "the same again");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn commands_with_hostile_arguments_end_one_channel_at_most(
        commands in proptest::collection::vec(hostile_command(), 1..12),
        rewrite in any::<[u8; 64]>(),
    ) {
        // One slot: a grid of millions of blocks meets the limit soon.
        let gpu = VirtualGpu::new(SoftConfig {
            kernels: Kernels::Interpreted, multiprocessors: 1, block_slots: 1, kernel_limit: Nanos::from_us(50), ..given()
        });
        let mut hostile = channel(&gpu, A, 16);
        let mut other = channel(&gpu, B, 8);
        gpu.allocate(A, 1).unwrap();
        gpu.load_module(A, include_str!("../../../../images/kernels/vecadd.ptx"), None).unwrap();
        for command in &commands {
            hostile.push(command);
        }
        hostile.ring_watched(&gpu);
        // The ring changes after the device has read it.
        hostile.put = hostile.put.wrapping_sub(1);
        hostile.push_bytes(&rewrite);
        other.push(&Command::Nop);
        other.push_fence(false);
        other.ring_watched(&gpu);
        gpu.run_until_quiet(Moment(u64::MAX));
        prop_assert_eq!((other.fence().value, other.state().error), (1, 0));
        let mut open = Vec::new();
        gpu.activity(A, &mut open);
        prop_assert_eq!(open.len(), 1);
        let log = EngineReading::of(&gpu).switches;
        for engine in totals(&log, gpu.now()) {
            prop_assert_eq!(engine.sum(), gpu.now().0);
            prop_assert_eq!(engine.of(B), 0);
        }
    }
}

/// Commands with addresses inside, outside and across the borders of allocated memory.
fn hostile_command() -> impl Strategy<Value = Command> {
    let base = turnstile_abi::GPU_VA_BASE;
    let va = prop_oneof![
        base..base + (2 << 20),
        Just(base + (2 << 20) - 8),
        Just(base - 4),
        Just(u64::MAX - 3),
        any::<u64>(),
    ];
    let gpa = prop_oneof![
        0u64..17 << 20,
        Just((16 << 20) - 8),
        Just(u64::MAX - 7),
        any::<u64>()
    ];
    let bytes = prop_oneof![1u64..5_000, Just(2 << 20), Just(64 << 20)];
    let dim = prop_oneof![1u32..5, Just(1024), any::<u32>()];
    prop_oneof![
        (0u32..3, va.clone(), va.clone(), gpa.clone(), bytes.clone()).prop_map(
            |(direction, a, b, gpa, bytes)| {
                let (direction, source, destination) = match direction {
                    0 => (CopyDirection::GuestToGpu, gpa, b),
                    1 => (CopyDirection::GpuToGuest, a, gpa),
                    _ => (CopyDirection::GpuToGpu, a, b),
                };
                Command::Copy {
                    direction,
                    source,
                    destination,
                    bytes,
                }
            }
        ),
        (va, bytes, any::<u32>()).prop_map(|(va, bytes, pattern)| Command::Fill {
            va,
            bytes,
            pattern
        }),
        (gpa.clone(), any::<u64>(), any::<bool>()).prop_map(|(gpa, value, interrupt)| {
            Command::Fence {
                gpa,
                value,
                interrupt,
            }
        }),
        (gpa.clone(), 0u64..2).prop_map(|(gpa, value)| Command::Wait { gpa, value }),
        (
            (0u32..2, 0u32..2),
            [dim.clone(), dim.clone(), dim.clone()],
            dim,
            prop_oneof![Just(28u32), any::<u32>()],
            gpa
        )
            .prop_map(
                |((module, function), [x, y, z], threads, param_bytes, params_gpa)| Command::Launch(
                    Launch {
                        module,
                        function,
                        grid: Dim3 { x, y, z },
                        block: Dim3::line(threads),
                        shared_bytes: 0,
                        param_bytes,
                        params_gpa,
                    }
                )
            ),
    ]
}
