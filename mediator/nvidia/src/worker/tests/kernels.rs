//! Kernels that fault or run for too long.

use super::*;

#[test]
fn a_kernel_that_faults_ends_its_vm_s_channels_and_the_next_request_works() {
    let rig = Rig::new(config());
    let (module, _) = rig.worker.load_module("wild fault\nnap sleep 1").unwrap();
    let (mut guilty, other) = (rig.channel(), rig.channel());
    guilty.push(&rig.launch(module, 1));
    guilty.push_fence(false);
    guilty.push(&rig.launch(module, 0));
    guilty.push_fence(false);
    guilty.ring();
    assert_eq!(fault_of(&guilty), ErrorCode::PageFault);
    let state = guilty.state();
    assert_eq!((state.error_at, guilty.fence().value), (2, 1));
    assert_eq!(fault_of(&other), ErrorCode::DeviceLost);
    wait("loss", || rig.worker.is_lost());
    rig.worker.close_channel(guilty.number).unwrap();
    let mut again = rig.channel();
    again.push(&rig.launch(module, 1));
    again.push_fence(false);
    again.ring();
    wait("fence", || again.fence().value == 1);
}

#[test]
fn an_endless_kernel_is_ended_but_not_while_the_vm_is_held_back() {
    let rig = Rig::new(WorkerConfig {
        kernel_limit: Nanos::from_ms(100),
        ..config()
    });
    let (module, _) = rig.worker.load_module("long sleep 9000000000").unwrap();
    let mut channel = rig.channel();
    rig.worker.set_suspended(true);
    channel.push(&rig.launch(module, 0));
    channel.ring();
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(400) {
        assert_eq!(channel.state().status, ChannelStatus::Running as u32);
        std::thread::yield_now();
    }
    rig.worker.set_suspended(false);
    assert_eq!(fault_of(&channel), ErrorCode::KernelTimeout);
}

#[test]
fn kernels_that_are_short_enough_may_be_many() {
    let rig = Rig::new(WorkerConfig {
        kernel_limit: Nanos::from_ms(400),
        ..config()
    });
    let text = "nap sleep 100000000\nlong sleep 9000000000";
    let (module, _) = rig.worker.load_module(text).unwrap();
    let mut channel = rig.channel();
    // They share one mark.
    for _ in 0..8 {
        channel.push(&rig.launch(module, 0));
    }
    channel.push_fence(false);
    channel.ring();
    wait("fence", || channel.fence().value == 1);
    assert_eq!(channel.state().status, ChannelStatus::Running as u32);
    for function in [0, 1, 0] {
        channel.push(&rig.launch(module, function));
    }
    channel.ring();
    assert_eq!(fault_of(&channel), ErrorCode::KernelTimeout);
}

#[test]
fn an_endless_kernel_of_a_closed_channel_is_ended_too() {
    let rig = Rig::new(WorkerConfig {
        kernel_limit: Nanos::from_ms(500),
        ..config()
    });
    let (module, _) = rig.worker.load_module("long sleep 9000000000").unwrap();
    let (mut channel, other) = (rig.channel(), rig.channel());
    channel.push_fence(false);
    channel.push(&rig.launch(module, 0));
    channel.ring();
    wait("start", || channel.fence().value == 1);
    rig.worker.close_channel(channel.number).unwrap();
    assert_eq!(channel.state().status, ChannelStatus::Running as u32);
    let begin = Instant::now();
    assert_eq!(fault_of(&other), ErrorCode::DeviceLost);
    assert!(begin.elapsed() < Duration::from_secs(5));
    wait("end of the closed one", || {
        channel.state().status == ChannelStatus::Closed as u32
    });
}
