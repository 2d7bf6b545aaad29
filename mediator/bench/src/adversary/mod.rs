//! `turnstile bench adversary`: a victim of one account beside attackers of another, in real time.
//!
//! In: attacks, victims, a length. Out: for each pair a line, by the software GPU's own log and by
//! the daemon's ledger. Each run has a daemon of its own, so that no debt is left from before.
//! The same moves in virtual time are `lab adversary` of the tests.

mod measured;
mod moves;
mod tenant;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::ValueEnum;
use serde::Serialize;
use serde_json::Value;
use turnstile_accounting::{EngineState, SwitchEvent};
use turnstile_figures::output::OutputArgs;
use turnstile_figures::spans::Span;
use turnstile_mediation::COMPUTE;

use self::measured::{Measured, Rules, Segment, measure};
use self::moves::{ATTACKS, Attack, WEIGHT_MAX};
use self::tenant::{Claim, Stream, Work};
use super::daemon::Daemon;
use super::scheduler::listening;

/// Left out at the beginning of each run: queues fill, and tenants have no history yet.
const SETTLE: Duration = Duration::from_secs(1);
/// TIMEOUT: 40 tenants connect and load a module each, on a machine that builds at the same time.
const BEGIN_LIMIT: Duration = Duration::from_secs(60);
/// SOURCE: the default of `scheduling.patience_us`.
const PATIENCE_NS: u64 = 1_000_000;
/// What a victim may fall short by beside one kernel: the bound on being ahead, and the reaction.
const SLACK_NS: u64 = 2_000_000;
/// The part of its entitlement that a victim has where kernels can be stopped. Also the part of its
/// time that it has where the attacker has no kernels.
const PART: f64 = 0.93;
/// The same on a machine on which the daemon and the victim wait for a processor.
const PART_LATE: f64 = 0.85;
/// The part of its entitlement that a victim has over a whole run, where its worst window is late.
const PART_IN_ALL: f64 = 0.98;
/// How long a daemon and a victim may wait for a processor, on a machine that is shared.
const LATE_NS: u64 = 20_000_000;

/// Arguments of `bench adversary`.
#[derive(clap::Args, Debug)]
pub(super) struct AdversaryArgs {
    /// Only these attacks, separated by commas; --list has their names
    #[arg(long, value_name = "NAME,...", value_delimiter = ',',
        value_parser = ATTACKS.iter().map(|attack| attack.name).collect::<Vec<_>>())]
    attack: Vec<String>,
    /// Victims, separated by commas
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "depth-1,depth-4,bursty"
    )]
    victims: Vec<Victim>,
    /// Length of the measured window of each run
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    seconds: u64,
    /// How the software GPU stops the work of a tenant that is held
    #[arg(long, value_enum, default_value_t = Stops::BetweenCommands)]
    suspend: Stops,
    /// The daemon's policy; its own choice if not given
    #[arg(long)]
    policy: Option<String>,
    /// Print the attacks and do nothing
    #[arg(long)]
    list: bool,
    #[command(flatten)]
    output: OutputArgs,
}

/// A tenant that wants its share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Victim {
    /// One kernel of 1 ms in flight
    #[value(name = "depth-1")]
    #[serde(rename = "depth-1")]
    Depth1,
    /// Four kernels of 1 ms in flight
    #[value(name = "depth-4")]
    #[serde(rename = "depth-4")]
    Depth4,
    /// Bursts of eight kernels of 1 ms, four in flight, and pauses of 2 ms
    Bursty,
}

impl Victim {
    fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }

    const fn stream(self) -> Stream {
        let kernel = Work::Kernel(1_000);
        match self {
            Self::Depth1 => Stream::new(kernel, 1),
            Self::Depth4 => Stream::new(kernel, 4),
            Self::Bursty => Stream::new(kernel, 4).pausing(8, 2_000),
        }
    }
}

/// How the GPU stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Stops {
    /// After the command that runs
    BetweenCommands,
    /// Within it
    MidKernel,
}

