//! Hidden subcommands of the NVIDIA backend: its guardian, and a watch over programs on a real GPU.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::Command;
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use serde::Serialize;
use turnstile_accounting::{Metric, Nanos, TenantId};
use turnstile_mediator::gpu::nvidia::guardian::{self, Guardian};
use turnstile_mediator::gpu::nvidia::hold::HardwareSwitch;
use turnstile_mediator::gpu::nvidia::programs::{Programs, ProgramsError};
use turnstile_mediator::gpu::nvidia::rm::RmClient;
use turnstile_mediator::gpu::nvidia::version;
use turnstile_mediator::mediation::{Activity, COMPUTE, GateOrder, Mediation};
use turnstile_policies::{POLICIES, TenantParams, Tuning, Weight, policy_by_name};
use turnstile_vmm::gate::GateState;

/// Arguments of `nvidia-guardian`.
#[derive(clap::Args, Debug)]
pub(crate) struct GuardianArgs {
    /// GPU
    #[arg(long, default_value_t = 0)]
    gpu: u32,
}

pub(crate) fn guard(args: &GuardianArgs) -> anyhow::Result<()> {
    let driver = version::detect()?;
    let client = RmClient::open(args.gpu)?;
    // Not the standard library's own: that one reads ahead.
    let input = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    guardian::serve(input, io::stdout(), &HardwareSwitch::new(&client, &driver))?;
    Ok(())
}

/// A process that is a tenant with its weight.
#[derive(Clone, Copy, Debug)]
struct TenantArg {
    pid: u32,
    weight: Weight,
}

impl FromStr for TenantArg {
    type Err = anyhow::Error;
    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (pid, weight) = text.split_once(':').unwrap_or((text, "100"));
        Ok(Self {
            pid: pid.parse()?,
            weight: Weight::new(weight.parse()?)?,
        })
    }
}

/// Arguments of `nvidia-watch`.
#[derive(clap::Args, Debug)]
pub(crate) struct WatchArgs {
    /// GPU
    #[arg(long, default_value_t = 0)]
    gpu: u32,
    /// How long
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// From one decision to the next, in milliseconds
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=1000))]
    period_ms: u64,
    /// Scheduling policy
    #[arg(long, default_value = "none", value_parser = POLICIES.iter().map(|row| row.name).collect::<Vec<_>>())]
    policy: String,
    /// A process with its weight; children count as its own
    #[arg(long = "tenant", value_name = "PID:WEIGHT")]
    tenants: Vec<TenantArg>,
    /// File that the preloaded library of the tenants appends to; needed to hold them back
    #[arg(long)]
    handles: Option<PathBuf>,
    /// Hold all channels of a tenant, not only those on the compute engine
    #[arg(long)]
    all_channels: bool,
    /// JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// One tenant's line.
#[derive(Debug, Serialize)]
struct Line {
    pid: u32,
    weight: u32,
    channels: usize,
    entitled_percent: f64,
    /// Of all tenants' time.
    share_percent: f64,
    /// Of the engine's time.
    engine_percent: f64,
    turns: u64,
    mean_turn_us: f64,
    held_percent: f64,
    /// Largest error of the share of all tenants' time in any whole second but the first.
    worst_second_points: Option<f64>,
}

/// What a watch found.
#[derive(Debug, Serialize)]
struct Report {
    driver: &'static str,
    policy: String,
    period_ms: u64,
    seconds: f64,
    tenants: Vec<Line>,
    switching_percent: f64,
    idle_percent: f64,
    unobserved_percent: f64,
    untracked_percent: f64,
    untracked_pids: Vec<u32>,
    records: u64,
    records_missing: u64,
    records_unused: u64,
    records_dropped: u64,
    hold_calls: u64,
    hold_calls_failed: u64,
    hold_call_mean_us: f64,
    hold_call_longest_us: f64,
    /// Of one core, calls included.
    controller_cpu_percent: Option<f64>,
    conservation_error_ns: i128,
}

/// Used time per tenant in each second.
#[derive(Debug, Default)]
struct Seconds {
    done: Vec<BTreeMap<TenantId, u64>>,
}

impl Seconds {
    fn add(&mut self, second: usize, tenant: TenantId, used: Nanos) {
        while self.done.len() <= second {
            self.done.push(BTreeMap::new());
        }
        *self.done[second].entry(tenant).or_default() += used.0;
    }

