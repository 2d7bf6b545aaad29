//! A load of the bench: a plain CUDA process that keeps the GPU busy in a given way, and reports
//! when it really ran.
//!
//! ```text
//!   ready -> (the bench sends the start time) -> kernels of the pattern -> records -> report
//! ```
//!
//! The kernels (`images/load/truth.cu`) record time stamps of the device; its clock is compared
//! with the wall clock before and after. Every launch of the process is recorded, including its
//! calibration, so that the sum is what a ledger has to charge.

mod blocks;
mod rig;

use std::io::{self, BufRead, Write};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::sys::CudaFailure;
pub use blocks::blocks;
use rig::{Records, Rig};
use turnstile_figures::bursts::bursts;
use turnstile_figures::load::{Calibration, LoadMessage, LoadReport, LoadSpec};
use turnstile_figures::matrix::{Length, Pattern};
use turnstile_figures::percentile::Percentiles;
use turnstile_figures::spans::{
    Clock, Reading, Span, buckets, executed, occupied, total_ns, worked,
};
use turnstile_figures::{FINE_NS, HOST_PAUSE_NS};

/// Shorter pauses belong to the load: no other context ran in them. SOURCE: measured: a switch to
/// another context and back takes about 160 us.
const PAUSE_NS: u64 = 40_000;

/// Maximum number of launch times that are kept.
const LAUNCHES_MAX: usize = 1 << 22;

/// Time per launch for which the engine is busy beyond the execution of the kernel. SOURCE: 2.40 to
/// 2.49 us by the busy counter of an H100, kernels of 50 us and 2 ms.
const LAUNCH_NS: u64 = 2_400;

/// Maximum number of pauses of the host that are reported.
const HOST_PAUSES_MAX: usize = 1_000;

/// Kernels of 2 ms that bring the clocks up. SOURCE: measured: an idle H200 reaches its clock
/// within some milliseconds.
const WARM_UP_KERNELS: u32 = 20;

