//! `turnstile bench kills`: effect on tenants when the watchdog, the daemon or one of
//! them is killed.
//!
//! ```text
//!   two tenants, weights 1 : 10,000: the light one is suspended nearly all of the time, and has work always
//!   kill -9 watchdog -> both run -> another watchdog -> held again
//!   kill -9 daemon   -> both run -> another daemon finds both -> held again
//!   kill -9 the heavy one in the middle of a kernel -> the light one has the GPU
//! ```
//!
//! The light tenant's running time is from its own measurement: the device's timestamps of its
//! kernels. Killing a VM's worker is `turnstile nvidia-worker-check`.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use serde_json::Value;
use turnstile_figures::FINE_NS;
use turnstile_figures::load::LoadReport;
use turnstile_figures::matrix::{Length, Pattern, Tenant};
use turnstile_figures::output::OutputArgs;

use super::daemon::Daemon;
use super::processes::{Common, Copies, Load, words};
use super::scheduler::{DaemonArgs, name, spawn, tenant_of};
use super::share::calibrate;
use super::{GpuArg, wall_ns};

/// From one event to the next: all has settled.
const BETWEEN: Duration = Duration::from_millis(2_500);
/// Without a daemon.
const ALONE: Duration = Duration::from_millis(1_500);
/// TIMEOUT: another watchdog starts within a second and its own start, another daemon within some
/// hundred milliseconds.
const FOUND_LIMIT: Duration = Duration::from_secs(10);
/// Time that all of it takes at most.
const SECONDS: f64 = 16.0;
/// A tenant that executes less of a window than this, in percent, is held; one that executes more
/// runs.
const HELD_PERCENT: f64 = 20.0;
/// A window.
const WINDOW_NS: u64 = 100_000_000;

/// Arguments of `bench kills`.
#[derive(clap::Args, Debug)]
pub(super) struct KillsArgs {
    /// GPU
    #[arg(long, value_enum, default_value_t = GpuArg::Nvidia)]
    gpu: GpuArg,
    /// Its number
    #[arg(long, default_value_t = 0)]
    device: u32,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    daemon: DaemonArgs,
}

/// Effect of a kill on the light tenant.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Kill {
    what: &'static str,
    /// Executed time in the half second before, in percent.
    before_percent: f64,
    /// From the kill to its first instruction.
    runs_again_ms: Option<f64>,
    /// Executed time from the kill to the replacement, in percent; without a replacement, in the
    /// second after.
    meanwhile_percent: f64,
    /// From the kill to the replacement: another watchdog, another daemon that knows both.
    replaced_ms: Option<f64>,
    /// From the kill until it is held again.
    held_again_ms: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Report {
    kills: Vec<Kill>,
    /// Tenants that the second daemon found.
    found: Vec<String>,
    /// Of the second daemon at the end.
    conservation_error_ns: i64,
    /// Kernels of the light tenant in the second after the other was killed.
    kernels_per_second: f64,
}

/// A kill, on the wall clock.
#[derive(Clone, Copy, Debug)]
struct Event {
    what: &'static str,
    at_ns: u64,
    replaced_ns: Option<u64>,
}

fn kill(pid: u32) -> anyhow::Result<u64> {
    let pid = Pid::from_raw(pid.cast_signed()).context("There is no such process")?;
    let at_ns = wall_ns();
    kill_process(pid, Signal::KILL).context("It is gone already")?;
    Ok(at_ns)
}

/// The watchdog of this daemon.
fn watchdog_of(daemon: u32) -> Option<u32> {
    let processes = fs::read_dir("/proc").ok()?;
    let mut numbers = processes
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    numbers.find(|pid| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let is_one = words
            .split(|byte| *byte == 0)
            .nth(1)
            .is_some_and(|word| word == b"nvidia-watchdog");
        is_one && parent(*pid) == Some(daemon)
    })
}

fn parent(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    line.trim().parse().ok()
}

/// Waits until `found` finds something.
fn until<T>(what: &str, mut found: impl FnMut() -> anyhow::Result<Option<T>>) -> anyhow::Result<T> {
    let deadline = Instant::now() + FOUND_LIMIT;
    loop {
        if let Some(found) = found()? {
            return Ok(found);
        }
        if Instant::now() > deadline {
            bail!("{what} is not there after {} s", FOUND_LIMIT.as_secs());
        }
        thread::sleep(Duration::from_millis(2));
    }
}