    /// Largest error in points of a tenant's share of all in `whole` seconds, without the first.
    fn worst(&self, tenant: TenantId, entitled_percent: f64, whole: usize) -> Option<f64> {
        let seconds = self.done.get(1..whole.min(self.done.len()))?;
        let error = |second: &BTreeMap<TenantId, u64>| {
            let all: u64 = second.values().sum();
            let own = second.get(&tenant).copied().unwrap_or(0);
            (percent(own as f64, all as f64) - entitled_percent).abs()
        };
        seconds.iter().map(error).reduce(f64::max)
    }
}

fn percent(part: f64, whole: f64) -> f64 {
    if whole > 0.0 {
        100.0 * part / whole
    } else {
        0.0
    }
}

pub(crate) fn watch(args: &WatchArgs) -> anyhow::Result<()> {
    let tuning = Tuning::default();
    let policy = policy_by_name(&args.policy).context("The policy is not known")?;
    let guardian = match &args.handles {
        Some(_) => Some(start_guardian(args.gpu)?),
        None => None,
    };
    let mut programs = Programs::start(args.gpu, guardian)?;
    let mut mediation = Mediation::new((policy.make)(&tuning), [COMPUTE]);
    let tenants: Vec<(TenantId, TenantArg)> = (1..)
        .map(TenantId)
        .zip(args.tenants.iter().copied())
        .collect();
    for (tenant, arg) in &tenants {
        programs.assign(arg.pid, *tenant);
        let (weight, cap) = (arg.weight, None);
        mediation.add(*tenant, TenantParams { weight, cap })?;
    }
    if let Some(path) = &args.handles {
        programs.watch_handles(path, args.all_channels)?;
    }
    let report = measure(args, &tenants, programs, mediation)?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        report.print();
    }
    Ok(())
}

/// Starts the guardian of a GPU.
pub(crate) fn guardian_command(gpu: u32) -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["nvidia-guardian", "--gpu", &gpu.to_string()]);
    Ok(command)
}

pub(crate) fn start_guardian(gpu: u32) -> anyhow::Result<Guardian> {
    Ok(Guardian::start(guardian_command(gpu)?)?)
}

fn measure(
    args: &WatchArgs,
    tenants: &[(TenantId, TenantArg)],
    mut programs: Programs,
    mut mediation: Mediation,
) -> anyhow::Result<Report> {
    let period = Duration::from_millis(args.period_ms);
    // What was logged before, and the call's own start, is not measured.
    programs.period_end()?;
    let (begin, cpu) = (Instant::now(), cpu_ns());
    let length = Duration::from_secs_f64(args.seconds);
    let mut seconds = Seconds::default();
    let mut held_ns: BTreeMap<TenantId, u64> = BTreeMap::new();
    let mut next = begin + period;
    while begin.elapsed() < length {
        thread::sleep(next.saturating_duration_since(Instant::now()));
        next = (next + period).max(Instant::now());
        let usage = programs.period_end()?;
        let mut activity = Vec::new();
        for (tenant, _) in tenants {
            let used = usage.tenant_ns(*tenant, Metric::Total);
            // CAST: a run has few seconds.
            seconds.add(begin.elapsed().as_secs() as usize, *tenant, used);
            let held = programs.is_held(*tenant);
            if held {
                *held_ns.entry(*tenant).or_default() += usage.window.length().0;
            }
            // Who is held is taken to want the engine still: nothing of it can be seen.
            let (pending, last_active) = (u64::from(held || used > Nanos::ZERO), None);
            activity.push(Activity {
                tenant: *tenant,
                pending,
                last_active,
            });
        }
        let orders: Vec<GateOrder> = mediation.period_end(None, usage, &activity)?.to_vec();
        for order in orders {
            let moved = match order.state {
                GateState::Closed => programs.hold(order.tenant),
                GateState::Open | GateState::Watched => programs.release(order.tenant),
            };
            match moved {
                Err(error @ ProgramsError::Guardian(_)) => return Err(error.into()),
                Err(error) => log::warn!("{error}: {:?}", std::error::Error::source(&error)),
                Ok(()) => {}
            }
        }
    }
    let elapsed = begin.elapsed();
    let cpu_ns = cpu_ns().zip(cpu).map(|(end, begin)| end - begin);
    let snapshot = mediation.ledger().snapshot();
    let engine = snapshot
        .engines
        .iter()
        .find(|engine| engine.engine == COMPUTE)
        .context("The ledger lost the engine")?
        .totals;
    let accounted = engine.accounted_ns().0;
    let window = snapshot.window.map_or(0, |window| window.length().0);
    let whole = accounted as f64;
    let used: f64 = tenants
        .iter()
        .map(|(tenant, _)| used_ns(&mediation, *tenant))
        .sum();
    let weights: u32 = tenants.iter().map(|(_, arg)| arg.weight.get()).sum();
    let lines = tenants
        .iter()
        .map(|(tenant, arg)| {
            let own = used_ns(&mediation, *tenant);
            let turns = mediation.ledger().tenant(*tenant).totals.turns;
            let entitled_percent = percent(arg.weight.get().into(), weights.into());
            Line {
                pid: arg.pid,
                weight: arg.weight.get(),
                channels: programs.channels(*tenant).len(),
                entitled_percent,
                share_percent: percent(own, used),
                engine_percent: percent(own, whole),
                turns,
                mean_turn_us: own / 1e3 / (turns.max(1) as f64),
                held_percent: percent(held_ns.get(tenant).copied().unwrap_or(0) as f64, whole),
                worst_second_points: seconds.worst(
                    *tenant,
                    entitled_percent,
                    elapsed.as_secs() as usize,
                ),
            }
        })
        .collect();
    let (calls, losses) = (programs.calls(), programs.losses());
    Ok(Report {
        driver: version::detect()?.version,
        policy: args.policy.clone(),
        period_ms: args.period_ms,
        seconds: elapsed.as_secs_f64(),
        tenants: lines,
        switching_percent: percent(engine.switching_ns.0 as f64, whole),
        idle_percent: percent(engine.idle_ns.0 as f64, whole),
        unobserved_percent: percent(engine.unobserved_ns.0 as f64, whole),
        untracked_percent: percent(
            used_ns(
                &mediation,
                turnstile_mediator::gpu::nvidia::residency::UNTRACKED,
            ),
            whole,
        ),
        untracked_pids: programs.untracked().keys().copied().collect(),
        records: programs.records_read(),
        records_missing: losses.missing,
        records_unused: losses.unused,
        records_dropped: programs.dropped(),
        hold_calls: calls.count,
        hold_calls_failed: calls.failed,
        hold_call_mean_us: calls.total.as_secs_f64() * 1e6 / (calls.count.max(1) as f64),
        hold_call_longest_us: calls.longest.as_secs_f64() * 1e6,
        controller_cpu_percent: cpu_ns.map(|ns| percent(ns as f64, elapsed.as_nanos() as f64)),
        conservation_error_ns: i128::from(accounted) - i128::from(window),
    })
}

