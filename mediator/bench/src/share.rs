//! `turnstile bench share`: the matrix, natively and under a daemon, in one run.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use indicatif::ProgressBar;
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use turnstile_figures::cell::{CellLine, line};
use turnstile_figures::load::{Calibration, LoadReport};
use turnstile_figures::matrix::{Cell, Length, Pattern, Tenant, matrix};
use turnstile_figures::output::OutputArgs;
use turnstile_nvidia::version;

use super::processes::{Common, Copies, Load, words};
use super::scheduler::{DaemonArgs, Scheduler, first_line};
use super::xsched::{XschedArgs, percentages};
use super::{GpuArg, progress, table, wall_ns};

/// Time from the start order to the loads' common start: all have read it by then, and the daemon
/// knows them.
const LEAD: Duration = Duration::from_millis(150);

/// Time from the daemon's last snapshot to the end of the run, so that the snapshot is within the
/// run.
const MARGIN: Duration = Duration::from_millis(50);

/// Arguments of `bench share`.
#[derive(clap::Args, Debug)]
// FIELDS: options of a command.
pub(super) struct ShareArgs {
    /// GPU
    #[arg(long, value_enum, default_value_t = GpuArg::Nvidia)]
    gpu: GpuArg,
    /// Its number
    #[arg(long, default_value_t = 0)]
    device: u32,
    /// Length of each run, in seconds
    #[arg(long, default_value_t = 6.0, value_parser = seconds)]
    seconds: f64,
    /// Seconds of each run that its figures leave out
    #[arg(long, default_value_t = 1.0, value_parser = seconds)]
    skip: f64,
    /// Only cells with this in their names, such as "2ms+200us 3:1"; give it several times for more
    #[arg(long)]
    filter: Vec<String>,
    /// A cell that is not in the matrix, as WEIGHT:KERNEL[:PATTERN],...; instead of the matrix
    #[arg(long = "cell", value_parser = cell)]
    cells: Vec<Cell>,
    /// Under the daemon, give this many tenants of a cell, from the first, no NVIDIA node
    #[arg(long, default_value_t = 0)]
    isolated: usize,
    /// Have tenants copy pieces of this many KiB to the GPU beside their kernels
    #[arg(long, default_value_t = 0)]
    copy_kib: u32,
    /// Only the first tenants of a cell copy, this many; all if absent
    #[arg(long)]
    copiers: Option<usize>,
    /// Only natively, or only under the daemon
    #[arg(long, value_parser = ["native", "scheduled"])]
    only: Option<String>,
    /// Print the names of the cells and do nothing
    #[arg(long)]
    list: bool,
    /// Write what the daemon read of the GPU in each run, and what the loads did, to this folder,
    /// for the tests that replay it
    #[arg(long, value_name = "FOLDER")]
    record: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    daemon: DaemonArgs,
    #[command(flatten)]
    xsched: XschedArgs,
}

pub(super) fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=600.0).contains(&seconds) => Ok(seconds),
        _ => Err("between 0.1 and 600".into()),
    }
}

fn cell(text: &str) -> Result<Cell, String> {
    let tenant = |(seed, spec): (u64, &str)| -> Result<Tenant, String> {
        let mut parts = spec.split(':');
        let weight: u32 = parts
            .next()
            .and_then(|weight| weight.parse().ok())
            .filter(|weight| (1..=100).contains(weight))
            .ok_or("a weight is between 1 and 100")?;
        let kernel: Length = parts
            .next()
            .ok_or("a kernel length is missing")?
            .parse()
            .map_err(|error: turnstile_figures::matrix::LengthError| error.to_string())?;
        let pattern = match parts.next() {
            Some(pattern) => <Pattern as clap::ValueEnum>::from_str(pattern, false)?,
            None => Pattern::Busy,
        };
        Ok(Tenant {
            weight: 100 * weight,
            kernel,
            pattern,
            seed,
        })
    };
    let tenants: Result<Vec<Tenant>, String> = (1..).zip(text.split(',')).map(tenant).collect();
    Ok(Cell { tenants: tenants? })
}

/// A run without a line.
#[derive(Debug, Serialize)]
struct Failure {
    cell: String,
    scheduler: String,
    error: String,
}

/// The whole bench.
#[derive(Debug, Serialize)]
struct Report {
    gpu: Option<String>,
    driver: &'static str,
    seconds: f64,
    calibration: Calibration,
    /// Each busy load alone, natively: the reference of work conservation.
    alone: Vec<CellLine>,
    native: Vec<CellLine>,
    scheduled: Vec<CellLine>,
    /// Under XSched's policies, if it was named.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    xsched: Vec<CellLine>,
    failures: Vec<Failure>,
    /// A signal ended it: runs may be missing.
    interrupted: bool,
}

