//! `turnstile vmm`: one VM of the reference VMM, with the test guest in it.

use std::io::BufRead;
use std::path::PathBuf;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Context;
use serde::{Deserialize, Serialize};
use turnstile_abi::ErrorCode;
use turnstile_host::run_folder;
use turnstile_images::{Load, Outcome, Report, Workload};
use turnstile_vmm::attach::AttachError;
use turnstile_vmm::vmm::{self, VmConfig, VmEnd, VmError, VmHandle, VmReport};

use super::exit::{Ended, Exit};
use super::identity::{Identity, tenant_name};
use super::report::GuestReport;

/// Longest time that a guest may take to end after its stop request.
/// TIMEOUT: its last verification, which took 0.4 s on two busy cores in a release build.
const GRACE: Duration = Duration::from_secs(60);
/// TIMEOUT: between two attempts to reach a daemon that is gone, and so the longest delay after it
/// is back.
const RETRY: Duration = Duration::from_millis(50);

/// What the command prints on standard output, one JSON object a line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "said", rename_all = "snake_case")]
pub(crate) enum Message {
    /// All kernels were verified once; the load begins.
    Loading,
    /// The daemon is gone, and the guest's GPU with it; it is started again.
    Lost,
    /// The guest has ended.
    Report(GuestReport),
    /// The process has ended; derived, never sent.
    #[serde(skip)]
    Ended,
}

/// Arguments of `vmm`.
#[derive(clap::Args, Debug)]
// FIELDS: options of a command.
pub(crate) struct Args {
    /// The daemon's socket; that of this user's own daemon, else /run/turnstile/vmm.sock
    #[arg(long, default_value_os_t = run_folder::find(run_folder::VMM), hide_default_value = true)]
    socket: PathBuf,
    /// Name of the VM
    #[arg(long, value_parser = tenant_name)]
    name: String,
    /// Its weight, 1 to 10000
    #[arg(long)]
    weight: Option<u32>,
    /// GPU memory that it may own, in MiB; without it, as much as the daemon gives by default
    #[arg(long)]
    gpu_memory_mib: Option<u32>,
    #[command(flatten)]
    identity: Identity,
    /// Allocate all guest memory first, so that it is charged to the control group of this process
    #[arg(long)]
    prealloc: bool,
    /// Have every doorbell write at a closed gate exit the guest and be counted, not only the
    /// first; each costs an exit
    #[arg(long)]
    trap_every_write: bool,
    /// Length of a kernel in microseconds
    #[arg(long, default_value_t = 1000)]
    kernel_us: u64,
    /// Instead of kernels, repeatedly copy this many KiB from the guest to the GPU, 1 to 65536
    #[arg(long, conflicts_with_all = ["kernel_us", "burst", "fill_memory", "load_only"],
        value_parser = clap::value_parser!(u64).range(1..=65_536))]
    copy_kib: Option<u64>,
    /// Kernels in the queue, 1 to 256; copies, 1 to 64
    #[arg(long, default_value_t = 2)]
    depth: u32,
    /// Kernels between two pauses; no pauses if absent
    #[arg(long, requires = "pause_us")]
    burst: Option<u32>,
    /// Length of a pause in microseconds
    #[arg(long, requires = "burst")]
    pause_us: Option<u64>,
    /// End after this many seconds, instead of at a line on standard input or its end
    #[arg(long)]
    seconds: Option<u64>,
    /// Have the guest allocate, fill and verify all the GPU memory that it may own
    #[arg(long)]
    fill_memory: bool,
    /// Run the guest as a thread, not as a VM
    #[arg(long)]
    native: bool,
    /// When the daemon is gone, or the VM was drained, wait for its GPU and start the guest again:
    /// it was lost with the GPU
    #[arg(long)]
    reconnect: bool,
    /// Begin with the load; verify nothing
    #[arg(long, hide = true, conflicts_with = "fill_memory")]
    load_only: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let (end, mut was_lost) = (End::new(args), false);
    loop {
        let ended = start(args).and_then(|vm| {
            wait_for_load(&vm, args)?;
            end.wait(&vm);
            vm.stop();
            Ok(vm.join_within(GRACE, GRACE)?)
        });
        let again = args.reconnect && !end.is_due();
        match ended {
            Ok(left) if is_lost(&left) && again => {
                was_lost = true;
                print_message(&Message::Lost)?;
            }
            Ok(left) => {
                let lost = is_lost(&left);
                let report = report(args, &left);
                let error = report.error.clone();
                print_message(&Message::Report(report))?;
                return match error {
                    None => Ok(()),
                    Some(text) => Err(guest_failed(&args.name, &text, lost)),
                };
            }
            // A VM that starts fails like this while the daemon restarts; any other failure would
            // recur.
            Err(error) if again && is_of_the_connection(&error) => {}
            // It was admitted before. A declared VM may have to wait for room after a drain.
            Err(error) if was_lost && again && is_refused(&error) => {}
            Err(error) => return Err(error),
        }
        thread::sleep(RETRY);
    }
}

