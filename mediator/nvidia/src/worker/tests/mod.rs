//! A worker in a process of its own, with a GPU in memory.

mod fake;
mod moved;

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use rustix::process::{Pid, Signal, kill_process};
use turnstile_abi::{
    CHUNK_BYTES, ChannelStatus, Command as Ring, CopyDirection, Dim3, ErrorCode, Launch,
};
use turnstile_accounting::{AccountId, Nanos, TenantId};
use vm_memory::GuestAddress;

use super::protocol::Answer;
use super::serve::run_with;
use super::{Worker, WorkerConfig};
use fake::Fake;
use turnstile_gpu::{ChannelActivity, Refusal};
use turnstile_soft::plain::{PlainChannel, PlainVm};

const TENANT: TenantId = TenantId(1);
const AS_WORKER: &str = "TURNSTILE_TEST_WORKER";

/// Not a test by itself: the entry point of the tests' worker processes.
#[test]
fn acts_as_a_worker() {
    if std::env::var_os(AS_WORKER).is_none() {
        return;
    }
    let stream = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    let ended = run_with(stream, |resources| {
        let facts = Answer::Ready {
            multiprocessors: 1,
            shared_bytes_max: 1 << 16,
            memory_bytes: resources.memory_bytes,
            pinned: true,
        };
        Ok((Fake::new(resources.guest.clone()), facts))
    });
    std::process::exit(i32::from(ended.is_err()));
}

fn command() -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let name = "worker::tests::acts_as_a_worker";
    command
        .args(["--exact", name, "--nocapture"])
        .env(AS_WORKER, "1");
    command
}

fn config() -> WorkerConfig {
    WorkerConfig {
        own_user: false,
        learn: false,
        order_limit: Duration::from_millis(600),
        restart_pause: Duration::ZERO,
        modules_max: 3,
        allocations_max: 3,
        ..WorkerConfig::default()
    }
}

struct Rig {
    vm: Arc<PlainVm>,
    worker: Worker,
}

impl Rig {
    fn new(config: WorkerConfig) -> Self {
        let vm = Arc::new(PlainVm::new(16 << 20));
        let resources = vm.resources(AccountId(TENANT.0), 8 * CHUNK_BYTES, 4);
        let worker = Worker::start(TENANT, resources, config, command, |_, _| {}).unwrap();
        worker.set_unwatched(true);
        Self { vm, worker }
    }

    fn channel(&self) -> PlainChannel {
        let open = |config| self.worker.open_channel(config);
        self.vm.open_channel_with(TENANT, 64, 3, open).unwrap()
    }

    fn launch(&self, module: u32, function: u32) -> Ring {
        self.launch_with(module, function, 0)
    }

    fn launch_with(&self, module: u32, function: u32, param: u64) -> Ring {
        Ring::Launch(Launch {
            module,
            function,
            grid: Dim3::line(1),
            block: Dim3::line(32),
            shared_bytes: 0,
            param_bytes: 8,
            params_gpa: self.vm.put(&param.to_le_bytes()),
        })
    }

    fn activity(&self) -> Vec<ChannelActivity> {
        let mut channels = Vec::new();
        self.worker.activity(&mut channels);
        channels
    }
}

fn wait(what: &str, done: impl Fn() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < Duration::from_secs(20), "no {what}");
        std::thread::yield_now();
    }
}

fn fault_of(channel: &PlainChannel) -> ErrorCode {
    wait("fault", || {
        channel.state().status == ChannelStatus::Faulted as u32
    });
    ErrorCode::from_u32(channel.state().error).unwrap()
}

fn code<T: std::fmt::Debug>(result: Result<T, Refusal>) -> ErrorCode {
    result.unwrap_err().code
}

#[test]
fn commands_run_in_order_and_tell_when_they_are_done() {
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
    rig.worker.set_clock(super::serve::now() + ahead);
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
    let now = super::serve::now() + ahead;
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
fn what_is_in_use_stays() {
    let rig = Rig::new(config());
    let (module, _) = rig.worker.load_module("held until").unwrap();
    let memory = rig.worker.allocate(1).unwrap();
    let mut channel = rig.channel();
    let word = rig.vm.put(&[0; 8]);
    channel.push_fence(false);
    channel.push(&rig.launch_with(module, 0, word));
    channel.push(&Ring::Fill {
        va: memory.va,
        bytes: 4,
        pattern: 1,
    });
    channel.push_fence(false);
    channel.ring();
    // All that was announced together is submitted before any completion is reported.
    wait("start", || channel.fence().value == 1);
    assert_eq!(
        code(rig.worker.unload_module(module)),
        ErrorCode::ModuleInUse
    );
    assert_eq!(code(rig.worker.free(memory.va)), ErrorCode::AllocationInUse);
    // Closed while a command runs: the end is reported after the command.
    rig.worker.close_channel(channel.number).unwrap();
    assert_eq!(
        code(rig.worker.close_channel(channel.number)),
        ErrorCode::NoSuchChannel
    );
    assert_eq!(channel.state().status, ChannelStatus::Running as u32);
    rig.vm.guest.write_obj(1u64, GuestAddress(word)).unwrap();
    wait("end", || {
        channel.state().status == ChannelStatus::Closed as u32
    });
    rig.worker.unload_module(module).unwrap();
    rig.worker.free(memory.va).unwrap();
    assert_eq!(
        code(rig.worker.free(memory.va)),
        ErrorCode::NoSuchAllocation
    );
    assert_eq!(rig.worker.memory_free_bytes(), 8 * CHUNK_BYTES);
}

#[test]
fn limits_are_the_daemons() {
    let rig = Rig::new(config());
    for _ in 0..3 {
        rig.worker.load_module("a sleep 1").unwrap();
        rig.worker.allocate(1).unwrap();
    }
    assert_eq!(
        code(rig.worker.load_module("a sleep 1")),
        ErrorCode::TooManyModules
    );
    assert_eq!(code(rig.worker.allocate(1)), ErrorCode::HostLimit);
    let all: Vec<_> = (0..4).map(|_| rig.channel()).collect();
    let open = |config| rig.worker.open_channel(config);
    assert_eq!(
        code(rig.vm.open_channel_with(TENANT, 64, 0, open)),
        ErrorCode::TooManyChannels
    );
    rig.worker.close_channel(all[1].number).unwrap();
    assert_eq!(rig.channel().number, 1);
    rig.worker.unload_module(1).unwrap();
    let refused = rig.worker.load_module("a nonsense").unwrap_err();
    assert_eq!(refused.code, ErrorCode::ModuleRefused);
    assert!(refused.detail.contains("a nonsense"));
    assert_eq!(code(rig.worker.unload_module(9)), ErrorCode::NoSuchModule);
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
fn a_worker_that_does_not_hear_holds_nobody_up() {
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
