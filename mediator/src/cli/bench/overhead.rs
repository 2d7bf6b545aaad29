//! `turnstile bench overhead`: what a tenant pays while it is alone.
//!
//! ```text
//!   all alive from the beginning, asleep but for one; a group is one process of each side
//!     group 1: native | native again | tenant | tenant with --movable     a round: a block of each, then backwards
//!     group 2: ...
//!   then, with --switches: one tenant, daemon there | gone | gone | there
//! ```
//!
//! What lies beside the tenants (contexts, a daemon that watches) lies beside the native processes as well, and what drifts falls
//! on all alike. What the daemon's presence costs both is therefore measured apart: one process, with the daemon and without.

mod groups;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde::Serialize;
use tempfile::TempDir;
use turnstile_mediator::bench::load::Block;
use turnstile_mediator::bench::matrix::{Length, Pattern, Tenant};
use turnstile_mediator::bench::pairs::Excess;
use turnstile_mediator::bench::percentile::median;

use super::daemon::Daemon;
use super::processes::{Common, words};
use super::scheduler::{DaemonArgs, spawn, tenant_of};
use super::{GpuArg, progress};
use groups::{Groups, Round, SETTLING, Side, Work};

/// One optimiser step after the other. Runs wherever PyTorch does.
const STEP: &str = include_str!("../../../../images/load/step.py");

/// How long one tenant is watched with the daemon, or without, at a time.
const PHASE: Duration = Duration::from_millis(1_000);
/// TIMEOUT: a launcher tries to reach a daemon again after some seconds at most.
const FOUND_LIMIT: Duration = Duration::from_secs(20);

/// Arguments of `bench overhead`.
#[derive(clap::Args, Debug)]
pub(super) struct OverheadArgs {
    /// GPU
    #[arg(long, value_enum, default_value_t = GpuArg::Nvidia)]
    gpu: GpuArg,
    /// Its number
    #[arg(long, default_value_t = 0)]
    device: u32,
    /// Groups of processes that launch and wait; 0 leaves them out
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(0..=64))]
    pairs: u32,
    /// How long each group takes its turns
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Kernel that they launch and wait for
    #[arg(long, default_value = "10us")]
    kernel: Length,
    /// Launches in a block
    #[arg(long, default_value_t = 250, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    launches: u32,
    /// Times that the daemon is taken away and comes back beside a tenant that launches; 0 leaves that out
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(0..=64))]
    switches: u32,
    /// Groups of PyTorch processes
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    torch_pairs: u32,
    /// How long each of these takes its turns
    #[arg(long, default_value_t = 12.0)]
    torch_seconds: f64,
    /// Optimiser steps in a block
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    steps: u32,
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

/// A side against the native one.
#[derive(Debug, Serialize)]
struct Against {
    side: &'static str,
    /// By the median piece of each block.
    by_median: Excess,
    /// By the mean.
    by_mean: Excess,
}

/// One kind of work.
#[derive(Debug, Serialize)]
struct Measure {
    what: &'static str,
    /// A launch and wait, or a step, natively.
    native_us: f64,
    against: Vec<Against>,
    /// Calls that suspended or resumed somebody meanwhile; nobody is to be.
    suspensions: u64,
}

impl Measure {
    fn of(work: &Work, groups: &[Vec<Round>], suspensions: u64) -> anyhow::Result<Self> {
        let excess = |side: usize, of: fn(&Block) -> f64| {
            let pairs = |round: &Round| (of(&round[side]), of(&round[0]));
            let groups: Vec<Vec<_>> = groups
                .iter()
                .map(|rounds| rounds.iter().map(pairs).collect())
                .collect();
            Excess::of(&groups).context("Nothing was measured")
        };
        let against = work.sides.iter().enumerate().skip(1);
        let natively = groups.iter().flatten().map(|round| round[0].median_ns);
        Ok(Self {
            what: work.what,
            native_us: median(natively.collect()).context("Nothing was measured")? / 1e3,
            against: against
                .map(|(index, side)| {
                    Ok(Against {
                        side: side.name(),
                        by_median: excess(index, |block| block.median_ns)?,
                        by_mean: excess(index, |block| block.mean_ns)?,
                    })
                })
                .collect::<anyhow::Result<_>>()?,
            suspensions,
        })
    }

