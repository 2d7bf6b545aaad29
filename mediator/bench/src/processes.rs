//! Load processes: started together, given a start time, awaited until they report.

use std::fs;
use std::io;
use std::process::Command;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use anyhow::bail;
use turnstile_figures::load::{Block, Calibration, LoadMessage, LoadReport};
use turnstile_figures::matrix::{Length, Pattern, Tenant};

use super::ending::ended_within;
use super::talk::{END_LIMIT, Talk};

/// TIMEOUT: a CUDA process begins within about 2 s, several at once under a daemon within a few
/// times that; 16 of PyTorch take half a minute.
const READY_LIMIT: Duration = Duration::from_secs(90);
/// TIMEOUT: a load ends its last kernel, up to 50 ms long at a tenth of the GPU, and copies its
/// records.
const DONE_LIMIT: Duration = Duration::from_secs(30);
/// Most threads that [`Load::waits`] shows.
const WAITS_MAX: usize = 32;

/// Copies to the GPU beside the kernels.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Copies {
    /// Length of each; 0 for none.
    pub(super) kib: u32,
    /// Tenants that make them, from the first.
    pub(super) tenants: usize,
}

/// Parameters of all loads of a bench.
#[derive(Clone, Debug)]
pub(super) struct Common {
    pub(super) device: u32,
    pub(super) seconds: f64,
    pub(super) calibration: Option<Calibration>,
    pub(super) list_gaps: bool,
    pub(super) copies: Copies,
}

/// Arguments of `turnstile` that make it the load of the tenant at place `index` of its cell.
pub(super) fn words(index: usize, tenant: &Tenant, common: &Common) -> Vec<String> {
    let pattern = tenant.pattern.to_string();
    let kernel = match (tenant.pattern, tenant.kernel) {
        // An endless kernel cannot have bursts.
        (Pattern::Bursty, Length::Endless) => Length::Us(200),
        (_, kernel) => kernel,
    };
    let mut words = vec!["nvidia-load".to_owned(), "--wait".to_owned()];
    let mut option = |name: &str, value: String| {
        words.push(format!("--{name}"));
        words.push(value);
    };
    option("device", common.device.to_string());
    option("kernel", kernel.to_string());
    option("pattern", pattern);
    option("seed", tenant.seed.to_string());
    option("seconds", common.seconds.to_string());
    if let Some(calibration) = common.calibration {
        option("calibration", calibration.to_string());
    }
    if common.copies.kib > 0 && index < common.copies.tenants {
        option("copy-kib", common.copies.kib.to_string());
    }
    if common.list_gaps {
        words.push("--list-gaps".to_owned());
    }
    words
}

/// A load process, or the process that started it.
#[derive(Debug)]
pub(super) struct Load {
    talk: Talk<LoadMessage>,
    /// The load's own process, once it is ready.
    pub(super) pid: u32,
    pub(super) calibration: Option<Calibration>,
}

impl Load {
    pub(super) fn spawn(command: Command) -> anyhow::Result<Self> {
        Ok(Self {
            talk: Talk::spawn(command)?,
            pid: 0,
            calibration: None,
        })
    }

    fn receive(&self, limit: Duration) -> anyhow::Result<LoadMessage> {
        match self.talk.answer(limit) {
            Ok(message) => Ok(message),
            Err(RecvTimeoutError::Timeout) => {
                bail!("A load sent nothing for {} s", limit.as_secs())
            }
            Err(RecvTimeoutError::Disconnected) => {
                bail!("A load ended early; its messages are above")
            }
        }
    }

    /// Waits until it can begin.
    pub(super) fn wait_ready(&mut self) -> anyhow::Result<()> {
        match self.receive(READY_LIMIT)? {
            LoadMessage::Ready { pid, calibration } => {
                (self.pid, self.calibration) = (pid, calibration);
                Ok(())
            }
            LoadMessage::Done(_) | LoadMessage::Block(_) => {
                bail!("A load is done before it was ready")
            }
        }
    }

