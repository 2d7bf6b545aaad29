//! The control loop: one thread on epoll for the listening socket, the sockets of VMMs and
//! launchers, and the kicks of VMs.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use event_manager::{
    EventManager, EventOps, Events, MutEventSubscriber, SubscriberId, SubscriberOps,
};
use turnstile_accounting::{AccountId, TenantId};
use turnstile_vmm::wire::{
    Frame, FrameReader, FrameWriter, Read, ToDaemon, ToVmm, WireError, peer_uid,
};
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::eventfd::EventFd;

use super::dma::Change;
use super::error::{HostError, chain};
use super::host::Host;
use super::kicks::{Kick, KickBudgets};
use super::mailbox::Letter;

/// VMs that are admitted at a time.
const STARTING_MAX: usize = 32;
/// TIMEOUT: pause after a failed accept (no descriptors left, for example). Connecting peers wait
/// no longer than this.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);
/// Interval of the search for connections without a first frame, while there are any.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Minimum time between two log lines about something that clients can cause at will.
const TELL_EVERY: Duration = Duration::from_secs(60);
/// Frames taken from one connection before the others have their turn.
const FRAMES_PER_TURN: usize = 32;

const LISTENER: u32 = 0;
const WAKE: u32 = 1;
const FIRST_SESSION: u32 = 2;

/// What connections may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Connections at a time, those without a Hello included.
    sessions: usize,
    /// Those of one user that is neither root nor the daemon's own.
    of_one: usize,
    /// Those of all such users; the remaining places are for root's VMMs.
    of_others: usize,
    /// VMs that are admitted at a time.
    starting: usize,
    /// TIMEOUT: a VMM or launcher sends its first frame as soon as it has connected.
    greeting: Duration,
}

impl Bounds {
    /// For a host of `tenants_max` tenants: each has a connection and all may be one user's, with
    /// as many places again for short connections.
    pub(super) fn of(tenants_max: usize) -> Self {
        let sessions = (4 * tenants_max).max(1_024);
        Self {
            sessions,
            of_one: sessions / 2,
            of_others: sessions / 4 * 3,
            starting: STARTING_MAX,
            greeting: Duration::from_secs(10),
        }
    }

    /// Whether there is a place for a user beside these.
    fn place(&self, uid: u32, own: u32, others: impl Iterator<Item = u32>) -> bool {
        let trusted = |uid: u32| uid == 0 || uid == own;
        let (mut all, mut of_one, mut of_others) = (0, 0, 0);
        for other in others {
            all += 1;
            of_one += usize::from(other == uid);
            of_others += usize::from(!trusted(other));
        }
        all < self.sessions && (trusted(uid) || of_one < self.of_one && of_others < self.of_others)
    }
}

/// The loop, ready to run.
pub(super) struct ControlLoop {
    manager: EventManager<Control>,
    control: SubscriberId,
    wake: EventFd,
    stop: Arc<AtomicBool>,
}

