//! Virtual time: everything here is exact.

use turnstile_abi::{ChannelStatus, Command, CopyDirection, ErrorCode};
use turnstile_accounting::{EngineId, EngineState, Moment, SwitchEvent};

use super::timeline::totals;
use super::*;
use crate::core::again;
use crate::tenancy::Driver as _;
use crate::{COMPUTE, CostModel, Kernels, SoftConfig, VirtualGpu};
use turnstile_gpu::Suspend;

pub(super) fn given() -> SoftConfig {
    SoftConfig {
        kernels: Kernels::GivenLength,
        memory_bytes: 256 << 20,
        link_rate: 1_000_000_000,
        cost: CostModel {
            transfer: Nanos::ZERO,
            ..CostModel::default()
        },
        ..SoftConfig::default()
    }
}

fn events(gpu: &VirtualGpu) -> Vec<SwitchEvent> {
    EngineReading::of(gpu).switches
}

fn states(events: &[SwitchEvent], engine: u8) -> Vec<(u64, EngineState)> {
    let log = events.iter().filter(|e| e.engine == EngineId(engine));
    log.map(|e| (e.at.0, e.state)).collect()
}

/// Keeps a ring filled with kernels of one length until the end.
fn saturate(gpu: &VirtualGpu, loads: &mut [(PlainChannel, Nanos)], end: Moment) {
    let launches: Vec<_> = loads
        .iter()
        .map(|(c, length)| kernel(&c.vm, *length))
        .collect();
    loop {
        for ((channel, _), launch) in loads.iter_mut().zip(&launches) {
            while channel.put.wrapping_sub(channel.state().get) < 8 {
                channel.push(launch);
            }
            channel.ring_watched(gpu);
        }
        match gpu.next_event().filter(|at| *at <= end) {
            Some(at) => gpu.advance_to(at),
            None => break gpu.advance_to(end),
        }
    }
}

/// A guest may write at any moment: what is noted at a time was read before it.
#[test]
fn a_doorbell_written_after_the_poll_is_not_noted_at_its_time() {
    let gpu = VirtualGpu::new(given());
    let mut channel = channel(&gpu, A, 8);
    channel.push_fence(false);
    let active = |gpu: &VirtualGpu| {
        let mut open = Vec::new();
        gpu.activity(A, &mut open);
        open[0].last_active
    };
    gpu.with_core(|core| {
        core.ring(A, || {
            channel.ring();
            Moment(100)
        });
    });
    assert!(active(&gpu) < Moment(100));
    gpu.with_core(|core| core.ring(A, || Moment(101)));
    assert_eq!(active(&gpu), Moment(101));
}

#[test]
fn channels_take_turns() {
    use EngineState::{Idle, Running};
    let gpu = VirtualGpu::new(given());
    let c = TenantId(3);
    let mut channels = [A, B, c].map(|id| channel(&gpu, id, 8));
    for channel in &mut channels {
        let launch = kernel(&channel.vm, Nanos(100));
        channel.push(&launch);
        channel.push(&launch);
        channel.push_fence(false);
        channel.ring();
    }
    for channel in channels.iter().rev() {
        gpu.doorbells_changed(channel.tenant, DoorbellChange::Written);
    }
    gpu.advance_to(Moment(1_000));
    // The first to ring found the engine idle; then by slot.
    let turns = [c, A, B, c, A, B].into_iter().enumerate();
    let turns = turns.map(|(i, id)| (100 * i as u64, Running(id)));
    let mut expected = vec![(0, Idle)];
    expected.extend(turns);
    expected.push((600, Idle));
    assert_eq!(states(&events(&gpu), 0), expected);
    let fences: Vec<_> = channels.iter().map(|c| c.fence().at_ns).collect();
    assert_eq!(fences, [500, 600, 400]);
}

