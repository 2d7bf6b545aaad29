//! The launcher while the program runs.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, kill_process, pidfd_open, wait,
};
use turnstile_vmm::wire::{CHANGES_MAX, ObjectChange, ToDaemon};

use super::LaunchError;
use super::door::Door;
use super::isolated::Device;
use super::learner::{Learner, Started};
use super::link::{Link, Turn};
use super::sys::{Received, Signals};
use turnstile_nvidia::handles::Handles;
use turnstile_nvidia::notify::Seen;

/// Signals that the launcher takes: those that are passed on, and its children's.
pub(super) const TAKEN: [i32; 7] = [
    libc::SIGCHLD,
    libc::SIGINT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
];

/// Processes that use the GPU, at a time; each takes a descriptor. Objects of further ones are not
/// reported.
const PROCESSES_MAX: usize = 512;
/// Time from the command's end to the log line that others are waited for; most end with it.
const REPORT_DELAY: Duration = Duration::from_secs(1);
/// Interval of reading a handle that the driver has not yet chosen.
const SETTLE_EVERY: Duration = Duration::from_millis(1);

/// The launcher.
#[derive(Debug)]
pub(super) struct Supervisor {
    command: Command,
    /// `None` once it has no more to report.
    learner: Option<Learner>,
    signals: Signals,
    link: Option<Link>,
    file: Option<File>,
    /// Socket of processes with memory that can move.
    door: Option<Door>,
    /// Of an isolated program, until the command has ended.
    device: Option<Device>,
    handles: Handles,
    /// Those that were handed something, by their pidfds.
    processes: BTreeMap<u32, OwnedFd>,
    reported: Reported,
}

/// The command, and what is left of it.
#[derive(Debug)]
struct Command {
    pid: Pid,
    /// Its exit status, once it has ended.
    status: Option<i32>,
    /// When to log that others are waited for.
    report_at: Option<Instant>,
    /// No child is left.
    childless: bool,
}

/// What is printed once.
#[derive(Debug, Default)]
struct Reported {
    waiting: bool,
    too_many: bool,
    refused: bool,
}

impl Supervisor {
    pub(super) fn new(
        started: Started,
        signals: Signals,
        link: Option<Link>,
        file: Option<File>,
        door: Option<Door>,
        device: Option<Device>,
    ) -> Self {
        Self {
            command: Command {
                pid: started.pid,
                status: None,
                report_at: None,
                childless: false,
            },
            learner: Some(started.learner),
            signals,
            link,
            file,
            door,
            device,
            handles: Handles::default(),
            processes: BTreeMap::new(),
            reported: Reported::default(),
        }
    }

    /// Runs until the command and all that it started have ended.
    pub(super) fn run(mut self) -> Result<i32, LaunchError> {
        let mut seen = Vec::new();
        let mut unsettled = false;
        loop {
            let ready = self.wait(unsettled)?;
            if ready.learner {
                self.learn(&mut seen);
                self.report_refusal();
            }
            if ready.hung_up
                && let Some(Learner::Notify { listener, .. }) = self.learner.take()
            {
                log::debug!(
                    "Calls of the program that were looked at: {:?}",
                    listener.counted()
                );
            }
            if let Some(learner) = &mut self.learner {
                unsettled = learner.settle(&mut seen);
            }
            for seen in seen.drain(..) {
                self.saw(seen);
            }
            self.hand_on();
            for pid in ready.ended {
                self.ended(pid);
            }
            while let Some(signal) = self.signals.next() {
                if let Some(status) = self.signalled(signal) {
                    return Ok(status);
                }
            }
            if self.link.as_mut().map(Link::turn) == Some(Turn::Admitted) {
                self.send_all();
            }
            if let Some(status) = self.end() {
                return Ok(status);
            }
        }
    }

    /// The status, if all is over.
    fn end(&mut self) -> Option<i32> {
        let status = self.command.status?;
        // A filter's hang-up shows that no process is left; the keeper is a child as well.
        let over = match &self.learner {
            None => true,
            Some(learner) => !learner.knows_the_end() && self.command.childless,
        };
        if over {
            return Some(status);
        }
        let now = Instant::now();
        if now >= *self.command.report_at.get_or_insert(now + REPORT_DELAY)
            && !self.reported.waiting
        {
            self.reported.waiting = true;
            log::warn!(
                "The command has ended; waiting for what it started (a signal ends the waiting)"
            );
        }
        None
    }