impl ControlLoop {
    pub(super) fn new(
        listener: UnixListener,
        wake: EventFd,
        host: Arc<Host>,
        stop: Arc<AtomicBool>,
        bounds: Bounds,
    ) -> Result<Self, ControlError> {
        let mut manager = EventManager::new()?;
        let sessions = BTreeMap::new();
        let (admitted, admissions) = channel();
        let rung = wake.try_clone().map_err(ControlError::Wake)?;
        let control = manager.add_subscriber(Control {
            listener,
            wake,
            host,
            bounds,
            own_uid: rustix::process::geteuid().as_raw(),
            sessions,
            next: 0,
            starting: 0,
            admitted,
            admissions,
            accept_again: None,
            look: None,
            kicks: KickBudgets::default(),
            unmute: None,
            told_full: None,
            told_short: None,
            told_silent: None,
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

/// One connection.
struct Session {
    stream: UnixStream,
    /// User id of the peer.
    uid: u32,
    /// When it was accepted.
    since: Instant,
    reader: FrameReader,
    /// What it is, once its first frame was accepted.
    role: Option<Role>,
}

/// What a connection's tenant is.
enum Role {
    /// A VM during admission, on another thread. Nothing is read from the VMM meanwhile.
    Starting,
    Vm {
        tenant: TenantId,
        kick: Kick,
    },
    Program {
        tenant: TenantId,
        /// Process id in the launcher's namespace -> on this host.
        processes: BTreeMap<u32, u32>,
    },
}

impl Role {
    const fn tenant(&self) -> Option<TenantId> {
        match self {
            Self::Starting => None,
            Self::Vm { tenant, .. } | Self::Program { tenant, .. } => Some(*tenant),
        }
    }
}

/// Why the daemon ends a connection.
#[derive(Debug, thiserror::Error)]
enum SessionError {
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error(
        "it said something else before its greeting, greeted twice, or said what the other kind of tenant says"
    )]
    OutOfOrder,
    #[error("the launcher sent too many changes at once")]
    TooManyChanges,
    #[error("the VMM sent a mailbox request before the last one was answered")]
    MailboxBusy,
    #[error("the VMM changed the VM's memory before the last change was answered")]
    MemoryBusy,
    #[error("{0} VMs are being taken in already; try again in a second")]
    TooManyStarting(usize),
    #[error("it did not identify itself in time")]
    Silent,
    /// The kernel drops descriptors that exceed a limit, and reports only that some are missing.
    #[error(
        "it sent more descriptors than are permitted, or the daemon may not open so many more files (ulimit -n, LimitNOFILE)"
    )]
    Descriptors,
    /// Already reported to the peer where it was found.
    #[error("{0}")]
    Refused(String),
}

/// A VM was admitted or refused.
type Admission = (u32, Result<(TenantId, AccountId, File), HostError>);

struct Control {
    listener: UnixListener,
    wake: EventFd,
    host: Arc<Host>,
    bounds: Bounds,
    own_uid: u32,
    /// By number. The event data of a socket is FIRST_SESSION + 2 x number, that of its kick one
    /// more.
    sessions: BTreeMap<u32, Session>,
    next: u32,
    /// VMs that are being admitted, and the channel of their threads' results.
    starting: usize,
    admitted: Sender<Admission>,
    admissions: Receiver<Admission>,
    /// When the listener is watched again, if it is not now.
    accept_again: Option<Instant>,
    /// When connections without a first frame are next searched for.
    look: Option<Instant>,
    /// What the kicks of each account may cost.
    kicks: KickBudgets,
    /// When the first muted kick is watched again.
    unmute: Option<Instant>,
    /// Latest log lines: no place for a connection, no descriptor from the kernel, a silent
    /// connection.
    told_full: Option<Instant>,
    told_short: Option<Instant>,
    told_silent: Option<Instant>,
}

impl MutEventSubscriber for Control {
    fn init(&mut self, ops: &mut EventOps) {
        let listener = Events::with_data(&self.listener, LISTENER, EventSet::IN);
        let wake = Events::with_data(&self.wake, WAKE, EventSet::IN);
        if self.listener.set_nonblocking(true).is_err()
            || ops.add(listener).is_err()
            || ops.add(wake).is_err()
        {
            log::error!("Watching the daemon's socket failed; no VM can connect");
        }
    }

    fn process(&mut self, events: Events, ops: &mut EventOps) {
        match events.data() {
            LISTENER => self.accept(ops),
            WAKE => {
                let _ = self.wake.read();
                while let Ok((number, admission)) = self.admissions.try_recv() {
                    self.starting -= 1;
                    self.admitted(number, admission, ops);
                }
                self.tick(ops);
            }
            data => {
                let number = (data - FIRST_SESSION) / 2;
                if (data - FIRST_SESSION).is_multiple_of(2) {
                    self.hear(number, ops);
                } else {
                    self.kicked(number, ops);
                }
            }
        }
    }
}

impl Control {
    /// When the next timed action is due.
    fn due(&self) -> Option<Instant> {
        let due = [self.accept_again, self.look, self.unmute];
        due.into_iter().flatten().min()
    }

