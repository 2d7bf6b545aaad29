//! `turnstile bench overhead`: what the daemon costs a tenant that is alone, in pairs of runs.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, bail};
use serde::Serialize;
use turnstile_mediator::bench::matrix::{Cell, Length, Pattern, Tenant};
use turnstile_mediator::bench::percentile::median;

use super::processes::Common;
use super::scheduler::{DaemonArgs, Scheduler};
use super::share::{calibrate, run_cell};
use super::{GpuArg, progress};

/// One optimiser step after the other; prints the median of their lengths. Runs wherever PyTorch does.
const STEP: &str = include_str!("../../../../images/load/step.py");

/// What it ends with where PyTorch or a GPU is missing.
const SKIPPED: i32 = 77;

/// Arguments of `bench overhead`.
#[derive(clap::Args, Debug)]
pub(super) struct OverheadArgs {
    /// GPU
    #[arg(long, value_enum, default_value_t = GpuArg::Nvidia)]
    gpu: GpuArg,
    /// Its number
    #[arg(long, default_value_t = 0)]
    device: u32,
    /// Length of a run
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Pairs of runs, native and under the daemon in turns
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pairs: u32,
    /// Kernel of the launch-and-wait loop
    #[arg(long, default_value = "10us")]
    kernel: Length,
    /// Python with PyTorch
    #[arg(long, default_value = "python3")]
    python: PathBuf,
    /// Leave PyTorch out
    #[arg(long)]
    no_torch: bool,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    daemon: DaemonArgs,
}

/// Native and scheduled, measured one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Pair {
    native_us: f64,
    scheduled_us: f64,
}

/// Pairs of one measure.
#[derive(Debug, Serialize)]
struct Measure {
    what: &'static str,
    pairs: Vec<Pair>,
    /// Median over the pairs of scheduled less native, of native.
    overhead_percent: Option<f64>,
    /// The same between successive native runs: what no scheduler causes.
    noise_percent: Option<f64>,
}

impl Measure {
    fn of(what: &'static str, pairs: Vec<Pair>) -> Self {
        let more = |from: f64, to: f64| 100.0 * (to - from) / from;
        let overhead = pairs
            .iter()
            .map(|pair| more(pair.native_us, pair.scheduled_us));
        let noise = pairs
            .windows(2)
            .map(|two| more(two[0].native_us, two[1].native_us).abs());
        Self {
            what,
            overhead_percent: median(overhead.collect()),
            noise_percent: median(noise.collect()),
            pairs,
        }
    }
}

#[derive(Debug, Serialize)]
struct Report {
    measures: Vec<Measure>,
    skipped: Vec<String>,
}

pub(super) fn run(args: &OverheadArgs) -> anyhow::Result<()> {
    let GpuArg::Nvidia = args.gpu;
    let program = std::env::current_exe()?;
    let common = Common {
        device: args.device,
        seconds: args.seconds,
        calibration: Some(calibrate(args.device, &program)?),
        list_gaps: false,
    };
    let bar = progress(2 * args.pairs as usize);
    let scheduled = Scheduler::Scheduled(&args.daemon);
    let mut skipped = Vec::new();
    let mut measures = Vec::new();
    let launches = pairs(args.pairs, |native| {
        let scheduler = if native { Scheduler::Native } else { scheduled };
        bar.tick();
        launch_us(args.kernel, &scheduler, &common, &program).map(Some)
    })?;
    measures.push(Measure::of("launch and wait", launches.unwrap_or_default()));
    bar.inc(args.pairs.into());
    if args.no_torch {
        skipped.push("PyTorch: --no-torch was given".to_owned());
    } else {
        let steps = pairs(args.pairs, |native| {
            let scheduler = if native { Scheduler::Native } else { scheduled };
            bar.tick();
            step_us(args, &scheduler)
        })?;
        match steps {
            Some(steps) => measures.push(Measure::of("PyTorch step", steps)),
            None => skipped.push("PyTorch: it, or a GPU for it, is missing".to_owned()),
        }
    }
    bar.finish_and_clear();
    for reason in &skipped {
        eprintln!("SKIPPED: {reason}");
    }
    let report = Report { measures, skipped };
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
        return Ok(());
    }
    for measure in &report.measures {
        let medians = |of: fn(&Pair) -> f64| {
            median(measure.pairs.iter().map(of).collect()).unwrap_or(f64::NAN)
        };
        println!(
            "{:<16} native {:.3} us, under the daemon {:.3} us: {:+.3} % (median of {} pairs; between native runs {:.3} %)",
            measure.what,
            medians(|pair| pair.native_us),
            medians(|pair| pair.scheduled_us),
            measure.overhead_percent.unwrap_or(f64::NAN),
            measure.pairs.len(),
            measure.noise_percent.unwrap_or(f64::NAN),
        );
    }
    Ok(())
}