fn names(snapshot: &Value) -> Vec<String> {
    let tenants = snapshot["tenants"].as_array();
    let name = |tenant: &Value| Some(tenant["name"].as_str()?.to_owned());
    tenants.into_iter().flatten().filter_map(name).collect()
}

pub(super) fn run(args: &KillsArgs) -> anyhow::Result<()> {
    let GpuArg::Nvidia = args.gpu;
    let program = std::env::current_exe()?;
    let folder = tempfile::Builder::new()
        .prefix("turnstile-bench")
        .tempdir()?;
    let common = Common {
        device: args.device,
        seconds: SECONDS,
        calibration: Some(calibrate(args.device, &program)?),
        list_gaps: false,
        copies: Copies::default(),
    };
    let (daemon, socket) = spawn(&args.daemon, args.device, folder.path())?;
    let mut loads = Vec::new();
    for (index, weight) in [1, 10_000].into_iter().enumerate() {
        let tenant = Tenant {
            weight,
            kernel: Length::Us(2_000),
            pattern: Pattern::Busy,
            seed: 1,
        };
        let mut command = tenant_of(&socket, &name(index), tenant.weight, &[], &program)?;
        command.args(words(0, &tenant, &common));
        loads.push(Load::spawn(command)?);
    }
    for load in &mut loads {
        load.wait_ready()?;
    }
    let start = wall_ns() + 100_000_000;
    for load in &mut loads {
        load.start(start)?;
    }
    let (Some(heavy), Some(mut light)) = (loads.pop(), loads.pop()) else {
        bail!("There are two loads");
    };
    thread::sleep(BETWEEN);
    let mut events = vec![watchdog_killed(&daemon)?];
    thread::sleep(BETWEEN);
    let (event, daemon, found) = daemon_killed(args, daemon, folder.path())?;
    events.push(event);
    thread::sleep(BETWEEN);
    events.push(Event {
        what: "tenant",
        at_ns: kill(heavy.pid)?,
        replaced_ns: None,
    });
    let last = events[2].at_ns;
    thread::sleep(BETWEEN);
    let snapshot = daemon.snapshot()?;
    let report = light.wait_done(Duration::from_secs_f64(SECONDS))?;
    let kernels = executed_ns(&report, last, last + 1_000_000_000) as f64
        / report.kernel_length.p50_ns.max(1) as f64;
    let report = Report {
        kills: events.iter().map(|event| seen(&report, event)).collect(),
        found,
        conservation_error_ns: snapshot["conservation_error_ns"]
            .as_i64()
            .context("The daemon does not say its conservation error")?,
        kernels_per_second: kernels,
    };
    Ok(args.output.print(&report, print)?)
}

fn watchdog_killed(daemon: &Daemon) -> anyhow::Result<Event> {
    let first = watchdog_of(daemon.pid()).context("The daemon has no watchdog")?;
    let at_ns = kill(first)?;
    until("Another watchdog", || {
        Ok(watchdog_of(daemon.pid()).filter(|pid| *pid != first))
    })?;
    Ok(Event {
        what: "watchdog",
        at_ns,
        replaced_ns: Some(wall_ns()),
    })
}

/// Returns the kill, the second daemon, and the names of the tenants that it found.
fn daemon_killed(
    args: &KillsArgs,
    daemon: Daemon,
    folder: &Path,
) -> anyhow::Result<(Event, Daemon, Vec<String>)> {
    let at_ns = kill(daemon.pid())?;
    drop(daemon);
    thread::sleep(ALONE);
    let (next, _) = spawn(&args.daemon, args.device, folder)?;
    let found = until("The second daemon's second tenant", || {
        let names = names(&next.snapshot()?);
        let both = (0..2).all(|index| names.contains(&name(index)));
        Ok(both.then_some(names))
    })?;
    let event = Event {
        what: "daemon",
        at_ns,
        replaced_ns: Some(wall_ns()),
    };
    Ok((event, next, found))
}

/// Engine time that the load executed between two moments, of whole buckets.
fn executed_ns(report: &LoadReport, from_ns: u64, to_ns: u64) -> u64 {
    // CAST: a run has some ten thousand buckets.
    let bucket = |at_ns: u64| (at_ns.saturating_sub(report.start_ns) / FINE_NS) as usize;
    let (from, to) = (bucket(from_ns), bucket(to_ns));
    let buckets = report.executed_ns.iter().take(to).skip(from);
    buckets.sum()
}

