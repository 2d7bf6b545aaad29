//! Hidden subcommands: a VM's worker, and a check of workers on a real GPU.
//!
//! The check needs a GPU; without one it prints that it is skipped. It boots guests against the
//! daemon's own GPU under the policy `none`, which holds no tenant. The guests verify every kernel
//! and command, and every misbehaviour is answered as documented. Then the check drives a worker
//! directly.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use turnstile_abi::{
    ChannelStatus, Command as Ring, CopyDirection, Dim3, ErrorCode, Launch, TRANSFER_BYTES_MAX,
};
use turnstile_accounting::{AccountId, Nanos, TenantId};
use turnstile_daemon::{Daemon, DaemonConfig, HostConfig};
use turnstile_gpu::Allocation;
use turnstile_gpu::plain::{PlainChannel, PlainVm};
use turnstile_images::{KERNELS, Misbehaviour, Outcome, Report, Workload};
use turnstile_nvidia::commands::watchdog_command;
use turnstile_nvidia::notify::Listener;
use turnstile_nvidia::probe;
use turnstile_nvidia::sharing::SharedGpu;
use turnstile_nvidia::worker::{self, Worker, WorkerConfig};
use turnstile_vmm::vmm::{self, VmConfig};

/// Arguments of `nvidia-worker`.
#[derive(clap::Args, Debug)]
pub(crate) struct WorkerArgs {}

pub(crate) fn worker(_: &WorkerArgs) -> anyhow::Result<()> {
    let stream = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    Ok(worker::run(stream)?)
}

