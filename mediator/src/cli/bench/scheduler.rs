//! Who schedules the loads of a cell: the driver alone, or a daemon.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::ValueEnum;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use turnstile_mediator::bench::cell::{Charge, SchedulerSays};
use turnstile_mediator::bench::matrix::Tenant;
use turnstile_mediator::bench::spans::Span;

/// TIMEOUT: the daemon opens the driver, starts its log and a guardian: some hundred milliseconds.
const START_LIMIT: Duration = Duration::from_secs(20);

/// TIMEOUT: a snapshot is taken and printed within milliseconds.
const SAY_LIMIT: Duration = Duration::from_secs(5);

/// Which daemon schedules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum DaemonKind {
    /// `turnstile serve`, with tenants started by `turnstile run`
    Serve,
    /// `turnstile nvidia-watch`, with tenants that preload a library that reports handles
    Watch,
}

/// How a daemon is started.
#[derive(clap::Args, Clone, Debug)]
pub(super) struct DaemonArgs {
    /// Which daemon schedules
    #[arg(long, value_enum, default_value_t = DaemonKind::Serve)]
    daemon: DaemonKind,
    /// Its policy; its own choice if not given
    #[arg(long)]
    policy: Option<String>,
    /// From one decision to the next, in milliseconds; the daemon's own default if not given
    #[arg(long)]
    period_ms: Option<u64>,
    /// Library that reports handles, for --daemon watch
    #[arg(long, required_if_eq("daemon", "watch"))]
    preload: Option<PathBuf>,
    /// Further words for the daemon, such as --daemon-word=--frames=24
    #[arg(long = "daemon-word", value_name = "WORD", hide = true)]
    words: Vec<String>,
}

impl DaemonArgs {
    /// What its runs are called.
    pub(super) fn name(&self) -> &str {
        self.policy.as_deref().unwrap_or(match self.daemon {
            DaemonKind::Serve => "turnstile",
            DaemonKind::Watch => "none",
        })
    }
}

/// Who schedules a cell.
#[derive(Clone, Copy, Debug)]
pub(super) enum Scheduler<'a> {
    /// The driver.
    Native,
    /// A daemon.
    Scheduled(&'a DaemonArgs),
}

impl Scheduler<'_> {
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Native => "native",
            Self::Scheduled(args) => args.name(),
        }
    }

    /// Starts whatever has to run before the loads.
    pub(super) fn start(&self, device: u32) -> anyhow::Result<Running> {
        let Self::Scheduled(args) = self else {
            return Ok(Running::Native);
        };
        let folder = tempfile::Builder::new()
            .prefix("turnstile-bench")
            .tempdir()?;
        match args.daemon {
            DaemonKind::Serve => serve(args, device, folder),
            DaemonKind::Watch => {
                let preload = args.preload.as_ref().context("--preload is missing")?;
                File::create(folder.path().join("handles"))?;
                Ok(Running::Watch {
                    preload: fs::canonicalize(preload)?,
                    args: (*args).clone(),
                    device,
                    folder,
                    daemon: None,
                })
            }
        }
    }
}

/// A daemon process, which is told to end rather than killed.
#[derive(Debug)]
pub(super) struct Daemon {
    child: Child,
    /// JSON values that it says.
    heard: Receiver<Value>,
    /// Snapshots, with the processor time used by then.
    marks: Vec<(Value, u64, Instant)>,
}