fn percent(report: &LoadReport, from_ns: u64, to_ns: u64) -> f64 {
    100.0 * executed_ns(report, from_ns, to_ns) as f64 / to_ns.saturating_sub(from_ns).max(1) as f64
}

/// Effect of a kill, from the light tenant's report.
fn seen(report: &LoadReport, event: &Event) -> Kill {
    let at = event.at_ns;
    let end = report.start_ns + FINE_NS * report.executed_ns.len() as u64;
    let ms = |moment: u64| moment.saturating_sub(at) as f64 / 1e6;
    let steps = |from: u64| {
        (from..end.saturating_sub(WINDOW_NS)).step_by(FINE_NS as usize) // CAST: a small constant
    };
    let runs = steps(at).find(|from| 2 * executed_ns(report, *from, from + FINE_NS) > FINE_NS);
    let held = event.replaced_ns.and_then(|_| {
        steps(runs?).find(|from| percent(report, *from, from + WINDOW_NS) < HELD_PERCENT)
    });
    Kill {
        what: event.what,
        before_percent: percent(report, at.saturating_sub(500_000_000), at),
        runs_again_ms: runs.map(ms),
        meanwhile_percent: percent(report, at, event.replaced_ns.unwrap_or(at + 1_000_000_000)),
        replaced_ms: event.replaced_ns.map(ms),
        held_again_ms: held.map(ms),
    }
}

fn print(report: &Report) {
    println!(
        "a tenant that is held, weights 1 : 10,000, when another process is killed; milliseconds from the kill"
    );
    println!(
        "{:<10} {:>9} {:>11} {:>12} {:>9} {:>11}",
        "killed", "before %", "runs again", "meanwhile %", "replaced", "held again"
    );
    let text = |ms: Option<f64>| ms.map_or_else(|| "-".into(), |ms| format!("{ms:.0}"));
    for kill in &report.kills {
        println!(
            "{:<10} {:>9.1} {:>11} {:>12.1} {:>9} {:>11}",
            kill.what,
            kill.before_percent,
            text(kill.runs_again_ms),
            kill.meanwhile_percent,
            text(kill.replaced_ms),
            text(kill.held_again_ms)
        );
    }
    println!(
        "the second daemon found {:?}; conservation error {} ns; {:.0} kernels in the second after the tenant's end",
        report.found, report.conservation_error_ns, report.kernels_per_second
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Executes all of the time in these milliseconds, nothing in others, for 3 s.
    fn report(runs: std::ops::Range<u64>) -> LoadReport {
        let start_ns = 7_000_000_000;
        let buckets = 3_000_000_000 / FINE_NS;
        let executed = |bucket: u64| {
            let ms = bucket * FINE_NS / 1_000_000;
            u64::from(runs.contains(&ms)) * FINE_NS
        };
        LoadReport {
            start_ns,
            executed_ns: (0..buckets).map(executed).collect(),
            ..LoadReport::default()
        }
    }

    #[test]
    fn effect_of_a_kill_is_measured_by_the_tenants_own_time() {
        let report = report(1_020..1_800);
        let event = Event {
            what: "watchdog",
            at_ns: report.start_ns + 1_000_000_000,
            replaced_ns: Some(report.start_ns + 1_700_000_000),
        };
        let kill = seen(&report, &event);
        assert!(kill.before_percent.abs() < 1e-9);
        assert_eq!(kill.runs_again_ms, Some(20.0));
        assert_eq!(kill.replaced_ms, Some(700.0));
        assert!((kill.meanwhile_percent - 100.0 * 680.0 / 700.0).abs() < 0.2);
        let held = kill.held_again_ms.unwrap();
        assert!((770.0..=800.0).contains(&held), "{held}");
    }

    #[test]
    fn tenant_that_never_runs_again_has_no_resume_time() {
        let report = report(0..900);
        let event = Event {
            what: "tenant",
            at_ns: report.start_ns + 1_000_000_000,
            replaced_ns: None,
        };
        let kill = seen(&report, &event);
        assert_eq!((kill.runs_again_ms, kill.held_again_ms), (None, None));
        assert!(kill.before_percent > 70.0);
    }

    #[test]
    fn tenants_are_named_in_a_snapshot() {
        let snapshot = serde_json::json!({"tenants": [{"name": "load0"}, {"id": 3}]});
        assert_eq!(names(&snapshot), ["load0"]);
        assert!(names(&Value::Null).is_empty());
        assert_eq!(
            parent(std::process::id()),
            Some(std::os::unix::process::parent_id())
        );
    }
}
