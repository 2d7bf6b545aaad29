//! A daemon's process: takes snapshots and ends, both on a signal.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use turnstile_figures::cell::WARNINGS_MAX;

use super::ending::{end, ended_within};
use super::messages::tail;

/// TIMEOUT: a snapshot is taken and printed within milliseconds.
pub(super) const SNAPSHOT_LIMIT: Duration = Duration::from_secs(5);

/// TIMEOUT: a daemon resumes each held tenant in a millisecond, and prints its last snapshot.
const END_LIMIT: Duration = Duration::from_secs(2);
/// TIMEOUT: the same where its output at the end is needed.
const EXIT_LIMIT: Duration = Duration::from_secs(30);

/// A daemon process, which is signalled to end rather than killed.
#[derive(Debug)]
pub(super) struct Daemon {
    child: Child,
    /// Its GPUs: it prints a snapshot of each, that of the bench first.
    gpus: usize,
    /// Its standard error.
    messages: PathBuf,
    /// JSON values from its standard output.
    received: Receiver<Value>,
    /// Snapshots that were taken.
    marks: Vec<Mark>,
}

/// A snapshot, and the processor time that the daemon had used before the request and after its
/// answer.
#[derive(Debug)]
pub(super) struct Mark {
    /// The answer.
    pub(super) snapshot: Value,
    cpu_ns: [(u64, Instant); 2],
}