    fn wait(&self, unsettled: bool) -> Result<Ready, LaunchError> {
        let mut fds = vec![PollFd::new(&self.signals, PollFlags::IN)];
        if let Some(learner) = &self.learner {
            fds.push(PollFd::new(learner, PollFlags::IN));
        }
        let processes_at = fds.len();
        for pidfd in self.processes.values() {
            fds.push(PollFd::new(pidfd, PollFlags::IN));
        }
        let processes_end = fds.len();
        if let Some((fd, flags)) = self.link.as_ref().and_then(Link::interest) {
            fds.push(PollFd::from_borrowed_fd(fd, flags));
        }
        if let Some(door) = &self.door {
            fds.push(PollFd::new(door, PollFlags::IN));
        }
        let now = Instant::now();
        let reconnect = self.link.as_ref().and_then(Link::until);
        let timeout = [
            unsettled.then_some(SETTLE_EVERY),
            reconnect.map(|until| until.saturating_duration_since(now)),
            self.command
                .report_at
                .filter(|_| !self.reported.waiting)
                .map(|at| at.saturating_duration_since(now)),
        ];
        let timeout = timeout.into_iter().flatten().min();
        let timespec = timeout.map(|timeout| Timespec {
            // CAST: seconds at most; below 10^9.
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: timeout.subsec_nanos().into(),
        });
        match poll(&mut fds, timespec.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(LaunchError::Host(errno.into())),
        }
        let learner = match self.learner {
            Some(_) => fds[1].revents(),
            None => PollFlags::empty(),
        };
        let ended = self
            .processes
            .keys()
            .zip(&fds[processes_at..processes_end])
            .filter_map(|(pid, fd)| (!fd.revents().is_empty()).then_some(*pid));
        Ok(Ready {
            learner: learner.contains(PollFlags::IN),
            hung_up: !learner.is_empty() && !learner.contains(PollFlags::IN),
            ended: ended.collect(),
        })
    }

    fn learn(&mut self, seen: &mut Vec<Seen>) {
        let Some(learner) = &mut self.learner else {
            return;
        };
        if let Err(error) = learner.take(seen) {
            // Dropped with its pipe: the keeper goes on answering.
            log::warn!("{error}: what the driver hands out from now on is not known");
            self.learner = None;
        }
    }

    /// Logs once that a call was refused: the program may fail because of it without a reason.
    fn report_refusal(&mut self) {
        if let Some(Learner::Notify { listener, .. }) = &self.learner
            && let Some(command) = listener.counted().last_refused
            && !std::mem::replace(&mut self.reported.refused, true)
        {
            log::warn!(
                "The program requested control {command:#x} of the driver, which tenants may not use: refused, and so will be others"
            );
        }
    }

    /// Takes in an object of a process, and reports it if it is new.
    fn saw(&mut self, Seen { pid, change }: Seen) {
        match self.handles.apply(pid, &change) {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => {
                if !std::mem::replace(&mut self.reported.too_many, true) {
                    log::warn!("{error}: not all of its work can be held back");
                }
                return;
            }
        }
        if !self.processes.contains_key(&pid) {
            let room = self.processes.len() < PROCESSES_MAX;
            let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
            let pidfd = number
                .filter(|_| room)
                .and_then(|number| pidfd_open(number, PidfdFlags::empty()).ok());
            let Some(pidfd) = pidfd else {
                // It has ended already, or there are too many.
                self.handles.forget(pid);
                if !room && !std::mem::replace(&mut self.reported.too_many, true) {
                    log::warn!(
                        "More than {PROCESSES_MAX} processes use the GPU: further ones are not reported"
                    );
                }
                return;
            };
            self.send_process(pid, &pidfd);
            self.processes.insert(pid, pidfd);
        }
        self.send_changes(pid, &[change]);
    }

    fn ended(&mut self, pid: u32) {
        self.processes.remove(&pid);
        self.handles.forget(pid);
        if let Some(link) = &mut self.link {
            link.send(&ToDaemon::Exited { pid }, Vec::new());
        }
    }