/// Native and scheduled runs in turns, the first of a pair alternating, so that a drift falls on both. `None` as soon as one run
/// cannot be had.
fn pairs(
    count: u32,
    mut measure: impl FnMut(bool) -> anyhow::Result<Option<f64>>,
) -> anyhow::Result<Option<Vec<Pair>>> {
    let mut done = Vec::new();
    for pair in 0..count {
        let native_first = pair % 2 == 0;
        let (Some(first), Some(second)) = (measure(native_first)?, measure(!native_first)?) else {
            return Ok(None);
        };
        let (native_us, scheduled_us) = if native_first {
            (first, second)
        } else {
            (second, first)
        };
        done.push(Pair {
            native_us,
            scheduled_us,
        });
    }
    Ok(Some(done))
}

/// Median time from launch to the return of the wait.
fn launch_us(
    kernel: Length,
    scheduler: &Scheduler<'_>,
    common: &Common,
    program: &Path,
) -> anyhow::Result<f64> {
    let pattern = Pattern::Busy;
    let tenants = vec![Tenant {
        weight: 100,
        kernel,
        pattern,
        seed: 1,
    }];
    let (_, loads) = run_cell(&Cell { tenants }, scheduler, common, program)?;
    Ok(loads[0].latency.p50_ns as f64 / 1e3)
}

/// Median length of a PyTorch step; `None` if there is no PyTorch.
fn step_us(args: &OverheadArgs, scheduler: &Scheduler<'_>) -> anyhow::Result<Option<f64>> {
    let mut script = tempfile::NamedTempFile::new()?;
    script.write_all(STEP.as_bytes())?;
    let tenant = Tenant {
        weight: 100,
        kernel: Length::Us(200),
        pattern: Pattern::Busy,
        seed: 1,
    };
    let running = scheduler.start(args.device)?;
    let child = running
        .command(0, &tenant, 100, &args.python)?
        .arg(script.path())
        .arg(args.seconds.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("{} cannot be run", args.python.display()))?;
    let output = child.wait_with_output()?;
    if output.status.code() == Some(SKIPPED) {
        return Ok(None);
    }
    if !output.status.success() {
        bail!("PyTorch ended with {}", output.status);
    }
    let said: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let median = said["step_us_p50"].as_f64();
    Ok(Some(median.context("PyTorch did not say its step time")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_take_turns_and_keep_sides_apart() {
        let mut order = Vec::new();
        let done = pairs(3, |native| {
            order.push(native);
            Ok(Some(if native { 10.0 } else { 11.0 }))
        });
        assert_eq!(order, [true, false, false, true, true, false]);
        let measure = Measure::of("it", done.unwrap().unwrap());
        assert!((measure.overhead_percent.unwrap() - 10.0).abs() < 1e-9);
        assert_eq!(measure.noise_percent, Some(0.0));
        assert_eq!(pairs(2, |_| Ok(None)).unwrap(), None);
    }
}