    /// Where its threads wait, and those of processes that it started: the explanation of a load
    /// that does not report.
    pub(super) fn waits(&self) -> String {
        let mut waits = Vec::new();
        let mut pids = vec![self.talk.child.id()];
        while let Some(pid) = pids.pop()
            && waits.len() < WAITS_MAX
        {
            for thread in fs::read_dir(format!("/proc/{pid}/task"))
                .into_iter()
                .flatten()
            {
                let Ok(thread) = thread.map(|thread| thread.path()) else {
                    continue;
                };
                let read = |name| fs::read_to_string(thread.join(name)).unwrap_or_default();
                let children = read("children");
                pids.extend(children.split_whitespace().flat_map(str::parse::<u32>));
                let [name, place, call] = ["comm", "wchan", "syscall"].map(read);
                let call = call.split_whitespace().next().unwrap_or("?");
                waits.push(format!(
                    "{pid} {} in {place} (call {call})",
                    name.trim_end()
                ));
            }
        }
        waits.truncate(WAITS_MAX);
        waits.join("; ")
    }

    /// Sends it its start time, on the wall clock.
    pub(super) fn start(&mut self, at_ns: u64) -> anyhow::Result<()> {
        self.order(at_ns)
    }

    fn order(&mut self, number: u64) -> anyhow::Result<()> {
        self.talk.order(&number.to_string())
    }

    /// Waits for its report; the process stays, idle, until it is dropped.
    pub(super) fn wait_done(&mut self, length: Duration) -> anyhow::Result<LoadReport> {
        match self.receive(length + DONE_LIMIT)? {
            LoadMessage::Done(report) => Ok(*report),
            LoadMessage::Ready { .. } | LoadMessage::Block(_) => {
                bail!("A load sent another message")
            }
        }
    }

    /// Orders some pieces of work, and waits for them.
    pub(super) fn block(&mut self, pieces: u32) -> anyhow::Result<Block> {
        self.order(pieces.into())?;
        self.late_block(DONE_LIMIT)
    }

    /// As `block`, of a load that does the work in two ways.
    pub(super) fn two_blocks(&mut self, pieces: u32) -> anyhow::Result<[Block; 2]> {
        self.order(pieces.into())?;
        let block = || self.late_block(DONE_LIMIT);
        Ok([block()?, block()?])
    }

    /// Waits for a block that was ordered before.
    pub(super) fn late_block(&self, limit: Duration) -> anyhow::Result<Block> {
        match self.receive(limit)? {
            LoadMessage::Block(block) => Ok(block),
            LoadMessage::Ready { .. } | LoadMessage::Done(_) => {
                bail!("A load sent another message")
            }
        }
    }

    /// The status with which it ended, if it did, or is about to.
    pub(super) fn ended_with(&mut self) -> io::Result<Option<i32>> {
        let ended = ended_within(&mut self.talk.child, END_LIMIT)?;
        Ok(ended.and_then(|status| status.code()))
    }

    /// Closes its standard input, so that it ends.
    pub(super) fn no_more(&mut self) {
        self.talk.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Load {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Load::spawn(command).unwrap()
    }

    #[test]
    fn silent_load_is_shown_with_the_call_it_waits_in() {
        let load = shell("cat > /dev/null; true");
        // TIMEOUT: a shell starts a process in a millisecond.
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        while !load.waits().contains("cat in ") {
            assert!(std::time::Instant::now() < deadline, "{}", load.waits());
        }
        assert!(load.waits().contains("sh in "), "{}", load.waits());
    }

    #[test]
    fn load_is_started_when_ready_and_its_report_is_read() {
        let report = serde_json::to_string(&LoadMessage::Done(Box::default())).unwrap();
        let mut load = shell(&format!(
            r#"echo '{{"ready":{{"pid":7,"calibration":{{"turns_per_ms":9.0,"fixed_ns":0.0}}}}}}'; read at; test "$at" = 123 && echo '{report}'; cat"#
        ));
        load.wait_ready().unwrap();
        assert_eq!(load.pid, 7);
        assert!(load.calibration.is_some());
        load.start(123).unwrap();
        assert_eq!(
            load.wait_done(Duration::ZERO).unwrap(),
            LoadReport::default()
        );
    }

    #[test]
    fn a_load_that_ends_early_is_an_error() {
        let error = shell("exit 1").wait_ready().unwrap_err();
        assert!(error.to_string().contains("ended early"), "{error}");
    }
}