    /// Does what is due.
    fn tick(&mut self, ops: &mut EventOps) {
        let now = Instant::now();
        if self.accept_again.is_some_and(|at| at <= now) {
            self.accept_again = None;
            let listener = Events::with_data(&self.listener, LISTENER, EventSet::IN);
            if ops.add(listener).is_err() {
                self.accept_again = Some(now + ACCEPT_AGAIN);
            }
        }
        if self.look.is_some_and(|at| at <= now) {
            self.end_silent(now, ops);
        }
        if self.unmute.is_some_and(|at| at <= now) {
            self.unmute(now, ops);
        }
    }

    /// Ends connections that sent no first frame in time: they take places.
    fn end_silent(&mut self, now: Instant, ops: &mut EventOps) {
        let unheard = self.sessions.iter().filter(|(_, one)| one.role.is_none());
        let (silent, waiting): (Vec<_>, Vec<_>) = unheard
            .map(|(number, one)| (*number, now.saturating_duration_since(one.since)))
            .partition(|(_, passed)| *passed >= self.bounds.greeting);
        self.look = (!waiting.is_empty()).then(|| now + LOOK_EVERY.min(self.bounds.greeting));
        for (number, _) in &silent {
            self.end(*number, ops, Some(&SessionError::Silent));
        }
        if !silent.is_empty() && is_time(&mut self.told_silent, now) {
            let count = silent.len();
            log::warn!("{count} connections were ended: {}", SessionError::Silent);
        }
    }

    /// The kernel gives no connection. The listener would be ready without end, so it is not
    /// watched for a while.
    fn pause(&mut self, error: &io::Error, ops: &mut EventOps) {
        let now = Instant::now();
        if is_time(&mut self.told_short, now) {
            log::error!(
                "New connections have to wait: {error} (too few open files? ulimit -n, LimitNOFILE)"
            );
        }
        if ops
            .remove(Events::empty_raw(self.listener.as_raw_fd()))
            .is_ok()
        {
            self.accept_again = Some(now + ACCEPT_AGAIN);
        }
    }

