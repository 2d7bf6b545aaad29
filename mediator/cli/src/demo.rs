//! `turnstile demo`: a daemon, several VMs, and what each received against what it was entitled to.

mod scenes;

use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};
use turnstile_accounting::Nanos;
use turnstile_accounting::share::max_share_error_points;
use turnstile_daemon::config::{Config, GpuKind};
use turnstile_daemon::{HostSnapshot, TenantSnapshot};
use turnstile_figures::BUCKETS_PER_SECOND;
use turnstile_figures::output::{Output, OutputArgs};
use turnstile_figures::readings::Readings;
use turnstile_figures::windows::worst;
use turnstile_mediation::COMPUTE;

use self::scenes::{SCENES, VmSpec, Work};
use super::options::Scheduling;
use super::report::{DemoReport, GuestReport, MemoryLine, VmLine};
use super::serve;
use super::vmm::Message;

/// Longest time in which guests verify all kernels and begin their load, or end.
/// TIMEOUT: measured 2 s for three guests on two cores in a release build; 20 times that in a debug
/// build.
const PATIENCE: Duration = Duration::from_secs(90);
/// Left out at the beginning, while queues fill and the mediator estimates what tenants want.
const SETTLE: Duration = Duration::from_secs(1);
/// From one step of the progress bar to the next.
const SHOW_EVERY: Duration = Duration::from_millis(100);
/// From one reading of what VMs received to the next: turns are longer.
const READ_EVERY: Duration = Duration::from_millis(5);

/// Arguments of `demo`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Length of the measured window
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    #[command(flatten)]
    output: OutputArgs,
    /// The VMs: saturating (three keep their queues full), launch-and-wait (two with one kernel in
    /// flight) or copies (one copies to the GPU all the time, beside two with kernels)
    #[arg(long, value_name = "NAME", default_value = SCENES[0].name, conflicts_with = "vms",
        value_parser = SCENES.iter().map(|scene| scene.name).collect::<Vec<_>>())]
    scene: String,
    /// A VM as NAME:WEIGHT:KERNEL_US[:DEPTH] or NAME:WEIGHT:copies[:DEPTH], instead of a scene's;
    /// give it once for each VM
    #[arg(long = "vm", value_name = "SPEC")]
    vms: Vec<VmSpec>,
    /// Let the guests fill all the GPU memory that they own, on a card with one FACTOR-th of it
    #[arg(long, value_name = "FACTOR", value_parser = factor)]
    oversubscribe: Option<f64>,
    /// Run the guests as threads, not as VMs, even where KVM works
    #[arg(long)]
    native: bool,
    #[command(flatten)]
    scheduling: Scheduling,
}

impl Args {
    /// What the VMs do, where a scene states it, and the VMs.
    fn vms(&self) -> anyhow::Result<(Option<&'static str>, Vec<VmSpec>)> {
        if !self.vms.is_empty() {
            return Ok((None, self.vms.clone()));
        }
        let mut scenes = SCENES.iter();
        let scene = scenes.find(|scene| scene.name == self.scene);
        let scene = scene.with_context(|| format!("There is no scene {}", self.scene))?;
        let vms = scene.vms.iter().map(|spec| spec.parse::<VmSpec>());
        let vms: Result<Vec<_>, String> = vms.collect();
        Ok((Some(scene.what), vms.map_err(anyhow::Error::msg)?))
    }
}

fn factor(text: &str) -> Result<f64, String> {
    let factor = text.parse().ok().filter(|f| (1.0..=64.0).contains(f));
    factor.ok_or_else(|| format!("{text:?} is not within 1 and 64"))
}

/// A VMM process and its output.
struct Vm {
    child: Child,
    spec: VmSpec,
    report: Option<GuestReport>,
}

