//! A child process that takes orders as lines on its standard input, and answers in lines of JSON.
//!
//! Lines of its output that are no answer go to the standard error. Lines and waiting answers are
//! bounded: a process that writes without end is not read any further.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use serde::de::DeserializeOwned;

use super::ending::end;

/// TIMEOUT: a CUDA process that is to end takes down its context, that of PyTorch within a second.
pub(super) const END_LIMIT: Duration = Duration::from_secs(5);
/// Longest line of an answer: a minute of buckets of a load is 200 KiB, 10,000 gaps 600 KiB.
const LINE_MAX: u64 = 64 << 20;
/// Answers that wait to be taken.
const ANSWERS_MAX: usize = 64;

/// The process, or the launcher in front of it.
#[derive(Debug)]
pub(super) struct Talk<T> {
    pub(super) child: Child,
    orders: Option<ChildStdin>,
    answers: Receiver<T>,
}

impl<T: DeserializeOwned + Send + 'static> Talk<T> {
    pub(super) fn spawn(mut command: Command) -> anyhow::Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("Starting {command:?} failed"))?;
        let orders = child.stdin.take();
        let output = child.stdout.take().context("The process has no output")?;
        let (send, answers) = sync_channel(ANSWERS_MAX);
        thread::Builder::new()
            .name("bench-answers".into())
            .spawn(move || {
                let mut output = BufReader::new(output);
                let mut line = String::new();
                while let Ok(length) = (&mut output).take(LINE_MAX).read_line(&mut line) {
                    if length == 0 {
                        break;
                    }
                    match serde_json::from_str(&line) {
                        Ok(answer) => {
                            if send.send(answer).is_err() {
                                break;
                            }
                        }
                        Err(_) => eprint!("{line}"),
                    }
                    line.clear();
                }
            })?;
        Ok(Self {
            child,
            orders,
            answers,
        })
    }
}

impl<T> Talk<T> {
    /// The next answer; an error if there is none within `limit`, or the process has ended.
    pub(super) fn answer(&self, limit: Duration) -> Result<T, RecvTimeoutError> {
        self.answers.recv_timeout(limit)
    }

    /// Writes a line to its standard input.
    pub(super) fn order(&mut self, order: &str) -> anyhow::Result<()> {
        let orders = self.orders.as_mut().context("The process was ended")?;
        writeln!(orders, "{order}").context("The process reads no orders")
    }

    /// Closes its standard input, at which it ends by itself.
    pub(super) fn close(&mut self) {
        drop(self.orders.take());
    }
}

impl<T> Drop for Talk<T> {
    fn drop(&mut self) {
        self.close();
        end(&mut self.child, END_LIMIT);
    }
}
