//! Gates before the device's own doorbell pages, with a guest that rings without a pause.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use turnstile_images::{GUEST_ELF, Report, Workload, files};
use turnstile_mediator::gpu::vfio::Bus;
use turnstile_vmm::gate::{GateState, newer};
use turnstile_vmm::vmm::{self, VmConfig, VmEnd, VmHandle, VmReport};

use super::Line;
use super::stub::GateDaemon;
use crate::e2e::{GRACE, wait_for};

/// Pages that no context has: the daemon of the other checks gives them out from the first on.
const FIRST_PAGE: u32 = 1016;
/// TIMEOUT: seconds in which an emulated host may not come to a guest.
const PATIENCE: Duration = Duration::from_secs(20);

fn start(daemon: &GateDaemon, workload: Workload, memory_bytes: u64) -> anyhow::Result<VmHandle> {
    let config = VmConfig {
        guest_elf: GUEST_ELF.to_vec(),
        args: workload.encode().to_vec(),
        files: files(),
        memory_bytes,
        ..VmConfig::new("gates", daemon.socket())
    };
    Ok(vmm::spawn(config)?)
}

fn finish(vm: VmHandle) -> anyhow::Result<(VmReport, Report)> {
    let end = vm.join_within(PATIENCE, GRACE)?;
    let report = crate::e2e::guest_report(&end)?;
    ensure!(
        end.end == VmEnd::Exited(0),
        "{:?}: {} {}",
        end.end,
        report.text(),
        end.console
    );
    Ok((end, report))
}

fn rings(count: u64) -> Workload {
    Workload::Doorbells {
        count,
        paced: false,
    }
}

/// A doorbell behind an open gate costs no exit.
///
/// # Errors
/// When the host does not run the guest.
pub fn open(bus: &dyn Bus) -> anyhow::Result<Vec<Line>> {
    const COUNT: u64 = 100_000;
    let daemon = GateDaemon::start(bus, FIRST_PAGE)?;
    let (vm, report) = finish(start(&daemon, rings(COUNT), 64 << 20)?)?;
    let seen = u64::from(daemon.page());
    Ok(vec![Line::promised(
        "exits of 100,000 writes to the passed-through doorbell, gate open",
        format!(
            "{} (device's page says {seen}; {} ns a write, {} exits in all)",
            vm.doorbell_exits,
            report.elapsed_ns / COUNT,
            vm.exits
        ),
        vm.doorbell_exits == 0 && seen == COUNT,
    )])
}

/// Nothing is lost and nothing late while the gate opens and closes under a guest that rings.
///
/// # Errors
/// When the host does not run the guest, or a gate does not move.
pub fn cycles(bus: &dyn Bus, cycles: u32) -> anyhow::Result<Vec<Line>> {
    let daemon = GateDaemon::start(bus, FIRST_PAGE)?;
    let vm = start(&daemon, rings(0), 64 << 20)?;
    ensure!(
        wait_for(PATIENCE, || daemon.page() > 0),
        "the guest does not ring"
    );
    let (mut late, mut back, mut untrapped) = (0, 0, 0);
    let (mut closing, mut opening) = (Vec::new(), Vec::new());
    for cycle in 0..cycles {
        let began = Instant::now();
        daemon.gate(GateState::Closed)?;
        closing.push(began.elapsed());
        let page = daemon.page();
        // In some cycles the gate opens again before the guest has rung.
        if cycle % 4 != 0 {
            let parked = || vm.gate(0).and_then(|trace| trace.parked);
            let came = until(|| parked().is_some_and(|parked| newer(parked, page)));
            untrapped += u32::from(!came);
        }
        late += u32::from(daemon.page() != page);
        let began = Instant::now();
        daemon.gate(GateState::Open)?;
        opening.push(began.elapsed());
        back += u32::from(newer(page, daemon.page()));
    }
    vm.stop();
    let (end, report) = finish(vm)?;
    let last = u64::from(daemon.page());
    let lost = last != report.doorbells & 0xffff_ffff;
    Ok(vec![
        Line::promised(
            &format!(
                "late writes, writes taken back, closings without a trap, last write lost, in {cycles} cycles"
            ),
            format!(
                "{late}, {back}, {untrapped}, {lost} ({} doorbells)",
                report.doorbells
            ),
            late == 0 && back == 0 && untrapped == 0 && !lost,
        ),
        Line::promised(
            "exits of these",
            format!(
                "{} (a closed gate traps the first write)",
                end.doorbell_exits
            ),
            end.doorbell_exits <= u64::from(cycles) && end.doorbell_exits >= u64::from(cycles) / 2,
        ),
        Line::measured(
            "closing, opening, p50 / p99",
            format!("{}, {}", percentiles(closing), percentiles(opening)),
        ),
    ])
}

