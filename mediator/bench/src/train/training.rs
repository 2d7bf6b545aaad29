//! A training of `bench train`: a process that waits for files to build its network and to begin.
//!
//! In go the command that starts Python, and the files; out come the process's state and its
//! losses. The bench starts one for each seed, alone and under the daemon.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use turnstile_figures::train::Trained;

use super::Bench;
use crate::ending::end;
use crate::messages::tail;

/// Exit status where PyTorch or a GPU is missing.
const SKIPPED: i32 = 77;

/// PyTorch is missing.
#[derive(Debug, thiserror::Error)]
#[error("PyTorch, or a GPU for it, is missing")]
pub(super) struct Missing;

/// A training's process, or the launcher in front of it.
pub(super) struct Training {
    child: Child,
    pub(super) seed: u64,
    folder: PathBuf,
    pub(super) limit: Duration,
}

impl Training {
    /// Starts it by `command`, which ends up in Python; its files are in `folder`.
    pub(super) fn start(
        mut command: Command,
        bench: &Bench<'_>,
        gib: u64,
        seed: u64,
    ) -> anyhow::Result<Self> {
        let folder = bench.folder.clone();
        let script = folder.join("train.py");
        let file = |what: &str| File::create(folder.join(format!("{what}-{seed}")));
        for what in ["build", "ready", "go"] {
            // Of a run before.
            let _ = fs::remove_file(folder.join(format!("{what}-{seed}")));
        }
        let child = command
            .arg(script)
            .args([gib, bench.args.steps, seed].map(|number| number.to_string()))
            .arg(&folder)
            .stdin(Stdio::null())
            .stdout(file("said")?)
            .stderr(file("messages")?)
            .spawn()
            .with_context(|| format!("Starting {command:?} failed"))?;
        let limit = Duration::from_secs(bench.args.limit_s);
        Ok(Self {
            child,
            seed,
            folder,
            limit,
        })
    }

    fn path(&self, what: &str) -> PathBuf {
        self.folder.join(format!("{what}-{}", self.seed))
    }

    pub(super) fn let_it(&self, what: &str) -> anyhow::Result<()> {
        Ok(File::create(self.path(what)).map(drop)?)
    }

    /// An error with its last messages.
    pub(super) fn failed(&self, what: &str) -> anyhow::Error {
        let (seed, output) = (self.seed, tail(&self.path("messages")));
        anyhow::anyhow!("Training {seed} {what}; it said: {output}")
    }

    /// How it ended, if it did; an error if it did not end well.
    pub(super) fn ended(&mut self) -> anyhow::Result<bool> {
        let Some(status) = self.child.try_wait()? else {
            return Ok(false);
        };
        let well = |status: ExitStatus| match status.code() {
            Some(0) => Ok(true),
            Some(SKIPPED) => Err(Missing.into()),
            _ => Err(self.failed(&format!("ended with {status}"))),
        };
        well(status)
    }

    pub(super) fn wait_ready(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + self.limit;
        while !self.path("ready").exists() {
            if self.ended()? {
                return Err(self.failed("ended before it began"));
            }
            if Instant::now() > deadline {
                return Err(self.failed("is not ready in time"));
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    pub(super) fn result(&self) -> anyhow::Result<Trained> {
        let output = fs::read_to_string(self.path("said"))?;
        let last = output.lines().last().unwrap_or_default();
        serde_json::from_str(last).map_err(|_| self.failed("did not tell its losses"))
    }
}

impl Drop for Training {
    fn drop(&mut self) {
        end(&mut self.child, Duration::ZERO);
    }
}

#[cfg(test)]
mod tests {
    use super::super::TrainArgs;
    use super::*;
    use clap::Parser;
    use indicatif::ProgressBar;

    #[derive(Parser)]
    struct Words {
        #[command(flatten)]
        train: TrainArgs,
    }

    /// A shell with `script` in the place of Python: $1 is the script's name, $2 to $5 its
    /// arguments.
    fn training(script: &str) -> (tempfile::TempDir, anyhow::Result<Training>) {
        let folder = tempfile::tempdir().unwrap();
        let words = Words::parse_from(["train", "--limit-s", "20", "--steps", "7"]);
        let bar = ProgressBar::hidden();
        let bench = Bench {
            args: &words.train,
            folder: folder.path().to_owned(),
            bar: &bar,
        };
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]);
        let started = Training::start(command, &bench, 5, 2);
        (folder, started)
    }

    #[test]
    fn training_starts_at_signals_and_its_result_is_read() {
        let script = r#"test "$2 $3 $4" = "5 7 2" || exit 1; until test -e "$5/build-2"; do sleep 0.01; done; : > "$5/ready-2";
            until test -e "$5/go-2"; do sleep 0.01; done; echo '{"begin":1.0,"end":3.5,"step_ms":9.0,"allocated_gib":5.5,"losses":["0x1p+0"],"weights":-1}'"#;
        let (_folder, training) = training(script);
        let mut training = training.unwrap();
        assert!(!training.ended().unwrap());
        training.let_it("build").unwrap();
        training.wait_ready().unwrap();
        training.let_it("go").unwrap();
        let begin = Instant::now();
        while !training.ended().unwrap() {
            // TIMEOUT: a shell ends in milliseconds.
            assert!(begin.elapsed() < Duration::from_secs(20));
            thread::sleep(Duration::from_millis(5));
        }
        let result = training.result().unwrap();
        assert!((result.end - result.begin - 2.5).abs() < 1e-9);
    }

    #[test]
    fn failed_training_gives_its_error_and_missing_pytorch_is_distinguished() {
        let (_folder, failing) = training("echo trouble >&2; exit 3");
        let error = failing.unwrap().wait_ready().unwrap_err().to_string();
        assert!(
            error.contains("Training 2") && error.ends_with("it said: trouble"),
            "{error}"
        );
        let (_folder, missing) = training("exit 77");
        assert!(missing.unwrap().wait_ready().unwrap_err().is::<Missing>());
    }
}