/// Why a load ended.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// CUDA refused.
    #[error("CUDA refused")]
    Cuda(#[from] CudaFailure),
    /// The kernels were refused.
    #[error("The load's kernels were refused: {0}")]
    Module(String),
    /// The device did not answer.
    #[error("The device's clock cannot be read: no answer for {} s", rig::SILENCE.as_secs())]
    Clock,
    /// More work did not take longer.
    #[error("Work cannot be calibrated: {0} turns took {1} ns, {2} took {3} ns")]
    Calibration(u64, u64, u64, u64),
    /// An endless kernel has no bursts.
    #[error("An endless kernel has no bursts and no depth")]
    Pattern,
    /// An order is not a number.
    #[error(
        "The order is {0:?}, not a number: the moment to start in nanoseconds of the wall clock, or how many kernels"
    )]
    Order(String),
    /// A block is of endless kernels, of none, or of too many.
    #[error("A block is of kernels that end, 1 to {} of them", blocks::BLOCK_MAX)]
    Block,
    /// A thread could not be filtered.
    #[error("A thread cannot be filtered as a tenant's are")]
    Filter(#[source] io::Error),
    /// Input or output is broken.
    #[error("The load has no reader")]
    Io(#[from] io::Error),
    /// A line of output cannot be written.
    #[error("The load cannot say what it found")]
    Json(#[from] serde_json::Error),
}

/// Measurements of the host.
#[derive(Debug, Default)]
struct HostTimes {
    latencies_ns: Vec<u64>,
    /// For launches as soon as the previous kernel had ended: number of the record, and the wall
    /// clock.
    launched_ns: Vec<(u64, u64)>,
    /// Time for which the thread was runnable without a processor.
    waited_ns: Option<u64>,
}

/// Runs the load. It writes a line when it is ready, and a line with its report. With `orders` it
/// starts at the wall-clock time in nanoseconds of their first line. After the report it stays
/// until they end.
///
/// # Errors
/// If the GPU refuses, or the orders are invalid.
pub fn run(
    spec: &LoadSpec,
    mut orders: Option<impl BufRead>,
    mut say: impl Write,
) -> Result<(), LoadError> {
    let bounded = matches!(spec.pattern, Pattern::Busy | Pattern::Idle);
    if spec.kernel == Length::Endless && !bounded {
        return Err(LoadError::Pattern);
    }
    let mut rig = Rig::open(spec)?;
    let calibration = warm_up(&mut rig, spec)?;
    let clock_step_ns = rig.clock_step_ns()?;
    let first = rig.read_clock()?;
    let pid = std::process::id();
    let ready = LoadMessage::Ready {
        pid,
        calibration: Some(calibration),
    };
    tell(&mut say, &ready)?;
    let start_ns = match &mut orders {
        Some(orders) => match ordered(orders)? {
            Some(start_ns) => start_ns,
            None => return Ok(()),
        },
        None => wall_ns() + 1_000_000,
    };
    let end = in_wall_ns(start_ns + spec.length_ns);
    thread::sleep(in_wall_ns(start_ns).saturating_duration_since(Instant::now()));
    let waited_ns = waited_ns();
    let mut times = load(&mut rig, spec, &calibration, in_wall_ns(start_ns), end)?;
    times.waited_ns = waited_ns
        .zip(self::waited_ns())
        .map(|(first, last)| last.saturating_sub(first));
    let copied = rig.copied()?;
    let last = rig.read_clock()?;
    let records = rig.records()?;
    let mut report = report(spec, start_ns, &records, first, last, &calibration, times);
    report.clock_step_ns = clock_step_ns;
    if spec.copy_bytes > 0 {
        report.copied_ns = buckets(&copied, start_ns, FINE_NS, report.executed_ns.len());
    }
    tell(&mut say, &LoadMessage::Done(Box::new(report)))?;
    if let Some(orders) = orders {
        for line in orders.lines() {
            line?;
        }
    }
    Ok(())
}

fn tell(say: &mut impl Write, message: &LoadMessage) -> Result<(), LoadError> {
    serde_json::to_writer(&mut *say, message)?;
    say.write_all(b"\n")?;
    Ok(say.flush()?)
}

/// A number: when to start, or how much to do. `None` if there are no more orders.
fn ordered(orders: &mut impl BufRead) -> Result<Option<u64>, LoadError> {
    let mut line = String::new();
    if io::Read::take(orders, 64).read_line(&mut line)? == 0 {
        return Ok(None);
    }
    match line.trim_end().parse() {
        Ok(moment) => Ok(Some(moment)),
        Err(_) => Err(LoadError::Order(line)),
    }
}

/// Runs until clocks are up, and calibrates the work unless the spec has a calibration.
fn warm_up(rig: &mut Rig, spec: &LoadSpec) -> Result<Calibration, LoadError> {
    const FEW: u64 = 1_000;
    const MANY: u64 = 20_000;
    for _ in 0..WARM_UP_KERNELS {
        rig.launch(MANY)?;
        rig.wait()?;
    }
    if let Some(calibration) = spec.calibration {
        return Ok(calibration);
    }
    // The shortest of several, so that interrupted ones do not count.
    let mut shortest = |turns| -> Result<u64, LoadError> {
        let lengths: Vec<u64> = (0..20)
            .map(|_| {
                let slot = rig.launch(turns)?;
                rig.wait()?;
                Ok(rig.launch_record(slot)?.length_ns())
            })
            .collect::<Result<_, LoadError>>()?;
        Ok(Percentiles::of(lengths).min_ns)
    };
    let (few, many) = (shortest(FEW)?, shortest(MANY)?);
    Calibration::through((FEW, few), (MANY, many))
        .ok_or(LoadError::Calibration(FEW, few, MANY, many))
}

/// Launches kernels as the pattern requires.
fn load(
    rig: &mut Rig,
    spec: &LoadSpec,
    calibration: &Calibration,
    start: Instant,
    end: Instant,
) -> Result<HostTimes, LoadError> {
    let mut times = HostTimes::default();
    let sleep_until = |moment: Instant| {
        thread::sleep(moment.min(end).saturating_duration_since(Instant::now()));
    };
    let us = match (spec.pattern, spec.kernel) {
        (Pattern::Idle, _) => {
            sleep_until(end);
            return Ok(times);
        }
        (_, Length::Endless) => {
            rig.launch_endless()?;
            sleep_until(end);
            rig.stop();
            rig.wait()?;
            return Ok(times);
        }
        (_, Length::Us(us)) => us,
    };
    let turns = calibration.turns(us * 1_000);
    let mut launch_and_wait = |rig: &mut Rig, follows: bool| -> Result<(), LoadError> {
        let begin = Instant::now();
        let slot = rig.launch(turns)?;
        rig.keep_copying()?;
        let launched_ns = wall_ns();
        rig.wait()?;
        if times.latencies_ns.len() < LAUNCHES_MAX {
            // CAST: 584 years.
            times.latencies_ns.push(begin.elapsed().as_nanos() as u64);
            if follows {
                times.launched_ns.push((slot, launched_ns));
            }
        }
        Ok(())
    };
    match spec.pattern {
        Pattern::Busy | Pattern::Idle => {
            let mut follows = false;
            while Instant::now() < end {
                launch_and_wait(rig, follows)?;
                follows = true;
            }
        }
        Pattern::Deep => {
            let mut marks = Vec::new();
            for index in (0..spec.in_flight as usize).cycle() {
                if Instant::now() >= end {
                    break;
                }
                rig.wait_mark(&mut marks, index)?;
                rig.launch(turns)?;
                rig.keep_copying()?;
                rig.mark(&mut marks, index)?;
            }
            rig.wait()?;
        }
        Pattern::Bursty => {
            for burst in bursts(spec.seed, us * 1_000, spec.length_ns) {
                sleep_until(start + Duration::from_nanos(burst.at_ns));
                for kernel in 0..burst.kernels {
                    if Instant::now() >= end {
                        break;
                    }
                    launch_and_wait(rig, kernel > 0)?;
                }
            }
        }
    }
    Ok(times)
}

fn report(
    spec: &LoadSpec,
    start_ns: u64,
    records: &Records,
    first: Reading,
    last: Reading,
    calibration: &Calibration,
    times: HostTimes,
) -> LoadReport {
    let clock = Clock::new(first, last);
    let step_ns = calibration.turns_ns(rig::STEP_TURNS.into());
    let on_device = executed(&records.launches, &records.gaps, step_ns);
    let served = worked(&on_device, &records.launches, LAUNCH_NS);
    let wall = |spans: Vec<Span>| -> Vec<Span> {
        spans.into_iter().map(|span| clock.wall(span)).collect()
    };
    let (pieces, served) = (wall(on_device), wall(served));
    let held = occupied(&pieces, PAUSE_NS);
    // CAST: a run has minutes.
    let count = (spec.length_ns / FINE_NS) as usize;
    let window = start_ns..start_ns + spec.length_ns;
    let in_window: Vec<_> = records
        .launches
        .iter()
        .filter(|launch| launch.length_ns() > 0 && window.contains(&clock.wall_ns(launch.end_ns)))
        .collect();
    let kernel_lengths = in_window.iter().map(|launch| {
        let own = executed(&[**launch], records.gaps_within(launch), step_ns);
        total_ns(&own)
    });
    LoadReport {
        pid: std::process::id(),
        start_ns,
        executed_ns: buckets(&pieces, start_ns, FINE_NS, count),
        occupied_ns: buckets(&held, start_ns, FINE_NS, count),
        worked_ns: buckets(&served, start_ns, FINE_NS, count),
        kernels: in_window.len() as u64,
        unrecorded: records.launches_unrecorded,
        life_executed_ns: total_ns(&pieces),
        life_occupied_ns: total_ns(&held),
        gaps: records
            .gaps
            .iter()
            .filter(|gap| window.contains(&clock.wall_ns(gap.begin_ns)))
            .count() as u64,
        gaps_unrecorded: records.gaps_unrecorded,
        gap_ns: total_ns(&records.gaps),
        gap_list: if spec.list_gaps {
            records.gaps.iter().map(|gap| clock.wall(*gap)).collect()
        } else {
            Vec::new()
        },
        pause_list: if spec.list_gaps {
            pauses(&records.launches)
                .map(|pause| clock.wall(pause))
                .collect()
        } else {
            Vec::new()
        },
        host_pauses: host_pauses(&records.launches, &times.launched_ns, &clock),
        host_waited_ns: times.waited_ns,
        latency: Percentiles::of(times.latencies_ns),
        kernel_length: Percentiles::of(kernel_lengths.collect()),
        clock_error_ns: first.error_ns.max(last.error_ns),
        // CAST: the difference of two clocks that count from the same epoch, or else saturated.
        clock_offset_ns: clock.offset_ns().clamp(i64::MIN.into(), i64::MAX.into()) as i64,
        clock_drift_ppb: clock.drift_ppb(),
        clock_step_ns: 0,
        step_ns,
        copied_ns: Vec::new(),
    }
}

/// Pauses between launches of at least [`PAUSE_NS`].
fn pauses(launches: &[Span]) -> impl Iterator<Item = Span> + '_ {
    launches
        .windows(2)
        .map(|pair| Span::new(pair[0].end_ns, pair[1].begin_ns))
        .filter(|pause| pause.begin_ns > 0 && (PAUSE_NS..u64::MAX / 2).contains(&pause.length_ns()))
}

/// Pauses where a launch was made late after the end of the previous kernel.
fn host_pauses(launches: &[Span], launched_ns: &[(u64, u64)], clock: &Clock) -> Vec<Span> {
    let pause = |(slot, launched_ns): &(u64, u64)| {
        let before = usize::try_from(slot.checked_sub(1)?).ok()?;
        let ended = launches
            .get(before)
            .filter(|launch| launch.length_ns() > 0)?;
        Some(Span::new(clock.wall_ns(ended.end_ns), *launched_ns))
    };
    let pauses = launched_ns.iter().filter_map(pause);
    let long = pauses.filter(|pause| pause.length_ns() >= HOST_PAUSE_NS);
    long.take(HOST_PAUSES_MAX).collect()
}

/// Time for which the calling thread was runnable without a processor. SOURCE:
/// Documentation/scheduler/sched-stats.rst: the second figure of schedstat.
fn waited_ns() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// The wall clock, which the driver's records use as well.
fn wall_ns() -> u64 {
    // CAST: until the year 2554.
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_nanos() as u64
}

/// The instant at which the wall clock will be `at_ns`.
fn in_wall_ns(at_ns: u64) -> Instant {
    let now = Instant::now();
    match at_ns.checked_sub(wall_ns()) {
        Some(left) => now + Duration::from_nanos(left),
        None => now,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_counts_time_within_the_run_and_totals_all_time() {
        let ms = 1_000_000;
        let spec = LoadSpec {
            gpu: 0,
            kernel: Length::Us(2_000),
            pattern: Pattern::Busy,
            seed: 1,
            in_flight: 1,
            length_ns: 30 * ms,
            blocks: 0,
            calibration: None,
            list_gaps: true,
            copy_bytes: 0,
        };
        let calibration = Calibration {
            turns_per_ms: 10_000.0,
            fixed_ns: 0.0,
        };
        let at = |device_ns| Reading {
            device_ns,
            wall_ns: device_ns + 500 * ms,
            error_ns: 700,
        };
        let records = Records {
            launches: vec![
                Span::new(95 * ms, 97 * ms),
                Span::new(101 * ms, 103 * ms),
                Span::new(105 * ms, 119 * ms),
                Span::UNTOUCHED,
            ],
            gaps: vec![Span::new(106 * ms, 118 * ms)],
            launches_unrecorded: 0,
            gaps_unrecorded: 0,
        };
        let times = HostTimes {
            launched_ns: vec![(1, 600 * ms), (2, 604 * ms), (3, 620 * ms)],
            ..HostTimes::default()
        };
        let report = report(
            &spec,
            600 * ms,
            &records,
            at(90 * ms),
            at(200 * ms),
            &calibration,
            times,
        );
        assert_eq!((report.kernels, report.gaps, report.step_ns), (2, 1, 1_600));
        let mut expected = [0; 30];
        (expected[1], expected[2], expected[5]) = (ms, ms, ms);
        (expected[6], expected[18]) = (1_600, ms);
        assert_eq!(
            report.executed_ns, expected,
            "the gap is not executed but for a step"
        );
        assert_eq!(report.life_executed_ns, 6 * ms + 1_600);
        assert_eq!(report.gap_list, [Span::new(606 * ms, 618 * ms)]);
        let pauses = [(597, 601), (603, 605)].map(|(from, to)| Span::new(from * ms, to * ms));
        assert_eq!(report.pause_list, pauses);
        assert_eq!(
            report.host_pauses,
            [Span::new(597 * ms, 600 * ms)],
            "the others were launched within a millisecond"
        );
        assert_eq!(report.kernel_length.max_ns, 2 * ms + 1_600);
        assert_eq!(report.clock_offset_ns, 500_000_000);
    }

    #[test]
    fn processor_wait_time_never_decreases() {
        let Some(before) = waited_ns() else {
            eprintln!("SKIPPED: this kernel has no schedstat");
            return;
        };
        assert!(waited_ns().unwrap() >= before);
    }

    #[test]
    fn the_moment_to_start_is_a_number() {
        assert_eq!(ordered(&mut &b"123\nrest"[..]).unwrap(), Some(123));
        assert_eq!(ordered(&mut &b""[..]).unwrap(), None);
        for bad in [&b"now\n"[..], b"-1\n"] {
            assert!(matches!(ordered(&mut &bad[..]), Err(LoadError::Order(_))));
        }
    }
}