    fn print(&self) {
        println!("{}: natively {:.3} us", self.what, self.native_us);
        for Against {
            side,
            by_median,
            by_mean,
        } in &self.against
        {
            println!(
                "  {side:<19} {} by medians, {} by means; {} groups, {} rounds",
                text(by_median),
                text(by_mean),
                by_median.groups_percent.len(),
                by_median.rounds,
            );
        }
        if self.suspensions > 0 {
            println!(
                "  somebody was suspended meanwhile: {} calls",
                self.suspensions
            );
        }
    }
}

fn text(excess: &Excess) -> String {
    let [low, high] = excess.interval_percent;
    format!("{:+.3} % ({low:+.3} to {high:+.3})", excess.median_percent)
}

#[derive(Debug, Serialize)]
struct Report {
    measures: Vec<Measure>,
    /// A tenant that launches and waits, with the daemon against without.
    daemon_there: Option<Excess>,
    skipped: Vec<String>,
}

/// The daemon that the tenants are of.
struct Host<'a> {
    args: &'a OverheadArgs,
    folder: TempDir,
    daemon: Option<Daemon>,
    socket: PathBuf,
    /// Tenants so far.
    tenants: usize,
}

impl<'a> Host<'a> {
    fn start(args: &'a OverheadArgs) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("turnstile-bench")
            .tempdir()?;
        let (daemon, socket) = spawn(&args.daemon, args.device, folder.path())?;
        Ok(Self {
            args,
            folder,
            daemon: Some(daemon),
            socket,
            tenants: 0,
        })
    }

    fn suspensions(&self) -> anyhow::Result<u64> {
        let daemon = self.daemon.as_ref().context("There is no daemon")?;
        let calls = daemon.snapshot()?["gpu"]["suspend_calls"].as_u64();
        calls.context("The daemon does not say how often it suspended somebody")
    }

    /// The daemon is there, and knows so many tenants; or it is gone.
    fn set(&mut self, there: bool, tenants: usize) -> anyhow::Result<()> {
        if there == self.daemon.is_some() {
            return Ok(());
        }
        if !there {
            self.daemon = None;
            return Ok(());
        }
        let (daemon, _) = spawn(&self.args.daemon, self.args.device, self.folder.path())?;
        let deadline = Instant::now() + FOUND_LIMIT;
        while daemon.snapshot()?["tenants"].as_array().map_or(0, Vec::len) < tenants {
            if Instant::now() > deadline {
                return Err(daemon.failed("Another daemon does not find the tenants"));
            }
            thread::sleep(Duration::from_millis(20));
        }
        self.daemon = Some(daemon);
        thread::sleep(SETTLING);
        Ok(())
    }

    fn command(&mut self, side: Side, work: &Work) -> anyhow::Result<Command> {
        let mut command = match side.run() {
            None => Command::new(&work.program),
            Some(words) => {
                self.tenants += 1;
                tenant_of(&self.socket, self.tenants, 100, words, &work.program)?
            }
        };
        command.args(&work.words);
        Ok(command)
    }

    fn groups(&mut self, work: &Work) -> anyhow::Result<Option<Groups>> {
        Groups::start(work, |side| self.command(side, work))
    }

    fn measure(&self, work: &Work, Groups(groups): &mut Groups) -> anyhow::Result<Measure> {
        let before = self.suspensions()?;
        let bar = progress(groups.len());
        bar.set_message(work.what);
        let mut rounds = Vec::new();
        for group in groups {
            rounds.push(group.rounds(work.seconds, work.pieces)?);
            bar.inc(1);
        }
        bar.finish_and_clear();
        let suspensions = self.suspensions()? - before;
        Measure::of(work, &rounds, suspensions)
    }

    /// What a tenant takes with the daemon there, and gone: one tenant after the other.
    fn switches(
        &mut self,
        work: &Work,
        Groups(groups): &mut Groups,
    ) -> anyhow::Result<Option<Excess>> {
        let Some(side) = work.sides.iter().position(|side| *side == Side::Tenant) else {
            return Ok(None);
        };
        let mut with_and_without = Vec::new();
        let tenants = groups.len();
        for group in groups.iter_mut().take(self.args.switches as usize) {
            let mut sums = [0.0; 2];
            for there in [true, false, false, true] {
                self.set(there, tenants)?;
                let end = Instant::now() + PHASE;
                let mut blocks = Vec::new();
                while Instant::now() < end {
                    blocks.push(group.loads[side].block(work.pieces)?.median_ns);
                }
                sums[usize::from(!there)] += median(blocks).unwrap_or(f64::NAN);
            }
            with_and_without.push(vec![sums.into()]);
        }
        self.set(true, tenants)?;
        Ok(Excess::of(&with_and_without))
    }
}