/// A flag that SIGINT and SIGTERM raise: the run under way is the last one. A second signal ends
/// the process at once.
pub(super) fn interruption() -> anyhow::Result<Arc<AtomicBool>> {
    let raised = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        flag::register_conditional_default(signal, raised.clone())?;
        flag::register(signal, raised.clone())?;
    }
    Ok(raised)
}

/// Runs `cell` for `common.seconds`; `program` is the `turnstile` command.
pub(super) fn run_cell(
    cell: &Cell,
    scheduler: &Scheduler<'_>,
    common: &Common,
    skip: Duration,
    program: &Path,
) -> anyhow::Result<CellLine> {
    let length = Duration::from_secs_f64(common.seconds);
    let mut running = scheduler.start(common.device)?;
    let mut loads = Vec::new();
    let percentages = percentages(&cell.tenants);
    for (index, (tenant, percent)) in cell.tenants.iter().zip(percentages).enumerate() {
        let mut command = running.command(index, tenant, percent, program)?;
        command.args(words(index, tenant, common));
        loads.push(Load::spawn(command)?);
    }
    for index in 0..loads.len() {
        if let Err(error) = loads[index].wait_ready() {
            let waits: Vec<String> = loads.iter().map(Load::waits).collect();
            let error = error.context(format!("Load {index} is not ready; {}", waits.join("; ")));
            return Err(running.explain(&error));
        }
    }
    // CAST: a fraction of a second.
    let start = wall_ns() + LEAD.as_nanos() as u64;
    for load in &mut loads {
        load.start(start)?;
    }
    // The daemon's charges are compared over the same time.
    for moment in [skip, length.saturating_sub(MARGIN)] {
        // CAST: a run has minutes.
        let at_ns = start + moment.as_nanos() as u64;
        thread::sleep(Duration::from_nanos(at_ns.saturating_sub(wall_ns())));
        running.mark()?;
    }
    let reports: Vec<LoadReport> = loads
        .iter_mut()
        .map(|load| load.wait_done(length + LEAD))
        .collect::<anyhow::Result<_>>()?;
    drop(loads);
    running.record(cell, start, &reports)?;
    let report = running.end(cell.tenants.len())?;
    // CAST: minutes.
    let skip_ns = skip.as_nanos() as u64;
    Ok(line(cell, scheduler.name(), &reports, &report, skip_ns)?)
}

/// Duration of work, measured on a GPU without other load.
pub(super) fn calibrate(device: u32, program: &Path) -> anyhow::Result<Calibration> {
    let tenant = Tenant {
        weight: 100,
        kernel: Length::Us(2_000),
        pattern: Pattern::Idle,
        seed: 1,
    };
    let common = Common {
        device,
        seconds: 0.1,
        calibration: None,
        list_gaps: false,
        copies: Copies::default(),
    };
    let mut command = std::process::Command::new(program);
    command.args(words(0, &tenant, &common));
    let mut load = Load::spawn(command)?;
    load.wait_ready()?;
    load.calibration.context("The load is not ready")
}

fn chosen(args: &ShareArgs) -> Vec<Cell> {
    if !args.cells.is_empty() {
        return args.cells.clone();
    }
    let wanted = |cell: &Cell| {
        let name = cell.name();
        args.filter.is_empty() || args.filter.iter().any(|part| name.contains(part))
    };
    matrix().into_iter().filter(wanted).collect()
}

/// Each busy load of a cell in which other tenants are idle at times, alone.
fn alone(cells: &[Cell]) -> Vec<Cell> {
    let mut seen = BTreeSet::new();
    let busy = |tenant: &&Tenant| tenant.pattern == Pattern::Busy;
    cells
        .iter()
        .filter(|cell| !cell.busy())
        .flat_map(|cell| cell.tenants.iter().filter(busy))
        .filter(|tenant| seen.insert(tenant.load()))
        .map(|tenant| Cell {
            tenants: vec![*tenant],
        })
        .collect()
}

/// Each set of loads once, at equal weights: the driver knows no weights.
fn without_weights(cells: &[Cell]) -> Vec<Cell> {
    let mut seen = BTreeSet::new();
    cells
        .iter()
        .filter(|cell| seen.insert(cell.loads()))
        .map(|cell| {
            let even = |tenant: &Tenant| Tenant {
                weight: 100,
                ..*tenant
            };
            Cell {
                tenants: cell.tenants.iter().map(even).collect(),
            }
        })
        .collect()
}