impl Stops {
    /// The value of `gpu.soft.suspend`.
    const fn name(self) -> &'static str {
        match self {
            Self::BetweenCommands => "between-commands",
            Self::MidKernel => "mid-kernel",
        }
    }
}

/// A run.
#[derive(Debug, Serialize)]
// FIELDS: a line of results: one figure each.
struct Line {
    attack: &'static str,
    victim: Victim,
    #[serde(flatten)]
    measured: Measured,
    /// The victim's part of what all were served, by the GPU's log.
    share_percent: f64,
    /// What the ledger charged the victim, of what all were served.
    charged_percent: f64,
    /// What it was entitled to, of what all were served.
    entitled_percent: f64,
    /// What was served, of the window.
    busy_percent: f64,
    /// What the victim was served, of the time in which it had work.
    of_its_time_percent: f64,
    /// What the victim's worst window may fall short by; none where another rule holds.
    allowed_ns: Option<u64>,
    /// Doorbell exits of a kernel of the victim.
    exits_per_kernel: f64,
    verdict: Verdict,
    /// What the attacker did.
    note: String,
}

#[derive(Debug, Serialize)]
struct Report {
    suspend: &'static str,
    seconds: u64,
    lines: Vec<Line>,
}

pub(super) fn run(args: &AdversaryArgs) -> anyhow::Result<()> {
    let named = |attack: &&Attack| {
        let given = &args.attack;
        given.is_empty() || given.iter().any(|name| name == attack.name)
    };
    let attacks: Vec<&Attack> = ATTACKS.iter().filter(named).collect();
    if args.list {
        for attack in attacks {
            println!("{:<14} {}", attack.name, attack.what);
        }
        return Ok(());
    }
    let mut report = Report {
        suspend: args.suspend.name(),
        seconds: args.seconds,
        lines: Vec::new(),
    };
    let (runs, mut failures) = (attacks.len() * args.victims.len(), Vec::new());
    for attack in attacks {
        for victim in &args.victims {
            let number = report.lines.len() + failures.len() + 1;
            let name = format!("{} beside {}", victim.name(), attack.name);
            eprintln!("{number}/{runs} {name}");
            match line(args, attack, *victim) {
                Ok(line) => report.lines.push(line),
                Err(error) => failures.push(format!("{name}: {error:#}")),
            }
        }
    }
    let print = |report: &Report| print!("{}", table(report));
    args.output.print(&report, print)?;
    for failure in &failures {
        eprintln!("{failure}");
    }
    let short = report
        .lines
        .iter()
        .filter(|line| line.verdict == Verdict::Short)
        .count();
    if short + failures.len() > 0 {
        bail!("{short} victims fell short, {} runs failed", failures.len());
    }
    Ok(())
}

/// Two accounts of equal weight, and a log of the compute engine.
fn config(args: &AdversaryArgs, trace: &Path) -> String {
    format!(
        "[gpu.soft]\nsuspend = \"{}\"\ntrace = {trace:?}\n\n\
         [[account]]\nname = \"victims\"\nmatch = [\"victim*\"]\n\n\
         [[account]]\nname = \"others\"\nmatch = [\"*\"]\nweight_max = {WEIGHT_MAX}\n",
        args.suspend.name()
    )
}

/// Starts a daemon on a software GPU; returns it and its socket.
fn daemon(args: &AdversaryArgs, folder: &Path, trace: &Path) -> anyhow::Result<(Daemon, PathBuf)> {
    let (socket, file) = (folder.join("vmm.sock"), folder.join("turnstile.toml"));
    fs::write(&file, config(args, trace))?;
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(["serve", "--gpu", "soft", "--config"])
        .arg(&file);
    command.arg("--socket").arg(&socket);
    if let Some(policy) = &args.policy {
        command.args(["--policy", policy]);
    }
    let mut daemon = Daemon::spawn(&mut command, folder)?;
    listening(&mut daemon, &socket)?;
    Ok((daemon, socket))
}

