//! `turnstile bench overhead`: the cost of a tenant while it is alone.
//!
//! ```text
//!   launch and wait     one process, two threads: as it is | under the filter of `turnstile run`      a round: a block of each, then backwards
//!                       one tenant: daemon at work | stopped | stopped | at work
//!   PyTorch step        groups of processes: native | tenant | native again | tenant with --movable   a round: a block of each, then backwards
//!                       one tenant: daemon at work | stopped | stopped | at work
//! ```
//!
//! Two processes that launch and wait differ permanently by 1 % (in the place of their memory), so
//! small effects are measured within one process. All processes live from the beginning, and all
//! but one sleep; drift affects all alike. A daemon that was stopped has to catch up: it reads more
//! than one without a backlog.

mod groups;
mod report;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::Signal;
use tempfile::TempDir;
use turnstile_figures::load::Block;
use turnstile_figures::matrix::{Length, Pattern, Tenant};
use turnstile_figures::output::OutputArgs;
use turnstile_figures::percentile::median;

use super::daemon::{Daemon, SNAPSHOT_LIMIT};
use super::processes::{Common, Copies, Load, words};
use super::scheduler::{DaemonArgs, name, spawn, tenant_of};
use super::{GpuArg, progress};
use groups::{Group, Groups, Side, Work};
use report::{Against, Measure, Pair, Report, native_us, sides};

/// One optimiser step after the other. Runs wherever PyTorch does.
const STEP: &str = include_str!("../../../images/load/step.py");

/// Length of one measurement of a tenant, with the daemon at work or stopped.
const PHASE: Duration = Duration::from_millis(50);
/// Time before the measurements of a tenant: the tenant before it counts as idle, and the caches
/// have this one's data.
const WARM_UP: Duration = Duration::from_millis(300);

/// Arguments of `bench overhead`.
#[derive(clap::Args, Debug)]
// FIELDS: options of a command.
pub(super) struct OverheadArgs {
    /// GPU
    #[arg(long, value_enum, default_value_t = GpuArg::Nvidia)]
    gpu: GpuArg,
    /// Its number
    #[arg(long, default_value_t = 0)]
    device: u32,
    /// Processes that launch and wait, and as many tenants; 0 leaves them out
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(0..=64))]
    pairs: u32,
    /// How long each of the processes is measured
    #[arg(long, default_value_t = 1.5)]
    seconds: f64,
    /// Kernel that they launch and wait for
    #[arg(long, default_value = "10us")]
    kernel: Length,
    /// Launches in a block
    #[arg(long, default_value_t = 250, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    launches: u32,
    /// Times that the daemon is stopped and continued beside each tenant
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    stops: u32,
    /// Groups of PyTorch processes
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=64))]
    torch_pairs: u32,
    /// How long each of these is measured
    #[arg(long, default_value_t = 8.0)]
    torch_seconds: f64,
    /// Optimiser steps in a block
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1000))]
    steps: u32,
    /// Python with PyTorch
    #[arg(long, default_value = "python3")]
    python: PathBuf,
    /// Leave PyTorch out
    #[arg(long)]
    no_torch: bool,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    daemon: DaemonArgs,
}

/// The daemon of the tenants.
struct Host<'a> {
    args: &'a OverheadArgs,
    _folder: TempDir,
    daemon: Daemon,
    socket: PathBuf,
    /// Tenants so far.
    tenants: usize,
}

impl Drop for Host<'_> {
    fn drop(&mut self) {
        // A stopped daemon does not handle the signal to end.
        let _ = self.daemon.signal(Signal::CONT);
    }
}

impl<'a> Host<'a> {
    fn start(args: &'a OverheadArgs) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("turnstile-bench")
            .tempdir()?;
        let (daemon, socket) = spawn(&args.daemon, args.device, folder.path())?;
        Ok(Self {
            args,
            _folder: folder,
            daemon,
            socket,
            tenants: 0,
        })
    }

    fn suspensions(&self) -> anyhow::Result<u64> {
        let calls = self.daemon.snapshot()?["gpu"]["suspend_calls"].as_u64();
        calls.context("The daemon does not report its calls that suspend tenants")
    }