impl Report {
    fn print(&self) {
        println!(
            "driver {}, policy {}, decision each {} ms, {:.2} s measured by context-switch events",
            self.driver, self.policy, self.period_ms, self.seconds
        );
        println!(
            "{:>8} {:>6} {:>9} {:>9} {:>9} {:>8} {:>12} {:>8} {:>9} {:>14}",
            "process",
            "weight",
            "entitled",
            "share",
            "engine",
            "turns",
            "mean turn",
            "held",
            "channels",
            "worst second"
        );
        for line in &self.tenants {
            let worst = line
                .worst_second_points
                .map_or_else(|| "-".into(), |points| format!("{points:.2} points"));
            println!(
                "{:>8} {:>6} {:>7.1} % {:>7.1} % {:>7.1} % {:>8} {:>9.1} us {:>6.1} % {:>9} {:>14}",
                line.pid,
                line.weight,
                line.entitled_percent,
                line.share_percent,
                line.engine_percent,
                line.turns,
                line.mean_turn_us,
                line.held_percent,
                line.channels,
                worst
            );
        }
        println!(
            "engine: switching {:.1} %, idle {:.1} %, unobserved {:.1} %, untracked {:.1} % {:?}; conservation error {} ns",
            self.switching_percent,
            self.idle_percent,
            self.unobserved_percent,
            self.untracked_percent,
            self.untracked_pids,
            self.conservation_error_ns
        );
        println!(
            "log: {} records, {} missing, {} unused, {} dropped by the driver",
            self.records, self.records_missing, self.records_unused, self.records_dropped
        );
        println!(
            "calls: {} suspends and resumes, {} failed, mean {:.0} us, longest {:.0} us; controller {} of a core",
            self.hold_calls,
            self.hold_calls_failed,
            self.hold_call_mean_us,
            self.hold_call_longest_us,
            self.controller_cpu_percent
                .map_or_else(|| "unknown".into(), |percent| format!("{percent:.2} %"))
        );
    }
}

fn used_ns(mediation: &Mediation, tenant: TenantId) -> f64 {
    mediation.ledger().tenant(tenant).totals.used_ns.0 as f64
}

/// Time of this thread on a processor, where the kernel counts it.
fn cpu_ns() -> Option<u64> {
    let text = fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_ascii_whitespace().next()?.parse().ok()
}
