//! `turnstile vmm`: one VM of the reference VMM, with the test guest in it.

use std::io::BufRead;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use turnstile_images::{Load, Outcome, Report, Workload};
use turnstile_vmm::vmm::{self, VmConfig, VmEnd, VmHandle};

use super::report::GuestReport;

/// How long a guest may take to end after it was asked to.
/// TIMEOUT: its last verification, which took 0.4 s on two busy cores in a release build.
const GRACE: Duration = Duration::from_secs(60);

/// What is said on standard output, one JSON object a line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "said", rename_all = "snake_case")]
pub(crate) enum Said {
    /// All kernels were verified once; the load begins.
    Loading,
    /// The guest has ended.
    Report(GuestReport),
    /// The process has ended; never said by itself.
    #[serde(skip)]
    Ended,
}

/// Arguments of `vmm`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The daemon's socket
    #[arg(long, default_value = "/run/turnstile/vmm.sock")]
    socket: PathBuf,
    /// Name of the VM
    #[arg(long)]
    name: String,
    /// Its weight, 1 to 10000
    #[arg(long)]
    weight: Option<u32>,
    /// Length of a kernel in microseconds
    #[arg(long, default_value_t = 1000)]
    kernel_us: u64,
    /// Kernels in the queue, 1 to 256
    #[arg(long, default_value_t = 2)]
    depth: u32,
    /// Kernels between two pauses; no pauses if absent
    #[arg(long, requires = "pause_us")]
    burst: Option<u32>,
    /// Length of a pause in microseconds
    #[arg(long, requires = "burst")]
    pause_us: Option<u64>,
    /// End after so many seconds, instead of at a line on standard input or its end
    #[arg(long)]
    seconds: Option<u64>,
    /// Have the guest allocate, fill and verify all the GPU memory that it may own
    #[arg(long)]
    fill_memory: bool,
    /// Run the guest as a thread, not as a VM
    #[arg(long)]
    native: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let load = Load {
        duration_ns: 0,
        kernel_ns: args.kernel_us.saturating_mul(1_000),
        depth: args.depth,
        // Interrupts cost more than kernels are long: one for every half of the queue.
        fence_every: (args.depth / 2).max(1),
        burst: args.burst.unwrap_or(0),
        pause_ns: args.pause_us.unwrap_or(0).saturating_mul(1_000),
        ..Load::default()
    };
    let workload = if args.fill_memory {
        Workload::Filled(load)
    } else {
        Workload::Demo(load)
    };
    let config = VmConfig {
        weight: args.weight,
        guest_elf: turnstile_images::GUEST_ELF.to_vec(),
        args: workload.encode().to_vec(),
        files: turnstile_images::files(),
        ..VmConfig::new(&args.name, &args.socket)
    };
    let vm = if args.native {
        vmm::native::spawn(config, |platform| turnstile_images::run(platform))
    } else {
        vmm::spawn(config)
    }
    .with_context(|| format!("Starting VM {}", args.name))?;
    wait_for_load(&vm, args.fill_memory)?;
    wait_for_end(args, &vm);
    vm.stop();
    let left = vm.join_within(GRACE, GRACE)?;
    let report = Report::decode(&left.report).unwrap_or_default();
    let error = match (&left.end, report.outcome) {
        (VmEnd::Exited(0), Outcome::Passed) => None,
        (VmEnd::Exited(_), _) => Some(report.text().to_owned()),
        (end, _) => Some(format!(
            "The guest ended by {end:?}; console: {}",
            left.console
        )),
    };
    say(&Said::Report(GuestReport {
        kvm: !args.native,
        verified: report.verified,
        failed: report.failed,
        launches: report.launches,
        doorbell_exits: left.doorbell_exits,
        doorbells: report.doorbells,
        error,
    }))
}

fn say(said: &Said) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string(said)?);
    Ok(())
}

/// Waits until the guest reports that all kernels were verified, and, of one that fills its memory, that its load has begun.
fn wait_for_load(vm: &VmHandle, filled: bool) -> anyhow::Result<()> {
    let begun = |report: Report| report.passed != 0 && (!filled || report.doorbells > 0);
    while !vm.wait(Duration::from_millis(20)) {
        if Report::decode(&vm.report()).is_some_and(begun) {
            return say(&Said::Loading);
        }
    }
    Ok(())
}

/// Waits for whatever ends the load: the time, a line, or the guest itself.
fn wait_for_end(args: &Args, vm: &VmHandle) {
    if let Some(seconds) = args.seconds {
        vm.wait(Duration::from_secs(seconds));
        return;
    }
    let line = thread::spawn(|| {
        let _ = std::io::stdin().lock().read_line(&mut String::new());
    });
    while !line.is_finished() && !vm.wait(Duration::from_millis(20)) {}
}