impl Drop for Vm {
    fn drop(&mut self) {
        // Only of use when the demo failed: a VMM that has reported has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let (scene, specs) = args.vms()?;
    let kvm_missing = if args.native {
        Some("--native was given".to_owned())
    } else {
        let works = turnstile_vmm::vmm::kvm_available().map_err(|reason| reason.to_string());
        let built = |()| turnstile_images::guest_built().map_err(|reason| reason.to_string());
        works.and_then(built).err()
    };
    let folder = tempfile::Builder::new().prefix("turnstile").tempdir()?;
    let socket = folder.path().join("vmm.sock");
    let mut config = args.scheduling.config()?;
    config.sockets.vmm = socket.clone();
    if let Some(factor) = args.oversubscribe {
        serve::oversubscribe(&mut config, factor, specs.len() as u64)?;
    }
    let daemon = serve::start(&config)?;
    let progress = progress(args);
    let (sender, receiver) = channel();
    let mut vms = Vec::new();
    for (index, spec) in specs.iter().enumerate() {
        let native = kvm_missing.is_some();
        let fill = args.oversubscribe.is_some();
        let vm = spawn(spec, &socket, native, fill, index, sender.clone())
            .with_context(|| format!("Starting VM {} failed", spec.name))?;
        vms.push(vm);
    }
    progress.set_message("guests verify all kernels");
    wait_for_all(&mut vms, &receiver, &progress, |vm, message| {
        matches!(message, Message::Loading) || vm.report.is_some()
    })?;
    if let Some(vm) = vms.iter().find(|vm| vm.report.is_some()) {
        let error = vm.report.as_ref().and_then(|report| report.error.clone());
        bail!(
            "VM {} ended early: {}",
            vm.spec.name,
            error.unwrap_or_default()
        );
    }
    thread::sleep(SETTLE);
    progress.set_message("measuring");
    let before = daemon.host().snapshot();
    // The software GPU and its guests need the processors themselves.
    let reads = config.gpu.kind == GpuKind::Nvidia;
    let mut readings = reads.then(|| Readings::beginning(before.at, received(&vms, &before)));
    let every = if reads { READ_EVERY } else { SHOW_EVERY };
    measure(args.seconds, &progress, every, || {
        if let Some(readings) = &mut readings {
            let snapshot = daemon.host().snapshot();
            readings.read(snapshot.at, &received(&vms, &snapshot));
        }
    });
    let after = daemon.host().snapshot();
    progress.set_message("guests verify their last results");
    for vm in &mut vms {
        if let Some(mut stdin) = vm.child.stdin.take() {
            stdin.write_all(b"stop\n")?;
        }
    }
    wait_for_all(&mut vms, &receiver, &progress, |vm, _| vm.report.is_some())?;
    let end = daemon.host().snapshot();
    progress.finish_and_clear();
    let policy = daemon.host().policy();
    let mut report = report(&config, policy, kvm_missing, &vms, &before, &after, &end);
    report.scene = scene;
    report.worst_second_points = readings.and_then(|readings| worst_second_points(&vms, &readings));
    args.output.print(&report, DemoReport::print)?;
    drop((vms, daemon));
    if !report.sound() {
        bail!("The demo is not sound: see failed results, errors and conservation above");
    }
    Ok(())
}

fn progress(args: &Args) -> ProgressBar {
    if args.output.form() != Output::Table || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(args.seconds * 10);
    if let Ok(style) = ProgressStyle::with_template("{spinner} {bar:40} {elapsed} {msg}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

fn measure(seconds: u64, progress: &ProgressBar, every: Duration, mut read: impl FnMut()) {
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(seconds) {
        let left = Duration::from_secs(seconds).saturating_sub(begin.elapsed());
        thread::sleep(left.min(every));
        read();
        // CAST: tenths of a day at most
        progress.set_position((begin.elapsed().as_millis() / 100) as u64);
    }
}

fn spawn(
    spec: &VmSpec,
    socket: &Path,
    native: bool,
    fill: bool,
    index: usize,
    sender: Sender<(usize, Message)>,
) -> anyhow::Result<Vm> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .arg("vmm")
        .arg("--socket")
        .arg(socket)
        .args(["--name", &spec.name])
        .args(["--weight", &spec.weight.get().to_string()])
        .args(["--depth", &spec.depth.to_string()]);
    match spec.work {
        Work::Kernels { us } => command.args(["--kernel-us", &us.to_string()]),
        Work::Copies => command.args(["--copy-kib", &scenes::COPY_KIB.to_string()]),
    };
    if native {
        command.arg("--native");
    }
    if fill {
        command.arg("--fill-memory");
    }
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let stdout = child.stdout.take().context("the VMM has no output")?;
    thread::Builder::new()
        .name(format!("demo-{}", spec.name))
        .spawn(move || {
            for line in BufReader::new(stdout).lines() {
                let Ok(line) = line else { break };
                match serde_json::from_str(&line) {
                    Ok(event) => {
                        if sender.send((index, event)).is_err() {
                            return;
                        }
                    }
                    Err(_) => eprintln!("{line}"),
                }
            }
            let _ = sender.send((index, Message::Ended));
        })?;
    Ok(Vm {
        child,
        spec: spec.clone(),
        report: None,
    })
}

/// Waits until `done` holds of every VM.
fn wait_for_all(
    vms: &mut [Vm],
    receiver: &Receiver<(usize, Message)>,
    progress: &ProgressBar,
    done: impl Fn(&Vm, &Message) -> bool,
) -> anyhow::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    let mut missing: Vec<bool> = vms.iter().map(|vm| vm.report.is_none()).collect();
    while missing.contains(&true) {
        let left = deadline.saturating_duration_since(Instant::now());
        let (index, event) = match receiver.recv_timeout(left) {
            Ok(received) => received,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                let late: Vec<&str> = vms
                    .iter()
                    .zip(&missing)
                    .filter_map(|(vm, missing)| missing.then_some(vm.spec.name.as_str()))
                    .collect();
                bail!(
                    "No word from {} for {} s",
                    late.join(", "),
                    PATIENCE.as_secs()
                );
            }
        };
        let vm = &mut vms[index];
        match &event {
            Message::Report(report) => vm.report = Some(report.clone()),
            Message::Ended if vm.report.is_none() => {
                bail!(
                    "VM {} ended without a report; its messages are above",
                    vm.spec.name
                );
            }
            _ => {}
        }
        if done(vm, &event) {
            missing[index] = false;
            progress.tick();
        }
    }
    Ok(())
}