/// Whether the guest's GPU was lost. A daemon that stops ends the guest's channels before it closes
/// the connection, so the guest may end first.
fn is_lost(left: &VmReport) -> bool {
    let reported = Report::decode(&left.report).map(|report| report.error);
    left.lost || reported == Some(u64::from(ErrorCode::DeviceLost as u32))
}

/// The error of a guest that ended with one, which has an exit status of its own.
fn guest_failed(name: &str, text: &str, lost: bool) -> anyhow::Error {
    let remedy = if lost {
        "its GPU was lost with the daemon, --reconnect starts it again"
    } else {
        "its last report is on standard output"
    };
    let text = format!("The guest of VM {name} failed: {text}; {remedy}");
    let exit = Exit::Guest;
    Ended { exit, text }.into()
}

/// Whether the daemon was absent, or went away.
fn is_of_the_connection(error: &anyhow::Error) -> bool {
    matches!(
        error.downcast_ref(),
        Some(VmError::Attach(
            AttachError::Connect { .. } | AttachError::Wire(_) | AttachError::Closed
        ))
    )
}

/// Whether the daemon did not take the VM.
fn is_refused(error: &anyhow::Error) -> bool {
    matches!(
        error.downcast_ref(),
        Some(VmError::Attach(AttachError::Refused(_)))
    )
}

fn start(args: &Args) -> anyhow::Result<VmHandle> {
    if !args.native {
        turnstile_images::guest_built()?;
    }
    let load = Load {
        duration_ns: 0,
        kernel_ns: args.kernel_us.saturating_mul(1_000),
        depth: args.depth,
        // Interrupts cost more than kernels take: one for every half of the queue.
        fence_every: (args.depth / 2).max(1),
        burst: args.burst.unwrap_or(0),
        pause_ns: args.pause_us.unwrap_or(0).saturating_mul(1_000),
        ..Load::default()
    };
    let workload = if let Some(kib) = args.copy_kib {
        Workload::Copies {
            bytes: kib << 10,
            depth: args.depth,
        }
    } else if args.fill_memory {
        Workload::Filled(load)
    } else if args.load_only {
        Workload::Load(load)
    } else {
        Workload::Demo(load)
    };
    let config = VmConfig {
        weight: args.weight,
        gpu_memory_bytes: args.gpu_memory_mib.map(|mib| u64::from(mib) << 20),
        metadata: args.identity.sent()?,
        prealloc: args.prealloc,
        guest_elf: turnstile_images::GUEST_ELF.to_vec(),
        args: workload.encode().to_vec(),
        files: turnstile_images::files(),
        trap_every_write: args.trap_every_write,
        ..VmConfig::new(&args.name, &args.socket)
    };
    let started = if args.native {
        vmm::native::spawn(config, |platform| turnstile_images::run(platform))
    } else {
        vmm::spawn(config)
    };
    started.with_context(|| format!("Starting VM {}", args.name))
}

fn report(args: &Args, left: &VmReport) -> GuestReport {
    let report = Report::decode(&left.report).unwrap_or_default();
    let error = match (&left.end, report.outcome) {
        (VmEnd::Exited(0), Outcome::Passed) => None,
        (VmEnd::Exited(_), _) => Some(report.text().to_owned()),
        (end, _) => Some(format!(
            "The guest ended by {end:?}; console: {}",
            left.console
        )),
    };
    GuestReport {
        kvm: !args.native,
        verified: report.verified,
        failed: report.failed,
        launches: report.launches,
        doorbell_exits: left.doorbell_exits,
        doorbells: report.doorbells,
        error,
    }
}

fn print_message(message: &Message) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string(message)?);
    Ok(())
}

/// Waits until the guest reports that all kernels were verified, and, of one that fills its memory,
/// that its load has begun.
fn wait_for_load(vm: &VmHandle, args: &Args) -> anyhow::Result<()> {
    let started =
        |report: Report| report.passed != 0 && (!args.fill_memory || report.doorbells > 0);
    while !vm.wait(Duration::from_millis(20)) {
        if args.load_only || Report::decode(&vm.report()).is_some_and(started) {
            return print_message(&Message::Loading);
        }
    }
    Ok(())
}

/// End of the load other than the guest's own: a time, or a line.
struct End {
    at: Option<Instant>,
    line: Option<JoinHandle<()>>,
}

impl End {
    fn new(args: &Args) -> Self {
        let at = |seconds| Instant::now() + Duration::from_secs(seconds);
        let line = || {
            thread::spawn(|| {
                let _ = std::io::stdin().lock().read_line(&mut String::new());
            })
        };
        Self {
            at: args.seconds.map(at),
            line: args.seconds.is_none().then(line),
        }
    }

    fn is_due(&self) -> bool {
        let line = self.line.as_ref().is_some_and(JoinHandle::is_finished);
        line || self.at.is_some_and(|at| at <= Instant::now())
    }

    /// Waits for it, or for the guest's end.
    fn wait(&self, vm: &VmHandle) {
        while !self.is_due() && !vm.wait(Duration::from_millis(20)) {}
    }
}