    fn send_process(&mut self, pid: u32, pidfd: &OwnedFd) {
        if let Some(link) = self.link.as_mut().filter(|link| link.is_up())
            && let Ok(pidfd) = pidfd.as_fd().try_clone_to_owned()
        {
            link.send(&ToDaemon::Process { pid }, vec![pidfd]);
        }
    }

    fn send_changes(&mut self, pid: u32, changes: &[ObjectChange]) {
        for changes in changes.chunks(CHANGES_MAX) {
            if let Some(link) = &mut self.link {
                let changes = changes.to_vec();
                link.send(&ToDaemon::Objects { pid, changes }, Vec::new());
            }
            if let Some(file) = &mut self.file {
                let lines: String = changes.iter().map(|change| line(pid, change)).collect();
                if let Err(error) = file.write_all(lines.as_bytes()) {
                    log::warn!("What is learnt cannot be written: {error}");
                    self.file = None;
                }
            }
        }
    }

    /// Passes connections of the preloaded library on to the daemon. Without a daemon they are
    /// closed, and the library connects again.
    fn hand_on(&mut self) {
        while let Some(connection) = self.door.as_mut().and_then(Door::next) {
            if let Some(link) = self.link.as_mut().filter(|link| link.is_up()) {
                link.send(&ToDaemon::Memory {}, vec![connection]);
            }
        }
    }

    /// Reports all processes and objects to a daemon that has none of them.
    fn send_all(&mut self) {
        let processes: Vec<(u32, OwnedFd)> = self
            .processes
            .iter()
            .filter_map(|(pid, pidfd)| Some((*pid, pidfd.as_fd().try_clone_to_owned().ok()?)))
            .collect();
        for (pid, pidfd) in processes {
            self.send_process(pid, &pidfd);
            let objects = self.handles.objects(pid);
            let made: Vec<ObjectChange> = objects.into_iter().map(ObjectChange::Made).collect();
            self.send_changes(pid, &made);
        }
    }

    /// Passes a signal on; returns the status if the command has ended, which ends the waiting.
    fn signalled(&mut self, signal: Received) -> Option<i32> {
        if signal.number == libc::SIGCHLD {
            self.reap();
            return None;
        }
        if self.command.status.is_some() {
            return self.command.status;
        }
        // The terminal sends its signals to the command as well.
        if let Some(number) = Signal::from_named_raw(signal.number).filter(|_| !signal.by_kernel) {
            // It may have ended this moment.
            let _ = kill_process(self.command.pid, number);
        }
        None
    }

    fn reap(&mut self) {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => {
                    if pid == self.command.pid {
                        self.command.status = Some(code(status));
                        // It serves the command's children until they have ended.
                        self.device = None;
                    }
                }
                Ok(None) => return,
                Err(_) => {
                    self.command.childless = true;
                    return;
                }
            }
        }
    }
}

/// What [`Supervisor::wait`] found.
struct Ready {
    learner: bool,
    hung_up: bool,
    ended: Vec<u32>,
}

/// Exit status, in a shell's form.
fn code(status: WaitStatus) -> i32 {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => code,
        (None, Some(signal)) => 128 + signal,
        (None, None) => 1,
    }
}

/// A line in the preloaded library's form.
fn line(pid: u32, change: &ObjectChange) -> String {
    match change {
        ObjectChange::Made(object) => format!(
            "+ {pid} {:x} {:x} {:x} {:x} {:x}\n",
            object.client, object.handle, object.class, object.parent, object.engine
        ),
        ObjectChange::Freed { client, handle } => format!("- {pid} {client:x} {handle:x}\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnstile_nvidia::handles::parse;
    use turnstile_vmm::wire::ProgramObject;

    #[test]
    fn lines_are_the_librarys() {
        let made = ObjectChange::Made(ProgramObject {
            client: 0xc1d0_0001,
            handle: 0x5c00_0011,
            class: 0xc86f,
            parent: 0x5c00_0010,
            engine: 9,
            userd: None,
        });
        let freed = ObjectChange::Freed {
            client: 1,
            handle: 0xff,
        };
        for change in [made, freed] {
            assert_eq!(parse(&line(77, &change)), Ok((77, change)));
        }
    }
}
