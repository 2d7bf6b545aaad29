//! Workers that are killed, do not answer, end again and again, or do what they may not.

use rustix::process::{Pid, Signal, kill_process};

use super::*;

#[test]
fn a_killed_worker_is_reported_and_another_has_what_the_vm_had() {
    let rig = Rig::new(config());
    let (module, _) = rig
        .worker
        .load_module("long sleep 9000000000\nshort sleep 1")
        .unwrap();
    let memory = rig.worker.allocate(1).unwrap();
    let (mut channel, idle) = (rig.channel(), rig.channel());
    channel.push(&Ring::Fill {
        va: memory.va + 64,
        bytes: 64,
        pattern: 0x0909_0909,
    });
    channel.push_fence(false);
    channel.push(&rig.launch(module, 0));
    channel.ring();
    wait("fill", || channel.fence().value == 1);
    let pid = rig.worker.pid();
    kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
    assert_eq!(fault_of(&channel), ErrorCode::DeviceLost);
    assert_eq!(fault_of(&idle), ErrorCode::DeviceLost);
    assert!(rig.worker.is_lost());
    assert!(rig.activity().iter().all(|channel| channel.pending == 0));
    rig.worker.close_channel(idle.number).unwrap();
    assert_eq!(idle.state().status, ChannelStatus::Closed as u32);
    let mut again = rig.channel();
    assert_eq!(
        again.number, idle.number,
        "the other is still the guest's to close"
    );
    assert!(rig.worker.pid() != pid && !rig.worker.is_lost());
    let to = rig.vm.put(&[0; 64]);
    again.push(&rig.launch(module, 1));
    again.push(&Ring::Copy {
        direction: CopyDirection::GpuToGuest,
        source: memory.va + 64,
        destination: to,
        bytes: 64,
    });
    again.push_fence(true);
    again.ring();
    wait("copy", || again.fence().value == 1);
    assert_eq!(rig.vm.fence(to).value, 0x0909_0909_0909_0909);
    rig.worker.close_channel(channel.number).unwrap();
    rig.worker.free(memory.va).unwrap();
    rig.worker.unload_module(module).unwrap();
}

#[test]
fn a_worker_that_does_not_answer_is_lost_but_not_while_the_vm_is_held_back() {
    let rig = Rig::new(config());
    rig.worker.set_suspended(true);
    let (slow, _) = rig.worker.load_module("slow slow 1200").unwrap();
    rig.worker.unload_module(slow).unwrap();
    rig.worker.set_suspended(false);
    let begin = Instant::now();
    assert_eq!(
        code(rig.worker.load_module("slow slow 60000")),
        ErrorCode::DeviceLost
    );
    assert!(
        begin.elapsed() < Duration::from_secs(5),
        "{:?}",
        begin.elapsed()
    );
    rig.worker.allocate(1).unwrap();
    assert_eq!(
        code(rig.worker.load_module("gone exit")),
        ErrorCode::DeviceLost
    );
    rig.worker.allocate(1).unwrap();
}

#[test]
fn stopped_worker_does_not_block_doorbells() {
    let rig = Arc::new(Rig::new(config()));
    let pid = Pid::from_raw(rig.worker.pid() as i32).unwrap();
    let mut channel = rig.channel();
    kill_process(pid, Signal::STOP).unwrap();
    let (done, rung) = std::sync::mpsc::channel();
    let rings = rig.clone();
    // In a thread of its own, so that the test fails and does not hang.
    let thread = std::thread::spawn(move || {
        (0..10_000).for_each(|_| rings.worker.ring());
        done.send(()).unwrap();
    });
    let in_time = rung.recv_timeout(Duration::from_secs(20));
    kill_process(pid, Signal::CONT).unwrap();
    in_time.unwrap();
    thread.join().unwrap();
    rig.worker.set_unwatched(false);
    channel.push_fence(false);
    channel.ring();
    rig.worker.ring();
    wait("fence", || channel.fence().value == 1);
}

#[test]
fn a_worker_cannot_stop_the_clock_of_its_orders() {
    let rig = Rig::new(config());
    rig.worker.scribble(true);
    let begin = Instant::now();
    assert_eq!(
        code(rig.worker.load_module("slow slow 8000")),
        ErrorCode::DeviceLost
    );
    assert!(
        begin.elapsed() < Duration::from_secs(5),
        "{:?}",
        begin.elapsed()
    );
    // Nor does the next process read the flag from the page.
    rig.worker.scribble(true);
    rig.worker.allocate(1).unwrap();
    assert!(!rig.worker.scribbled());
    rig.worker.set_suspended(true);
    rig.worker.end_process();
    rig.worker.allocate(1).unwrap();
    assert!(rig.worker.scribbled());
}

#[test]
fn a_worker_that_ends_again_and_again_has_to_wait() {
    let rig = Rig::new(WorkerConfig {
        restart_pause: Duration::from_secs(600),
        ..config()
    });
    assert_eq!(
        code(rig.worker.load_module("gone exit")),
        ErrorCode::DeviceLost
    );
    rig.worker.allocate(1).unwrap();
    assert_eq!(
        code(rig.worker.load_module("gone exit")),
        ErrorCode::DeviceLost
    );
    let refused = rig.worker.allocate(1).unwrap_err();
    assert!(refused.detail.contains("just after"), "{refused}");
}

#[test]
fn a_vm_that_is_gone_has_no_worker() {
    let rig = Rig::new(config());
    let pid = Pid::from_raw(rig.worker.pid() as i32).unwrap();
    rig.worker.end();
    assert_eq!(code(rig.worker.allocate(1)), ErrorCode::DeviceLost);
    wait("reaping", || {
        rustix::process::test_kill_process(pid).is_err()
    });
}

#[test]
fn a_program_that_is_no_worker_is_refused() {
    let vm = PlainVm::new(1 << 20);
    for program in ["/bin/false", "/no/such/program"] {
        let resources = vm.resources(AccountId(TENANT.0), CHUNK_BYTES, 1);
        let refused = Worker::start(
            TENANT,
            resources,
            config(),
            move || Command::new(program),
            |_, _| {},
        )
        .unwrap_err();
        assert_eq!(refused.code, ErrorCode::HostLimit, "{refused}");
    }
}

#[test]
fn a_worker_at_work_opens_no_files_and_runs_no_programs() {
    let rig = Rig::new(config());
    for what in ["open", "run"] {
        let refused = rig.worker.load_module(&format!("a {what}")).unwrap_err();
        assert_eq!(refused.detail, "permission denied", "{what}");
    }
}
