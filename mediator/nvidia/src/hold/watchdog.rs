//! The watchdog: a small process beside the daemon that resumes all channels when the daemon dies
//! or hangs.
//!
//! ```text
//!   daemon -- hold CHANNELS, then suspends them --> watchdog keeps a lease
//!          -- renew, at every decision          -->
//!          -- resumes them, then release        -->
//!   the pipe closes, or nothing comes for LIMIT --> watchdog resumes all that is held
//! ```
//!
//! The order makes this safe: channels are announced before they are suspended, and what the daemon
//! wrote is read even after it died. A needless resume does no harm. If the watchdog is gone, the
//! daemon notices at its next write, resumes all tenants and holds none from then on.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};
use turnstile_accounting::{Moment, Nanos};

use super::lease::Lease;
use super::{Channel, ChannelSwitch, resume_all};
use crate::line::has_room;

/// A daemon that writes nothing for this long counts as hung: half of the promised second.
pub const LIMIT: Nanos = Nanos::from_ms(500);

/// Time to become ready. TIMEOUT: it opens the GPU, which the daemon has open already.
const READY_LIMIT: Duration = Duration::from_secs(5);

/// Time to end before it is killed. TIMEOUT: all channels were resumed before, so that it has
/// little to do.
const END_LIMIT: Duration = Duration::from_millis(500);

/// Interval between two polls for its end.
const END_PAUSE: Duration = Duration::from_millis(1);

/// Maximum number of channels in one line: a pipe has room for four such lines.
const LINE_CHANNELS: usize = 256;

/// Longest incomplete line that is kept.
const ORDER_MAX: usize = 1 << 20;

/// TIMEOUT: a watchdog that does not read from a full pipe for this long counts as gone; it has
/// nothing to do but to read.
const FULL_LIMIT: Duration = Duration::from_millis(50);

/// An order of the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Order {
    /// These channels are about to be suspended.
    Hold(Vec<Channel>),
    /// These channels were resumed.
    Release(Vec<Channel>),
    /// The daemon is alive.
    Renew,
}

impl Order {
    /// The order as lines that fit into a pipe. An order of which only the first lines arrive does
    /// no harm.
    fn lines(&self) -> serde_json::Result<Vec<Vec<u8>>> {
        let (channels, order): (_, fn(Vec<Channel>) -> Self) = match self {
            Self::Hold(channels) => (channels, Self::Hold),
            Self::Release(channels) => (channels, Self::Release),
            Self::Renew => return Ok(vec![line(self)?]),
        };
        if channels.len() <= LINE_CHANNELS {
            return Ok(vec![line(self)?]);
        }
        let parts = channels.chunks(LINE_CHANNELS);
        parts.map(|part| line(&order(part.to_vec()))).collect()
    }
}

fn line(order: &Order) -> serde_json::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(order)?;
    line.push(b'\n');
    Ok(line)
}

