//! The control loop: one thread on epoll for the listening socket, the sockets of VMMs and
//! launchers, and the kicks of VMs.

mod frames;
mod session;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use event_manager::{
    EventManager, EventOps, Events, MutEventSubscriber, SubscriberId, SubscriberOps,
};
use log::Level;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use turnstile_vmm::wire::{FrameReader, peer_pid, peer_uid};
use uuid::Uuid;
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::eventfd::EventFd;

use super::accounts::of_user;
use super::declared::doors::DoorChange;
use super::error::HostError;
use super::fleet::{self, Fleet};
use super::kicks::KickBudgets;
use super::limits::{Holder, Resource, is_trusted};
use session::{Role, Session, SessionError, tell};

/// TIMEOUT: pause after a failed accept (no descriptors left, for example). Connecting peers wait
/// no longer than this.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);
/// TIMEOUT: a VMM or launcher sends its first frame as soon as it has connected.
const GREETING: Duration = Duration::from_secs(10);
/// Interval of the search for connections without a first frame, while there are any.
const SILENCE_POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Minimum time between two log lines about something that clients can cause at will.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

const LISTENER: u32 = 0;
const WAKE: u32 = 1;
const FIRST_SESSION: u32 = 2;
/// Numbers of connections are below this.
const SESSIONS: u32 = 1 << 30;
/// Listening sockets of declared VMs are behind those of connections.
const FIRST_DOOR: u32 = data_of(SESSIONS, Source::Socket);

/// What a connection is watched for.
#[derive(Clone, Copy)]
enum Source {
    Socket,
    Kick,
    Owner,
}

/// Sources of each connection.
const SOURCES: u32 = 3;

/// The event data of a connection's source.
const fn data_of(number: u32, source: Source) -> u32 {
    FIRST_SESSION + SOURCES * number + source as u32
}

/// The loop, ready to run.
pub(super) struct ControlLoop {
    manager: EventManager<Control>,
    control: SubscriberId,
    wake: EventFd,
    stop: Arc<AtomicBool>,
}

impl ControlLoop {
    /// `doors` reports sockets of declared VMs, and rings `wake` then.
    pub(super) fn new(
        listener: UnixListener,
        doors: Receiver<DoorChange>,
        wake: EventFd,
        fleet: Arc<Fleet>,
        stop: Arc<AtomicBool>,
    ) -> Result<Self, ControlError> {
        let mut manager = EventManager::new()?;
        let sessions = BTreeMap::new();
        let (admitted, admissions) = channel();
        let rung = wake.try_clone().map_err(ControlError::Wake)?;
        let own = Entrance {
            listener,
            instance: None,
        };
        let control = manager.add_subscriber(Control {
            entrances: BTreeMap::from([(LISTENER, own)]),
            doors,
            next_door: FIRST_DOOR,
            wake,
            fleet,
            greeting: GREETING,
            sessions,
            next: 0,
            admitted,
            admissions,
            accept_again: None,
            paused: BTreeSet::new(),
            drain_poll_at: None,
            silence_poll_at: None,
            kicks: KickBudgets::default(),
            unmute: None,
            short_logged_at: None,
        });
        Ok(Self {
            manager,
            control,
            wake: rung,
            stop,
        })
    }

    pub(super) fn run(mut self) {
        while !self.stop.load(Ordering::Acquire) {
            if let Err(error) = self.turn() {
                log::error!("The event loop failed: {error}");
                return;
            }
        }
    }

    /// Waits for the next event or the next due time.
    fn turn(&mut self) -> Result<(), event_manager::Error> {
        let due = self.manager.subscriber_mut(self.control)?.due();
        let left = due.map(|due| due.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            // Its own wake: what is due is done where descriptors may be watched and left.
            let _ = self.wake.write(1);
        }
        // One more, as what is left is rounded down.
        let ms = left.map_or(-1, |left| {
            i32::try_from(left.as_millis() + 1).unwrap_or(i32::MAX)
        });
        self.manager.run_with_timeout(ms)?;
        Ok(())
    }
}

