//! Who schedules the loads of a cell: the driver alone, or a daemon.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::ValueEnum;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use turnstile_mediator::bench::cell::{Charge, SchedulerSays};
use turnstile_mediator::bench::matrix::Tenant;

/// TIMEOUT: the daemon opens the driver, starts its log and a guardian: some hundred milliseconds.
const START_LIMIT: Duration = Duration::from_secs(20);

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
    cpu_ns: u64,
    begin: Instant,
}

impl Daemon {
    fn spawn(command: &mut Command) -> anyhow::Result<Self> {
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("Starting {command:?} failed"))?;
        Ok(Self {
            child,
            cpu_ns: 0,
            begin: Instant::now(),
        })
    }

    fn mark(&mut self) {
        (self.cpu_ns, self.begin) = (cpu_ns(self.child.id()), Instant::now());
    }

    /// Processor time since the mark, of one core.
    fn cpu_percent(&self) -> f64 {
        let used = cpu_ns(self.child.id()).saturating_sub(self.cpu_ns);
        100.0 * used as f64 / self.begin.elapsed().as_nanos() as f64
    }

    /// Ends it, and returns what it said.
    fn end(&mut self, ask: bool) -> anyhow::Result<String> {
        if ask && let Some(pid) = Pid::from_raw(self.child.id().cast_signed()) {
            kill_process(pid, Signal::INT).context("The daemon is gone")?;
        }
        let mut said = String::new();
        if let Some(mut output) = self.child.stdout.take() {
            output.read_to_string(&mut said)?;
        }
        let status = self.child.wait()?;
        if !status.success() {
            bail!("The daemon ended with {status}; its messages are above");
        }
        Ok(said)
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
            Self::Native => {}
            Self::Serve { daemon, .. } => daemon.mark(),
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

    /// The loads are done, and still there: ends the daemon, and returns what it says of the run.
    pub(super) fn end(self, tenants: usize) -> anyhow::Result<SchedulerSays> {
        match self {
            Self::Native => Ok(SchedulerSays::default()),
            Self::Serve { mut daemon, .. } => {
                let cpu_percent = Some(daemon.cpu_percent());
                let said: Value = serde_json::from_str(&daemon.end(true)?)
                    .context("The daemon's last snapshot is no JSON")?;
                Ok(SchedulerSays {
                    charges: (0..tenants).map(|index| charge(&said, index)).collect(),
                    cpu_percent,
                })
            }
            Self::Watch { daemon, .. } => {
                let mut daemon = daemon.context("The watch was not begun")?;
                let said: Value = serde_json::from_str(&daemon.end(false)?)
                    .context("The watch's report is no JSON")?;
                Ok(SchedulerSays {
                    // It does not see the load's whole life.
                    charges: Vec::new(),
                    cpu_percent: said["controller_cpu_percent"].as_f64(),
                })
            }
        }
    }
}

/// What a snapshot of the daemon charges tenant `index`.
fn charge(snapshot: &Value, index: usize) -> Option<Charge> {
    let tenants = snapshot["tenants"].as_array()?;
    let own = tenants
        .iter()
        .find(|tenant| tenant["name"] == name(index))?;
    let ns = |name: &str| own[name].as_u64();
    Some(Charge {
        compute_ns: ns("compute_ns")?,
        engine_ns: ns("engine_ns")?,
        held_ns: ns("held_ns")?,
    })
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
    fn a_charge_is_found_by_name() {
        let snapshot = serde_json::json!({"tenants": [
            {"name": "load1", "compute_ns": 5, "engine_ns": 6, "held_ns": 1},
            {"name": "load0", "compute_ns": 7, "engine_ns": 8, "held_ns": 2},
        ]});
        let own = Charge {
            compute_ns: 7,
            engine_ns: 8,
            held_ns: 2,
        };
        assert_eq!(charge(&snapshot, 0), Some(own));
        assert_eq!(charge(&snapshot, 2), None);
        assert_eq!(charge(&serde_json::json!({}), 0), None);
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