impl Daemon {
    fn spawn(command: &mut Command) -> anyhow::Result<Self> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("Starting {command:?} failed"))?;
        let output = child.stdout.take().context("The daemon has no output")?;
        let (say, heard) = channel();
        thread::Builder::new()
            .name("bench-daemon".into())
            .spawn(move || {
                let values = serde_json::Deserializer::from_reader(BufReader::new(output));
                for value in values.into_iter().map_while(Result::ok) {
                    if say.send(value).is_err() {
                        break;
                    }
                }
            })?;
        let marks = Vec::new();
        Ok(Self {
            child,
            heard,
            marks,
        })
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = Pid::from_raw(self.child.id().cast_signed()).context("The daemon has no id")?;
        kill_process(pid, signal).context("The daemon is gone")
    }

    fn hear(&self, limit: Duration) -> anyhow::Result<Value> {
        let said = self.heard.recv_timeout(limit);
        said.context("The daemon says nothing; its messages are above")
    }

    /// Takes a snapshot.
    fn mark(&mut self) -> anyhow::Result<()> {
        self.signal(Signal::USR1)?;
        let snapshot = self.hear(SAY_LIMIT)?;
        let cpu_ns = cpu_ns(self.child.id());
        self.marks.push((snapshot, cpu_ns, Instant::now()));
        Ok(())
    }

    /// Processor time between the first and the last mark, of one core.
    fn cpu_percent(&self) -> Option<f64> {
        let ((_, used, from), (_, used_by_now, to)) = (self.marks.first()?, self.marks.last()?);
        let wall = to.duration_since(*from).as_nanos();
        (wall > 0).then(|| 100.0 * used_by_now.saturating_sub(*used) as f64 / wall as f64)
    }

    /// Waits for its end.
    fn wait(&mut self) -> anyhow::Result<()> {
        let status = self.child.wait()?;
        if !status.success() {
            bail!("The daemon ended with {status}; its messages are above");
        }
        Ok(())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Only of use after an error; nothing stays suspended, that is the guardian's work.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Processor time of all threads of a process; zero if it is gone.
fn cpu_ns(pid: u32) -> u64 {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return 0;
    };
    let of = |text: String| text.split_ascii_whitespace().next()?.parse::<u64>().ok();
    threads
        .flatten()
        .filter_map(|thread| fs::read_to_string(thread.path().join("schedstat")).ok())
        .filter_map(of)
        .sum()
}

/// What schedules one run of a cell.
#[derive(Debug)]
pub(super) enum Running {
    Native,
    Serve {
        daemon: Daemon,
        socket: PathBuf,
        _folder: TempDir,
    },
    Watch {
        args: DaemonArgs,
        preload: PathBuf,
        device: u32,
        folder: TempDir,
        daemon: Option<Daemon>,
    },
}