fn launches(args: &OverheadArgs) -> anyhow::Result<Work> {
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
    };
    let mut words = words(&load, &common);
    words.retain(|word| word != "--wait");
    words.push("--blocks-of".to_owned());
    Ok(Work {
        what: "launch and wait",
        program: std::env::current_exe()?,
        words,
        sides: &[Side::Native, Side::NativeAgain, Side::Tenant],
        groups: args.pairs,
        seconds: args.seconds,
        pieces: args.launches,
        processors: 1,
    })
}

fn steps(args: &OverheadArgs, script: &Path) -> Work {
    Work {
        what: "PyTorch step",
        program: args.python.clone(),
        words: vec![script.to_string_lossy().into_owned()],
        sides: &[Side::Native, Side::NativeAgain, Side::Tenant, Side::Movable],
        groups: args.torch_pairs,
        seconds: args.torch_seconds,
        pieces: args.steps,
        // SOURCE: PyTorch's own: one thread goes forward, another backward.
        processors: 2,
    }
}

pub(super) fn run(args: &OverheadArgs) -> anyhow::Result<()> {
    let GpuArg::Nvidia = args.gpu;
    let mut host = Host::start(args)?;
    let mut report = Report {
        measures: Vec::new(),
        daemon_there: None,
        skipped: Vec::new(),
    };
    if args.pairs > 0 {
        let work = launches(args)?;
        let groups = host.groups(&work)?;
        let mut groups = groups.context("A load of the bench ended early")?;
        report.measures.push(host.measure(&work, &mut groups)?);
        if args.switches > 0 {
            report.daemon_there = host.switches(&work, &mut groups)?;
        }
    }
    if args.no_torch {
        report.skipped.push("PyTorch: --no-torch was given".into());
    } else {
        let mut script = tempfile::NamedTempFile::new()?;
        script.write_all(STEP.as_bytes())?;
        let work = steps(args, script.path());
        match host.groups(&work)? {
            Some(mut groups) => report.measures.push(host.measure(&work, &mut groups)?),
            None => report
                .skipped
                .push("PyTorch: it, or a GPU for it, is missing".into()),
        }
    }
    drop(host);
    for reason in &report.skipped {
        eprintln!("SKIPPED: {reason}");
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
        return Ok(());
    }
    println!("more than natively: the median of the groups (95 % of what resampling gives)");
    report.measures.iter().for_each(Measure::print);
    if let Some(there) = &report.daemon_there {
        println!(
            "a tenant that launches and waits, with the daemon against without: {}; {} tenants",
            text(there),
            there.rounds
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::groups::tests::{nothing, shell};
    use super::*;

    #[test]
    fn sides_are_told_apart_in_whatever_order_they_come() {
        let work = nothing(3);
        let started = Groups::start(&work, |side| {
            Ok(shell(match side {
                Side::Native => 1_000,
                Side::NativeAgain => 1_001,
                Side::Tenant | Side::Movable => 1_020,
            }))
        });
        let mut groups = started.unwrap().unwrap();
        let rounds: Vec<Vec<Round>> = groups
            .0
            .iter_mut()
            .map(|group| group.rounds(work.seconds, work.pieces).unwrap())
            .collect();
        drop(groups);
        let measure = Measure::of(&work, &rounds, 0).unwrap();
        assert!((measure.native_us - 1.0).abs() < 1e-9);
        let medians: Vec<f64> = measure
            .against
            .iter()
            .map(|against| against.by_median.median_percent)
            .collect();
        assert!((medians[0] - 0.1).abs() < 1e-9 && (medians[1] - 2.0).abs() < 1e-9);
        assert_eq!(measure.against[1].by_mean.median_percent, 0.0);
        assert_eq!(measure.against[0].by_median.groups_percent.len(), 3);
        assert!(Measure::of(&work, &[], 0).is_err());
    }
}
