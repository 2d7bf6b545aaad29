//! A program as a process: its orders, its answers, its end.
//!
//! ```text
//!   start -> loaded | begin -> ready | go -> (count) -> rest -> rested | go ... | stop -> ends
//! ```

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::super::ending::ended_within;
use super::super::messages::tail;
use super::super::talk::{END_LIMIT, Talk};
use super::rows::Program;
use super::runs::{Answer, Window};

/// From one reading of the wish to stop to the next.
const STOP_POLL: Duration = Duration::from_millis(50);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProcessError {
    #[error("The bench was interrupted")]
    Interrupted,
    #[error("It ended before it was {wanted}; its messages: {messages}")]
    Ended {
        wanted: &'static str,
        messages: String,
    },
    #[error("It is not {wanted} after {limit_s} s; its messages: {messages}")]
    Late {
        wanted: &'static str,
        limit_s: f64,
        messages: String,
    },
    #[error("It is not {wanted}, but answers {answer:?}")]
    Other {
        wanted: &'static str,
        answer: Answer,
    },
}

/// What a program is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Prepare, and become warm.
    Begin,
    /// Do steps.
    Go,
    /// The window begins.
    Count,
    /// The window ends, and the steps.
    EndWindow,
    /// End.
    Stop,
}

/// Sleeps; false if the bench was interrupted meanwhile.
pub(super) fn sleep(length: Duration, stop: &AtomicBool) -> bool {
    let end = Instant::now() + length;
    while !stop.load(Ordering::Acquire) {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        thread::sleep(left.min(STOP_POLL));
    }
    false
}

/// The process; it ends with this.
#[derive(Debug)]
pub(super) struct Process {
    talk: Talk<Answer>,
    /// The program's own process, which may have a launcher in front of it.
    pid: Option<Pid>,
    messages: PathBuf,
}

impl Process {
    /// Starts it by `command`, with its messages in `folder`.
    pub(super) fn start(
        mut command: Command,
        program: &Program,
        folder: &Path,
    ) -> anyhow::Result<Self> {
        let messages = folder.join(format!("{}.messages", program.name()));
        command.stderr(File::create(&messages)?);
        Ok(Self {
            talk: Talk::spawn(command)?,
            pid: None,
            messages,
        })
    }

    /// Gives an order. One that has ended takes none, which its next answer shows.
    pub(super) fn order(&mut self, order: Order) {
        let _ = self.talk.order(match order {
            Order::Begin => "begin",
            Order::Go => "go",
            Order::Count => "count",
            Order::EndWindow => "rest",
            Order::Stop => "stop",
        });
    }

    /// Waits until it has loaded what it imports.
    pub(super) fn loaded(
        &mut self,
        limit: Duration,
        stop: &AtomicBool,
    ) -> Result<(), ProcessError> {
        match self.answer("loaded", limit, stop)? {
            Answer::Loaded { pid } => {
                self.pid = Pid::from_raw(pid.cast_signed());
                Ok(())
            }
            answer => Err(other("loaded", answer)),
        }
    }

    /// Waits until it is warm; the seconds that took.
    pub(super) fn ready(&self, limit: Duration, stop: &AtomicBool) -> Result<f64, ProcessError> {
        match self.answer("ready", limit, stop)? {
            Answer::Ready { seconds } => Ok(seconds),
            answer => Err(other("ready", answer)),
        }
    }

    /// Waits for its window.
    pub(super) fn window(
        &self,
        limit: Duration,
        stop: &AtomicBool,
    ) -> Result<Window, ProcessError> {
        match self.answer("at rest", limit, stop)? {
            Answer::WindowEnded(window) => Ok(window),
            answer => Err(other("at rest", answer)),
        }
    }

    fn answer(
        &self,
        wanted: &'static str,
        limit: Duration,
        stop: &AtomicBool,
    ) -> Result<Answer, ProcessError> {
        let deadline = Instant::now() + limit;
        loop {
            let messages = || tail(&self.messages);
            let left = deadline.saturating_duration_since(Instant::now());
            match self.talk.answer(left.min(STOP_POLL)) {
                Ok(answer) => return Ok(answer),
                // A signal from the terminal reaches programs too: their end is no failure then.
                Err(_) if stop.load(Ordering::Acquire) => return Err(ProcessError::Interrupted),
                Err(RecvTimeoutError::Disconnected) => {
                    let messages = messages();
                    return Err(ProcessError::Ended { wanted, messages });
                }
                Err(RecvTimeoutError::Timeout) if left.is_zero() => {
                    return Err(ProcessError::Late {
                        wanted,
                        limit_s: limit.as_secs_f64(),
                        messages: messages(),
                    });
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

fn other(wanted: &'static str, answer: Answer) -> ProcessError {
    ProcessError::Other { wanted, answer }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.talk.close();
        // A launcher outlives none of its programs, but these outlive a launcher that is killed.
        if !matches!(ended_within(&mut self.talk.child, END_LIMIT), Ok(Some(_)))
            && let Some(pid) = self.pid
        {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // TIMEOUT: a shell answers within milliseconds.
    const LIMIT: Duration = Duration::from_secs(20);

    fn shell(script: &str) -> (tempfile::TempDir, Process) {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let program = "train".parse().unwrap();
        let process = Process::start(command, &program, folder.path()).unwrap();
        (folder, process)
    }

    #[test]
    fn orders_have_their_answers() {
        let (_folder, mut process) = shell(
            r#"echo '{"state":"loaded","pid":'$$'}'; read -r order; echo noise
            test $order = begin && echo '{"state":"ready","seconds":2.5}'
            read -r order; read -r other; read -r third
            test "$order $other $third" = "go count rest" &&
            echo '{"state":"rested","steps":3,"rate":1.5}'; read -r order; test $order = stop"#,
        );
        let stop = AtomicBool::new(false);
        process.loaded(LIMIT, &stop).unwrap();
        process.order(Order::Begin);
        assert_eq!(process.ready(LIMIT, &stop).unwrap(), 2.5);
        for order in [Order::Go, Order::Count, Order::EndWindow] {
            process.order(order);
        }
        assert_eq!(process.window(LIMIT, &stop).unwrap().steps, 3);
        process.order(Order::Stop);
        let ended = ended_within(&mut process.talk.child, LIMIT).unwrap();
        assert!(ended.unwrap().success());
    }

    #[test]
    fn an_early_end_is_reported_with_its_messages() {
        let (_folder, mut process) = shell("echo trouble >&2; exit 3");
        let stop = AtomicBool::new(false);
        let error = process.loaded(LIMIT, &stop).unwrap_err().to_string();
        assert!(error.contains("before it was loaded"), "{error}");
        assert!(error.ends_with("messages: trouble"), "{error}");
        stop.store(true, Ordering::Release);
        let error = process.loaded(LIMIT, &stop).unwrap_err();
        assert!(matches!(error, ProcessError::Interrupted), "{error}");
        assert!(!sleep(LIMIT, &stop));
    }

    #[test]
    fn silence_and_other_answers_are_errors() {
        let stop = AtomicBool::new(false);
        let (_folder, process) = shell("read -r order");
        let error = process.ready(Duration::from_millis(60), &stop).unwrap_err();
        assert!(
            error.to_string().contains("not ready after 0.06 s"),
            "{error}"
        );
        let (_folder, process) = shell(r#"echo '{"state":"loaded","pid":1}'; read -r order"#);
        let error = process.ready(LIMIT, &stop).unwrap_err();
        assert!(matches!(error, ProcessError::Other { .. }), "{error}");
    }
}