/// Waits as short as possible, for at most the patience.
fn until(mut done: impl FnMut() -> bool) -> bool {
    let began = Instant::now();
    while !done() {
        if began.elapsed() > PATIENCE {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

fn percentiles(mut times: Vec<Duration>) -> String {
    times.sort();
    let at = |percent: usize| times[(times.len() * percent / 100).min(times.len() - 1)];
    format!("{:?} / {:?}", at(50), at(99))
}

/// What happens to a guest meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meanwhile {
    Nothing,
    /// It is left and entered again, twice in each period, as often as a gate's cycle leaves it.
    Nudges,
    /// Its gate goes through a cycle in each period.
    Cycles,
}

/// One period of the above.
const EVERY: Duration = Duration::from_millis(2);

/// Rounds per second of a guest that touches `bytes` and rings, and periods that passed.
fn touching(bus: &dyn Bus, bytes: u64, meanwhile: Meanwhile) -> anyhow::Result<(f64, u32)> {
    const LENGTH: Duration = Duration::from_secs(4);
    let daemon = GateDaemon::start(bus, FIRST_PAGE)?;
    let workload = Workload::Touch {
        bytes,
        // CAST: seconds.
        duration_ns: LENGTH.as_nanos() as u64,
    };
    let vm = start(&daemon, workload, bytes + (64 << 20))?;
    let mut periods = 0;
    if meanwhile != Meanwhile::Nothing {
        ensure!(
            wait_for(PATIENCE, || daemon.page() > 0),
            "the guest does not ring"
        );
        while !vm.is_finished() {
            let next = Instant::now() + EVERY;
            if meanwhile == Meanwhile::Nudges {
                vm.nudge();
                std::thread::sleep(EVERY / 2);
                vm.nudge();
            // The guest may have closed its channel by now, and the VMM have ended.
            } else if daemon.gate(GateState::Closed).is_err()
                || daemon.gate(GateState::Open).is_err()
            {
                break;
            }
            periods += 1;
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
    }
    let (_, report) = finish(vm)?;
    let seconds = Duration::from_nanos(report.elapsed_ns).as_secs_f64();
    Ok((report.doorbells as f64 / seconds, periods))
}

/// A guest with 64 MiB in use goes on as fast while a gate cycles every 2 ms. Beside it, what being left as often costs
/// without any gate: an emulated host may drop all translations whenever a guest is left.
///
/// # Errors
/// When the host does not run the guest.
pub fn throughput(bus: &dyn Bus) -> anyhow::Result<Vec<Line>> {
    let bytes = 64 << 20;
    let run = |meanwhile| touching(bus, bytes, meanwhile).with_context(|| format!("{meanwhile:?}"));
    let (calm, _) = run(Meanwhile::Nothing)?;
    let (nudged, nudges) = run(Meanwhile::Nudges)?;
    let (cycled, cycles) = run(Meanwhile::Cycles)?;
    let percent = |of: f64| 100.0 * cycled / of;
    Ok(vec![Line::promised(
        "throughput of a guest that touches 64 MiB, a gate cycle every 2 ms, of that without, of that left as often",
        format!(
            "{:.1} %, {:.1} % ({cycled:.1} of {calm:.1}, {nudged:.1} rounds/s; {cycles} cycles, 2 x {nudges} nudges)",
            percent(calm),
            percent(nudged)
        ),
        cycled >= 0.8 * calm,
    )])
}