/// The command that becomes a worker. Modules are loaded whole, so that no kernel waits for one;
/// compiled code is not kept on disk. A preloaded library is passed on.
pub(crate) fn worker_command() -> Command {
    let program = std::env::current_exe().unwrap_or_else(|_| "turnstile".into());
    let mut command = Command::new(program);
    command.arg("nvidia-worker").env_clear();
    for name in [
        "LD_PRELOAD",
        "LD_LIBRARY_PATH",
        "RUST_LOG",
        "RUST_BACKTRACE",
        "CUDA_VISIBLE_DEVICES",
    ] {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    command
        .env("CUDA_MODULE_LOADING", "EAGER")
        .env("CUDA_CACHE_DISABLE", "1");
    command
}

/// Answers a worker's calls until it ends, without counting what they report.
fn answer_calls(_: u32, listener: Listener) {
    thread::spawn(move || listener.serve(|_| ()));
}

/// Arguments of `nvidia-worker-check`.
#[derive(clap::Args, Debug)]
pub(crate) struct CheckArgs {
    /// Rounds of verification
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Boot guests under KVM where it works, not as threads
    #[arg(long)]
    kvm: bool,
    /// Leave the guests out
    #[arg(long)]
    no_guests: bool,
}

/// Measurements, printed as JSON.
#[derive(Debug, Default, Serialize)]
// FIELDS: a report: one figure each.
struct Checked {
    guests_kvm: bool,
    start_ms: f64,
    results_verified: u64,
    results_failed: u64,
    misbehaviours_answered: usize,
    launch_to_fence_p50_us: f64,
    launch_to_fence_p99_us: f64,
    fence_alone_p50_us: f64,
    launches_per_second: f64,
    to_gpu_gb_per_s: f64,
    to_guest_gb_per_s: f64,
    idle_open_gate_cpu_percent: f64,
    idle_cpu_percent: f64,
    killed_seen_ms: f64,
    restart_ms: f64,
}

pub(crate) fn check(args: &CheckArgs) -> anyhow::Result<()> {
    if let Err(error) = probe::exportable_memory(0) {
        println!("SKIPPED: {error}");
        return Ok(());
    }
    let mut checked = Checked::default();
    if !args.no_guests {
        guests(args, &mut checked)?;
    }
    direct(&mut checked)?;
    println!("{}", serde_json::to_string_pretty(&checked)?);
    Ok(())
}

/// Guests against workers.
fn guests(args: &CheckArgs, checked: &mut Checked) -> anyhow::Result<()> {
    let folder = tempfile::Builder::new().prefix("turnstile").tempdir()?;
    let socket = folder.path().join("vmm.sock");
    let workers = WorkerConfig {
        kernel_limit: Nanos::from_ms(1_000),
        ..WorkerConfig::default()
    };
    let watchdog = watchdog_command(workers.device)?;
    let gpu = SharedGpu::start(workers, true, watchdog, worker_command, None, None)?;
    let config = DaemonConfig {
        host: HostConfig {
            policy: "none".into(),
            ..HostConfig::default()
        },
        ..DaemonConfig::new(&socket)
    };
    let daemon = Daemon::start(config, Arc::new(gpu))?;
    checked.guests_kvm = args.kvm && vmm::kvm_available().is_ok();
    let run = |name: &str, workload: Workload| -> anyhow::Result<Report> {
        let config = VmConfig {
            guest_elf: turnstile_images::GUEST_ELF.to_vec(),
            args: workload.encode().to_vec(),
            files: turnstile_images::files(),
            ..VmConfig::new(name, &socket)
        };
        let vm = if checked.guests_kvm {
            vmm::spawn(config)
        } else {
            vmm::native::spawn(config, |platform| turnstile_images::run(platform))
        };
        let left = vm?.join_within(Duration::from_secs(60), Duration::from_secs(5))?;
        Report::decode(&left.report)
            .with_context(|| format!("no report from {name}: {:?}", left.end))
    };
    let report = run(
        "verify",
        Workload::Verify {
            rounds: args.rounds,
        },
    )?;
    checked.results_verified = report.verified;
    checked.results_failed = report.failed;
    ensure!(
        report.outcome == Outcome::Passed,
        "verification: {}",
        report.text()
    );
    for kind in Misbehaviour::ALL {
        let report = run("bad", Workload::Bad(*kind))?;
        if report.outcome == Outcome::Passed {
            checked.misbehaviours_answered += 1;
        } else {
            eprintln!("{kind:?}: {}", report.text());
        }
    }
    drop(daemon);
    Ok(())
}

/// A worker, its VM in plain memory, and a channel.
struct Rig {
    worker: Worker,
    channel: PlainChannel,
    spin: u32,
    function: u32,
}

impl Rig {
    fn new() -> anyhow::Result<Self> {
        let tenant = TenantId(1);
        let vm = Arc::new(PlainVm::new(256 << 20));
        let config = WorkerConfig::default();
        let worker = Worker::start(
            tenant,
            vm.resources(AccountId(tenant.0), 1 << 30, 8),
            config,
            worker_command,
            answer_calls,
        )?;
        worker.set_unwatched(true);
        let text = KERNELS
            .iter()
            .find(|(name, _)| *name == "spin")
            .context("no kernel")?
            .1;
        let (spin, _) = worker.load_module(text)?;
        let (function, bytes) = worker.find_function(spin, "spin")?;
        ensure!(bytes == 24, "spin has {bytes} bytes of parameters");
        let channel =
            vm.open_channel_with(tenant, 1024, 1, |config| worker.open_channel(config))?;
        Ok(Self {
            worker,
            channel,
            spin,
            function,
        })
    }

    fn launch(&mut self, ns: u64, out: u64) {
        let mut params = Vec::new();
        params.extend(ns.to_le_bytes());
        params.extend(out.to_le_bytes());
        params.extend(0u32.to_le_bytes());
        params.extend(7u32.to_le_bytes());
        let params_gpa = self.channel.vm.put(&params);
        self.push_launch(params_gpa);
    }

    fn push_launch(&mut self, params_gpa: u64) {
        self.channel.push(&Ring::Launch(Launch {
            module: self.spin,
            function: self.function,
            grid: Dim3::line(1),
            block: Dim3::line(1),
            shared_bytes: 0,
            param_bytes: 24,
            params_gpa,
        }));
    }

    /// Waits until the fence has this value.
    fn wait(&self, value: u64) -> anyhow::Result<()> {
        let begin = Instant::now();
        while self.channel.fence().value < value {
            std::hint::spin_loop();
            if begin.elapsed() > Duration::from_secs(20) {
                bail!("no fence {value}: {:?}", self.channel.state());
            }
        }
        Ok(())
    }
}

fn percentile(sorted: &[f64], permille: usize) -> f64 {
    let at = (sorted.len() * permille / 1000).min(sorted.len().saturating_sub(1));
    sorted.get(at).copied().unwrap_or(0.0)
}

/// A worker without a guest.
fn direct(checked: &mut Checked) -> anyhow::Result<()> {
    let begin = Instant::now();
    let mut rig = Rig::new()?;
    checked.start_ms = begin.elapsed().as_secs_f64() * 1e3;
    eprintln!("{:?}", rig.worker.facts());
    let memory = rig.worker.allocate(256 << 20)?;
    let mut params = Vec::new();
    params.extend(0u64.to_le_bytes());
    params.extend(memory.va.to_le_bytes());
    params.extend([0u8; 8]);
    let params = rig.channel.vm.put(&params);
    let mut latency = |with_launch: bool| -> anyhow::Result<Vec<f64>> {
        let mut all = Vec::new();
        for _ in 0..2_000 {
            let begin = Instant::now();
            if with_launch {
                rig.push_launch(params);
            }
            let value = rig.channel.push_fence(false);
            rig.channel.ring();
            rig.wait(value)?;
            all.push(begin.elapsed().as_secs_f64() * 1e6);
        }
        all.sort_by(f64::total_cmp);
        Ok(all)
    };
    let with = latency(true)?;
    checked.launch_to_fence_p50_us = percentile(&with, 500);
    checked.launch_to_fence_p99_us = percentile(&with, 990);
    checked.fence_alone_p50_us = percentile(&latency(false)?, 500);
    let begin = Instant::now();
    let (mut launches, mut last) = (0u32, 0);
    while begin.elapsed() < Duration::from_secs(1) {
        for _ in 0..200 {
            rig.push_launch(params);
        }
        launches += 200;
        let before = last;
        last = rig.channel.push_fence(false);
        rig.channel.ring();
        rig.wait(before)?;
    }
    rig.wait(last)?;
    checked.launches_per_second = f64::from(launches) / begin.elapsed().as_secs_f64();
    for direction in [CopyDirection::GuestToGpu, CopyDirection::GpuToGuest] {
        let gpa = 128 << 20;
        let (source, destination) = match direction {
            CopyDirection::GuestToGpu => (gpa, memory.va),
            _ => (memory.va, gpa),
        };
        let begin = Instant::now();
        for _ in 0..32 {
            rig.channel.push(&Ring::Copy {
                direction,
                source,
                destination,
                bytes: TRANSFER_BYTES_MAX,
            });
        }
        let value = rig.channel.push_fence(false);
        rig.channel.ring();
        rig.wait(value)?;
        let rate = 32.0 * TRANSFER_BYTES_MAX as f64 / begin.elapsed().as_secs_f64() / 1e9;
        match direction {
            CopyDirection::GuestToGpu => checked.to_gpu_gb_per_s = rate,
            _ => checked.to_guest_gb_per_s = rate,
        }
    }
    checked.idle_open_gate_cpu_percent = idle_percent(&rig.worker)?;
    rig.worker.set_unwatched(false);
    checked.idle_cpu_percent = idle_percent(&rig.worker)?;
    rig.worker.set_unwatched(true);
    killed(&mut rig, memory, checked)
}

/// Processor time that a worker with nothing to do uses, in percent of a core; to half a percent.
fn idle_percent(worker: &Worker) -> anyhow::Result<f64> {
    const SPAN: Duration = Duration::from_secs(2);
    let ticks = || -> anyhow::Result<u64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", worker.pid()))?;
        // After the name, which may have spaces: utime and stime are fields 14 and 15 of proc(5).
        let rest = stat.rsplit_once(')').context("no name")?.1;
        let fields = rest.split_whitespace().skip(11).take(2);
        Ok(fields.filter_map(|field| field.parse::<u64>().ok()).sum())
    };
    let before = ticks()?;
    thread::sleep(SPAN);
    let used = ticks()? - before;
    // Ticks of 10 ms are the kernel's ABI.
    Ok(used as f64 * 10.0 / SPAN.as_millis() as f64 * 100.0)
}

