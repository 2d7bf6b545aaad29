//! Real time. No test waits longer than needed; the bounds are generous because test machines are
//! busy.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use turnstile_abi::{ChannelStatus, Command, CopyDirection, ErrorCode};
use turnstile_accounting::{AccountId, EngineId, EngineState};
use vm_memory::GuestAddress;

use super::*;
use crate::{Kernels, SoftConfig, SoftGpu};
use turnstile_gpu::Suspend;

fn given() -> SoftConfig {
    SoftConfig {
        kernels: Kernels::GivenLength,
        memory_bytes: 128 << 20,
        ..SoftConfig::default()
    }
}

fn status(channel: &PlainChannel) -> (Option<ChannelStatus>, Option<ErrorCode>) {
    let state = channel.state();
    (
        ChannelStatus::from_u32(state.status),
        ErrorCode::from_u32(state.error),
    )
}

#[test]
fn bytes_go_to_the_card_and_back() {
    let gpu = SoftGpu::new(given()).unwrap();
    let mut channel = channel(&gpu, A, 8);
    let vm = channel.vm.clone();
    let card = gpu.allocate(A, 3 << 20).unwrap();
    let text: Vec<u8> = (0..1_000_000u32).map(|i| ((i * 7) >> 3) as u8).collect();
    let source = vm.put(&text);
    let back = vm.take(text.len() as u64);
    let half = card.va + (3 << 20) / 2;
    let mut copy = |direction, source, destination| {
        channel.push(&Command::Copy {
            direction,
            source,
            destination,
            bytes: text.len() as u64,
        });
    };
    copy(CopyDirection::GuestToGpu, source, card.va + 5);
    copy(CopyDirection::GpuToGpu, card.va + 5, half);
    copy(CopyDirection::GpuToGuest, half, back);
    channel.push(&Command::Nop);
    channel.push_fence(true);
    channel.ring_watched(&gpu);
    wait("interrupt", || vm.interrupts.count(3) == 1);
    assert_eq!(channel.fence().value, 1);
    assert_eq!(channel.state().get, 5);
    let mut came = vec![0; text.len()];
    vm.guest.read_slice(&mut came, GuestAddress(back)).unwrap();
    assert!(came == text);
    channel.push(&Command::Fill {
        va: card.va,
        bytes: 1 << 20,
        pattern: 0x0403_0201,
    });
    channel.push(&Command::Copy {
        direction: CopyDirection::GpuToGuest,
        source: card.va + (1 << 20) - 6,
        destination: back,
        bytes: 8,
    });
    channel.push_fence(false);
    channel.ring_watched(&gpu);
    wait("fence", || channel.fence().value == 2);
    let word: u64 = vm.guest.read_obj(GuestAddress(back)).unwrap();
    assert_eq!(&word.to_le_bytes()[..6], &[3, 4, 1, 2, 3, 4]);
}

#[test]
fn an_open_gate_needs_no_ringing_and_a_wait_is_ended_by_the_guest() {
    let gpu = SoftGpu::new(given()).unwrap();
    let mut channel = channel(&gpu, A, 8);
    let vm = channel.vm.clone();
    let word = vm.put(&0u64.to_le_bytes());
    gpu.doorbells_changed(A, DoorbellChange::AnyOpen(true));
    std::thread::sleep(Duration::from_millis(5));
    channel.push(&Command::Wait {
        gpa: word,
        value: 7,
    });
    channel.push_fence(false);
    channel.ring();
    wait("announcement", || {
        let mut open = Vec::new();
        gpu.activity(A, &mut open);
        open.len() == 1 && open[0].pending == 2 && open[0].stalls == 1
    });
    assert_eq!(channel.state().get, 0);
    gpu.doorbells_changed(A, DoorbellChange::AnyOpen(false));
    vm.guest.write_obj(7u64, GuestAddress(word)).unwrap();
    wait("fence", || channel.fence().value == 1);
    wait("progress", || {
        let mut open = Vec::new();
        gpu.activity(A, &mut open);
        (open[0].finished, open[0].stalls) == (Some(2), 2)
    });
    channel.push_fence(false);
    channel.ring();
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(channel.fence().value, 1, "the gate is closed");
    gpu.doorbells_changed(A, DoorbellChange::Written);
    wait("fence", || channel.fence().value == 2);
}

