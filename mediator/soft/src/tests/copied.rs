//! Bytes that copy engines moved, in virtual time.

use std::collections::BTreeMap;

use proptest::prelude::*;
use turnstile_abi::{Command, CopyDirection};
use turnstile_accounting::Moment;

use super::virtual_runs::given;
use super::*;
use crate::VirtualGpu;

/// One byte in 1 ns, as the link of [`given`] has it.
const COPY: u64 = 1_000_000;

fn to_guest(va: u64, bytes: u64) -> Command {
    Command::Copy {
        direction: CopyDirection::GpuToGuest,
        source: va,
        destination: 0x80_0000,
        bytes,
    }
}

fn taken(gpu: &VirtualGpu) -> Vec<(TenantId, u64)> {
    EngineReading::of(gpu).copied.unwrap().into_iter().collect()
}

#[test]
fn bytes_of_copy_in_flight_count_once_when_it_has_finished() {
    let gpu = VirtualGpu::new(given());
    let mut own = channel(&gpu, A, 8);
    let memory = gpu.allocate(A, 2 * COPY).unwrap();
    own.push(&to_guest(memory.va, COPY));
    own.ring_watched(&gpu);
    gpu.advance_to(Moment(COPY - 1));
    assert_eq!(taken(&gpu), []);
    gpu.advance_to(Moment(COPY));
    assert_eq!(taken(&gpu), [(A, COPY)]);
    assert_eq!(taken(&gpu), []);
}

#[test]
fn copies_that_fail_and_those_of_a_tenant_that_leaves_move_no_bytes() {
    let gpu = VirtualGpu::new(given());
    let [mut failing, mut leaving] = [A, B].map(|id| channel(&gpu, id, 8));
    let memory = gpu.allocate(B, COPY).unwrap();
    failing.push(&to_guest(memory.va, 8));
    failing.ring_watched(&gpu);
    leaving.push(&to_guest(memory.va, COPY));
    leaving.push(&to_guest(memory.va, COPY));
    leaving.ring_watched(&gpu);
    gpu.advance_to(Moment(COPY + COPY / 2));
    assert_ne!(failing.state().error, 0);
    gpu.destroy_context(B);
    gpu.run_until_quiet(Moment(10 * COPY));
    assert_eq!(taken(&gpu), [(B, COPY)], "the first one finished");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    /// Whenever they are taken: each tenant has the bytes of its copies and fills that have
    /// finished, in every direction, and the sum is what the fences show of all.
    #[test]
    fn bytes_are_those_of_commands_that_have_finished(
        steps in proptest::collection::vec((0usize..4, 0u32..4, 1u64..5_000, 0u64..4_000), 1..100),
    ) {
        let gpu = VirtualGpu::new(given());
        let ids = [A, A, B, TenantId(3)];
        let mut channels: Vec<PlainChannel> = Vec::new();
        let mut memory = Vec::new();
        for (i, id) in ids.into_iter().enumerate() {
            let vm = if i == 1 { channels[0].vm.clone() } else { tenant(&gpu, id) };
            channels.push(vm.open_channel(&gpu, id, 256, 1).unwrap());
            memory.push(gpu.allocate(id, 1 << 20).unwrap().va);
        }
        let mut pushed: [Vec<u64>; 4] = Default::default();
        let mut counted = BTreeMap::<TenantId, u64>::new();
        for (step, (i, kind, bytes, pass)) in steps.iter().enumerate() {
            let (va, guest, bytes) = (memory[*i], 0x80_0000, bytes & !3 | 4);
            let (direction, source, destination) = match kind {
                0 => (CopyDirection::GuestToGpu, guest, va),
                1 => (CopyDirection::GpuToGuest, va, guest),
                _ => (CopyDirection::GpuToGpu, va, va + (1 << 19)),
            };
            channels[*i].push(&match kind {
                3 => Command::Fill { va, bytes, pattern: 7 },
                _ => Command::Copy { direction, source, destination, bytes },
            });
            channels[*i].push_fence(false);
            pushed[*i].push(bytes);
            channels[*i].ring_watched(&gpu);
            match step + 1 == steps.len() {
                true => gpu.run_until_quiet(Moment(u64::MAX)),
                false => gpu.advance_to(gpu.now() + Nanos(*pass)),
            }
            for (id, bytes) in taken(&gpu) {
                *counted.entry(id).or_default() += bytes;
            }
            let mut expected = BTreeMap::<TenantId, u64>::new();
            for (channel, (id, pushed)) in channels.iter().zip(ids.iter().zip(&pushed)) {
                let finished = &pushed[..channel.fence().value as usize];
                *expected.entry(*id).or_default() += finished.iter().sum::<u64>();
            }
            expected.retain(|_, bytes| *bytes > 0);
            prop_assert_eq!(&counted, &expected);
        }
        prop_assert_eq!(counted.values().sum::<u64>(), pushed.iter().flatten().sum::<u64>());
    }
}
