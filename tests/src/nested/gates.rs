//! Gates before the device's own doorbell pages, with a guest that writes its doorbell without a
//! pause.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use turnstile_abi::PAGE_BYTES;
use turnstile_images::{GUEST_ELF, Report, Workload, files};
use turnstile_vfio::Bus;
use turnstile_vmm::gate::{GateState, newer};
use turnstile_vmm::vmm::{self, VmConfig, VmHandle, VmReport};

use super::stub::GateDaemon;
use super::{Line, exited};
use crate::e2e::{GRACE, wait_for};

/// Pages that no context uses: the daemon of the other checks allocates them from the first on.
const FIRST_PAGE: u32 = 1016;
/// TIMEOUT: an emulated host may not schedule a guest for seconds.
const PATIENCE: Duration = Duration::from_secs(20);

fn config(daemon: &GateDaemon, workload: Workload, memory_bytes: u64) -> VmConfig {
    VmConfig {
        guest_elf: GUEST_ELF.to_vec(),
        args: workload.encode().to_vec(),
        files: files(),
        memory_bytes,
        ..VmConfig::new("gates", daemon.socket())
    }
}

fn start(daemon: &GateDaemon, workload: Workload, memory_bytes: u64) -> anyhow::Result<VmHandle> {
    Ok(vmm::spawn(config(daemon, workload, memory_bytes))?)
}

