//! `turnstile bench suspend`: from the order to suspend to the last instruction of an endless
//! kernel.
//!
//! It measures the daemon's ways to suspend. The preemptor takes the engine from a load that has
//! run for a time slice, or that has just begun; time counts from the order to it. The driver's
//! call works alone, and right behind another one, which lets another load run.

use std::cell::Cell;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde::Serialize;
use turnstile_accounting::TenantId;
use turnstile_figures::matrix::{Length, Pattern, Tenant};
use turnstile_figures::output::OutputArgs;
use turnstile_figures::spans::Span;
use turnstile_figures::suspend::{Suspensions, Trial, suspensions};
use turnstile_nvidia::handles::Handles;
use turnstile_nvidia::hold::holder::{Holder, OwnedSwitch};
use turnstile_nvidia::hold::watchdog::Watchdog;
use turnstile_nvidia::hold::{Channel, ChannelSwitch};
use turnstile_nvidia::preemptor::Preemptor;
use turnstile_nvidia::rm::{RmClient, RmError};
use turnstile_nvidia::version;

use super::processes::{Common, Copies, Load, words};
use super::scheduler::isolation_words;
use super::{GpuArg, progress, wall_ns};
use turnstile_nvidia::commands::{preemptor_command, watchdog_command};

/// How long the kernel is left suspended, and running: at random up to twice as long, so that
/// trials meet all phases of the driver.
const HOLD: Duration = Duration::from_micros(300);
const RUN: Duration = Duration::from_micros(500);
/// `RUN` before the preemptor is used: longer than a time slice. SOURCE: facts sheet section 1:
/// 2.048 ms.
const RUN_A_SLICE: Duration = Duration::from_micros(2_500);
/// Largest mean time of a trial, for the load's length. SOURCE: measured: two calls of 0.5 ms and
/// both pauses, at a handover four calls; with the preemptor, the longer pause.
const TRIAL_NS: u64 = 4_000_000;
const PREEMPTOR_TRIAL_NS: u64 = 7_000_000;
/// TIMEOUT: the vendor's library takes half a second.
const PREEMPTOR_LIMIT: Duration = Duration::from_secs(30);
/// TIMEOUT: the second load begins meanwhile, beside an endless kernel.
const START_SECONDS: f64 = 4.0;

/// Arguments of `bench suspend`.
#[derive(clap::Args, Debug)]
pub(super) struct SuspendArgs {
    /// GPU
    #[arg(long, value_enum, default_value_t = GpuArg::Nvidia)]
    gpu: GpuArg,
    /// Its number
    #[arg(long, default_value_t = 0)]
    device: u32,
    /// Suspensions of each kind
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    trials: u32,
    /// Also suspend all channels of the load, not those of its compute group alone
    #[arg(long)]
    all: bool,
    /// Also suspend each channel of the compute group alone, a twentieth as often
    #[arg(long)]
    single: bool,
    /// Suspend a load that has no NVIDIA node
    #[arg(long, conflicts_with = "preload")]
    isolated: bool,
    /// Library that reports handles, in place of what `turnstile run` learns
    #[arg(long)]
    preload: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

/// Suspensions of one set of channels.
#[derive(Debug, Serialize)]
struct Kind {
    what: String,
    channels: usize,
    #[serde(flatten)]
    found: Suspensions,
}

#[derive(Debug, Serialize)]
struct Report {
    driver: &'static str,
    kinds: Vec<Kind>,
    /// Largest difference of the kernel's clock from the caller's.
    clock_error_ns: u64,
    /// Time of a step of work, after which the kernel reads the clock: its last instruction is up
    /// to that much later.
    step_ns: u64,
    /// Gaps that no suspension explains.
    other_gaps: u64,
}

/// The suspended load, and the load that has the GPU instead at a handover.
const LOAD: TenantId = TenantId(1);
const OTHER: TenantId = TenantId(2);

/// The daemon's own suspension: what is held is announced to a watchdog, which resumes
/// it after the daemon's death.
struct Hands {
    holder: Holder<TimedSwitch, Watchdog>,
    preemptor: Preemptor,
    last: Rc<Cell<Span>>,
    random: SmallRng,
}

/// The hardware's switch, with the time of its last call.
struct TimedSwitch {
    switch: OwnedSwitch,
    last: Rc<Cell<Span>>,
}

impl ChannelSwitch for TimedSwitch {
    fn set(&self, channels: &[Channel], suspended: bool) -> Result<(), RmError> {
        let begin_ns = wall_ns();
        let result = self.switch.set(channels, suspended);
        self.last.set(Span::new(begin_ns, wall_ns()));
        result
    }
}

impl Hands {
    fn pause(&mut self, least: Duration) {
        // CAST: microseconds.
        let least_us = least.as_micros() as u64;
        thread::sleep(Duration::from_micros(
            self.random.random_range(least_us..=2 * least_us),
        ));
    }