#[test]
fn longer_commands_get_more_of_the_engine() {
    let gpu = VirtualGpu::new(given());
    let mut loads = [
        (channel(&gpu, A, 16), Nanos::from_us(2_000)),
        (channel(&gpu, B, 16), Nanos::from_us(200)),
    ];
    let end = Moment(2_200_000_000);
    saturate(&gpu, &mut loads, end);
    let totals = totals(&events(&gpu), end);
    let (a, b) = (totals[COMPUTE].of(A), totals[COMPUTE].of(B));
    assert_eq!((a, b), (2_000_000_000, 200_000_000), "ten to one");
}

#[test]
fn switching_costs_time_that_is_nobodys() {
    let gpu = VirtualGpu::new(SoftConfig {
        switch: Nanos(30),
        ..given()
    });
    let mut loads = [
        (channel(&gpu, A, 16), Nanos(100)),
        (channel(&gpu, B, 16), Nanos(70)),
    ];
    let end = Moment(2_300);
    saturate(&gpu, &mut loads, end);
    let totals = totals(&events(&gpu), end);
    let compute = &totals[COMPUTE];
    assert_eq!((compute.of(A), compute.of(B)), (1_000, 700));
    assert_eq!((compute.switching, compute.idle), (600, 0));
    // One tenant alone does not switch.
    let gpu = VirtualGpu::new(SoftConfig {
        switch: Nanos(30),
        ..given()
    });
    saturate(&gpu, &mut [(channel(&gpu, A, 16), Nanos(100))], end);
    assert_eq!(
        super::timeline::totals(&events(&gpu), end)[COMPUTE].switching,
        30
    );
}

#[test]
fn copies_go_on_while_kernels_run() {
    let gpu = VirtualGpu::new(given());
    let mut of_a = channel(&gpu, A, 8);
    let mut of_b = channel(&gpu, B, 8);
    let mut third = of_b.vm.open_channel(&gpu, B, 8, 0).unwrap();
    let card = gpu.allocate(B, 1 << 20).unwrap();
    of_a.push(&kernel(&of_a.vm, Nanos(5_000)));
    for (channel, bytes) in [(&mut of_b, 1_000), (&mut third, 3_000)] {
        channel.push(&Command::Copy {
            direction: CopyDirection::GuestToGpu,
            source: 0,
            destination: card.va,
            bytes,
        });
        channel.push_fence(false);
        channel.ring();
    }
    of_a.push_fence(false);
    of_a.ring_watched(&gpu);
    gpu.doorbells_changed(B, DoorbellChange::Written);
    gpu.run_until_quiet(Moment(10_000));
    assert_eq!(gpu.now(), Moment(5_000));
    let fences = [&of_a, &of_b, &third].map(|c| c.fence().at_ns);
    assert_eq!(fences, [5_000, 1_000, 3_000]);
    let totals = totals(&events(&gpu), gpu.now());
    assert_eq!(
        (totals[0].of(A), totals[1].of(B), totals[2].of(B)),
        (5_000, 1_000, 3_000)
    );
}

#[test]
fn channels_wait_for_each_other() {
    let gpu = VirtualGpu::new(given());
    let mut first = channel(&gpu, A, 8);
    let mut second = first.vm.open_channel(&gpu, A, 8, 1).unwrap();
    second.push(&Command::Wait {
        gpa: first.fence_gpa,
        value: 2,
    });
    second.push(&kernel(&second.vm, Nanos(10)));
    second.push_fence(true);
    second.ring_watched(&gpu);
    for _ in 0..2 {
        first.push(&kernel(&first.vm, Nanos(100)));
        first.push_fence(false);
    }
    first.ring_watched(&gpu);
    gpu.run_until_quiet(Moment(1_000));
    assert_eq!((first.fence().at_ns, second.fence().at_ns), (200, 210));
    assert_eq!(second.vm.interrupts.count(1), 1);
    // An endless wait delays no other channel and is no event.
    second.push(&Command::Wait {
        gpa: first.fence_gpa,
        value: u64::MAX,
    });
    second.ring_watched(&gpu);
    assert_eq!(gpu.next_event(), None);
}