    fn accept(&mut self, ops: &mut EventOps) {
        loop {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return,
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => continue,
                    _ => return self.pause(&error, ops),
                },
            };
            let now = Instant::now();
            let Ok(uid) = peer_uid(&stream) else {
                continue;
            };
            let others = self.sessions.values().map(|session| session.uid);
            if !self.bounds.place(uid, self.own_uid, others) {
                if is_time(&mut self.told_full, now) {
                    let count = self.sessions.len();
                    log::warn!("User {uid} finds no place beside {count} connections");
                }
                continue; // closed by being dropped
            }
            let number = self.next;
            // Numbers stay below 2^30, so that the event data does not overflow. By then old ones
            // have ended.
            self.next = (self.next + 1) % (1 << 30);
            let watched = Events::with_data(&stream, FIRST_SESSION + 2 * number, EventSet::IN);
            if stream.set_nonblocking(true).is_err()
                || self.sessions.contains_key(&number)
                || ops.add(watched).is_err()
            {
                continue;
            }
            self.look
                .get_or_insert(now + LOOK_EVERY.min(self.bounds.greeting));
            let session = Session {
                stream,
                uid,
                since: now,
                reader: FrameReader::new(),
                role: None,
            };
            self.sessions.insert(number, session);
        }
    }

    fn kicked(&mut self, number: u32, ops: &mut EventOps) {
        let session = self.sessions.get_mut(&number);
        if let Some(Role::Vm { tenant, kick }) = session.and_then(|one| one.role.as_mut()) {
            self.host.kicked(*tenant);
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

    /// Reads frames of a connection; ends it at its end or at the first error.
    fn hear(&mut self, number: u32, ops: &mut EventOps) {
        for _ in 0..FRAMES_PER_TURN {
            let Some(session) = self.sessions.get_mut(&number) else {
                return;
            };
            if matches!(session.role, Some(Role::Starting)) {
                return;
            }
            let heard = match session.reader.read::<ToDaemon>(&session.stream) {
                Ok(Read::WouldBlock) => return,
                Ok(Read::End) => {
                    self.end(number, ops, None);
                    return;
                }
                Ok(Read::Frame(frame)) => self.serve(number, frame, ops),
                Err(WireError::TooManyFds) => Err(SessionError::Descriptors),
                Err(error) => Err(error.into()),
            };
            if let Err(error) = heard {
                self.end(number, ops, Some(&error));
                return;
            }
        }
    }

    fn serve(
        &mut self,
        number: u32,
        frame: Frame<ToDaemon>,
        ops: &mut EventOps,
    ) -> Result<(), SessionError> {
        // PANIC: none; `hear` holds the session
        let Some(session) = self.sessions.get_mut(&number) else {
            return Ok(());
        };
        let Frame { message, fds } = frame;
        match (message, &mut session.role) {
            (hello @ ToDaemon::Hello { .. }, None) => self.start(number, hello, fds, ops),
            (program @ ToDaemon::Program { .. }, None) => {
                let stream = session.stream.try_clone().map_err(WireError::Socket)?;
                let tenant = self
                    .host
                    .admit_program(program, stream, session.uid)
                    .map_err(|error| SessionError::Refused(chain(&error)))?;
                let processes = BTreeMap::new();
                session.role = Some(Role::Program { tenant, processes });
                Ok(())
            }
            (ToDaemon::Process { pid }, Some(Role::Program { tenant, processes })) => {
                let [pidfd] = fds.try_into().map_err(|fds: Vec<_>| WireError::WrongFds {
                    got: fds.len(),
                    expected: 1,
                })?;
                // One of that name that is known is a later one.
                if let Some(before) = processes.remove(&pid) {
                    self.host.program_exited(*tenant, before);
                }
                if let Some(known) = self.host.program_process(*tenant, pid, &pidfd) {
                    // Two names for one process would make a list without end.
                    if processes.values().any(|other| *other == known) {
                        return Err(SessionError::OutOfOrder);
                    }
                    processes.insert(pid, known);
                }
                Ok(())
            }
            (ToDaemon::Objects { pid, changes }, Some(Role::Program { tenant, processes })) => {
                let taken = processes
                    .get(&pid)
                    .is_none_or(|known| self.host.program_objects(*tenant, *known, changes));
                taken.then_some(()).ok_or(SessionError::TooManyChanges)
            }
            (ToDaemon::Memory {}, Some(Role::Program { tenant, .. })) => {
                let [connection] = fds.try_into().map_err(|fds: Vec<_>| WireError::WrongFds {
                    got: fds.len(),
                    expected: 1,
                })?;
                self.host.program_memory(*tenant, connection);
                Ok(())
            }
            (ToDaemon::Exited { pid }, Some(Role::Program { tenant, processes })) => {
                if let Some(known) = processes.remove(&pid) {
                    self.host.program_exited(*tenant, known);
                }
                Ok(())
            }
            (ToDaemon::Mailbox { id, op, args }, Some(Role::Vm { tenant, .. })) => {
                if self.host.mailbox(*tenant, Letter { id, op, args }) {
                    Ok(())
                } else {
                    Err(SessionError::MailboxBusy)
                }
            }
            (ToDaemon::MapMemory { id, region }, Some(Role::Vm { tenant, .. })) => {
                let [fd] = fds.try_into().map_err(|fds: Vec<_>| WireError::WrongFds {
                    got: fds.len(),
                    expected: 1,
                })?;
                let tenant = *tenant;
                self.change_memory(tenant, id, Change::Map { region, fd })
            }
            (ToDaemon::UnmapMemory { id, gpa, bytes }, Some(Role::Vm { tenant, .. })) => {
                let tenant = *tenant;
                self.change_memory(tenant, id, Change::Unmap { gpa, bytes })
            }
            (
                ToDaemon::GateDone {
                    channel,
                    seq,
                    trapped,
                },
                Some(Role::Vm { tenant, .. }),
            ) => {
                self.host.gate_done(*tenant, channel, seq, trapped);
                Ok(())
            }
            _ => Err(SessionError::OutOfOrder),
        }
    }

    fn change_memory(&self, tenant: TenantId, id: u64, change: Change) -> Result<(), SessionError> {
        let taken = self.host.change_memory(tenant, id, change);
        taken.then_some(()).ok_or(SessionError::MemoryBusy)
    }

    /// Admits a VM on another thread: a GPU may take a second for it, and other VMs' doorbells must
    /// not wait.
    fn start(
        &mut self,
        number: u32,
        hello: ToDaemon,
        fds: Vec<OwnedFd>,
        ops: &mut EventOps,
    ) -> Result<(), SessionError> {
        if self.starting >= self.bounds.starting {
            return Err(SessionError::TooManyStarting(self.bounds.starting));
        }
        // PANIC: none; `hear` holds the session
        let Some(session) = self.sessions.get_mut(&number) else {
            return Ok(());
        };
        let stream = session.stream.try_clone().map_err(WireError::Socket)?;
        let wake = self.wake.try_clone().map_err(WireError::Socket)?;
        let (host, admitted, uid) = (self.host.clone(), self.admitted.clone(), session.uid);
        thread::Builder::new()
            .name("turnstile-admit".into())
            .spawn(move || {
                let admission = host.admit(hello, fds, stream, uid);
                // The loop is gone only with the daemon.
                if admitted.send((number, admission)).is_ok() {
                    let _ = wake.write(1);
                }
            })
            .map_err(WireError::Socket)?;
        self.starting += 1;
        session.role = Some(Role::Starting);
        let _ = ops.remove(Events::empty_raw(session.stream.as_raw_fd()));
        Ok(())
    }

    /// A VM was admitted or refused.
    fn admitted(
        &mut self,
        number: u32,
        admission: Result<(TenantId, AccountId, File), HostError>,
        ops: &mut EventOps,
    ) {
        let (tenant, account, kick) = match admission {
            Ok(admitted) => admitted,
            Err(error) => {
                let error = SessionError::Refused(chain(&error));
                self.end(number, ops, Some(&error));
                return;
            }
        };
        let Some(session) = self.sessions.get_mut(&number) else {
            self.host.leave(tenant);
            return;
        };
        let data = FIRST_SESSION + 2 * number;
        let kick = Kick::new(kick, data + 1, account);
        let watched = ops
            .add(Events::with_data(&session.stream, data, EventSet::IN))
            .and_then(|()| kick.watch(ops));
        session.role = Some(Role::Vm { tenant, kick });
        if watched.is_err() {
            let error = SessionError::Refused("watching the VM's kick failed".into());
            self.end(number, ops, Some(&error));
        }
    }

    fn end(&mut self, number: u32, ops: &mut EventOps, error: Option<&SessionError>) {
        let Some(session) = self.sessions.remove(&number) else {
            return;
        };
        // One line per connection, however it ends. The connections that the host accepts bound
        // them.
        match (session.role.as_ref().and_then(Role::tenant), error) {
            (Some(tenant), Some(error)) => log::warn!("{tenant} is ended: {error}"),
            (Some(tenant), None) => log::info!("{tenant} has left"),
            (None, Some(SessionError::Silent) | None) => {}
            (None, Some(error)) => log::warn!("A VMM or launcher was refused: {error}"),
        }
        if let (None, Some(error)) = (&session.role, error) {
            tell(&session.stream, error);
        }
        let _ = ops.remove(Events::empty_raw(session.stream.as_raw_fd()));
        let Some(role) = session.role else { return };
        if let Role::Vm { kick, .. } = &role {
            kick.forget(ops);
        }
        if let Some(tenant) = role.tenant() {
            self.host.leave(tenant);
        }
    }
}

/// Sends a refused peer the reason, if the socket takes it.
fn tell(stream: &UnixStream, error: &SessionError) {
    // It was reported where it was found.
    if matches!(error, SessionError::Refused(_)) {
        return;
    }
    let (mut writer, text) = (FrameWriter::new(), chain(error));
    if writer.push(&ToVmm::Refused { text }, Vec::new()).is_ok() {
        let _ = writer.flush(stream);
    }
}

/// Whether the log interval has passed; if so, it starts again.
fn is_time(told: &mut Option<Instant>, now: Instant) -> bool {
    let due = told.is_none_or(|at| now.saturating_duration_since(at) >= TELL_EVERY);
    if due {
        *told = Some(now);
    }
    due
}

#[cfg(test)]
#[path = "control_tests.rs"]
mod tests;