    /// Suspends and resumes the load, as planned. With channels in `other` it is a handover as in
    /// the daemon: the other load is resumed first. With the preemptor, the suspension begins at
    /// the order to it.
    fn trial(&mut self, plan: &Plan, other: &[Channel]) -> anyhow::Result<Trial> {
        self.holder.renew()?;
        let preempts = match plan.way {
            Way::Preemptor(run) => Some(run),
            Way::Call | Way::Handover => None,
        };
        if preempts.is_some() {
            self.await_preemptor()?;
        }
        self.pause(preempts.unwrap_or(RUN));
        self.holder.release(OTHER)?;
        let ordered_ns = wall_ns();
        if preempts.is_some() && !self.preemptor.take() {
            bail!("The preemptor has ended");
        }
        self.holder.hold(LOAD, &plan.channels)?;
        self.preemptor.leave();
        let mut suspend = self.last.get();
        if preempts.is_some() {
            suspend.begin_ns = ordered_ns;
        }
        self.pause(HOLD);
        self.holder.release(LOAD)?;
        let resume = self.last.get();
        self.holder.hold(OTHER, other)?;
        Ok(Trial { suspend, resume })
    }

    fn await_preemptor(&mut self) -> anyhow::Result<()> {
        let begin = Instant::now();
        while !self.preemptor.is_ready() {
            if self.preemptor.pid().is_none() || begin.elapsed() > PREEMPTOR_LIMIT {
                bail!("The preemptor does not start");
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

/// A load and the handles that were learnt of it.
struct Learnt {
    load: Load,
    handles: Handles,
}

impl Learnt {
    fn start(args: &SuspendArgs, folder: &Path, common: &Common) -> anyhow::Result<Self> {
        let path = folder.join("handles");
        File::create(&path)?;
        let program = std::env::current_exe()?;
        let mut command = Command::new(&program);
        if let Some(preload) = &args.preload {
            let preload = fs::canonicalize(preload).context("--preload")?;
            command.env("LD_PRELOAD", preload);
            command.env("TURNSTILE_HANDLES", &path);
        } else {
            command.arg("run").args(isolation_words(args.isolated));
            command.arg("--learn-only").arg(&path).arg("--");
            command.arg(&program);
        }
        let tenant = Tenant {
            weight: 100,
            kernel: Length::Endless,
            pattern: Pattern::Busy,
            seed: 1,
        };
        command.args(words(0, &tenant, common));
        let mut load = Load::spawn(command)?;
        load.wait_ready()?;
        let mut handles = Handles::default();
        for line in fs::read_to_string(&path)?.lines() {
            handles.take(line)?;
        }
        if args.isolated {
            // Its objects are those of its device process.
            load.pid = handles.pids().next().unwrap_or_default();
        }
        if handles.compute_channels(load.pid).is_empty() {
            bail!("Nothing was learnt of the load's channels");
        }
        Ok(Self { load, handles })
    }

    fn compute(&self) -> Vec<Channel> {
        self.handles.compute_channels(self.load.pid)
    }

    /// Starts it, and waits until its kernel runs.
    fn go(&mut self) -> anyhow::Result<()> {
        let start = wall_ns() + 50_000_000;
        self.load.start(start)?;
        thread::sleep(
            Duration::from_nanos(start.saturating_sub(wall_ns())) + Duration::from_millis(100),
        );
        Ok(())
    }
}

/// Channels to suspend, the way, and the number of trials.
struct Plan {
    what: String,
    channels: Vec<Channel>,
    way: Way,
    trials: u32,
}

/// The daemon's ways to suspend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// The preemptor takes the engine from a load that has run for this time, and the driver's call
    /// follows.
    Preemptor(Duration),
    /// The driver's call.
    Call,
    /// The same, behind the call that resumes another load.
    Handover,
}

impl Plan {
    fn takes_ns(&self) -> u64 {
        let each_ns = match self.way {
            Way::Preemptor(_) => PREEMPTOR_TRIAL_NS,
            Way::Call | Way::Handover => TRIAL_NS,
        };
        u64::from(self.trials) * each_ns
    }
}

fn plans(args: &SuspendArgs, handles: &Handles, pid: u32) -> Vec<Plan> {
    let plan = |what: &str, channels: Vec<Channel>, trials| Plan {
        what: what.to_owned(),
        channels,
        way: Way::Call,
        trials,
    };
    let compute = handles.compute_channels(pid);
    let preemptor = |what, run| Plan {
        way: Way::Preemptor(run),
        ..plan(what, compute.clone(), args.trials)
    };
    let mut plans = vec![
        preemptor("by the preemptor", RUN_A_SLICE),
        preemptor("just scheduled in", RUN),
        plan("by the call alone", compute.clone(), args.trials),
    ];
    if args.all {
        plans.push(plan("all channels", handles.all_channels(pid), args.trials));
    }
    if args.single {
        for (index, channel) in compute.iter().enumerate() {
            let what = format!("compute channel {index}");
            plans.push(plan(&what, vec![*channel], (args.trials / 20).max(1)));
        }
    }
    // Last: from then on there is a second load.
    plans.push(Plan {
        way: Way::Handover,
        ..plan("at a handover", compute, args.trials)
    });
    plans
}

pub(super) fn run(args: &SuspendArgs) -> anyhow::Result<()> {
    let GpuArg::Nvidia = args.gpu;
    let driver = version::detect()?;
    let folder = tempfile::Builder::new()
        .prefix("turnstile-bench")
        .tempdir()?;
    // The number of channels is not known before the load runs: ten in a group at most.
    let most = |trials: u32| u64::from(trials) * TRIAL_NS;
    let single_ns = if args.single {
        most(args.trials / 2 + 10)
    } else {
        0
    };
    let all_ns = if args.all { most(args.trials) } else { 0 };
    let trials_ns = 2 * u64::from(args.trials) * PREEMPTOR_TRIAL_NS + 2 * most(args.trials);
    let common = Common {
        device: args.device,
        seconds: (trials_ns + all_ns + single_ns) as f64 / 1e9 + START_SECONDS,
        calibration: None,
        list_gaps: true,
        copies: Copies::default(),
    };
    let mut learnt = Learnt::start(args, folder.path(), &common)?;
    let plans = plans(args, &learnt.handles, learnt.load.pid);
    let last = Rc::new(Cell::new(Span::new(0, 0)));
    let switch = TimedSwitch {
        switch: OwnedSwitch {
            client: Arc::new(RmClient::open(args.device)?),
            driver,
        },
        last: last.clone(),
    };
    let mut hands = Hands {
        last,
        holder: Holder::new(switch, Watchdog::start(watchdog_command(args.device)?())?),
        preemptor: Preemptor::start(
            RmClient::open(args.device)?,
            preemptor_command(args.device)?,
        )?,
        random: SmallRng::seed_from_u64(1),
    };
    hands.await_preemptor()?;
    learnt.go()?;
    // CAST: a run has minutes.
    let end = wall_ns() + (common.seconds * 1e9) as u64;
    let bar = progress(plans.len());
    let mut done = Vec::new();
    let mut other: Option<Learnt> = None;
    for plan in plans {
        bar.set_message(plan.what.clone());
        if plan.way == Way::Handover {
            let folder = tempfile::tempdir_in(folder.path())?;
            let theirs = Common {
                seconds: plan.takes_ns() as f64 / 1e9 + 1.0,
                ..common.clone()
            };
            let started = other.insert(Learnt::start(args, folder.path(), &theirs)?);
            started.go()?;
            hands.holder.hold(OTHER, &started.compute())?;
        }
        let theirs = other.as_ref().map(Learnt::compute).unwrap_or_default();
        let mut trials = Vec::new();
        for _ in 0..plan.trials {
            if wall_ns() + TRIAL_NS > end {
                bail!("The load ended before the trials did");
            }
            trials.push(hands.trial(&plan, &theirs)?);
        }
        done.push((plan.what, plan.channels.len(), trials));
        bar.inc(1);
    }
    drop(hands);
    if let Some(mut other) = other {
        // It may run for another second, in which it would disturb the next user of the GPU.
        other
            .load
            .wait_done(Duration::from_secs_f64(common.seconds))?;
    }
    let load_report = learnt
        .load
        .wait_done(Duration::from_secs_f64(common.seconds));
    bar.finish_and_clear();
    report(args, driver.version, &load_report?, done)
}

fn report(
    args: &SuspendArgs,
    driver: &'static str,
    load: &turnstile_figures::load::LoadReport,
    done: Vec<(String, usize, Vec<Trial>)>,
) -> anyhow::Result<()> {
    if load.gaps_unrecorded > 0 {
        bail!("{} gaps had no room", load.gaps_unrecorded);
    }
    let kinds: Vec<Kind> = done
        .into_iter()
        .map(|(what, channels, trials)| Kind {
            what,
            channels,
            found: suspensions(&trials, &load.gap_list, load.clock_error_ns),
        })
        .collect();
    let explained: u64 = kinds
        .iter()
        .map(|kind| kind.found.trials - kind.found.not_stopped)
        .sum();
    let report = Report {
        driver,
        kinds,
        clock_error_ns: load.clock_error_ns,
        step_ns: load.step_ns,
        other_gaps: load.gaps.saturating_sub(explained),
    };
    Ok(args.output.print(&report, print)?)
}

fn print(report: &Report) {
    println!(
        "driver {}; microseconds, p50 / p99 / max; clocks within {:.1} us, a step of work {:.1} us",
        report.driver,
        report.clock_error_ns as f64 / 1e3,
        report.step_ns as f64 / 1e3
    );
    println!(
        "{:<18} {:>8} {:>7} {:>8} {:>24} {:>24} {:>24} {:>24}",
        "suspended",
        "channels",
        "trials",
        "ran on",
        "to last instruction",
        "suspend call",
        "to first instruction",
        "resume call"
    );
    for kind in &report.kinds {
        let us = |of: &turnstile_figures::percentile::Percentiles| {
            let us = |ns: u64| ns as f64 / 1e3;
            format!(
                "{:.0} / {:.0} / {:.0}",
                us(of.p50_ns),
                us(of.p99_ns),
                us(of.max_ns)
            )
        };
        println!(
            "{:<18} {:>8} {:>7} {:>8} {:>24} {:>24} {:>24} {:>24}",
            kind.what,
            kind.channels,
            kind.found.trials,
            kind.found.not_stopped,
            us(&kind.found.to_last_instruction),
            us(&kind.found.suspend_call),
            us(&kind.found.to_first_instruction),
            us(&kind.found.resume_call),
        );
    }
    println!("{} gaps that no suspension explains", report.other_gaps);
}
