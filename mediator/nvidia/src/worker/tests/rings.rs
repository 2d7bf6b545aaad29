//! Commands in rings: their order, waits, errors, and whatever a guest may write.

use proptest::prelude::*;

use super::*;
use crate::worker::serve;

#[test]
fn commands_run_in_order_and_signal_completion() {
    let rig = Rig::new(config());
    let (module, functions) = rig
        .worker
        .load_module("nap sleep 2000000\nother sleep 1")
        .unwrap();
    assert_eq!(functions, 2);
    assert_eq!(rig.worker.find_function(module, "other").unwrap(), (1, 8));
    assert_eq!(
        code(rig.worker.find_function(module, "none")),
        ErrorCode::NoSuchFunction
    );
    let memory = rig.worker.allocate(1).unwrap();
    let ahead = Nanos::from_ms(3_600_000);
    rig.worker.set_clock(serve::now() + ahead);
    let mut channel = rig.channel();
    let from = rig.vm.put(&[7; 4096]);
    let to = rig.vm.put(&[0; 4096]);
    let (bytes, va) = (4096, memory.va);
    let copy = |direction, source, destination| Ring::Copy {
        direction,
        source,
        destination,
        bytes,
    };
    channel.push(&copy(CopyDirection::GuestToGpu, from, va));
    channel.push(&Ring::Fill {
        va: va + 8,
        bytes: 8,
        pattern: 0x0101_0101,
    });
    channel.push(&rig.launch(module, 0));
    let first = channel.push_fence(true);
    channel.push(&copy(CopyDirection::GpuToGuest, va, to));
    channel.push(&Ring::Nop);
    let last = channel.push_fence(false);
    channel.ring();
    wait("fences", || channel.fence().value == last);
    assert!(first < last);
    wait("get", || channel.state().get == 7);
    assert_eq!(rig.vm.interrupts.count(3), 1);
    assert_eq!(rig.vm.fence(to).value, 0x0707_0707_0707_0707);
    assert_eq!(rig.vm.fence(to + 8).value, 0x0101_0101_0101_0101);
    let activity = rig.activity();
    assert_eq!((activity.len(), activity[0].pending), (1, 0));
    let now = serve::now() + ahead;
    let since = now.0 - channel.fence().at_ns;
    assert!(since < 60_000_000_000, "{since} ns");
}

#[test]
fn a_wait_holds_its_channel_and_no_other() {
    let rig = Rig::new(config());
    let (mut waits, mut other) = (rig.channel(), rig.channel());
    let word = rig.vm.put(&[0; 8]);
    waits.push(&Ring::Wait {
        gpa: word,
        value: 5,
    });
    waits.push_fence(false);
    waits.ring();
    other.push_fence(false);
    other.ring();
    wait("other", || other.fence().value == 1);
    wait("pending", || rig.activity()[0].pending == 2);
    assert_eq!(waits.fence().value, 0);
    other.push(&Ring::Fence {
        gpa: word,
        value: 6,
        interrupt: false,
    });
    other.ring();
    wait("word", || waits.fence().value == 1);
}

#[test]
fn errors_in_a_ring_end_that_channel_in_order() {
    let rig = Rig::new(config());
    let (module, _) = rig.worker.load_module("nap sleep 3000000").unwrap();
    let memory = rig.worker.allocate(1).unwrap();
    let fill = |va, bytes| Ring::Fill {
        va,
        bytes,
        pattern: 1,
    };
    let launch = |change: fn(&mut Launch)| {
        let Ring::Launch(mut launch) = rig.launch(module, 0) else {
            panic!("a launch is one");
        };
        change(&mut launch);
        Ring::Launch(launch)
    };
    for (command, expected, info) in [
        (
            fill(memory.va, CHUNK_BYTES + 4),
            ErrorCode::PageFault,
            memory.va + CHUNK_BYTES,
        ),
        (fill(0x1000, 4), ErrorCode::PageFault, 0x1000),
        (launch(|l| l.module = 77), ErrorCode::NoSuchModule, 77),
        (launch(|l| l.function = 1), ErrorCode::NoSuchFunction, 0),
        (launch(|l| l.param_bytes = 4), ErrorCode::BadLaunch, 0),
        (launch(|l| l.block.x = 513), ErrorCode::BadLaunch, 0),
        (
            launch(|l| l.shared_bytes = 1 << 16),
            ErrorCode::BadLaunch,
            0,
        ),
        (launch(|l| l.grid.y = 65_536), ErrorCode::BadLaunch, 0),
    ] {
        let mut channel = rig.channel();
        channel.push(&rig.launch(module, 0));
        channel.push_fence(false);
        channel.push(&command);
        channel.push_fence(false);
        channel.ring();
        assert_eq!(fault_of(&channel), expected, "{command:?}");
        let state = channel.state();
        // Earlier commands have finished, later ones have not.
        assert_eq!(
            (state.get, state.error_at, channel.fence().value),
            (2, 2, 1)
        );
        assert_eq!(state.error_info, info, "{command:?}");
        wait("standing", || rig.activity()[0].pending == 0);
        rig.worker.close_channel(channel.number).unwrap();
    }
    let mut channel = rig.channel();
    channel.put = 65;
    channel.ring();
    assert_eq!(fault_of(&channel), ErrorCode::PutOutOfRange);
    assert!(!rig.worker.is_lost());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn whatever_a_guest_writes_ends_one_channel_at_most(
        commands in proptest::collection::vec((0u32..8, proptest::collection::vec(any::<u8>(), 60), 4usize..64), 1..8),
        put in prop_oneof![Just(None), any::<u32>().prop_map(Some)],
    ) {
        let rig = Rig::new(config());
        let (mut hostile, mut other) = (rig.channel(), rig.channel());
        for (op, tail, zero_from) in commands {
            let mut bytes = [0; 64];
            bytes[..4].copy_from_slice(&op.to_le_bytes());
            bytes[4..].copy_from_slice(&tail);
            bytes[zero_from..].fill(0);
            hostile.push_bytes(&bytes);
        }
        hostile.put = put.unwrap_or(hostile.put);
        hostile.ring();
        other.push(&Ring::Nop);
        other.push_fence(false);
        other.ring();
        wait("other channel", || other.fence().value == 1);
        prop_assert_eq!(other.state().status, ChannelStatus::Running as u32);
        prop_assert!(!rig.worker.is_lost());
    }
}
