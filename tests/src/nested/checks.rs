//! Checks of the device itself, and of the daemon over it with guests.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use turnstile_abi::physical::{BAR_REGS, regs};
use turnstile_abi::{ChannelStatus, Command, CopyDirection, ErrorCode};
use turnstile_accounting::{EngineId, Nanos, TenantId};
use turnstile_daemon::{Daemon, DaemonConfig, HostSnapshot, MeterKind, TenantSnapshot};
use turnstile_gpu::plain::PlainVm;
use turnstile_gpu::prelude::*;
use turnstile_images::{GUEST_ELF, Load, Misbehaviour, Outcome, Report, Workload, files};
use turnstile_vfio::{Bus, Region, VfioGpu};
use turnstile_vmm::vmm::{self, VmConfig, VmHandle};
use vm_memory::GuestAddress;

use super::{Line, exited};
use crate::e2e::{GRACE, wait_for};
use crate::machine::ticks;

/// TIMEOUT: an emulated host may not schedule a thread for seconds.
const PATIENCE: Duration = Duration::from_secs(30);
const A: TenantId = TenantId(1);
const B: TenantId = TenantId(2);

fn gpu(bus: &Arc<dyn Bus>) -> anyhow::Result<Arc<VfioGpu>> {
    Ok(Arc::new(VfioGpu::new(bus.clone())?))
}

/// Fences with an interrupt, one after another, each waited for.
///
/// # Errors
/// If the device violates its contract.
pub fn interrupts(bus: &Arc<dyn Bus>) -> anyhow::Result<Vec<Line>> {
    const COUNT: u64 = 200;
    let gpu = gpu(bus)?;
    let vm = PlainVm::enter(&*gpu, A, 16 << 20, 2 << 20, 8)?;
    let mut channel = vm.open_channel(&*gpu, A, 64, 3)?;
    let began = Instant::now();
    let mut received = 0;
    for count in 1..=COUNT {
        channel.push_fence(true);
        channel.ring();
        let since = Instant::now();
        while vm.interrupts.count(3) < count && since.elapsed() < Duration::from_secs(2) {
            std::thread::yield_now();
        }
        received += u64::from(vm.interrupts.count(3) == count);
    }
    let each = began.elapsed() / COUNT as u32;
    gpu.destroy_context(A);
    Ok(vec![Line::promised(
        "interrupts",
        format!("{received} of {COUNT}, {each:?} from doorbell to eventfd"),
        received == COUNT,
    )])
}

/// Cost of reading the status register of an engine.
///
/// # Errors
/// If the device violates its contract.
pub fn polling_cost(bus: &Arc<dyn Bus>) -> anyhow::Result<Vec<Line>> {
    let gpu = gpu(bus)?;
    let each = |count: u32, act: &mut dyn FnMut()| {
        let began = Instant::now();
        (0..count).for_each(|_| act());
        began.elapsed().as_nanos() as f64 / f64::from(count)
    };
    let mapped = each(100_000, &mut || {
        std::hint::black_box(gpu.engine_status(EngineId(0)));
    });
    let clock = each(100_000, &mut || {
        std::hint::black_box(gpu.now());
    });
    let mut failed = false;
    let trapped = each(500, &mut || {
        let mut word = [0; 8];
        failed |= bus
            .read(Region::Bar(BAR_REGS), regs::TIME, &mut word)
            .is_err();
    });
    ensure!(!failed, "a register could not be read");
    Ok(vec![Line::measured(
        "reading a status register, mapped; the clock beside it; a register that traps",
        format!("{mapped:.0} ns; {clock:.0} ns; {:.1} us", trapped / 1000.0),
    )])
}