/// Kills a worker in the middle of a kernel: the VM gets a fault, and a new worker has its memory
/// and modules.
fn killed(rig: &mut Rig, memory: Allocation, checked: &mut Checked) -> anyhow::Result<()> {
    rig.channel.push(&Ring::Fill {
        va: memory.va,
        bytes: 4096,
        pattern: 0x1234_5678,
    });
    let value = rig.channel.push_fence(false);
    rig.channel.ring();
    rig.wait(value)?;
    rig.launch(5_000_000_000, memory.va + 8192);
    rig.channel.ring();
    thread::sleep(Duration::from_millis(50));
    let begin = Instant::now();
    // CAST: a process id.
    let pid = Pid::from_raw(rig.worker.pid() as i32).context("no process")?;
    kill_process(pid, Signal::KILL)?;
    while rig.channel.state().status != ChannelStatus::Faulted as u32 {
        ensure!(
            begin.elapsed() < Duration::from_secs(20),
            "nobody says that the worker is gone"
        );
        thread::yield_now();
    }
    checked.killed_seen_ms = begin.elapsed().as_secs_f64() * 1e3;
    ensure!(rig.channel.state().error == ErrorCode::DeviceLost as u32);
    ensure!(rig.worker.close_channel(rig.channel.number).is_ok());
    let begin = Instant::now();
    let (vm, worker) = (rig.channel.vm.clone(), &rig.worker);
    let mut channel =
        vm.open_channel_with(TenantId(1), 64, 1, |config| worker.open_channel(config))?;
    checked.restart_ms = begin.elapsed().as_secs_f64() * 1e3;
    let gpa = vm.put(&[0; 64]);
    channel.push(&Ring::Copy {
        direction: CopyDirection::GpuToGuest,
        source: memory.va + 128,
        destination: gpa,
        bytes: 64,
    });
    channel.push_fence(true);
    channel.ring();
    rig.channel = channel;
    rig.wait(1)?;
    ensure!(
        vm.fence(gpa).value == 0x1234_5678_1234_5678,
        "memory is lost: {:#x}",
        vm.fence(gpa).value
    );
    rig.launch(1000, memory.va);
    rig.channel.push_fence(true);
    rig.channel.ring();
    rig.wait(2)?;
    ensure!(vm.interrupts.count(1) >= 2, "no interrupts");
    rig.worker.free(memory.va)?;
    ensure!(rig.worker.memory_free_bytes() == 1 << 30);
    Ok(())
}