/// One victim beside one attack.
fn line(args: &AdversaryArgs, attack: &Attack, victim: Victim) -> anyhow::Result<Line> {
    let folder = tempfile::Builder::new()
        .prefix("turnstile-bench")
        .tempdir()?;
    let trace = folder.path().join("switches");
    let (daemon, socket) = daemon(args, folder.path(), &trace)?;
    let stream = victim.stream();
    let of_victim = tenant::start(Claim::new(&socket, "victim"), move |session, started| {
        tenant::stream(session, stream, started)
    })?;
    of_victim.wait_ready()?;
    let over = AtomicBool::new(false);
    let (begin, started) = sync_channel(1);
    let (note, marks) = thread::scope(|scope| {
        let (socket, over) = (&socket, &over);
        let attacker = scope.spawn(move || attack.run(socket, over, &begin));
        let marks = started.recv_timeout(BEGIN_LIMIT).context("No attack began");
        let marks = marks.and_then(|()| {
            thread::sleep(SETTLE);
            let first = daemon.snapshot()?;
            thread::sleep(Duration::from_secs(args.seconds));
            Ok([first, daemon.snapshot()?])
        });
        of_victim.stop();
        over.store(true, Ordering::Release);
        let note = attacker.join();
        let note = note.map_err(|_| anyhow::anyhow!("The attacker panicked"))?;
        Ok::<_, anyhow::Error>((note?, marks?))
    })?;
    let (streamed, report) = of_victim.end()?;
    let [first, last] = &marks;
    let id = counter(last, "victim", "tenant").context("The daemon does not know the victim")?;
    let at = |mark: &Value| mark["at"].as_u64().context("A snapshot has no time");
    let window = Span::new(at(first)?, at(last)?);
    let rules = Rules {
        patience_ns: PATIENCE_NS,
        stops_kernels: args.suspend == Stops::MidKernel,
        longest_ns: attack.longest_us * 1_000,
    };
    let segments = segments(&fs::read_to_string(&trace)?, id, window.end_ns)?;
    let measured = measure(window, &segments, &streamed.pauses(), rules);
    let part = |of: u64, all: u64| 100.0 * of as f64 / all.max(1) as f64;
    let charged = |mark: &Value| counter(mark, "victim", "compute_ns").unwrap_or_default();
    let charged_ns = charged(last).saturating_sub(charged(first));
    let entitled_ns = match attack.longest_us {
        0 => measured.served_ns,
        _ => measured.entitled_ns,
    };
    Ok(Line {
        attack: attack.name,
        victim,
        share_percent: part(measured.victim_ns, measured.served_ns),
        charged_percent: part(charged_ns, measured.served_ns),
        entitled_percent: part(entitled_ns, measured.served_ns),
        busy_percent: part(measured.served_ns, measured.window_ns),
        of_its_time_percent: part(measured.victim_ns, measured.has_work_ns),
        allowed_ns: allowed_ns(rules),
        exits_per_kernel: report.doorbell_exits as f64 / streamed.launches.max(1) as f64,
        verdict: verdict(&measured, rules),
        measured,
        note,
    })
}

/// Whether the victim had what the attack leaves to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Passed,
    /// All in all it had, and in its worst window only later, or a little less: the daemon or the
    /// victim waited for a processor.
    Late,
    Short,
}

/// What the worst window may fall short by, where kernels cannot be stopped.
fn allowed_ns(rules: Rules) -> Option<u64> {
    let judged = rules.longest_ns > 0 && !rules.stops_kernels;
    judged.then_some(rules.longest_ns + SLACK_NS)
}

fn verdict(measured: &Measured, rules: Rules) -> Verdict {
    let victim = measured.victim_ns as f64;
    // Also late where the machine is: a kernel of 1 ms is launched and noticed within 0.05 ms.
    let judge = |part: f64| match part {
        part if part >= PART => Verdict::Passed,
        part if part >= PART_LATE => Verdict::Late,
        _ => Verdict::Short,
    };
    let Some(allowed) = allowed_ns(rules) else {
        if rules.longest_ns == 0 {
            return judge(victim / measured.has_work_ns as f64);
        }
        let excused = (measured.returns * SLACK_NS) as f64;
        return judge((victim + excused) / measured.entitled_ns as f64);
    };
    if measured.worst_ns <= allowed {
        return Verdict::Passed;
    }
    let owed = (measured.entitled_ns - measured.excused_ns) as f64;
    let windows = ((1 + measured.returns) * allowed) as f64;
    let in_all = victim + windows >= PART_IN_ALL * owed;
    match in_all && measured.worst_ns <= 2 * allowed + LATE_NS {
        true => Verdict::Late,
        false => Verdict::Short,
    }
}

