//! Memory that moves, on the GPU as a whole in virtual time.

use turnstile_abi::{CHUNK_BYTES, CopyDirection};
use turnstile_accounting::{EngineId, EngineState, Moment};

use super::timeline::totals;
use super::virtual_runs::given;
use super::*;
use crate::{CostModel, SoftConfig, VirtualGpu};
use turnstile_gpu::{ChunkId, Direction, MemoryEvent, MoveError, MoveFailure, MoveOrder, Suspend};

/// A card of eight chunks and a pool of sixteen, on a link that moves a chunk in a millisecond.
fn gpu() -> VirtualGpu {
    VirtualGpu::new(SoftConfig {
        memory_bytes: 8 * CHUNK_BYTES,
        host_pool_bytes: 16 * CHUNK_BYTES,
        link_rate: CHUNK_BYTES * 1_000,
        suspend: Suspend::BetweenCommands,
        cost: CostModel {
            transfer: Nanos::ZERO,
            ..CostModel::default()
        },
        ..given()
    })
}

fn order(owner: TenantId, cause: TenantId, direction: Direction, count: u64) -> MoveOrder {
    MoveOrder {
        owner,
        cause,
        direction,
        chunks: ChunkId(0).run(count).collect(),
    }
}

fn moved(gpu: &VirtualGpu) -> Vec<(ChunkId, u64, Result<(), MoveFailure>)> {
    let mut events = Vec::new();
    gpu.read_memory_events(&mut events);
    let reports = events.into_iter().filter_map(|event| match event {
        MemoryEvent::Moved(report) => Some(report),
        _ => None,
    });
    reports
        .map(|report| (report.chunk, report.copied_bytes, report.result))
        .collect()
}

#[test]
fn memory_stays_unless_there_is_a_pool_and_work_can_be_stopped() {
    for config in [
        given(),
        SoftConfig {
            host_pool_bytes: 1 << 30,
            suspend: Suspend::Drains,
            ..given()
        },
    ] {
        let gpu = VirtualGpu::new(config);
        tenant(&gpu, A);
        gpu.carry_out(&[Order::Suspend(A)]);
        assert!(!gpu.capabilities().moves_memory());
        let refused = gpu.move_memory(order(A, A, Direction::Out, 1));
        assert_eq!(refused, Err(MoveError::Unsupported));
    }
}

#[test]
fn memory_moves_only_while_its_tenant_cannot_run() {
    let gpu = gpu();
    let mut of_a = channel(&gpu, A, 8);
    gpu.allocate(A, 4 * CHUNK_BYTES).unwrap();
    let out = || gpu.move_memory(order(A, B, Direction::Out, 4));
    assert_eq!(out(), Err(MoveError::MayRun(A)), "not suspended");
    of_a.push(&kernel(&of_a.vm, Nanos::from_ms(5)));
    of_a.push_fence(false);
    of_a.push(&kernel(&of_a.vm, Nanos::from_ms(1)));
    of_a.push_fence(false);
    of_a.ring_watched(&gpu);
    gpu.advance_to(Moment(1_000_000));
    gpu.carry_out(&[Order::Suspend(A)]);
    assert!(!gpu.memory(A).is_quiet);
    assert_eq!(out(), Err(MoveError::MayRun(A)), "on an engine");
    gpu.advance_to(Moment(6_000_000));
    assert!(gpu.memory(A).is_quiet);
    assert_eq!(out(), Ok(()));
    // Resumed or not: its second kernel waits until the memory is back.
    gpu.carry_out(&[Order::Resume(A)]);
    gpu.advance_to(Moment(30_000_000));
    assert_eq!(of_a.fence().value, 1);
    assert_eq!(
        moved(&gpu),
        ChunkId(0)
            .run(4)
            .map(|id| (id, CHUNK_BYTES, Ok(())))
            .collect::<Vec<_>>()
    );
    assert_eq!(
        gpu.move_memory(order(A, A, Direction::In, 4)),
        Err(MoveError::MayRun(A))
    );
    gpu.carry_out(&[Order::Suspend(A)]);
    gpu.move_memory(order(A, A, Direction::In, 4)).unwrap();
    gpu.carry_out(&[Order::Resume(A)]);
    gpu.advance_to(Moment(33_000_000));
    assert_eq!(of_a.fence().value, 1, "one chunk is still on its way");
    gpu.run_until_quiet(Moment(u64::MAX));
    assert_eq!(of_a.fence().value, 2);
    assert_eq!(of_a.state().error, 0);
    // Four milliseconds each way, charged to the tenant that caused the moves.
    let reading = EngineReading::of(&gpu);
    let engines = totals(&reading.switches, gpu.now());
    assert_eq!(engines[1].of(B), 4_000_000);
    assert_eq!(engines[2].of(A), 4_000_000);
    assert_eq!(engines[2].of(B), 0);
    let bytes = [(A, 4 * CHUNK_BYTES), (B, 4 * CHUNK_BYTES)];
    assert_eq!(reading.copied, Some(bytes.into()));
}