/// Nothing beyond a VM's memory can be reached.
///
/// # Errors
/// If the device violates its contract.
pub fn isolation(bus: &Arc<dyn Bus>) -> anyhow::Result<Vec<Line>> {
    let gpu = gpu(bus)?;
    let bytes = 16 << 20;
    let (a, b) = (
        PlainVm::enter(&*gpu, A, bytes, 2 << 20, 8)?,
        PlainVm::enter(&*gpu, B, bytes, 2 << 20, 8)?,
    );
    let text = b"nobody else's";
    let secret = b.put(text);
    let card = gpu.allocate(A, 2 << 20)?;
    // After its end; addresses at which the IOMMU maps its own memory, the other VM's, and the
    // mediator's; interrupts.
    let wild = [
        bytes as u64,
        0x10_0000_0000,
        0x10_0100_0000 + secret,
        0x1000_0000,
        0xfee0_0000,
    ];
    let mut faulted = 0;
    for gpa in wild {
        for direction in [CopyDirection::GpuToGuest, CopyDirection::GuestToGpu] {
            let mut bad = a.open_channel(&*gpu, A, 64, 3)?;
            let (source, destination) = match direction {
                CopyDirection::GpuToGuest => (card.va, gpa),
                _ => (gpa, card.va),
            };
            bad.push(&Command::Copy {
                direction,
                source,
                destination,
                bytes: 4096,
            });
            bad.ring();
            wait_for(PATIENCE, || {
                bad.state().status == ChannelStatus::Faulted as u32
            });
            faulted += u32::from(bad.state().error == ErrorCode::NotGuestMemory as u32);
            gpu.close_channel(A, bad.number)?;
        }
    }
    let mut kept = [0; 13];
    b.guest.read_slice(&mut kept, GuestAddress(secret))?;
    let mut good = b.open_channel(&*gpu, B, 64, 3)?;
    good.push_fence(true);
    good.ring();
    let goes_on = wait_for(PATIENCE, || b.interrupts.count(3) == 1);
    let counted = gpu.dma_faults();
    Ok(vec![Line::promised(
        "DMA beyond a context's memory: faults of 10 copies, counted by the device; the other's memory kept, goes on",
        format!("{faulted}, {counted}; {}, {goes_on}", &kept == text),
        faulted == 10 && counted == 10 && &kept == text && goes_on,
    )])
}

/// A daemon over the device.
struct Host {
    daemon: Daemon,
    gpu: Arc<VfioGpu>,
    folder: tempfile::TempDir,
}

impl Host {
    fn start(bus: &Arc<dyn Bus>, meter: MeterKind) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let gpu = gpu(bus)?;
        let config = DaemonConfig {
            meter,
            ..DaemonConfig::new(folder.path().join("vmm.sock"))
        };
        let daemon = Daemon::start(config, gpu.clone())?;
        Ok(Self {
            daemon,
            gpu,
            folder,
        })
    }

    /// Ends the daemon, and waits until the device is free: a closing connection still holds it,
    /// and its memory is mapped until then.
    fn end(self) -> anyhow::Result<()> {
        let Self { daemon, gpu, .. } = self;
        drop(daemon);
        let free = || Arc::strong_count(&gpu) == 1;
        ensure!(wait_for(GRACE, free), "somebody still has the device");
        Ok(())
    }

    fn spawn(&self, name: &str, weight: u32, workload: Workload) -> anyhow::Result<VmHandle> {
        let config = VmConfig {
            weight: Some(weight),
            guest_elf: GUEST_ELF.to_vec(),
            args: workload.encode().to_vec(),
            files: files(),
            memory_bytes: 32 << 20,
            ..VmConfig::new(name, self.folder.path().join("vmm.sock"))
        };
        vmm::spawn(config).with_context(|| format!("starting {name}"))
    }
}

/// An endless load of kernels of this length that is verified as a whole: each launch leaves a
/// token.
fn load(kernel: Nanos, depth: u32) -> Workload {
    Workload::Load(Load {
        duration_ns: 0,
        kernel_ns: kernel.0,
        depth,
        fence_every: depth / 2,
        ..Load::default()
    })
}

fn of<'a>(snapshot: &'a HostSnapshot, name: &str) -> anyhow::Result<&'a TenantSnapshot> {
    let mut tenants = snapshot.tenants.iter();
    let found = tenants.find(|tenant| tenant.name == name);
    found.with_context(|| format!("no tenant {name}"))
}

fn ended(vm: VmHandle) -> anyhow::Result<Report> {
    vm.stop();
    let end = vm.join_within(PATIENCE, GRACE)?;
    let report = exited(&end)?;
    ensure!(
        report.outcome == Outcome::Passed,
        "{} {}",
        report.text(),
        end.console
    );
    Ok(report)
}

/// Processor time of this process's thread of this name.
fn thread_time(name: &str) -> anyhow::Result<Duration> {
    for task in std::fs::read_dir("/proc/self/task")? {
        let task = task?.path();
        let comm = std::fs::read_to_string(task.join("comm")).unwrap_or_default();
        if comm.trim() != name {
            continue;
        }
        return Ok(Duration::from_millis(10 * ticks(&task)));
    }
    anyhow::bail!("no thread {name}")
}