    /// Explains why a tenant's load reported no block, with the daemon at work or stopped, as far
    /// as that is visible from outside.
    fn stuck(
        &self,
        error: anyhow::Error,
        load: &Load,
        (tenant, daemon): (usize, &str),
    ) -> anyhow::Error {
        let waits = load.waits();
        let _ = self.daemon.signal(Signal::CONT);
        let later = match load.late_block(SNAPSHOT_LIMIT) {
            Ok(_) => "it went on when the daemon did",
            Err(_) => "it does not go on",
        };
        let shows = match self.daemon.snapshot() {
            Ok(shows) => shows["tenants"].to_string(),
            Err(error) => error.to_string(),
        };
        let failure = self.daemon.failed(&format!("the daemon shows {shows}"));
        error.context(format!(
            "Tenant {tenant}, with the daemon {daemon}: {later}; it waits: {waits}; {failure}"
        ))
    }

    fn command(&mut self, side: Side, work: &Work) -> anyhow::Result<Command> {
        let mut command = match side.run() {
            None => Command::new(&work.program),
            Some(words) => {
                self.tenants += 1;
                tenant_of(&self.socket, &name(self.tenants), 100, words, &work.program)?
            }
        };
        command.args(&work.words);
        Ok(command)
    }

    fn groups(&mut self, work: &Work) -> anyhow::Result<Option<Groups>> {
        Groups::start(work, |side| self.command(side, work))
    }

    /// Blocks of tenants with the daemon at work, and stopped: one tenant after the other.
    fn stops(
        &self,
        work: &Work,
        Groups(groups): &mut Groups,
    ) -> anyhow::Result<(Vec<Vec<Pair>>, u64)> {
        let tenant = work.sides.iter().position(|side| *side == Side::Tenant);
        let tenant = tenant.context("There is no tenant in a group")?;
        let bar = progress(groups.len());
        bar.set_message("with the daemon and without");
        let (mut pairs, mut suspensions) = (Vec::new(), 0);
        for (index, group) in groups.iter_mut().enumerate() {
            let load = &mut group.loads[tenant];
            let mut rounds = Vec::new();
            let watched = |load: &mut Load, daemon, length| {
                let phase = phase(load, work.pieces, length);
                phase.map_err(|error| self.stuck(error, load, (index, daemon)))
            };
            watched(load, "at work", WARM_UP)?;
            let before = self.suspensions()?;
            for _ in 0..self.args.stops {
                let (mut there, mut stopped) = (Block::default(), Block::default());
                for at_work in [true, false, false, true] {
                    let (signal, daemon, sum) = if at_work {
                        (Signal::CONT, "at work", &mut there)
                    } else {
                        (Signal::STOP, "stopped", &mut stopped)
                    };
                    self.daemon.signal(signal)?;
                    sum.add_half(watched(load, daemon, PHASE)?);
                }
                rounds.push((there, stopped));
            }
            suspensions += self.suspensions()? - before;
            pairs.push(rounds);
            bar.inc(1);
        }
        bar.finish_and_clear();
        Ok((pairs, suspensions))
    }
}

/// Blocks for a while: their median and their mean.
fn phase(load: &mut Load, pieces: u32, length: Duration) -> anyhow::Result<Block> {
    let end = Instant::now() + length;
    let (mut medians, mut means) = (Vec::new(), Vec::new());
    while medians.is_empty() || Instant::now() < end {
        let block = load.block(pieces)?;
        medians.push(block.median_ns);
        means.push(block.mean_ns);
    }
    Ok(Block {
        mean_ns: means.iter().sum::<f64>() / means.len() as f64,
        median_ns: median(medians).context("A block was done")?,
    })
}

