//! The control loop: one thread on epoll for the listening socket, every VMM's and launcher's socket and
//! every VM's kick.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use event_manager::{EventManager, EventOps, Events, MutEventSubscriber, SubscriberOps};
use turnstile_accounting::TenantId;
use turnstile_vmm::wire::{Frame, FrameReader, Read, ToDaemon, WireError};
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::eventfd::EventFd;

use super::dma::Change;
use super::error::{HostError, chain};
use super::host::Host;
use super::mailbox::Letter;

/// Connections at a time, those that have not said Hello included.
const SESSIONS_MAX: usize = 1024;
/// VMs that are taken in at a time.
const STARTING_MAX: usize = 32;
/// Frames taken from one connection before the others have their turn.
const FRAMES_PER_TURN: usize = 32;

const LISTENER: u32 = 0;
const WAKE: u32 = 1;
const FIRST_SESSION: u32 = 2;

/// The loop, ready to run.
pub(super) struct ControlLoop {
    manager: EventManager<Box<dyn MutEventSubscriber + Send>>,
    stop: Arc<AtomicBool>,
}

impl ControlLoop {
    pub(super) fn new(
        listener: UnixListener,
        wake: EventFd,
        host: Arc<Host>,
        stop: Arc<AtomicBool>,
    ) -> Result<Self, event_manager::Error> {
        let mut manager: EventManager<Box<dyn MutEventSubscriber + Send>> = EventManager::new()?;
        let sessions = BTreeMap::new();
        let (admitted, admissions) = channel();
        manager.add_subscriber(Box::new(Control {
            listener,
            wake,
            host,
            sessions,
            next: 0,
            starting: 0,
            admitted,
            admissions,
        }));
        Ok(Self { manager, stop })
    }

    pub(super) fn run(mut self) {
        while !self.stop.load(Ordering::Acquire) {
            if let Err(error) = self.manager.run() {
                log::error!("The event loop failed: {error}");
                return;
            }
        }
    }
}

/// One connection.
struct Session {
    stream: UnixStream,
    reader: FrameReader,
    /// What it is, once its first frame was accepted.
    role: Option<Role>,
}

/// What a connection's tenant is.
enum Role {
    /// A VM whose context is being made, on a thread of its own; until then nothing is read from the VMM.
    Starting,
    Vm {
        tenant: TenantId,
        kick: File,
    },
    Program {
        tenant: TenantId,
        /// Process, as the launcher names it -> as this host does.
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

/// Why a connection is ended by us.
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
    #[error("{STARTING_MAX} VMs are being taken in already; try again in a second")]
    TooManyStarting,
    #[error("{0}")]
    Refused(String),
}

/// A VM was taken in, or refused.
type Admission = (u32, Result<(TenantId, File), HostError>);

/// Every write to a kick, without reading it: its VMM has it open as well and could have a read wait, with the loop and all others behind it. So it is
/// never taken back, which 2^64 kicks would be the first to notice.
fn kick_events(kick: &File, data: u32) -> Events {
    Events::with_data(kick, data, EventSet::IN | EventSet::EDGE_TRIGGERED)
}

struct Control {
    listener: UnixListener,
    wake: EventFd,
    host: Arc<Host>,
    /// By number; the event data of its socket is FIRST_SESSION + 2 x number, that of its kick one more.
    sessions: BTreeMap<u32, Session>,
    next: u32,
    /// VMs that are being taken in, and where their threads say how it went.
    starting: usize,
    admitted: Sender<Admission>,
    admissions: Receiver<Admission>,
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
            }
            data => {
                let number = (data - FIRST_SESSION) / 2;
                if (data - FIRST_SESSION).is_multiple_of(2) {
                    self.hear(number, ops);
                } else {
                    self.kicked(number);
                }
            }
        }
    }
}

impl Control {
    fn accept(&mut self, ops: &mut EventOps) {
        while let Ok((stream, _)) = self.listener.accept() {
            if self.sessions.len() >= SESSIONS_MAX {
                continue; // closed by being dropped
            }
            let number = self.next;
            // Numbers stay below 2^30, so that the event data does not overflow; by then old ones are long gone.
            self.next = (self.next + 1) % (1 << 30);
            let watched = Events::with_data(&stream, FIRST_SESSION + 2 * number, EventSet::IN);
            if stream.set_nonblocking(true).is_err()
                || self.sessions.contains_key(&number)
                || ops.add(watched).is_err()
            {
                continue;
            }
            let session = Session {
                stream,
                reader: FrameReader::new(),
                role: None,
            };
            self.sessions.insert(number, session);
        }
    }