/// Two guests at 1:3, with one meter.
///
/// # Errors
/// If the host does not run the guests, or they find an error.
pub fn shares(bus: &Arc<dyn Bus>, meter: MeterKind, length: Duration) -> anyhow::Result<Vec<Line>> {
    let host = Host::start(bus, meter)?;
    let light = host.spawn("light", 100, load(Nanos::from_us(2000), 8))?;
    let heavy = host.spawn("heavy", 300, load(Nanos::from_us(1000), 16))?;
    let snapshot = || host.daemon.host().snapshot();
    let busy = |name: &str| of(&snapshot(), name).is_ok_and(|t| t.engine_ns > Nanos::from_ms(50));
    let working = || busy("light") && busy("heavy");
    let over = || light.is_finished() || heavy.is_finished();
    wait_for(PATIENCE, || working() || over());
    if !working() {
        // Errors of the guests' ends are reported first.
        let ends = [ended(light), ended(heavy)];
        ends.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
        bail!("a guest does not come to work");
    }
    let (before, cpu) = (snapshot(), thread_time("turnstile-acct")?);
    let began = Instant::now();
    while began.elapsed() < length {
        std::thread::sleep(length.saturating_sub(began.elapsed()));
    }
    let (after, cpu) = (snapshot(), thread_time("turnstile-acct")? - cpu);
    let wall = began.elapsed();
    let gained = |name: &str| -> anyhow::Result<(u64, u64)> {
        let (from, to) = (of(&before, name)?, of(&after, name)?);
        Ok((
            (to.engine_ns - from.engine_ns).0,
            (to.compute_ns - from.compute_ns).0,
        ))
    };
    let (light_ns, heavy_ns) = (gained("light")?, gained("heavy")?);
    let share = 100.0 * heavy_ns.0 as f64 / (light_ns.0 + heavy_ns.0).max(1) as f64;
    let error = [light_ns, heavy_ns]
        .map(|(engine, charged)| 100.0 * engine.abs_diff(charged) as f64 / engine.max(1) as f64);
    let (a, b) = (ended(light)?, ended(heavy)?);
    let end = snapshot();
    let failed = a.failed + b.failed;
    let name = match meter {
        MeterKind::Events => "events",
        MeterKind::Polled => "polled 1:5",
        MeterKind::Adaptive => "polled 1:5, adaptive",
    };
    let bound = match meter {
        MeterKind::Events => 3.0,
        MeterKind::Polled | MeterKind::Adaptive => f64::INFINITY,
    };
    host.end()?;
    let used = (light_ns.0 + heavy_ns.0) as f64 / after.at.since(before.at).0.max(1) as f64;
    Ok(vec![
        Line::promised(
            &format!(
                "two guests at 1:3, {name}, {} s: share of the heavier, entitled to 75 %",
                length.as_secs()
            ),
            format!("{share:.2} % (engine busy {:.1} %)", 100.0 * used),
            (share - 75.0).abs() <= bound,
        ),
        Line::promised(
            "results verified / failed; conservation error; turnaround",
            format!(
                "{} / {failed}; {} ns; {} and {} us",
                a.verified + b.verified,
                end.conservation_error_ns,
                a.turnaround_ns_sum / a.fences.max(1) / 1000,
                b.turnaround_ns_sum / b.fences.max(1) / 1000
            ),
            failed == 0 && end.conservation_error_ns == 0 && a.verified > 0 && b.verified > 0,
        ),
        Line::promised(
            "charged against the device's own log, largest difference",
            format!("{:.2} %", error[0].max(error[1])),
            meter != MeterKind::Events || error == [0.0, 0.0],
        ),
        Line::measured(
            "accounting thread, share of a processor",
            format!("{:.1} %", 100.0 * cpu.as_secs_f64() / wall.as_secs_f64()),
        ),
    ])
}

/// Guests that access memory beyond their own, beside one that works.
///
/// # Errors
/// If the host does not run the guests, or they find an error.
pub fn wild_guests(bus: &Arc<dyn Bus>) -> anyhow::Result<Vec<Line>> {
    let host = Host::start(bus, MeterKind::Events)?;
    let good = host.spawn("good", 100, load(Nanos::from_us(500), 16))?;
    let wild = [
        Misbehaviour::WildGuestCopy,
        Misbehaviour::WildFence,
        Misbehaviour::WildCopy,
        Misbehaviour::PutOutOfRange,
    ];
    let mut answered = 0;
    for kind in wild {
        let vm = host.spawn("wild", 100, Workload::Bad(kind))?;
        let end = vm.join_within(PATIENCE, GRACE)?;
        let report = exited(&end).with_context(|| format!("{kind:?}"))?;
        let passed = report.outcome == Outcome::Passed;
        if !passed {
            eprintln!("{kind:?}: {}", report.text());
        }
        answered += usize::from(passed);
    }
    let faults = host.gpu.dma_faults();
    let report = ended(good)?;
    host.end()?;
    Ok(vec![Line::promised(
        "guests that reach out of their memory: answered as documented; DMA faults; the other's results verified / failed",
        format!(
            "{answered} of {}; {faults}; {} / {}",
            wild.len(),
            report.verified,
            report.failed
        ),
        answered == wild.len() && faults >= 2 && report.failed == 0 && report.verified > 0,
    )])
}