/// A counter of a tenant in a snapshot.
fn counter(snapshot: &Value, name: &str, what: &str) -> Option<u64> {
    let mut tenants = snapshot["tenants"].as_array()?.iter();
    tenants.find(|tenant| tenant["name"] == name)?[what].as_u64()
}

/// The compute engine's stretches until `end_ns`, from the GPU's log of switches.
fn segments(log: &str, victim: u64, end_ns: u64) -> anyhow::Result<Vec<Segment>> {
    let mut segments = Vec::new();
    let mut running: Option<(u64, bool)> = None;
    for line in log.lines() {
        let event: SwitchEvent = serde_json::from_str(line).context("The GPU's log is damaged")?;
        if event.engine != COMPUTE {
            continue;
        }
        if let Some((begin, of_victim)) = running.take() {
            let span = Span::new(begin, event.at.0);
            segments.push(Segment { span, of_victim });
        }
        if let EngineState::Running(tenant) = event.state {
            running = Some((event.at.0, u64::from(tenant.0) == victim));
        }
    }
    if let Some((begin, of_victim)) = running {
        let span = Span::new(begin, end_ns.max(begin));
        segments.push(Segment { span, of_victim });
    }
    Ok(segments)
}

fn table(report: &Report) -> String {
    let mut text = format!(
        "software GPU, suspend {}, {} s each; a victim beside an attacker of another account, 1:1\n\n",
        report.suspend, report.seconds
    );
    let _ = writeln!(
        text,
        "{:<14} {:<8} {:>7} {:>8} {:>9} {:>6} {:>9} {:>9} {:>10} {:>8} {:>7}  {:<6} note",
        "attack",
        "victim",
        "share %",
        "charged",
        "entitled",
        "busy %",
        "of its %",
        "worst ms",
        "allowed ms",
        "returns",
        "exits",
        ""
    );
    let ms = |ns: u64| format!("{:.1}", ns as f64 / 1e6);
    for line in &report.lines {
        let _ = writeln!(
            text,
            "{:<14} {:<8} {:>7.1} {:>8.1} {:>9.1} {:>6.1} {:>9.1} {:>9} {:>10} {:>8} {:>7.3}  {:<6} {}",
            line.attack,
            line.victim.name(),
            line.share_percent,
            line.charged_percent,
            line.entitled_percent,
            line.busy_percent,
            line.of_its_time_percent,
            ms(line.measured.worst_ns),
            line.allowed_ns.map_or_else(|| "-".to_owned(), ms),
            line.measured.returns,
            line.exits_per_kernel,
            match line.verdict {
                Verdict::Passed => "passed",
                Verdict::Late => "late",
                Verdict::Short => "SHORT",
            },
            line.note
        );
    }
    text + "\n" + COLUMNS + "\n"
}

/// What the table's columns are.
const COLUMNS: &str = "\
share: what the victim was served, of what all were, by the GPU's log; charged: the same by the ledger
entitled: half of what was served while the victim had work or kept its place, of all that was served
busy: what was served, of the window; of its: what the victim was served, of the time in which it had work
worst: by how much the victim fell short of its entitlement, in the worst window without an absence
allowed: one kernel of the attacker and 2 ms; late: beyond that, but not over the whole run. Where kernels
can be stopped a victim has 93 % of its entitlement less 2 ms a return. Beside an attacker without
kernels it has 93 % of the time in which it has work
returns: ends of pauses in which the victim kept no place; exits: doorbell exits of a kernel of the victim";