fn finish(vm: VmHandle) -> anyhow::Result<(VmReport, Report)> {
    let end = vm.join_within(PATIENCE, GRACE)?;
    let report = exited(&end)?;
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
/// If the host does not run the guest.
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

/// No write is lost or late while the gate opens and closes under a guest that writes its doorbell.
///
/// # Errors
/// If the host does not run the guest, or a gate does not move.
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
        // In some cycles the gate opens again before the guest has written its doorbell.
        if cycle % 4 != 0 {
            let parked = || vm.gate(0).and_then(|trace| trace.parked);
            let parked_page_is_new = until(|| parked().is_some_and(|parked| newer(parked, page)));
            untrapped += u32::from(!parked_page_is_new);
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

/// As [`cycles`], with a VM in which each write at a closed gate exits. The exits equal the
/// increase of the guest's put index, so no write was lost.
///
/// # Errors
/// If the host does not run the guest, or a gate does not move.
pub fn every_write(bus: &dyn Bus, cycles: u32) -> anyhow::Result<Vec<Line>> {
    /// Least number of writes at a closed gate before it opens again.
    const WRITES: u32 = 3;
    let daemon = GateDaemon::start(bus, FIRST_PAGE)?;
    let vm = vmm::spawn(VmConfig {
        trap_every_write: true,
        ..config(&daemon, rings(0), 64 << 20)
    })?;
    ensure!(
        wait_for(PATIENCE, || daemon.page() > 0),
        "the guest does not ring"
    );
    let (mut late, mut missed, mut few, mut at_closed) = (0, 0, 0, 0);
    let traced = |vm: &VmHandle| vm.gate(0).context("there is no gate");
    for _ in 0..cycles {
        // No write exits at an open gate.
        let before = traced(&vm)?.trapped;
        daemon.gate(GateState::Closed)?;
        let page = daemon.page();
        let enough = || {
            let parked = vm.gate(0).and_then(|trace| trace.parked);
            parked.is_some_and(|parked| parked.wrapping_sub(page) >= WRITES)
        };
        few += u32::from(!until(enough));
        // Both counters at one moment.
        let trace = traced(&vm)?;
        let trapped = trace.trapped - before;
        let written = u64::from(trace.parked.unwrap_or(page).wrapping_sub(page));
        missed += written.saturating_sub(trapped);
        at_closed += written;
        late += u32::from(daemon.page() != page);
        daemon.gate(GateState::Open)?;
    }
    vm.stop();
    let (end, report) = finish(vm)?;
    let lost = u64::from(daemon.page()) != report.doorbells & 0xffff_ffff;
    Ok(vec![Line::promised(
        &format!(
            "every write at a closed gate trapped: writes that were not, late, closings with fewer than {WRITES}, last write lost, in {cycles} cycles"
        ),
        format!(
            "{missed}, {late}, {few}, {lost} ({at_closed} writes looked at, {} exits, {} doorbells)",
            end.doorbell_exits, report.doorbells
        ),
        missed == 0 && late == 0 && few == 0 && !lost,
    )])
}

/// Polls without a pause, for at most [`PATIENCE`].
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

/// What is done to a guest during a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meanwhile {
    Nothing,
    /// It exits and is entered again, twice in each period, as at least happens in a gate's cycle.
    Nudges,
    /// Its gate is closed and opened in each period.
    Cycles,
}

/// The memory use of a guest, and the interval of its gate's cycles.
#[derive(Clone, Copy, Debug)]
pub struct Use {
    /// Memory touched in a round, in bytes.
    pub bytes: u64,
    /// Distance between two written words.
    pub step_bytes: u64,
    /// Time between two cycles.
    pub every: Duration,
}

impl Use {
    /// As promised in docs/SPECIFICATION.md: 64 MiB, a gate cycle every 2 ms. The guest writes one
    /// word of each page, so that the cost is translations only.
    pub const PAGES: Self = Self {
        bytes: 64 << 20,
        step_bytes: PAGE_BYTES,
        every: Duration::from_millis(2),
    };
    /// As [`Self::PAGES`], with each word written.
    pub const WORDS: Self = Self {
        step_bytes: 8,
        ..Self::PAGES
    };
}

/// Length of one measurement; the kinds alternate, so that other load of the machine affects all
/// alike.
const TURN: Duration = Duration::from_millis(250);

/// Result of one kind of measurement.
#[derive(Debug, Default)]
struct Tally {
    rounds: u32,
    time: Duration,
    /// Number of the guest's exits, if the kernel reports it.
    exits: u64,
    /// Durations of the cycles, or of the pairs of nudges.
    each: Vec<Duration>,
}

/// Exits of all KVM guests since boot, with host interrupts and faults that KVM handles itself.
fn kvm_exits() -> Option<u64> {
    let text = std::fs::read_to_string("/sys/kernel/debug/kvm/exits").ok()?;
    text.trim().parse().ok()
}

impl Tally {
    fn rate(&self) -> f64 {
        f64::from(self.rounds) / self.time.as_secs_f64()
    }

    /// One measurement, with the gate open at its beginning and its end.
    fn turn(
        &mut self,
        (daemon, vm): (&GateDaemon, &VmHandle),
        meanwhile: Meanwhile,
        every: Duration,
    ) -> anyhow::Result<()> {
        let exits = kvm_exits();
        let (first, began) = (daemon.page(), Instant::now());
        let mut next = began;
        while began.elapsed() < TURN {
            let since = Instant::now();
            match meanwhile {
                Meanwhile::Nothing => {}
                Meanwhile::Nudges => {
                    vm.nudge();
                    std::thread::sleep(every / 2);
                    vm.nudge();
                }
                Meanwhile::Cycles => {
                    daemon.gate(GateState::Closed)?;
                    daemon.gate(GateState::Open)?;
                }
            }
            self.each.push(since.elapsed());
            next = (next + every).max(Instant::now());
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        self.rounds += daemon.page().wrapping_sub(first);
        self.time += began.elapsed();
        if let (Some(before), Some(after)) = (exits, kvm_exits()) {
            self.exits += after - before;
        }
        Ok(())
    }
}

/// Whether a guest keeps the promised throughput while its gate cycles (docs/SPECIFICATION.md).
fn keeps([calm, _, cycled]: &[Tally; 3]) -> bool {
    cycled.rate() >= 0.8 * calm.rate()
}

/// Rounds of a guest while nothing happens, while it is nudged, and while its gate cycles. Each
/// kind is measured `turns` times, a dozen rounds each in an emulated machine. If these do not show
/// that the promise is kept and it is `promised`, three times as many measurements are added.
fn touching(bus: &dyn Bus, of: Use, turns: u32, promised: bool) -> anyhow::Result<[Tally; 3]> {
    let daemon = GateDaemon::start(bus, FIRST_PAGE)?;
    let workload = Workload::Touch {
        bytes: of.bytes,
        step_bytes: of.step_bytes,
    };
    let vm = start(&daemon, workload, of.bytes + (64 << 20))?;
    ensure!(
        wait_for(PATIENCE, || daemon.page() > 2),
        "the guest does not ring"
    );
    let mut tallies = <[Tally; 3]>::default();
    let kinds = [Meanwhile::Nothing, Meanwhile::Nudges, Meanwhile::Cycles];
    for turn in 0..4 * turns {
        if turn == turns && (!promised || keeps(&tallies)) {
            break;
        }
        for (tally, meanwhile) in tallies.iter_mut().zip(kinds) {
            let turn = tally.turn((&daemon, &vm), meanwhile, of.every);
            turn.with_context(|| format!("{meanwhile:?}"))?;
        }
    }
    vm.stop();
    finish(vm)?;
    Ok(tallies)
}

/// A guest with 64 MiB in use keeps its throughput while its gate cycles every 2 ms. The nudges
/// show the cost of exits without a gate: an emulated processor drops all translations at each
/// exit. That slows a guest that touches one word per page, and not one that uses its memory. So
/// for the former nothing is promised if the processor is `emulated`.
///
/// # Errors
/// If the host does not run the guest.
pub fn throughput(bus: &dyn Bus, of: Use, turns: u32, emulated: bool) -> anyhow::Result<Vec<Line>> {
    let promised = !emulated || of.step_bytes < PAGE_BYTES;
    let tallies = touching(bus, of, turns, promised)?;
    let [calm, nudged, cycled] = tallies.each_ref().map(Tally::rate);
    let left = match &tallies {
        [_, _, cycled] if cycled.exits == 0 => String::new(),
        tallies => {
            let [calm, nudged, cycled] = tallies
                .each_ref()
                .map(|tally| tally.exits as f64 / tally.time.as_secs_f64());
            format!("; left {cycled:.0}, {calm:.0}, {nudged:.0} times/s")
        }
    };
    let cycles = &tallies[2].each;
    let what = format!(
        "throughput of a guest that touches a word every {} bytes of {} MiB, a gate cycle every {:?}, of that without, of that nudged twice as often",
        of.step_bytes,
        of.bytes >> 20,
        of.every
    );
    let kept = keeps(&tallies);
    let figure = format!(
        "{:.1} %, {:.1} %{} ({cycled:.1} of {calm:.1}, {nudged:.1} rounds/s{left}; {} cycles, p50 / p99 {})",
        100.0 * cycled / calm,
        100.0 * cycled / nudged,
        if kept { "" } else { ": below 80 %" },
        cycles.len(),
        percentiles(cycles.clone()),
    );
    Ok(vec![if promised {
        Line::promised(&what, figure, kept)
    } else {
        Line::measured(&what, figure)
    }])
}