#[test]
fn kernels_run_for_their_declared_time() {
    let gpu = SoftGpu::new(given()).unwrap();
    let mut channel = channel(&gpu, A, 8);
    let launch = kernel(&channel.vm, Nanos::from_ms(3));
    channel.push_fence(false);
    channel.ring_watched(&gpu);
    wait("fence", || channel.fence().value == 1);
    let begin = channel.fence().at_ns;
    channel.push(&launch);
    channel.push_fence(false);
    channel.ring_watched(&gpu);
    wait("status", || {
        gpu.engine_status(EngineId(0)).running == Some(A) || channel.fence().value == 2
    });
    wait("fence", || channel.fence().value == 2);
    let took = channel.fence().at_ns - begin;
    assert!(took >= 3_000_000, "{took} ns");
    assert_eq!(gpu.engine_status(EngineId(0)).running, None);
    let events = EngineReading::of(&gpu).switches;
    let compute = events.iter().filter(|e| e.engine == EngineId(0));
    let states: Vec<_> = compute.clone().map(|e| e.state).collect();
    let running = EngineState::Running(A);
    assert_eq!(states, [EngineState::Idle, running, EngineState::Idle]);
    let at: Vec<_> = compute.map(|e| e.at.0).collect();
    assert!(
        (3_000_000..200_000_000).contains(&(at[2] - at[1])),
        "{at:?}"
    );
}

#[test]
fn switching_and_faults_take_time() {
    let gpu = SoftGpu::new(SoftConfig {
        switch: Nanos::from_ms(2),
        fault: Nanos::from_ms(3),
        ..given()
    })
    .unwrap();
    let mut channel = channel(&gpu, A, 8);
    channel.push(&kernel(&channel.vm, Nanos(1_000)));
    channel.push(&Command::Fill {
        va: 4,
        bytes: 4,
        pattern: 0,
    });
    channel.ring_watched(&gpu);
    wait("fault", || {
        status(&channel).0 == Some(ChannelStatus::Faulted)
    });
    let mut events = Vec::new();
    wait("idle engines", || {
        std::thread::sleep(Duration::from_millis(1));
        gpu.engine_status(EngineId(1)).running.is_none()
    });
    std::thread::sleep(Duration::from_millis(20));
    events.extend(EngineReading::of(&gpu).switches);
    let copies: Vec<_> = events.iter().filter(|e| e.engine == EngineId(1)).collect();
    let states: Vec<_> = copies.iter().map(|e| e.state).collect();
    let (running, fault) = (EngineState::Running(A), EngineState::Fault(A));
    assert_eq!(
        states,
        [
            EngineState::Idle,
            EngineState::Switching,
            running,
            fault,
            EngineState::Idle
        ]
    );
    assert!(copies[2].at.since(copies[1].at) >= Nanos::from_ms(2));
    assert!(copies[4].at.since(copies[3].at) >= Nanos::from_ms(3));
}

#[test]
fn a_context_can_go_while_its_kernel_runs() {
    let gpu = SoftGpu::new(given()).unwrap();
    let mut of_a = channel(&gpu, A, 8);
    let mut of_b = channel(&gpu, B, 8);
    gpu.allocate(A, 64 << 20).unwrap();
    of_a.push(&kernel(&of_a.vm, Nanos::from_ms(9_000)));
    of_a.ring_watched(&gpu);
    wait("kernel", || {
        gpu.engine_status(EngineId(0)).running == Some(A)
    });
    let begin = Instant::now();
    gpu.destroy_context(A);
    assert!(begin.elapsed() < Duration::from_millis(500));
    of_b.push(&kernel(&of_b.vm, Nanos(1)));
    of_b.push_fence(true);
    of_b.ring_watched(&gpu);
    wait("other tenant", || of_b.fence().value == 1);
    // The memory is free again once the engine has released it.
    wait("memory", || gpu.memory(B).free_bytes == 64 << 20);
    gpu.allocate(B, 64 << 20).unwrap();
    gpu.create_context(A, of_a.vm.resources(AccountId(A.0), 64 << 20, 1))
        .unwrap();
    wait("memory", || gpu.allocate(A, 64 << 20).is_ok());
    assert!(gpu.open_channel(TenantId(9), of_a.config).is_err());
}