    fn kicked(&mut self, number: u32) {
        if let Some(Session {
            role: Some(Role::Vm { tenant, .. }),
            ..
        }) = self.sessions.get(&number)
        {
            self.host.kicked(*tenant);
        }
    }

    /// Reads what a connection has to say; ends it at its end or at the first error.
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
                    .admit_program(program, stream)
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

    /// Takes a VM in on a thread of its own: a GPU may take a second over it, and the other VMs' doorbells wait for nobody.
    fn start(
        &mut self,
        number: u32,
        hello: ToDaemon,
        fds: Vec<OwnedFd>,
        ops: &mut EventOps,
    ) -> Result<(), SessionError> {
        if self.starting >= STARTING_MAX {
            return Err(SessionError::TooManyStarting);
        }
        // PANIC: none; `hear` holds the session
        let Some(session) = self.sessions.get_mut(&number) else {
            return Ok(());
        };
        let stream = session.stream.try_clone().map_err(WireError::Socket)?;
        let wake = self.wake.try_clone().map_err(WireError::Socket)?;
        let (host, admitted) = (self.host.clone(), self.admitted.clone());
        thread::Builder::new()
            .name("turnstile-admit".into())
            .spawn(move || {
                let admission = host.admit(hello, fds, stream);
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

    /// A VM was taken in, or refused.
    fn admitted(
        &mut self,
        number: u32,
        admission: Result<(TenantId, File), HostError>,
        ops: &mut EventOps,
    ) {
        let (tenant, kick) = match admission {
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
        let watched = ops
            .add(Events::with_data(&session.stream, data, EventSet::IN))
            .and_then(|()| ops.add(kick_events(&kick, data + 1)));
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
        // One line per connection, however it ends: bounded by the connections that the host accepts.
        match (session.role.as_ref().and_then(Role::tenant), error) {
            (Some(tenant), Some(error)) => log::warn!("{tenant} is ended: {error}"),
            (Some(tenant), None) => log::info!("{tenant} has left"),
            (None, Some(error)) => log::warn!("A VMM or launcher was refused: {error}"),
            (None, None) => {}
        }
        let _ = ops.remove(Events::empty_raw(session.stream.as_raw_fd()));
        let Some(role) = session.role else { return };
        if let Role::Vm { kick, .. } = &role {
            let _ = ops.remove(Events::empty_raw(kick.as_raw_fd()));
        }
        if let Some(tenant) = role.tenant() {
            self.host.leave(tenant);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};

    struct Counts {
        kick: File,
        kicked: Arc<std::sync::atomic::AtomicU32>,
    }

    impl MutEventSubscriber for Counts {
        fn init(&mut self, ops: &mut EventOps) {
            ops.add(kick_events(&self.kick, 7)).unwrap();
        }

        fn process(&mut self, events: Events, _: &mut EventOps) {
            assert_eq!(events.data(), 7);
            self.kicked.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn each_kick_is_heard_once_and_none_is_read() {
        // As its VMM may have it: whoever reads or writes waits.
        let kick = File::from(eventfd(0, EventfdFlags::CLOEXEC).unwrap());
        let vmm = kick.try_clone().unwrap();
        let kicked = Arc::new(std::sync::atomic::AtomicU32::new(0));
        let mut manager: EventManager<Counts> = EventManager::new().unwrap();
        let counts = kicked.clone();
        manager.add_subscriber(Counts {
            kick,
            kicked: counts,
        });
        for number in 0..5 {
            manager.run_with_timeout(0).unwrap();
            assert_eq!(kicked.load(Ordering::Relaxed), number);
            rustix::io::write(&vmm, &1u64.to_ne_bytes()).unwrap();
            manager.run_with_timeout(10_000).unwrap();
            assert_eq!(kicked.load(Ordering::Relaxed), number + 1);
        }
        // The VMM takes them back itself: the next one is heard all the same.
        rustix::io::read(&vmm, &mut [0; 8]).unwrap();
        manager.run_with_timeout(0).unwrap();
        assert_eq!(kicked.load(Ordering::Relaxed), 5);
        rustix::io::write(&vmm, &1u64.to_ne_bytes()).unwrap();
        manager.run_with_timeout(10_000).unwrap();
        assert_eq!(kicked.load(Ordering::Relaxed), 6);
    }
}