impl Daemon {
    pub(super) fn spawn(command: &mut Command, folder: &Path) -> anyhow::Result<Self> {
        let messages = folder.join("messages");
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(&messages)?)
            .spawn()
            .with_context(|| format!("Starting {command:?} failed"))?;
        let output = child.stdout.take().context("The daemon has no output")?;
        let (sender, received) = channel();
        thread::Builder::new()
            .name("bench-daemon".into())
            .spawn(move || {
                let values = serde_json::Deserializer::from_reader(BufReader::new(output));
                for value in values.into_iter().map_while(Result::ok) {
                    if sender.send(value).is_err() {
                        break;
                    }
                }
            })?;
        let marks = Vec::new();
        Ok(Self {
            child,
            gpus: 1,
            messages,
            received,
            marks,
        })
    }

    /// The same, of a daemon with so many GPUs.
    pub(super) const fn with_gpus(mut self, gpus: usize) -> Self {
        self.gpus = gpus;
        self
    }

    /// An error with the daemon's last messages.
    pub(super) fn failed(&self, what: &str) -> anyhow::Error {
        anyhow::anyhow!("{what}; it said: {}", tail(&self.messages))
    }

    /// Its messages on standard error.
    pub(super) fn messages(&self) -> String {
        fs::read_to_string(&self.messages).unwrap_or_default()
    }

    pub(super) fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = Pid::from_raw(self.child.id().cast_signed()).context("The daemon has no id")?;
        kill_process(pid, signal).context("The daemon is gone")
    }

    pub(super) fn receive(&self, limit: Duration) -> anyhow::Result<Value> {
        let messages = self.received.recv_timeout(limit);
        messages.map_err(|_| self.failed("The daemon shows no snapshot"))
    }

    /// Takes a snapshot.
    pub(super) fn mark(&mut self) -> anyhow::Result<()> {
        let used = || (cpu_ns(self.child.id()), Instant::now());
        let before = used();
        let snapshot = self.snapshot()?;
        let cpu_ns = [before, used()];
        self.marks.push(Mark { snapshot, cpu_ns });
        Ok(())
    }

    /// Processor time between the first and the last mark, without that of the two snapshots, of
    /// one core.
    pub(super) fn cpu_percent(&self) -> Option<f64> {
        let ([_, (used, from)], [(used_by_now, to), _]) =
            (self.marks.first()?.cpu_ns, self.marks.last()?.cpu_ns);
        let wall = to.saturating_duration_since(from).as_nanos();
        (wall > 0).then(|| 100.0 * used_by_now.saturating_sub(used) as f64 / wall as f64)
    }

    /// Its process.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Requests a snapshot, that of the first GPU.
    pub(super) fn snapshot(&self) -> anyhow::Result<Value> {
        self.signal(Signal::USR1)?;
        let first = self.receive(SNAPSHOT_LIMIT)?;
        for _ in 1..self.gpus {
            self.receive(SNAPSHOT_LIMIT)?;
        }
        Ok(first)
    }

    /// Growth of one of the GPU's figures, in nanoseconds, between the first and the last mark, in
    /// percent of the time between.
    pub(super) fn figure_percent(&self, name: &str) -> Option<f64> {
        let (first, last) = (self.marks.first()?, self.marks.last()?);
        let of = |mark: &Mark| mark.snapshot["gpu"][name].as_u64();
        let grown = of(last)?.saturating_sub(of(first)?);
        let ([_, (_, from)], [_, (_, to)]) = (first.cpu_ns, last.cpu_ns);
        let wall = to.duration_since(from).as_nanos();
        (wall > 0).then(|| 100.0 * grown as f64 / wall as f64)
    }

    /// Its GPU's counters, at the first and at the last mark.
    pub(super) fn figures(&self) -> BTreeMap<String, [u64; 2]> {
        let [first, .., last] = self.marks.as_slice() else {
            return BTreeMap::new();
        };
        let counted = last.snapshot["gpu"].as_object().into_iter().flatten();
        let of = |(name, value): (&String, &Value)| {
            let from = first.snapshot["gpu"][name].as_u64().unwrap_or_default();
            Some((name.clone(), [from, value.as_u64()?]))
        };
        counted.filter_map(of).collect()
    }

    /// Its warnings and errors.
    pub(super) fn warnings(&self) -> Vec<String> {
        let messages = self.messages();
        let is_one = |line: &&str| line.contains(" WARN ") || line.contains(" ERROR ");
        let lines = messages.lines().filter(is_one).take(WARNINGS_MAX);
        lines.map(str::to_owned).collect()
    }

    /// How it ended, if it did.
    pub(super) fn ended(&mut self) -> std::io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Drops the snapshots: the next one is the first of another window.
    pub(super) fn clear_marks(&mut self) {
        self.marks.clear();
    }

    /// Snapshots taken.
    pub(super) fn marks(&self) -> &[Mark] {
        &self.marks
    }

    /// Waits for its end, after the signal.
    pub(super) fn wait(&mut self) -> anyhow::Result<()> {
        let Some(status) = ended_within(&mut self.child, EXIT_LIMIT)? else {
            return Err(self.failed("The daemon does not end"));
        };
        if !status.success() {
            return Err(self.failed(&format!("The daemon ended with {status}")));
        }
        Ok(())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It resumes its tenants when it is signalled to end; the watchdog does when it
        // is killed.
        if !matches!(self.ended(), Ok(Some(_))) {
            let _ = self.signal(Signal::TERM);
            end(&mut self.child, END_LIMIT);
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn daemon_answers_marks_and_ends_on_signal() {
        let script = r#"n=0; trap 'n=$((n+1)); echo "{\"at\": $n}"' USR1; trap 'exit 0' TERM; echo 1; while :; do sleep 0.01; done"#;
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("bash");
        let mut daemon = Daemon::spawn(command.args(["-c", script]), folder.path()).unwrap();
        assert_eq!(
            daemon.receive(SNAPSHOT_LIMIT).unwrap(),
            1,
            "its traps are set"
        );
        daemon.mark().unwrap();
        daemon.mark().unwrap();
        assert_eq!(daemon.marks[1].snapshot["at"], 2);
        assert!(daemon.cpu_percent().is_some());
        assert!(daemon.figure_percent("none").is_none());
        daemon.marks[0].snapshot = serde_json::json!({"gpu": {"gate_ns": 5}});
        daemon.marks[1].snapshot = serde_json::json!({"gpu": {"gate_ns": 900}});
        assert!(daemon.figure_percent("gate_ns").unwrap() > 0.0);
        assert_eq!(daemon.figures()["gate_ns"], [5, 900]);
        let messages = "00:01  WARN a channel is hidden\n00:02  INFO all is well\n";
        fs::write(&daemon.messages, messages).unwrap();
        assert_eq!(daemon.warnings(), ["00:01  WARN a channel is hidden"]);
        daemon.signal(Signal::TERM).unwrap();
        daemon.wait().unwrap();
        let script = "echo trouble >&2; exit 1";
        let mut command = Command::new("bash");
        let mut daemon = Daemon::spawn(command.args(["-c", script]), folder.path()).unwrap();
        let error = daemon.wait().unwrap_err().to_string();
        assert!(error.ends_with("it said: trouble"), "{error}");
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