#[test]
fn new_channel_in_a_reused_slot_is_not_mistaken_for_the_old_one() {
    let gpu = SoftGpu::new(given()).unwrap();
    let vm = tenant(&gpu, B);
    for _ in 0..10 {
        let mut of_a = channel(&gpu, A, 8);
        of_a.push(&kernel(&of_a.vm, Nanos::from_ms(9_000)));
        of_a.ring_watched(&gpu);
        wait("kernel", || {
            gpu.engine_status(EngineId(0)).running == Some(A)
        });
        gpu.destroy_context(A);
        // This channel takes the same slot before the engine has finished the old work.
        let mut of_b = vm.open_channel(&gpu, B, 8, 3).unwrap();
        of_b.push(&kernel(&vm, Nanos::from_ms(1)));
        of_b.push_fence(false);
        of_b.ring_watched(&gpu);
        wait("fence", || of_b.fence().value == 1);
        assert_eq!(status(&of_b).0, Some(ChannelStatus::Running));
        gpu.close_channel(B, of_b.number).unwrap();
    }
}

#[test]
fn an_endless_kernel_is_ended_and_others_go_on() {
    let gpu = SoftGpu::new(SoftConfig {
        kernel_limit: Nanos::from_ms(20),
        ..given()
    })
    .unwrap();
    let mut of_a = channel(&gpu, A, 8);
    let mut of_b = channel(&gpu, B, 8);
    let card = gpu.allocate(B, 1).unwrap();
    of_a.push(&kernel(&of_a.vm, Nanos(u64::MAX)));
    of_a.push_fence(false);
    of_b.push(&Command::Fill {
        va: card.va,
        bytes: 64,
        pattern: 1,
    });
    of_b.push_fence(false);
    of_b.push(&kernel(&of_b.vm, Nanos(10)));
    of_b.push_fence(false);
    of_a.ring_watched(&gpu);
    of_b.ring_watched(&gpu);
    wait("copy of the other", || of_b.fence().value >= 1);
    wait("end", || status(&of_a).0 == Some(ChannelStatus::Faulted));
    assert_eq!(status(&of_a).1, Some(ErrorCode::KernelTimeout));
    assert_eq!((of_a.state().error_at, of_a.fence().value), (0, 0));
    assert_eq!(of_a.vm.interrupts.count(3), 1);
    wait("other tenant", || of_b.fence().value == 2);
}

#[test]
fn a_kernel_is_stopped_and_goes_on() {
    let gpu = SoftGpu::new(SoftConfig {
        suspend: Suspend::MidKernel,
        ..given()
    })
    .unwrap();
    let mut of_a = channel(&gpu, A, 8);
    let mut of_b = channel(&gpu, B, 8);
    of_a.push(&kernel(&of_a.vm, Nanos::from_ms(40)));
    of_a.push_fence(false);
    of_a.ring_watched(&gpu);
    wait("kernel", || {
        gpu.engine_status(EngineId(0)).running == Some(A)
    });
    gpu.carry_out(&[Order::Suspend(A)]);
    wait("stop", || gpu.engine_status(EngineId(0)).running.is_none());
    of_b.push(&kernel(&of_b.vm, Nanos(10)));
    of_b.push_fence(false);
    of_b.ring_watched(&gpu);
    wait("other tenant", || of_b.fence().value == 1);
    assert_eq!(of_a.fence().value, 0);
    gpu.carry_out(&[Order::Resume(A)]);
    wait("rest", || of_a.fence().value == 1);
    let events = EngineReading::of(&gpu).switches;
    let ends = events
        .windows(2)
        .filter(|pair| pair[0].state == EngineState::Running(A));
    let ran: u64 = ends.map(|pair| pair[1].at.0 - pair[0].at.0).sum();
    assert!(ran >= 40_000_000, "{ran} ns");
}

#[test]
fn stopping_a_kernel_does_not_lift_its_limit() {
    let gpu = SoftGpu::new(SoftConfig {
        suspend: Suspend::MidKernel,
        kernel_limit: Nanos::from_ms(30),
        ..given()
    })
    .unwrap();
    let mut channel = channel(&gpu, A, 8);
    channel.push(&kernel(&channel.vm, Nanos::from_ms(9_000)));
    channel.ring_watched(&gpu);
    let ended = || status(&channel).1 == Some(ErrorCode::KernelTimeout);
    for _ in 0..8 {
        gpu.carry_out(&[Order::Resume(A)]);
        wait("kernel", || {
            ended() || gpu.engine_status(EngineId(0)).running == Some(A)
        });
        std::thread::sleep(Duration::from_millis(8));
        gpu.carry_out(&[Order::Suspend(A)]);
        wait("stop", || gpu.engine_status(EngineId(0)).running.is_none());
    }
    assert!(ended());
}