/// Why the loop could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The events' crate.
    #[error(transparent)]
    Events(#[from] event_manager::Error),
    /// No descriptor.
    #[error("Its wake could not be shared")]
    Wake(#[source] io::Error),
}

/// A VM was admitted or refused.
type Admission = (u32, Result<fleet::Admission, HostError>);

/// A listening socket.
struct Entrance {
    listener: UnixListener,
    /// The declared VM that it is for; none is the daemon's own.
    instance: Option<Uuid>,
}

// FIELDS: what one thread owns alone: connections, and when each poll is due.
struct Control {
    /// By event data.
    entrances: BTreeMap<u32, Entrance>,
    /// Sockets of declared VMs that were opened or closed.
    doors: Receiver<DoorChange>,
    next_door: u32,
    wake: EventFd,
    fleet: Arc<Fleet>,
    /// Time for a first frame.
    greeting: Duration,
    /// By number.
    sessions: BTreeMap<u32, Session>,
    next: u32,
    /// Results of the threads that admit VMs.
    admitted: Sender<Admission>,
    admissions: Receiver<Admission>,
    /// Listening sockets that are not watched, and when they are watched again.
    paused: BTreeSet<u32>,
    accept_again: Option<Instant>,
    /// When draining tenants are next polled.
    drain_poll_at: Option<Instant>,
    /// When connections without a first frame are next searched for.
    silence_poll_at: Option<Instant>,
    /// What the kicks of each account may cost.
    kicks: KickBudgets,
    /// When the first muted kick is watched again.
    unmute: Option<Instant>,
    /// Latest log line about descriptors that the kernel did not give.
    short_logged_at: Option<Instant>,
}

impl MutEventSubscriber for Control {
    fn init(&mut self, ops: &mut EventOps) {
        let wake = Events::with_data(&self.wake, WAKE, EventSet::IN);
        if !self.watch(LISTENER, ops) || ops.add(wake).is_err() {
            log::error!("Watching the daemon's socket failed; no VM can connect");
        }
    }

    fn process(&mut self, events: Events, ops: &mut EventOps) {
        match events.data() {
            LISTENER => self.accept(LISTENER, ops),
            door if door >= FIRST_DOOR => self.accept(door, ops),
            WAKE => {
                let _ = self.wake.read();
                while let Ok((number, admission)) = self.admissions.try_recv() {
                    self.admitted(number, admission, ops);
                }
                while let Ok(change) = self.doors.try_recv() {
                    self.door(change, ops);
                }
                self.tick(ops);
            }
            data => {
                let number = (data - FIRST_SESSION) / SOURCES;
                match data - data_of(number, Source::Socket) {
                    0 => self.hear(number, ops),
                    1 => self.kicked(number, ops),
                    // Its process has ended.
                    _ => self.end(number, ops, None),
                }
            }
        }
    }
}

impl Control {
    /// When the next timed action is due.
    fn due(&self) -> Option<Instant> {
        let due = [
            self.accept_again,
            self.silence_poll_at,
            self.unmute,
            self.drain_poll_at,
        ];
        due.into_iter().flatten().min()
    }

    /// Watches a listening socket; false if the kernel refuses.
    fn watch(&self, data: u32, ops: &mut EventOps) -> bool {
        self.entrances.get(&data).is_none_or(|entrance| {
            let events = Events::with_data(&entrance.listener, data, EventSet::IN);
            entrance.listener.set_nonblocking(true).is_ok() && ops.add(events).is_ok()
        })
    }

    /// A declared VM's socket was opened, or closed.
    fn door(&mut self, change: DoorChange, ops: &mut EventOps) {
        match change {
            DoorChange::Opened(instance, listener) => {
                let data = self.next_door;
                self.next_door = data.checked_add(1).unwrap_or(FIRST_DOOR);
                let instance = Some(instance);
                let entrance = Entrance { listener, instance };
                self.entrances.insert(data, entrance);
                if !self.watch(data, ops) {
                    log::error!("Watching the socket of a declared VM failed; it cannot connect");
                }
            }
            DoorChange::Closed(instance) => {
                let closed = |_: &u32, one: &mut Entrance| one.instance == Some(instance);
                for (data, entrance) in self.entrances.extract_if(.., closed) {
                    self.paused.remove(&data);
                    let _ = ops.remove(Events::empty_raw(entrance.listener.as_raw_fd()));
                }
            }
        }
    }

    /// Does what is due.
    fn tick(&mut self, ops: &mut EventOps) {
        let now = Instant::now();
        if self.accept_again.is_some_and(|at| at <= now) {
            let paused = std::mem::take(&mut self.paused);
            self.paused = (paused.into_iter())
                .filter(|data| !self.watch(*data, ops))
                .collect();
            self.accept_again = (!self.paused.is_empty()).then(|| now + ACCEPT_AGAIN);
        }
        self.admit_placed(ops);
        // Also after a wake without a due time: a drain may have begun.
        self.drain_poll_at = self.fleet.poll_drains(now);
        if self.silence_poll_at.is_some_and(|at| at <= now) {
            self.end_silent(now, ops);
        }
        if self.unmute.is_some_and(|at| at <= now) {
            self.unmute(now, ops);
        }
    }

    /// Ends connections that sent no first frame in time: they take places.
    fn end_silent(&mut self, now: Instant, ops: &mut EventOps) {
        let without_role = self.sessions.iter().filter(|(_, one)| one.role.is_none());
        let (silent, waiting): (Vec<_>, Vec<_>) = without_role
            .map(|(number, one)| (*number, now.saturating_duration_since(one.since)))
            .partition(|(_, passed)| *passed >= self.greeting);
        self.silence_poll_at =
            (!waiting.is_empty()).then(|| now + SILENCE_POLL_INTERVAL.min(self.greeting));
        for (number, _) in silent {
            self.end(number, ops, Some(&SessionError::Silent));
        }
    }

    /// The kernel gives no connection. The listener would be ready without end, so it is not
    /// watched for a while.
    fn pause(&mut self, data: u32, error: &io::Error, ops: &mut EventOps) {
        let now = Instant::now();
        if is_time(&mut self.short_logged_at, now) {
            log::error!(
                "New connections have to wait: {error} (too few open files? ulimit -n, LimitNOFILE)"
            );
        }
        let Some(entrance) = self.entrances.get(&data) else {
            return;
        };
        let events = Events::empty_raw(entrance.listener.as_raw_fd());
        if ops.remove(events).is_ok() {
            self.paused.insert(data);
            self.accept_again = Some(now + ACCEPT_AGAIN);
        }
    }

    fn accept(&mut self, data: u32, ops: &mut EventOps) {
        loop {
            let Some(entrance) = self.entrances.get(&data) else {
                return;
            };
            let door = entrance.instance;
            let stream = match entrance.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return,
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => continue,
                    _ => return self.pause(data, &error, ops),
                },
            };
            let now = Instant::now();
            let Ok(uid) = peer_uid(&stream) else {
                continue;
            };
            let holder = Holder {
                account: of_user(uid).into(),
                tenant: None,
                trusted: is_trusted(uid),
            };
            let taken = self.fleet.limits().take(Resource::Connections, &holder, 1);
            let place = match taken {
                Ok(place) => place,
                Err(error) => {
                    self.log(&holder, Level::Warn, format_args!("Connection: {error}"));
                    continue; // closed by being dropped
                }
            };
            let number = self.next;
            // Numbers stay below 2^30, so that the event data does not overflow. By then old ones
            // have ended.
            self.next = (self.next + 1) % SESSIONS;
            let socket = data_of(number, Source::Socket);
            let watched = Events::with_data(&stream, socket, EventSet::IN);
            if stream.set_nonblocking(true).is_err()
                || self.sessions.contains_key(&number)
                || ops.add(watched).is_err()
            {
                continue;
            }
            self.silence_poll_at
                .get_or_insert(now + SILENCE_POLL_INTERVAL.min(self.greeting));
            let owner = peer_pidfd(&stream);
            let mut session = Session {
                stream,
                uid,
                door,
                holder,
                _place: place,
                since: now,
                reader: FrameReader::new(),
                owner: None,
                protocol: None,
                role: None,
            };
            // Where the process cannot be seen, the tenant ends with its socket.
            if let Some(owner) = owner {
                let _ = session.own(number, owner, ops);
            }
            self.sessions.insert(number, session);
        }
    }

    fn kicked(&mut self, number: u32, ops: &mut EventOps) {
        let session = self.sessions.get_mut(&number);
        let role = session.and_then(|one| one.role.as_mut());
        if let Some(Role::Vm { host, tenant, kick }) = role {
            host.kicked(*tenant);
            kick.kicked(&mut self.kicks, Instant::now(), ops);
            self.unmute = self.unmute.into_iter().chain(kick.due()).min();
        }
    }

    /// Watches muted kicks again.
    fn unmute(&mut self, now: Instant, ops: &mut EventOps) {
        self.unmute = None;
        for session in self.sessions.values_mut() {
            if let Some(Role::Vm { kick, .. }) = &mut session.role {
                kick.tick(now, ops);
                self.unmute = self.unmute.into_iter().chain(kick.due()).min();
            }
        }
    }

    /// Logs a line that a client causes, if its account has not used up this minute's.
    fn log(&self, holder: &Holder, level: Level, line: fmt::Arguments<'_>) {
        let limits = self.fleet.limits();
        if limits.permits(Resource::LogLines, holder, Instant::now()) {
            log::log!(level, "{line}");
        }
    }

    fn end(&mut self, number: u32, ops: &mut EventOps, error: Option<&SessionError>) {
        let Some(session) = self.sessions.remove(&number) else {
            return;
        };
        let log = |level, line| self.log(&session.holder, level, line);
        match (session.role.as_ref().and_then(Role::tenant), error) {
            (Some(tenant), Some(error)) => {
                log(Level::Warn, format_args!("{tenant} is ended: {error}"));
            }
            (_, None) => {}
            (None, Some(error)) => {
                let line = format_args!("A VMM or launcher was refused: {error}");
                log(Level::Warn, line);
            }
        }
        if let (None, Some(error)) = (&session.role, error) {
            tell(&session.stream, error);
        }
        let _ = ops.remove(Events::empty_raw(session.stream.as_raw_fd()));
        if let Some(owner) = &session.owner {
            let _ = ops.remove(Events::empty_raw(owner.as_raw_fd()));
        }
        let Some(role) = session.role else { return };
        if matches!(role, Role::Waiting(_)) {
            self.fleet.leave_queue(number);
        }
        if let Role::Vm { kick, .. } = &role {
            kick.forget(ops);
        }
        if let Some(tenant) = role.tenant() {
            self.fleet.leave(role.hosts(), tenant);
        }
    }
}

impl Session {
    /// The tenant ends with this process from now on.
    fn own(&mut self, number: u32, pidfd: OwnedFd, ops: &mut EventOps) -> io::Result<()> {
        let data = data_of(number, Source::Owner);
        let watched = ops.add(Events::with_data(&pidfd, data, EventSet::IN));
        watched.map_err(|error| io::Error::other(error.to_string()))?;
        if let Some(before) = self.owner.replace(pidfd) {
            let _ = ops.remove(Events::empty_raw(before.as_raw_fd()));
        }
        Ok(())
    }
}

/// The process at the other end of a socket.
fn peer_pidfd(stream: &UnixStream) -> Option<OwnedFd> {
    let pid = i32::try_from(peer_pid(stream).ok()?).ok()?;
    pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()
}

/// Whether the log interval has passed; if so, it starts again.
fn is_time(logged_at: &mut Option<Instant>, now: Instant) -> bool {
    let due = logged_at.is_none_or(|at| now.saturating_duration_since(at) >= LOG_INTERVAL);
    if due {
        *logged_at = Some(now);
    }
    due
}

#[cfg(test)]
#[path = "control_tests.rs"]
mod tests;