/// Every group's rounds, one group after the other.
fn each<T>(
    work: &Work,
    Groups(groups): &mut Groups,
    rounds: impl Fn(&mut Group) -> anyhow::Result<Vec<T>>,
) -> anyhow::Result<Vec<Vec<T>>> {
    let bar = progress(groups.len());
    bar.set_message(work.what);
    let mut all = Vec::new();
    for group in groups {
        all.push(rounds(group)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(all)
}

/// Loads that launch and wait, of these sides, with one more option.
fn launches(
    args: &OverheadArgs,
    sides: &'static [Side],
    more: Option<&str>,
) -> anyhow::Result<Work> {
    let load = Tenant {
        weight: 100,
        kernel: args.kernel,
        pattern: Pattern::Busy,
        seed: 1,
    };
    if args.kernel == Length::Endless {
        bail!("--kernel: launching and waiting takes kernels that end");
    }
    let common = Common {
        device: args.device,
        seconds: 0.1,
        calibration: None,
        list_gaps: false,
        copies: Copies::default(),
    };
    let mut words = words(0, &load, &common);
    words.retain(|word| word != "--wait");
    words.push("--blocks-of".to_owned());
    words.extend(more.map(str::to_owned));
    Ok(Work {
        what: "launch and wait",
        program: std::env::current_exe()?,
        words,
        sides,
        groups: args.pairs,
        seconds: args.seconds,
        pieces: args.launches,
        processors: 1,
    })
}

/// The cost of the filter, before there is a daemon; then the cost of the daemon.
fn launch_and_wait(args: &OverheadArgs) -> anyhow::Result<Measure> {
    let early = "A load of the bench ended early";
    let work = launches(args, &[Side::Native], Some("--filtered"))?;
    let plain = Groups::start(&work, |_| {
        let mut command = Command::new(&work.program);
        command.args(&work.words);
        Ok(command)
    })?;
    let mut plain = plain.context(early)?;
    let filtered: Vec<Vec<Pair>> = each(&work, &mut plain, |group| {
        let both = group.ways(work.seconds, work.pieces)?;
        Ok(both
            .into_iter()
            .map(|[plain, filtered]| (filtered, plain))
            .collect())
    })?;
    drop(plain);
    let mut host = Host::start(args)?;
    let work = launches(args, &[Side::Tenant], None)?;
    let mut tenants = host.groups(&work)?.context(early)?;
    let (there, suspensions) = host.stops(&work, &mut tenants)?;
    let natively = filtered.iter().flatten().map(|(_, plain)| *plain);
    Ok(Measure {
        what: work.what,
        native_us: native_us(natively)?,
        against: vec![
            Against::of("under the filter, in one process", &filtered)?,
            Against::of(DAEMON, &there)?,
        ],
        suspensions,
    })
}

const DAEMON: &str = "a tenant with the daemon at work, stopped";

/// None where PyTorch, or a GPU for it, is missing.
fn torch(args: &OverheadArgs) -> anyhow::Result<Option<Measure>> {
    let mut host = Host::start(args)?;
    let mut script = tempfile::NamedTempFile::new()?;
    script.write_all(STEP.as_bytes())?;
    let work = steps(args, script.path());
    let Some(mut groups) = host.groups(&work)? else {
        return Ok(None);
    };
    let rounds = each(&work, &mut groups, |group| {
        group.rounds(work.seconds, work.pieces)
    })?;
    let mut against = sides(&work, &rounds)?;
    let (there, suspensions) = host.stops(&work, &mut groups)?;
    against.push(Against::of(DAEMON, &there)?);
    Ok(Some(Measure {
        what: work.what,
        native_us: native_us(rounds.iter().flatten().map(|round| round[0]))?,
        against,
        suspensions,
    }))
}

fn steps(args: &OverheadArgs, script: &Path) -> Work {
    Work {
        what: "PyTorch step",
        program: args.python.clone(),
        words: vec![script.to_string_lossy().into_owned()],
        // Tenants are not adjacent: one that has just been busy keeps another from being alone.
        sides: &[Side::Native, Side::Tenant, Side::NativeAgain, Side::Movable],
        groups: args.torch_pairs,
        seconds: args.torch_seconds,
        pieces: args.steps,
        // SOURCE: PyTorch's own: one thread goes forward, another backward.
        processors: 2,
    }
}

pub(super) fn run(args: &OverheadArgs) -> anyhow::Result<()> {
    let GpuArg::Nvidia = args.gpu;
    let mut report = Report {
        measures: Vec::new(),
        skipped: Vec::new(),
    };
    if args.pairs > 0 {
        report.measures.push(launch_and_wait(args)?);
    }
    if args.no_torch {
        report.skipped.push("PyTorch: --no-torch was given".into());
    } else {
        match torch(args)? {
            Some(measure) => report.measures.push(measure),
            None => report
                .skipped
                .push("PyTorch: it, or a GPU for it, is missing".into()),
        }
    }
    for reason in &report.skipped {
        eprintln!("SKIPPED: {reason}");
    }
    Ok(args.output.print(&report, |report| {
        println!("more than natively: the median of the processes (95 % of what resampling gives)");
        report.measures.iter().for_each(Measure::print);
    })?)
}