#[test]
fn faults_end_one_channel() {
    let gpu = VirtualGpu::new(SoftConfig {
        fault: Nanos(40),
        kernel_limit: Nanos(1_000),
        ..given()
    });
    let mut bad = channel(&gpu, A, 8);
    let mut good = bad.vm.open_channel(&gpu, A, 8, 1).unwrap();
    let mut of_b = channel(&gpu, B, 8);
    bad.push(&Command::Nop);
    bad.push(&Command::Copy {
        direction: CopyDirection::GpuToGpu,
        source: 77,
        destination: 99,
        bytes: 8,
    });
    bad.push_fence(false);
    good.push(&kernel(&good.vm, Nanos(500)));
    good.push_fence(false);
    of_b.push(&kernel(&of_b.vm, Nanos(2_000)));
    good.ring();
    of_b.ring_watched(&gpu);
    bad.ring_watched(&gpu);
    gpu.run_until_quiet(Moment(100_000));
    let state = bad.state();
    assert_eq!(
        (state.status, state.error),
        (ChannelStatus::Faulted as u32, ErrorCode::PageFault as u32)
    );
    assert_eq!((state.get, state.error_at, state.error_info), (1, 1, 77));
    assert_eq!((bad.fence().value, bad.vm.interrupts.count(3)), (0, 1));
    assert_eq!(of_b.state().error, ErrorCode::KernelTimeout as u32);
    assert_eq!(good.fence().value, 1);
    bad.push(&Command::Nop);
    bad.ring_watched(&gpu);
    assert_eq!(bad.state().get, 1);
    // A tenant can close the channel and open another.
    gpu.close_channel(A, bad.number).unwrap();
    assert_eq!(
        bad.vm.open_channel(&gpu, A, 8, 3).unwrap().number,
        bad.number
    );
    let totals = totals(&events(&gpu), gpu.now());
    assert_eq!((totals[0].fault, totals[1].fault), (40, 40));
    assert_eq!((totals[0].of(A), totals[0].of(B)), (500, 1_000));
}

#[test]
fn a_put_index_beyond_the_ring_or_backwards_ends_the_channel() {
    for puts in [[9, 9], [4, 3], [4, 9], [u32::MAX, 0]] {
        let gpu = VirtualGpu::new(given());
        let mut channel = channel(&gpu, A, 8);
        for _ in 0..8 {
            channel.push(&kernel(&channel.vm, Nanos(100)));
        }
        for put in puts {
            channel.vm.doorbells.write(0, put);
            gpu.doorbells_changed(A, DoorbellChange::Written);
        }
        assert_eq!(
            channel.state().error,
            ErrorCode::PutOutOfRange as u32,
            "{puts:?}"
        );
        gpu.run_until_quiet(Moment(10_000));
        assert_eq!(channel.state().get, 0);
    }
    // Indices run on modulo 2^32, over the ring's end.
    let gpu = VirtualGpu::new(given());
    let mut channel = channel(&gpu, A, 8);
    for _ in 0..100 {
        for _ in 0..5 {
            channel.push(&Command::Nop);
        }
        channel.push_fence(false);
        channel.ring_watched(&gpu);
    }
    assert_eq!((channel.state().get, channel.fence().value), (600, 100));
}

#[test]
fn suspension_between_commands_and_in_the_middle() {
    for (suspend, a_fence, b_fence) in [
        (Suspend::Drains, 2_000, 3_000),
        (Suspend::BetweenCommands, 5_000, 2_000),
        (Suspend::MidKernel, 5_700, 1_300),
    ] {
        let gpu = VirtualGpu::new(SoftConfig { suspend, ..given() });
        let mut of_a = channel(&gpu, A, 8);
        let mut of_b = channel(&gpu, B, 8);
        for _ in 0..2 {
            of_a.push(&kernel(&of_a.vm, Nanos(1_000)));
        }
        of_a.push_fence(false);
        of_a.ring_watched(&gpu);
        gpu.advance_to(Moment(300));
        gpu.carry_out(&[Order::Suspend(A)]);
        if suspend == Suspend::Drains {
            gpu.advance_to(Moment(2_000));
        }
        of_b.push(&kernel(&of_b.vm, Nanos(1_000)));
        of_b.push_fence(false);
        of_b.ring_watched(&gpu);
        gpu.advance_to(Moment(4_000));
        gpu.carry_out(&[Order::Resume(A)]);
        gpu.run_until_quiet(Moment(10_000));
        assert_eq!(
            (of_a.fence().at_ns, of_b.fence().at_ns),
            (a_fence, b_fence),
            "{suspend:?}"
        );
        let totals = totals(&events(&gpu), gpu.now());
        assert_eq!((totals[0].of(A), totals[0].of(B)), (2_000, 1_000));
    }
}

