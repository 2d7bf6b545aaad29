//! Schedulers of the loads of a cell: the driver alone, `turnstile serve` with tenants started by
//! `turnstile run`, or XSched.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;
use turnstile_figures::cell::{Charge, SchedulerReport};
use turnstile_figures::load::LoadReport;
use turnstile_figures::matrix::{Cell, Tenant};
use turnstile_figures::recording::{TRACED, recording};
use turnstile_figures::spans::Span;

use super::daemon::Daemon;
use super::xsched::{Server, Xsched};

/// TIMEOUT: the daemon opens the driver, starts its log and a watchdog: some hundred milliseconds.
const START_LIMIT: Duration = Duration::from_secs(20);

/// How a daemon is started.
#[derive(clap::Args, Clone, Debug, Default)]
pub(super) struct DaemonArgs {
    /// The daemon's policy; its own choice if not given
    #[arg(long)]
    policy: Option<String>,
    /// From one decision to the next, in milliseconds; the daemon's own default if not given
    #[arg(long)]
    period_ms: Option<u64>,
    /// Another NVIDIA GPU that the same daemon owns, by number; give it again for more
    #[arg(long, value_name = "DEVICE")]
    beside: Vec<u32>,
    /// Further words for the daemon, such as --daemon-word=--tenants-max=24
    #[arg(long = "daemon-word", value_name = "WORD", hide = true)]
    words: Vec<String>,
    /// Where runs are recorded
    #[arg(skip)]
    record: Option<PathBuf>,
    /// Tenants of a cell, from the first, that have no NVIDIA node
    #[arg(skip)]
    isolated: usize,
}

impl DaemonArgs {
    /// The policy that was named.
    pub(super) fn policy(&self) -> Option<&str> {
        self.policy.as_deref()
    }

    /// Name of its runs.
    pub(super) fn name(&self) -> &str {
        self.policy().unwrap_or("turnstile")
    }

    /// The same with runs recorded in this folder, if any.
    pub(super) fn recorded(&self, folder: Option<&Path>) -> Self {
        let record = folder.map(Path::to_owned);
        Self {
            record,
            ..self.clone()
        }
    }

    /// The same with the first tenants isolated, this many.
    pub(super) fn isolating(&self, isolated: usize) -> Self {
        Self {
            isolated,
            ..self.clone()
        }
    }

    /// The same with these words too.
    pub(super) fn with(&self, words: impl IntoIterator<Item = String>) -> Self {
        let mut all = self.clone();
        all.words.extend(words);
        all
    }
}

/// Scheduler of a cell.
#[derive(Clone, Copy, Debug)]
pub(super) enum Scheduler<'a> {
    /// The driver.
    Native,
    /// A daemon.
    Scheduled(&'a DaemonArgs),
    /// XSched.
    Xsched(&'a Xsched),
}

impl Scheduler<'_> {
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Native => "native",
            Self::Scheduled(args) => args.name(),
            Self::Xsched(xsched) => xsched.name(),
        }
    }

    /// Starts whatever has to run before the loads.
    pub(super) fn start(&self, device: u32) -> anyhow::Result<Running> {
        let args = match self {
            Self::Native => return Ok(Running::Native),
            Self::Scheduled(args) => args,
            Self::Xsched(xsched) => {
                return Ok(Running::Xsched {
                    server: xsched.start()?,
                    xsched: (*xsched).clone(),
                });
            }
        };
        let folder = tempfile::Builder::new()
            .prefix("turnstile-bench")
            .tempdir()?;
        serve(args, device, folder)
    }
}

/// Scheduler of one run of a cell, as it runs.
#[derive(Debug)]
pub(super) enum Running {
    Native,
    Xsched {
        xsched: Xsched,
        server: Server,
    },
    Serve {
        daemon: Daemon,
        socket: PathBuf,
        record: Option<PathBuf>,
        isolated: usize,
        _folder: TempDir,
    },
}

fn serve(args: &DaemonArgs, device: u32, folder: TempDir) -> anyhow::Result<Running> {
    let (daemon, socket) = spawn(args, device, folder.path())?;
    Ok(Running::Serve {
        daemon,
        socket,
        record: args.record.clone(),
        isolated: args.isolated,
        _folder: folder,
    })
}