/// The tenant that a VM is.
fn tenant<'a>(snapshot: &'a HostSnapshot, vm: &Vm) -> Option<&'a TenantSnapshot> {
    let mut tenants = snapshot.tenants.iter();
    tenants.find(|tenant| tenant.name == vm.spec.name)
}

/// Compute time of a VM until then: by the engine's own log, or what was charged where that is not
/// known.
fn compute_time(tenant: &TenantSnapshot, logged: bool) -> Nanos {
    if logged {
        tenant.engine_ns
    } else {
        tenant.compute_ns
    }
}

/// Compute time of the VMs until then.
fn received(vms: &[Vm], snapshot: &HostSnapshot) -> Vec<Nanos> {
    let logged = snapshot.lacks.is_none();
    let of = |vm| tenant(snapshot, vm).map_or(Nanos::ZERO, |tenant| compute_time(tenant, logged));
    vms.iter().map(of).collect()
}

/// The largest share error of any second.
fn worst_second_points(vms: &[Vm], readings: &Readings) -> Option<f64> {
    let received = readings.buckets();
    let entitled =
        |(vm, received): (&Vm, &Vec<u64>)| vec![vm.spec.compute_weight(); received.len()];
    let entitled: Vec<Vec<u64>> = vms.iter().zip(received).map(entitled).collect();
    let worst = worst(received, &entitled, BUCKETS_PER_SECOND, 0, 1);
    worst.map(|worst| worst.points)
}