#[test]
fn a_guests_copies_get_their_turn_beside_moves() {
    let gpu = gpu();
    let (of_a, mut of_b) = (channel(&gpu, A, 8), channel(&gpu, B, 64));
    gpu.allocate(A, 6 * CHUNK_BYTES).unwrap();
    let own = gpu.allocate(B, CHUNK_BYTES).unwrap();
    gpu.carry_out(&[Order::Suspend(A)]);
    gpu.move_memory(order(A, A, Direction::Out, 6)).unwrap();
    for _ in 0..6 {
        of_b.push(&Command::Copy {
            direction: CopyDirection::GpuToGuest,
            source: own.va,
            destination: 0x80_0000,
            bytes: CHUNK_BYTES,
        });
        of_b.push_fence(false);
    }
    of_b.ring_watched(&gpu);
    // The guest's copies have an engine of their own, as nothing is moved in: six copies take the
    // time of six moves.
    gpu.advance_to(Moment(6_000_000));
    assert_eq!(of_b.fence().value, 6);
    assert_eq!(moved(&gpu).len(), 6);
    // With copies on both engines, one engine alternates: a batch of moves, a copy, a batch.
    let mut also_of_b = of_b.vm.open_channel(&gpu, B, 64, 3).unwrap();
    let _before = EngineReading::of(&gpu);
    let begin = gpu.now();
    for channel in [&mut of_b, &mut also_of_b] {
        for _ in 0..6 {
            channel.push(&Command::Copy {
                direction: CopyDirection::GpuToGuest,
                source: own.va,
                destination: 0x80_0000,
                bytes: CHUNK_BYTES,
            });
        }
        channel.push_fence(false);
    }
    gpu.move_memory(order(A, A, Direction::In, 6)).unwrap();
    of_b.ring();
    also_of_b.ring_watched(&gpu);
    gpu.run_until_quiet(Moment(u64::MAX));
    assert_eq!(moved(&gpu).len(), 6);
    assert_eq!((of_b.fence().value, also_of_b.fence().value), (7, 1));
    let end = gpu.now().since(begin);
    assert_eq!(
        end,
        Nanos::from_ms(9),
        "eighteen milliseconds of two engines"
    );
    let after = EngineReading::of(&gpu).switches;
    let second: Vec<_> = after
        .iter()
        .filter(|event| event.engine == EngineId(2) && event.state != EngineState::Idle)
        .map(|event| event.state)
        .collect();
    let (a, b) = (EngineState::Running(A), EngineState::Running(B));
    assert_eq!(second[..3], [a, b, a], "{second:?}");
    drop(of_a);
}

#[test]
fn context_destroyed_during_a_move_frees_all_its_memory() {
    let gpu = gpu();
    let of_a = channel(&gpu, A, 8);
    gpu.allocate(A, 8 * CHUNK_BYTES).unwrap();
    tenant(&gpu, B);
    gpu.carry_out(&[Order::Suspend(A)]);
    gpu.move_memory(order(A, B, Direction::Out, 8)).unwrap();
    gpu.advance_to(Moment(1_500_000));
    // Some are at the host, some on their way, some on the card.
    gpu.destroy_context(A);
    gpu.run_until_quiet(Moment(u64::MAX));
    drop(of_a);
    assert_eq!(gpu.memory(B).free_bytes, 20 * CHUNK_BYTES);
    gpu.allocate(B, 20 * CHUNK_BYTES).unwrap();
    assert!(gpu.allocate(B, 1).is_err(), "beyond card and pool");
    let mut events = Vec::new();
    gpu.read_memory_events(&mut events);
    let refused = |event: &MemoryEvent| matches!(event, MemoryEvent::Refused { owner: B, .. });
    assert!(events.iter().any(refused));
    let log = EngineReading::of(&gpu).switches;
    let idle = log
        .iter()
        .rev()
        .find(|event| event.engine == EngineId(1))
        .unwrap();
    assert_eq!(idle.state, EngineState::Idle);
}