/// Starts a daemon with its socket in `folder`, and waits until it listens.
pub(super) fn spawn(
    args: &DaemonArgs,
    device: u32,
    folder: &Path,
) -> anyhow::Result<(Daemon, PathBuf)> {
    let socket = folder.join("turnstile.sock");
    // A daemon that was killed leaves its socket behind.
    let _ = std::fs::remove_file(&socket);
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(["serve", "--gpu", "nvidia"])
        .args(["--gpu-index", &device.to_string(), "--socket"])
        .arg(&socket)
        .args(&args.words);
    if !args.beside.is_empty() {
        let config = folder.join("turnstile.toml");
        fs::write(&config, cards(device, &args.beside))?;
        command.arg("--config").arg(config);
    }
    if let Some(policy) = &args.policy {
        command.args(["--policy", policy]);
    }
    if let Some(period) = args.period_ms {
        command.args(["--period-ms", &period.to_string()]);
    }
    if args.record.is_some() {
        command.env("RUST_LOG", TRACED);
    }
    let mut daemon = Daemon::spawn(&mut command, folder)?.with_gpus(1 + args.beside.len());
    listening(&mut daemon, &socket)?;
    Ok((daemon, socket))
}

/// A configuration with these GPUs, the one of the bench first.
fn cards(device: u32, beside: &[u32]) -> String {
    let card = |index: &u32| format!("[[card]]\nindex = {index}\n");
    [device].iter().chain(beside).map(card).collect()
}