#[test]
fn a_gpu_ends_though_work_is_queued_and_words_are_waited_for() {
    let gpu = SoftGpu::new(given()).unwrap();
    let mut of_a = channel(&gpu, A, 8);
    let mut of_b = channel(&gpu, B, 8);
    gpu.doorbells_changed(A, DoorbellChange::AnyOpen(true));
    of_a.push(&kernel(&of_a.vm, Nanos::from_ms(9_000)));
    of_b.push(&Command::Wait { gpa: 0, value: 1 });
    of_a.ring();
    of_b.ring_watched(&gpu);
    wait("kernel", || {
        gpu.engine_status(EngineId(0)).running == Some(A)
    });
    let begin = Instant::now();
    drop(gpu);
    assert!(begin.elapsed() < Duration::from_secs(2));
}

#[test]
fn channel_closed_mid_command_reports_closed_after_the_command_ends() {
    let gpu = SoftGpu::new(given()).unwrap();
    let mut channel = channel(&gpu, A, 8);
    channel.push(&kernel(&channel.vm, Nanos::from_ms(10)));
    channel.push_fence(false);
    channel.ring_watched(&gpu);
    wait("kernel", || {
        gpu.engine_status(EngineId(0)).running == Some(A)
    });
    gpu.close_channel(A, channel.number).unwrap();
    assert!(gpu.close_channel(A, channel.number).is_err());
    assert_eq!(status(&channel).0, Some(ChannelStatus::Running));
    wait("end", || status(&channel).0 == Some(ChannelStatus::Closed));
    assert_eq!((channel.state().get, channel.fence().value), (0, 0));
    let again = channel.vm.open_channel(&gpu, A, 8, 3).unwrap();
    assert_eq!(again.number, 0);
}

#[test]
fn limits_of_channels() {
    let gpu = SoftGpu::new(given()).unwrap();
    let vm = tenant(&gpu, A);
    for _ in 0..8 {
        vm.open_channel(&gpu, A, 8, 0).unwrap();
    }
    let refused = vm.open_channel(&gpu, A, 8, 0).unwrap_err();
    assert_eq!(refused.code, ErrorCode::TooManyChannels);
    gpu.close_channel(A, 3).unwrap();
    let ring = |ring_gpa| turnstile_gpu::ChannelConfig {
        ring_gpa,
        entries: 8,
        state_gpa: 0,
        vector: 0,
    };
    let refused = gpu.open_channel(A, ring(16 << 20)).unwrap_err();
    assert_eq!(refused.code, ErrorCode::NotGuestMemory);
    assert_eq!(vm.open_channel(&gpu, A, 8, 0).unwrap().number, 3);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn whatever_a_guest_writes_ends_one_channel_at_most(
        commands in proptest::collection::vec((0u32..8, proptest::collection::vec(any::<u8>(), 60), 4usize..64), 1..8),
        put in prop_oneof![Just(None), any::<u32>().prop_map(Some)],
    ) {
        let gpu = SoftGpu::new(SoftConfig { kernel_limit: Nanos::from_ms(2), ..given() }).unwrap();
        let mut hostile = channel(&gpu, A, 8);
        let mut other = channel(&gpu, B, 8);
        for (op, tail, zero_from) in commands {
            let mut bytes = [0; 64];
            bytes[..4].copy_from_slice(&op.to_le_bytes());
            bytes[4..].copy_from_slice(&tail);
            bytes[zero_from..].fill(0);
            hostile.push_bytes(&bytes);
        }
        hostile.put = put.unwrap_or(hostile.put);
        hostile.ring_watched(&gpu);
        other.push(&kernel(&other.vm, Nanos(1)));
        other.push_fence(false);
        other.ring_watched(&gpu);
        wait("other tenant", || other.fence().value == 1);
        prop_assert_eq!(status(&other).0, Some(ChannelStatus::Running));
        gpu.destroy_context(A);
    }
}
