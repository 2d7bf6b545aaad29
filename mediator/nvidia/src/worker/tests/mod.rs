//! A worker in a process of its own, with a GPU in memory.

mod fake;
mod kernels;
mod moved;
mod process;
mod rings;
mod vms_only;

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use turnstile_abi::{
    CHUNK_BYTES, ChannelStatus, Command as Ring, CopyDirection, Dim3, ErrorCode, Launch,
};
use turnstile_accounting::{AccountId, Nanos, TenantId};
use vm_memory::GuestAddress;

use super::protocol::Answer;
use super::serve::run_with;
use super::{Worker, WorkerConfig};
use fake::Fake;
use turnstile_gpu::plain::{PlainChannel, PlainVm};
use turnstile_gpu::{ChannelActivity, Refusal};

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