/// Waits until the daemon listens on its socket.
pub(super) fn listening(daemon: &mut Daemon, socket: &Path) -> anyhow::Result<()> {
    let deadline = Instant::now() + START_LIMIT;
    // The file is there a moment before the daemon listens.
    while UnixStream::connect(socket).is_err() {
        if let Some(status) = daemon.ended()? {
            return Err(daemon.failed(&format!("The daemon ended with {status}")));
        }
        if Instant::now() > deadline {
            bail!(
                "The daemon does not listen after {} s",
                START_LIMIT.as_secs()
            );
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Name of tenant `index` at the daemon.
pub(super) fn name(index: usize) -> String {
    format!("load{index}")
}

/// The command that runs `program` as a tenant of the first GPU of the daemon at `socket`, with
/// further words for `turnstile run`.
pub(super) fn tenant_of(
    socket: &Path,
    name: &str,
    weight: u32,
    words: &[&str],
    program: &Path,
) -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(["run", "--socket"])
        .arg(socket)
        .args(["--name", name])
        .args(["--weight", &weight.to_string()])
        .args(["--gpu", "0"])
        .args(words)
        .arg("--")
        .arg(program);
    Ok(command)
}

/// Words for `turnstile run` of a program that has no NVIDIA node, if it has none.
pub(super) const fn isolation_words(isolated: bool) -> &'static [&'static str] {
    if isolated { &["--isolated"] } else { &[] }
}

impl Running {
    /// The command that runs `program` as tenant `index`, which is to have this percentage of the
    /// GPU.
    pub(super) fn command(
        &self,
        index: usize,
        tenant: &Tenant,
        percent: u32,
        program: &Path,
    ) -> anyhow::Result<Command> {
        Ok(match self {
            Self::Native => Command::new(program),
            Self::Xsched { xsched, server } => {
                let mut command = Command::new(program);
                xsched.adopt(server, &mut command, percent);
                command
            }
            Self::Serve {
                socket, isolated, ..
            } => {
                let words = isolation_words(index < *isolated);
                tenant_of(socket, &name(index), tenant.weight, words, program)?
            }
        })
    }

    /// An error with the daemon's snapshot of its tenants, and its last messages.
    pub(super) fn explain(&self, error: &anyhow::Error) -> anyhow::Error {
        let Self::Serve { daemon, .. } = self else {
            return anyhow::anyhow!("{error:#}");
        };
        let snapshot = daemon.snapshot().unwrap_or_default();
        daemon.failed(&format!(
            "{error:#}; the daemon's tenants: {}",
            snapshot["tenants"]
        ))
    }

    /// Marks the beginning or the end of the window of the daemon's figures.
    pub(super) fn mark(&mut self) -> anyhow::Result<()> {
        match self {
            Self::Serve { daemon, .. } => daemon.mark(),
            Self::Native | Self::Xsched { .. } => Ok(()),
        }
    }

    /// Writes a recording, if there is to be one: the daemon's trace of its GPU, and the reports of
    /// the loads of `cell`, which began at `start_ns`.
    pub(super) fn record(
        &self,
        cell: &Cell,
        start_ns: u64,
        loads: &[LoadReport],
    ) -> anyhow::Result<()> {
        let Self::Serve {
            daemon,
            record: Some(folder),
            ..
        } = self
        else {
            return Ok(());
        };
        let last = daemon.marks().last().context("The daemon was not polled")?;
        let of = |(index, load)| Some((counter(&last.snapshot, &name(index), "tenant")?, load));
        let loads: Option<Vec<(u64, &LoadReport)>> = loads.iter().enumerate().map(of).collect();
        let loads = loads.context("The daemon does not know a tenant")?;
        let file = folder.join(format!("{}.txt", cell.name().replace(' ', "-")));
        let recorded = recording(&cell.name(), &daemon.messages(), start_ns, &loads);
        fs::create_dir_all(folder)
            .and_then(|()| fs::write(&file, recorded))
            .with_context(|| format!("Writing {} failed", file.display()))
    }

    /// Ends the daemon after its tenants are done, and returns its figures of the run.
    pub(super) fn end(self, tenants: usize) -> anyhow::Result<SchedulerReport> {
        match self {
            Self::Native | Self::Xsched { .. } => Ok(SchedulerReport::default()),
            Self::Serve { mut daemon, .. } => {
                daemon.signal(Signal::TERM)?;
                daemon.wait()?;
                let mut report = SchedulerReport {
                    cpu_percent: daemon.cpu_percent(),
                    gate_cpu_percent: daemon.figure_percent("gate_works_cpu_ns"),
                    figures: daemon.figures(),
                    warnings: daemon.warnings(),
                    ..SchedulerReport::default()
                };
                if let [first, .., last] = daemon.marks() {
                    let (first, last) = (&first.snapshot, &last.snapshot);
                    let of = |index| charge(first, last, &name(index));
                    report.charges = (0..tenants).map(of).collect();
                    let at = |snapshot: &Value| snapshot["at"].as_u64();
                    report.window = at(first)
                        .zip(at(last))
                        .map(|(from, to)| Span::new(from, to));
                }
                Ok(report)
            }
        }
    }
}

/// A tenant's charge between two snapshots.
pub(super) fn charge(first: &Value, last: &Value, tenant: &str) -> Option<Charge> {
    let between = |what: &str| {
        Some(counter(last, tenant, what)?.saturating_sub(counter(first, tenant, what)?))
    };
    Some(Charge {
        compute_ns: between("compute_ns")?,
        engine_ns: between("engine_ns")?,
        held_ns: between("held_ns")?,
        copy_ns: between("copy_ns")?,
    })
}

/// A counter of a tenant in a snapshot.
fn counter(snapshot: &Value, name: &str, what: &str) -> Option<u64> {
    let tenants = snapshot["tenants"].as_array()?;
    let own = tenants.iter().find(|tenant| tenant["name"] == name)?;
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
    fn a_charge_is_the_difference_of_two_snapshots() {
        let snapshot = |compute: u64| {
            serde_json::json!({"at": 1, "tenants": [
                {"name": "load1", "compute_ns": 5, "engine_ns": 6, "held_ns": 1, "copy_ns": 0},
                {"name": "load0", "compute_ns": compute, "engine_ns": 8, "held_ns": 2, "copy_ns": 0},
            ]})
        };
        let own = Charge {
            compute_ns: 7,
            ..Charge::default()
        };
        assert_eq!(charge(&snapshot(10), &snapshot(17), "load0"), Some(own));
        assert_eq!(charge(&snapshot(10), &snapshot(17), "load2"), None);
        assert_eq!(charge(&serde_json::json!({}), &snapshot(1), "load0"), None);
    }
}