pub(super) fn run(args: &ShareArgs) -> anyhow::Result<()> {
    let GpuArg::Nvidia = args.gpu;
    let cells = chosen(args);
    if args.list {
        for cell in &cells {
            println!("{cell}");
        }
        return Ok(());
    }
    if cells.is_empty() {
        bail!("No cell of the matrix has such a name; --list prints them");
    }
    let driver = version::detect()?.version;
    let program = std::env::current_exe()?;
    let calibration =
        calibrate(args.device, &program).context("Calibrating the load alone failed")?;
    let common = Common {
        device: args.device,
        seconds: args.seconds,
        calibration: Some(calibration),
        list_gaps: args.record.is_some(),
        copies: Copies {
            kib: args.copy_kib,
            tenants: args.copiers.unwrap_or(usize::MAX),
        },
    };
    let skip = Duration::from_secs_f64(args.skip);
    if args.seconds < args.skip + 1.0 {
        bail!("Nothing is left of a run: --seconds has to be a second more than --skip");
    }
    let daemon = args
        .daemon
        .recorded(args.record.as_deref())
        .isolating(args.isolated);
    let part = |name| args.only.as_deref().is_none_or(|only| only == name);
    let natively = if part("native") {
        without_weights(&cells)
    } else {
        Vec::new()
    };
    let alone_cells = alone(&cells);
    let under_daemon: &[Cell] = if part("scheduled") { &cells } else { &[] };
    let others = args.xsched.policies()?;
    let bar = progress(
        alone_cells.len() + natively.len() + under_daemon.len() + others.len() * cells.len(),
    );
    let mut failures = Vec::new();
    let stop = interruption()?;
    let mut all = |cells: &[Cell], scheduler: Scheduler<'_>| {
        let cells = cells.iter().take_while(|_| !stop.load(Ordering::Acquire));
        let run = |cell: &Cell| run_cell(cell, &scheduler, &common, skip, &program);
        run_all(cells, scheduler.name(), run, &bar, &mut failures)
    };
    let report = Report {
        gpu: first_line("/proc/driver/nvidia/gpus/0/information"),
        driver,
        seconds: args.seconds,
        calibration,
        alone: all(&alone_cells, Scheduler::Native),
        native: all(&natively, Scheduler::Native),
        scheduled: all(under_daemon, Scheduler::Scheduled(&daemon)),
        xsched: others
            .iter()
            .flat_map(|other| all(&cells, Scheduler::Xsched(other)))
            .collect(),
        failures,
        interrupted: stop.load(Ordering::Acquire),
    };
    bar.finish_and_clear();
    args.output.print(&report, |report| {
        println!(
            "driver {driver}, runs of {} s without the first {}, shares by the loads' own time stamps",
            args.seconds, args.skip
        );
        table::print("alone, natively", &report.alone);
        table::print("native", &report.native);
        table::print(args.daemon.name(), &report.scheduled);
        for other in &others {
            let of: Vec<CellLine> = report
                .xsched
                .iter()
                .filter(|line| line.scheduler == other.name())
                .cloned()
                .collect();
            table::print(other.name(), &of);
        }
    })?;
    for failure in &report.failures {
        eprintln!(
            "{} under {}: {}",
            failure.cell, failure.scheduler, failure.error
        );
    }
    if report.interrupted {
        bail!("Interrupted: runs may be missing above");
    }
    if !report.failures.is_empty() {
        bail!("{} runs failed", report.failures.len());
    }
    Ok(())
}

fn run_all<'a>(
    cells: impl Iterator<Item = &'a Cell>,
    scheduler: &str,
    run: impl Fn(&Cell) -> anyhow::Result<CellLine>,
    bar: &ProgressBar,
    failures: &mut Vec<Failure>,
) -> Vec<CellLine> {
    let mut lines = Vec::new();
    for cell in cells {
        bar.set_message(format!("{scheduler} {cell}"));
        match run(cell) {
            Ok(line) => lines.push(line),
            Err(error) => failures.push(Failure {
                cell: cell.name(),
                scheduler: scheduler.to_owned(),
                error: format!("{error:#}"),
            }),
        }
        bar.inc(1);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_written_as_weights_kernels_and_patterns() {
        let cell = cell("3:2ms,1:200us:bursty").unwrap();
        assert_eq!(cell.name(), "2ms+200us-bursty 3:1");
        for bad in ["", "1", "0:2ms", "1:2ms:never", "1:2ms,"] {
            assert!(super::cell(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_signal_ends_the_bench_after_the_run_under_way() {
        let raised = interruption().unwrap();
        assert!(!raised.load(Ordering::Acquire));
        signal_hook::low_level::raise(SIGTERM).unwrap();
        assert!(raised.load(Ordering::Acquire), "and the process lives");
    }

    #[test]
    fn the_driver_runs_each_set_of_loads_once() {
        let cells = matrix();
        let native = without_weights(&cells);
        assert!(native.len() < cells.len() / 2);
        let loads: BTreeSet<String> = cells.iter().map(Cell::loads).collect();
        assert_eq!(native.len(), loads.len());
        let alone = alone(&cells);
        assert_eq!(alone.len(), 5, "every length is busy beside an idle tenant");
    }
}