fn report(
    config: &Config,
    policy: &str,
    kvm_missing: Option<String>,
    vms: &[Vm],
    before: &HostSnapshot,
    after: &HostSnapshot,
    end: &HostSnapshot,
) -> DemoReport {
    let window = after.at.since(before.at);
    let logged = after.lacks.is_none();
    let weights: u64 = vms.iter().map(|vm| vm.spec.compute_weight()).sum();
    let mut lines = Vec::new();
    let (mut received, mut entitled) = (Vec::new(), Vec::new());
    let mut charge_error: f64 = 0.0;
    for vm in vms {
        let (Some(from), Some(to)) = (tenant(before, vm), tenant(after, vm)) else {
            continue;
        };
        let gpu_ns = compute_time(to, logged) - compute_time(from, logged);
        let charged_ns = to.compute_ns - from.compute_ns;
        let copy_ns = to.copy_ns - from.copy_ns;
        if gpu_ns.0 > 0 {
            let difference = gpu_ns.0.abs_diff(charged_ns.0) as f64 / gpu_ns.0 as f64;
            charge_error = charge_error.max(100.0 * difference);
        }
        received.push(gpu_ns);
        entitled.push(Nanos(vm.spec.compute_weight()));
        lines.push(VmLine {
            name: vm.spec.name.clone(),
            weight: vm.spec.weight.get(),
            kernel_us: vm.spec.kernel_us(),
            copied_ns: (vm.spec.work == Work::Copies).then_some(copy_ns.0),
            depth: vm.spec.depth,
            gpu_ns: gpu_ns.0,
            charged_ns: charged_ns.0,
            entitled_share_percent: 100.0 * vm.spec.compute_weight() as f64 / weights.max(1) as f64,
            share_percent: 0.0,
            held_ns: (to.held_ns.saturating_sub(from.held_ns)).0,
            gate_moves: to.gate_moves - from.gate_moves,
            memory: to.memory.zip(from.memory).map(|(to, from)| MemoryLine {
                swapped_out_bytes: to.swapped_out_bytes - from.swapped_out_bytes,
                swapped_in_bytes: to.swapped_in_bytes - from.swapped_in_bytes,
                resident_bytes: to.resident_bytes,
                allocated_bytes: to.resident_bytes + to.swapped_bytes,
                moved_bytes: to.moved_bytes - from.moved_bytes,
                copy_ns: copy_ns.0,
            }),
            guest: vm.report.clone().unwrap_or_default(),
        });
    }
    let total: u64 = received.iter().map(|ns| ns.0).sum();
    for line in &mut lines {
        line.share_percent = 100.0 * line.gpu_ns as f64 / total.max(1) as f64;
    }
    let busy = |snapshot: &HostSnapshot| {
        let compute = snapshot
            .engines
            .iter()
            .find(|engine| engine.engine == COMPUTE);
        compute.map_or(0, |engine| engine.totals.used_ns.0)
    };
    let busy_ns = if logged {
        busy(after) - busy(before)
    } else {
        total
    };
    DemoReport {
        scene: None,
        kvm: !lines.is_empty() && lines.iter().all(|line| line.guest.kvm),
        kvm_missing,
        gpu: config.gpu.kind.name(),
        policy: policy.to_owned(),
        meter: serve::meter(config, !logged).name(),
        lacks: end.lacks.clone(),
        window_ns: window.0,
        max_share_error_points: max_share_error_points(&received, &entitled),
        worst_second_points: None,
        max_charge_error_percent: charge_error,
        engine_busy_percent: 100.0 * busy_ns as f64 / window.0.max(1) as f64,
        results_verified: lines.iter().map(|line| line.guest.verified).sum(),
        results_failed: lines.iter().map(|line| line.guest.failed).sum(),
        vms: lines,
        conservation_error_ns: end.conservation_error_ns,
        ledger_errors: end.ledger_errors,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scene_has_vms_and_a_given_vm_takes_the_place_of_a_scene() {
        use clap::Parser;
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: Args,
        }
        let vms = |line: &[&str]| {
            let words = ["demo"].into_iter().chain(line.iter().copied());
            let line = Line::try_parse_from(words).ok()?;
            let (what, vms) = line.args.vms().ok()?;
            let spec = |vm: &VmSpec| (vm.name.clone(), vm.kernel_us(), vm.depth);
            Some((what, vms.iter().map(spec).collect::<Vec<_>>()))
        };
        for scene in SCENES {
            let (what, vms) = vms(&["--scene", scene.name]).unwrap();
            assert_eq!((what, vms.len()), (Some(scene.what), scene.vms.len()));
        }
        assert_eq!(vms(&[]), vms(&["--scene", "saturating"]));
        let (a, b) = (("a".to_owned(), 2000, 1), ("b".to_owned(), 200, 1));
        assert_eq!(vms(&["--scene", "launch-and-wait"]).unwrap().1, [a, b]);
        let own = vms(&["--vm", "c:1:100:2"]).unwrap();
        assert_eq!(own, (None, vec![("c".to_owned(), 100, 2)]));
        assert_eq!(vms(&["--scene", "saturating", "--vm", "c:1:100"]), None);
        assert_eq!(vms(&["--scene", "unknown"]), None);
    }
}