fn serve(args: &DaemonArgs, device: u32, folder: TempDir) -> anyhow::Result<Running> {
    let socket = folder.path().join("turnstile.sock");
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(["serve", "--gpu", "nvidia"])
        .args(["--gpu-index", &device.to_string(), "--socket"])
        .arg(&socket)
        .args(&args.words);
    if let Some(policy) = &args.policy {
        command.args(["--policy", policy]);
    }
    if let Some(period) = args.period_ms {
        command.args(["--period-ms", &period.to_string()]);
    }
    let mut daemon = Daemon::spawn(&mut command)?;
    let deadline = Instant::now() + START_LIMIT;
    while !socket.exists() {
        if let Some(status) = daemon.child.try_wait()? {
            bail!("The daemon ended with {status}; its messages are above");
        }
        if Instant::now() > deadline {
            bail!(
                "The daemon does not listen after {} s",
                START_LIMIT.as_secs()
            );
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(Running::Serve {
        daemon,
        socket,
        _folder: folder,
    })
}

/// Name of tenant `index` at the daemon.
fn name(index: usize) -> String {
    format!("load{index}")
}

impl Running {
    /// The command that runs `program` as tenant `index`.
    pub(super) fn command(
        &self,
        index: usize,
        tenant: &Tenant,
        program: &Path,
    ) -> anyhow::Result<Command> {
        Ok(match self {
            Self::Native => Command::new(program),
            Self::Serve { socket, .. } => {
                let mut command = Command::new(std::env::current_exe()?);
                command
                    .args(["run", "--socket"])
                    .arg(socket)
                    .args(["--name", &name(index)])
                    .args(["--weight", &tenant.weight.to_string(), "--"])
                    .arg(program);
                command
            }
            Self::Watch {
                preload, folder, ..
            } => {
                let mut command = Command::new(program);
                command
                    .env("LD_PRELOAD", preload)
                    .env("TURNSTILE_HANDLES", folder.path().join("handles"));
                command
            }
        })
    }

    /// The tenants are there and will run for `length`.
    pub(super) fn begin(
        &mut self,
        tenants: &[Tenant],
        pids: &[u32],
        length: Duration,
    ) -> anyhow::Result<()> {
        match self {
            Self::Native | Self::Serve { .. } => {}
            Self::Watch {
                args,
                folder,
                device,
                daemon,
                ..
            } => {
                let mut command = Command::new(std::env::current_exe()?);
                command
                    .args(["nvidia-watch", "--json", "--gpu", &device.to_string()])
                    .args(["--policy", args.name()])
                    .args(&args.words)
                    .args(["--seconds", &length.as_secs_f64().to_string()])
                    .arg("--handles")
                    .arg(folder.path().join("handles"));
                if let Some(period) = args.period_ms {
                    command.args(["--period-ms", &period.to_string()]);
                }
                for (tenant, pid) in tenants.iter().zip(pids) {
                    command.args(["--tenant", &format!("{pid}:{}", tenant.weight)]);
                }
                *daemon = Some(Daemon::spawn(&mut command)?);
            }
        }
        Ok(())
    }

    /// The beginning or the end of what the daemon is asked about.
    pub(super) fn mark(&mut self) -> anyhow::Result<()> {
        match self {
            Self::Serve { daemon, .. } => daemon.mark(),
            Self::Native | Self::Watch { .. } => Ok(()),
        }
    }

    /// The tenants are done: ends the daemon, and returns what it said of the run.
    pub(super) fn end(self, tenants: usize) -> anyhow::Result<SchedulerSays> {
        match self {
            Self::Native => Ok(SchedulerSays::default()),
            Self::Serve { mut daemon, .. } => {
                daemon.signal(Signal::INT)?;
                daemon.wait()?;
                let mut says = SchedulerSays {
                    cpu_percent: daemon.cpu_percent(),
                    ..SchedulerSays::default()
                };
                if let [(first, ..), .., (last, ..)] = &daemon.marks[..] {
                    let of = |index| charge(first, last, index);
                    says.charges = (0..tenants).map(of).collect();
                    let at = |snapshot: &Value| snapshot["at"].as_u64();
                    says.window = at(first)
                        .zip(at(last))
                        .map(|(from, to)| Span::new(from, to));
                }
                Ok(says)
            }
            Self::Watch { daemon, .. } => {
                let mut daemon = daemon.context("The watch was not begun")?;
                daemon.wait()?;
                let said = daemon.hear(SAY_LIMIT)?;
                Ok(SchedulerSays {
                    cpu_percent: said["controller_cpu_percent"].as_f64(),
                    ..SchedulerSays::default()
                })
            }
        }
    }
}

/// What the daemon charged tenant `index` between two snapshots.
fn charge(first: &Value, last: &Value, index: usize) -> Option<Charge> {
    let between = |name: &str| Some(counter(last, index, name)? - counter(first, index, name)?);
    Some(Charge {
        compute_ns: between("compute_ns")?,
        engine_ns: between("engine_ns")?,
        held_ns: between("held_ns")?,
    })
}

/// A counter of tenant `index` in a snapshot.
fn counter(snapshot: &Value, index: usize, what: &str) -> Option<u64> {
    let tenants = snapshot["tenants"].as_array()?;
    let own = tenants
        .iter()
        .find(|tenant| tenant["name"] == name(index))?;
    own[what].as_u64()
}

/// The first line of a file, for names of things.
pub(super) fn first_line(path: &str) -> Option<String> {
    let line = BufReader::new(File::open(path).ok()?)
        .lines()
        .next()?
        .ok()?;
    Some(line.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_charge_is_what_came_between_two_snapshots() {
        let snapshot = |compute: u64| {
            serde_json::json!({"at": 1, "tenants": [
                {"name": "load1", "compute_ns": 5, "engine_ns": 6, "held_ns": 1},
                {"name": "load0", "compute_ns": compute, "engine_ns": 8, "held_ns": 2},
            ]})
        };
        let own = Charge {
            compute_ns: 7,
            ..Charge::default()
        };
        assert_eq!(charge(&snapshot(10), &snapshot(17), 0), Some(own));
        assert_eq!(charge(&snapshot(10), &snapshot(17), 2), None);
        assert_eq!(charge(&serde_json::json!({}), &snapshot(1), 0), None);
    }

    #[test]
    fn a_daemon_is_asked_and_ends() {
        let script = r#"n=0; trap 'n=$((n+1)); echo "{\"at\": $n}"' USR1; trap 'exit 0' INT; echo 1; while :; do sleep 0.01; done"#;
        let mut daemon = Daemon::spawn(Command::new("bash").args(["-c", script])).unwrap();
        assert_eq!(daemon.hear(SAY_LIMIT).unwrap(), 1, "its traps are set");
        daemon.mark().unwrap();
        daemon.mark().unwrap();
        assert_eq!(daemon.marks[1].0["at"], 2);
        assert!(daemon.cpu_percent().is_some());
        daemon.signal(Signal::INT).unwrap();
        daemon.wait().unwrap();
    }

    #[test]
    fn the_processor_time_of_this_process_grows() {
        let before = cpu_ns(std::process::id());
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(20) {
            std::hint::spin_loop();
        }
        assert!(cpu_ns(std::process::id()) > before);
        assert_eq!(cpu_ns(u32::MAX), 0);
    }
}