/// What went wrong with the watchdog.
#[derive(Debug, thiserror::Error)]
pub enum WatchdogError {
    /// It did not start.
    #[error("The watchdog did not start")]
    Start(#[source] io::Error),
    /// It started and reported that it cannot work.
    #[error("The watchdog is not ready: it output {0:?}")]
    NotReady(String),
    /// It is gone, or does not read.
    #[error("The watchdog is gone")]
    Gone(#[source] io::Error),
}

/// Written by the watchdog once it can resume channels.
const READY: &str = "ready";

/// The daemon's end.
#[derive(Debug)]
pub struct Watchdog {
    child: Child,
    orders: Option<ChildStdin>,
}

impl Watchdog {
    /// Starts `command`, which has to end up in [`serve`], and waits until it is ready. It is in a
    /// process group of its own, so that a signal to the daemon's group does not end both.
    ///
    /// # Errors
    /// If it does not start, cannot work, or does not report in time that it is ready.
    pub fn start(command: Command) -> Result<Self, WatchdogError> {
        Self::start_within(command, READY_LIMIT)
    }

    fn start_within(mut command: Command, limit: Duration) -> Result<Self, WatchdogError> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(WatchdogError::Start)?;
        let output = child.stdout.take();
        let output = output.map_or_else(String::new, |stdout| first_line(stdout, limit));
        let mut this = Self {
            orders: child.stdin.take(),
            child,
        };
        if output.trim_end() != READY {
            this.stop();
            return Err(WatchdogError::NotReady(output));
        }
        if let Some(orders) = &this.orders {
            // A watchdog that does not read must not stop the daemon.
            rustix::io::ioctl_fionbio(orders, true)
                .map_err(|error| WatchdogError::Start(error.into()))?;
        }
        Ok(this)
    }

    /// Sends an order. After an error the watchdog counts as gone.
    ///
    /// # Errors
    /// If it is gone or does not read.
    pub fn send(&mut self, order: &Order) -> Result<(), WatchdogError> {
        let lines = order
            .lines()
            .map_err(|error| WatchdogError::Gone(error.into()))?;
        let Some(orders) = &mut self.orders else {
            return Err(WatchdogError::Gone(io::ErrorKind::BrokenPipe.into()));
        };
        let mut lines = lines.iter();
        let sent = lines.try_for_each(|line| write_line(orders, line));
        sent.map_err(WatchdogError::Gone)
    }

    /// Process id of the watchdog.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends the watchdog, and kills it if it is stopped or frozen: that must not block the calling
    /// thread, which holds tenants.
    fn stop(&mut self) {
        drop(self.orders.take());
        if self.has_ended_within(END_LIMIT) {
            return;
        }
        log::warn!("The watchdog does not end, and is killed");
        // An error: it is gone already. Once killed it resumes no channels, even if a freezer keeps
        // it.
        let _ = self.child.kill();
        self.has_ended_within(END_LIMIT);
    }

    fn has_ended_within(&mut self, limit: Duration) -> bool {
        let begin = Instant::now();
        loop {
            match self.child.try_wait() {
                Ok(Some(_)) => return true,
                Ok(None) if begin.elapsed() < limit => thread::sleep(END_PAUSE),
                Ok(None) => return false,
                Err(error) => {
                    log::warn!("waiting for the watchdog failed: {error}");
                    return true;
                }
            }
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Writes the whole line to a pipe that does not block, while the watchdog reads.
fn write_line(orders: &mut ChildStdin, mut line: &[u8]) -> io::Result<()> {
    while !line.is_empty() {
        match orders.write(line) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => line = &line[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if !has_room(&*orders, FULL_LIMIT)? {
                    return Err(error);
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The first line of output that arrives within the limit; unreadable output is not "ready".
fn first_line(mut stdout: ChildStdout, limit: Duration) -> String {
    let begin = Instant::now();
    let (mut output, mut bytes) = (Vec::new(), [0; 1024]);
    while !output.contains(&b'\n') && output.len() < bytes.len() {
        let left = limit.saturating_sub(begin.elapsed());
        // CAST: some seconds.
        let left = timespec(Nanos(left.as_nanos() as u64));
        let mut fds = [PollFd::new(&stdout, PollFlags::IN)];
        match poll(&mut fds, Some(&left)) {
            Err(rustix::io::Errno::INTR) => continue,
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
        match stdout.read(&mut bytes) {
            Ok(0) | Err(_) => break,
            Ok(count) => output.extend_from_slice(&bytes[..count]),
        }
    }
    String::from_utf8_lossy(&output).into_owned()
}

/// The watchdog's end: reports on `output` that it is ready, and keeps the lease. Returns the
/// number of channels that it resumed once `input` is closed.
///
/// # Errors
/// If `input` cannot be read; all channels were resumed then as well.
pub fn serve(
    mut input: impl Read + AsFd,
    mut output: impl Write,
    switch: &impl ChannelSwitch,
) -> io::Result<usize> {
    let begin = Instant::now();
    // CAST: 584 years.
    let now = || Moment(begin.elapsed().as_nanos() as u64);
    let mut lease = Lease::new(LIMIT);
    writeln!(output, "{READY}")?;
    output.flush()?;
    let mut resumed = 0;
    let mut kept = Vec::new();
    let mut bytes = [0; 4096];
    let end = loop {
        let wait = lease.ends().map(|end| timespec(end.since(now())));
        let mut fds = [PollFd::new(&input, PollFlags::IN)];
        match poll(&mut fds, wait.as_ref()) {
            Ok(0) => {
                resumed += resume_all(switch, &lease.lapsed(now()));
                continue;
            }
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => break Err(error.into()),
        }
        match input.read(&mut bytes) {
            Ok(0) => break Ok(()),
            Ok(count) => kept.extend_from_slice(&bytes[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => break Err(error),
        }
        while let Some(end) = kept.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = kept.drain(..=end).collect();
            match serde_json::from_slice(&line) {
                Ok(Order::Hold(channels)) => lease.hold(&channels, now()),
                Ok(Order::Release(channels)) => lease.release(&channels, now()),
                Ok(Order::Renew) => lease.renew(now()),
                Err(error) => log::warn!("an order of the daemon was not understood: {error}"),
            }
        }
        if kept.len() > ORDER_MAX {
            break Err(io::Error::other("An order of the daemon is too long"));
        }
        // Invalid orders do not renew the lease, and must not keep it from ending.
        resumed += resume_all(switch, &lease.lapsed(now()));
    };
    resumed += resume_all(switch, &lease.end());
    end.map(|()| resumed)
}

fn timespec(length: Nanos) -> Timespec {
    // CAST: both parts fit: seconds of a u64 of nanoseconds, and less than a second.
    Timespec {
        tv_sec: (length.0 / 1_000_000_000) as i64,
        tv_nsec: (length.0 % 1_000_000_000) as i64,
    }
}

#[cfg(test)]
mod tests {
    use super::super::channels::tests::{FakeSwitch, channels};
    use super::*;

    fn send(orders: &[Order], rest: &str) -> (usize, usize, Vec<u8>) {
        let switch = FakeSwitch::default();
        switch.set(&channels(6), true).unwrap();
        let (reader, mut writer) = io::pipe().unwrap();
        for order in orders {
            serde_json::to_writer(&mut writer, order).unwrap();
            writeln!(writer).unwrap();
        }
        write!(writer, "{rest}").unwrap();
        drop(writer);
        let mut output = Vec::new();
        let resumed = serve(reader, &mut output, &switch).unwrap();
        (resumed, switch.suspended.into_inner().len(), output)
    }

    #[test]
    fn daemon_that_dies_leaves_no_channel_suspended() {
        let orders = [Order::Hold(channels(6)), Order::Renew];
        assert_eq!(send(&orders, ""), (6, 0, b"ready\n".to_vec()));
    }

    #[test]
    fn a_daemon_that_dies_in_the_middle_of_an_order_too() {
        let orders = [Order::Hold(channels(6)), Order::Release(channels(2))];
        let (resumed, left, _) = send(&orders, "{\"hold\":[{\"cli");
        assert_eq!(
            (resumed, left),
            (4, 2),
            "what was released is not its affair"
        );
    }

    #[test]
    fn a_daemon_that_hangs_loses_its_lease() {
        let switch = FakeSwitch::default();
        switch.set(&channels(3), true).unwrap();
        let (reader, mut writer) = io::pipe().unwrap();
        serde_json::to_writer(&mut writer, &Order::Hold(channels(3))).unwrap();
        writeln!(writer).unwrap();
        // The pipe stays open until the watchdog resumes channels: the end of the lease caused
        // that.
        let held = std::cell::Cell::new(Some(writer));
        struct Watching<'a>(&'a FakeSwitch, &'a std::cell::Cell<Option<io::PipeWriter>>);
        impl ChannelSwitch for Watching<'_> {
            fn set(&self, channels: &[Channel], on: bool) -> Result<(), crate::rm::RmError> {
                if !channels.is_empty() {
                    self.1.take();
                }
                self.0.set(channels, on)
            }
        }
        let begin = Instant::now();
        let resumed = serve(reader, io::sink(), &Watching(&switch, &held)).unwrap();
        assert_eq!(resumed, 3);
        assert!(begin.elapsed().as_nanos() >= u128::from(LIMIT.0));
        assert!(switch.suspended.borrow().is_empty());
    }

    #[test]
    fn a_watchdog_that_cannot_work_is_no_watchdog() {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "echo no driver"]);
        let error = Watchdog::start(command).unwrap_err().to_string();
        assert!(error.contains("no driver"), "{error}");
    }

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn stopped_watchdog_is_killed_and_waited_for_at_drop() {
        let watchdog = Watchdog::start(shell("echo ready; kill -STOP $$")).unwrap();
        let (pid, begin) = (watchdog.pid(), Instant::now());
        drop(watchdog);
        assert!(begin.elapsed() < 4 * END_LIMIT);
        let there = std::path::Path::new("/proc").join(pid.to_string());
        assert!(!there.exists(), "it was killed and waited for");
    }

    #[test]
    fn watchdog_without_ready_line_fails_to_start_within_its_limit() {
        let begin = Instant::now();
        let limit = Duration::from_millis(50);
        let started = Watchdog::start_within(shell("exec sleep 600"), limit);
        assert!(matches!(started, Err(WatchdogError::NotReady(output)) if output.is_empty()));
        assert!(begin.elapsed() < 4 * END_LIMIT);
    }

    #[test]
    fn order_longer_than_a_pipe_buffer_arrives_whole() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let script = format!(
            "echo ready; sleep 0.02; exec cat > {}",
            file.path().display()
        );
        let mut watchdog = Watchdog::start(shell(&script)).unwrap();
        let all = channels(10_000);
        watchdog.send(&Order::Hold(all.clone())).unwrap();
        watchdog.send(&Order::Renew).unwrap();
        watchdog.send(&Order::Release(all.clone())).unwrap();
        drop(watchdog);
        let (mut held, mut released) = (Vec::new(), Vec::new());
        for line in std::fs::read_to_string(file.path()).unwrap().lines() {
            assert!(line.len() < 1 << 14, "{}", line.len());
            match serde_json::from_str(line).unwrap() {
                Order::Hold(channels) => held.extend(channels),
                Order::Release(channels) => released.extend(channels),
                Order::Renew => {}
            }
        }
        assert!(held == all && released == all);
    }

    #[test]
    fn a_watchdog_that_does_not_read_is_gone() {
        let mut watchdog = Watchdog::start(shell("echo ready; exec sleep 600")).unwrap();
        let begin = Instant::now();
        assert!(watchdog.send(&Order::Hold(channels(10_000))).is_err());
        assert!(begin.elapsed() < 10 * FULL_LIMIT);
    }
}