#[test]
fn the_kernel_limit_counts_all_that_a_kernel_ran() {
    let gpu = VirtualGpu::new(SoftConfig {
        suspend: Suspend::MidKernel,
        kernel_limit: Nanos(1_000),
        ..given()
    });
    let mut channel = channel(&gpu, A, 8);
    channel.push(&kernel(&channel.vm, Nanos(5_000)));
    channel.ring_watched(&gpu);
    for _ in 0..4 {
        gpu.advance_to(gpu.now() + Nanos(300));
        gpu.carry_out(&[Order::Suspend(A)]);
        gpu.advance_to(gpu.now() + Nanos(300));
        gpu.carry_out(&[Order::Resume(A)]);
    }
    assert_eq!(channel.state().error, ErrorCode::KernelTimeout as u32);
    let totals = totals(&events(&gpu), gpu.now());
    assert_eq!(totals[COMPUTE].of(A), 1_000);
}

#[test]
fn a_gpu_without_limits_works() {
    let gpu = VirtualGpu::new(SoftConfig {
        kernel_limit: Nanos(u64::MAX),
        kernels: Kernels::Interpreted,
        ..given()
    });
    gpu.advance_to(Moment(1 << 60));
    let mut channel = channel(&gpu, A, 8);
    let text = ".version 8.0 .target sm_90 .address_size 64 .visible .entry k() { ret; }";
    gpu.load_module(A, text, None).unwrap();
    channel.push(&Command::Launch(Launch {
        module: 0,
        function: 0,
        grid: Dim3::line(3),
        block: Dim3::line(1),
        shared_bytes: 0,
        param_bytes: 0,
        params_gpa: 0,
    }));
    channel.push_fence(false);
    channel.ring_watched(&gpu);
    gpu.run_until_quiet(Moment(u64::MAX));
    assert_eq!(channel.fence().at_ns, (1 << 60) + 2_001);
}

#[test]
fn a_suspended_tenants_fences_come_though() {
    let gpu = VirtualGpu::new(SoftConfig {
        suspend: Suspend::BetweenCommands,
        ..given()
    });
    let mut channel = channel(&gpu, A, 8);
    channel.push(&kernel(&channel.vm, Nanos(100)));
    channel.push_fence(false);
    channel.push(&kernel(&channel.vm, Nanos(100)));
    channel.ring_watched(&gpu);
    gpu.carry_out(&[Order::Suspend(A)]);
    gpu.run_until_quiet(Moment(1_000));
    assert_eq!((channel.fence().at_ns, channel.state().get), (100, 2));
}

#[test]
fn command_that_was_stopped_is_known_since_when_until_its_engine_is_free() {
    let gpu = VirtualGpu::new(SoftConfig {
        kernels: Kernels::GivenLength,
        ..SoftConfig::default()
    });
    let mut channel = channel(&gpu, A, 8);
    channel.push(&kernel(&channel.vm, Nanos::from_ms(5)));
    channel.ring_watched(&gpu);
    gpu.advance_to(Moment(1_000_000));
    let since = |at| gpu.with_core(|core| again::stopped_since(core, Moment(at)));
    assert_eq!(since(1_000_000), [None; 3], "it runs");
    gpu.with_core(again::stop_all);
    for at in [2_000_000, 3_000_000] {
        assert_eq!(since(at), [Some(Moment(2_000_000)), None, None]);
    }
    gpu.advance_to(Moment(10_000_000));
    assert_eq!(since(10_000_000), [None; 3], "it has ended");
}
