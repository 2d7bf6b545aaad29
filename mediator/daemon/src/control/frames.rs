//! Frames of VMMs and launchers: checks that each is permitted now, and hands it to the host.
//!
//! In goes a connection that has something to read; out go calls of the host, and of the admission
//! of a VM, which runs on a thread of its own. The control loop calls this.

use std::collections::BTreeMap;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::thread;

use event_manager::{EventOps, Events};
use turnstile_accounting::TenantId;
use turnstile_vmm::wire::{Frame, FrameWriter, Protocols, Read, ToDaemon, ToVmm, WireError};
use vmm_sys_util::epoll::EventSet;

use super::session::{Role, SessionError};
use super::{Control, Source, data_of};
use crate::error::{HostError, chain};
use crate::fleet::{Admission, Greeting, Waiter, programs};
use crate::host::Host;
use crate::host::dma::{self, Change};
use crate::host::mailbox::Letter;
use crate::kicks::Kick;
use crate::limits::{Held, Resource};
use turnstile_host::process;

/// Frames taken from one connection before the others have their turn.
const FRAMES_PER_TURN: usize = 32;

impl Control {
    /// Reads frames of a connection; ends it at its end or at the first error.
    pub(super) fn hear(&mut self, number: u32, ops: &mut EventOps) {
        for _ in 0..FRAMES_PER_TURN {
            let Some(session) = self.sessions.get_mut(&number) else {
                return;
            };
            if matches!(session.role, Some(Role::Starting)) {
                return;
            }
            let received = match session.reader.read::<ToDaemon>(&session.stream) {
                Ok(Read::WouldBlock) => return,
                Ok(Read::End) => {
                    self.end(number, ops, None);
                    return;
                }
                Ok(Read::Frame(frame)) => self.serve(number, frame, ops),
                Err(WireError::TooManyFds) => Err(SessionError::Descriptors),
                Err(error) => Err(error.into()),
            };
            if let Err(error) = received {
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
        if let (Some(chosen), Some(protocol)) = (session.protocol, message.protocol())
            && chosen != protocol
        {
            return Err(SessionError::OtherProtocol);
        }
        match (message, &mut session.role) {
            (ToDaemon::Offer(theirs), None) if session.protocol.is_none() => {
                let protocol = Protocols::SPOKEN.choose(theirs)?;
                session.protocol = Some(protocol);
                let mut writer = FrameWriter::new();
                writer.push(&ToVmm::Chosen { protocol }, Vec::new())?;
                // It is the first frame on its socket, which has room.
                let sent = writer.flush(&session.stream)?;
                sent.then_some(()).ok_or(WireError::Stalled.into())
            }
            (hello @ ToDaemon::Hello { .. }, None) => {
                self.start(number, Greeting { hello, fds }, ops)
            }
            (program @ ToDaemon::Program { .. }, None) if session.door.is_none() => {
                let admitted = programs::admit(&self.fleet, program, &session.stream, session.uid);
                let program = admitted.map_err(|error| SessionError::Refused(chain(&error)))?;
                session.role = Some(Role::Program {
                    program,
                    processes: BTreeMap::new(),
                });
                Ok(())
            }
            (ToDaemon::Owner {}, _) => {
                let [pidfd] = fds.try_into().map_err(|fds: Vec<_>| WireError::WrongFds {
                    got: fds.len(),
                    expected: 1,
                })?;
                process::of_pidfd(&pidfd).ok_or(SessionError::NoOwner)?;
                session.own(number, pidfd, ops).map_err(WireError::Socket)?;
                Ok(())
            }
            (ToDaemon::Process { pid }, Some(Role::Program { program, processes })) => {
                let [pidfd] = fds.try_into().map_err(|fds: Vec<_>| WireError::WrongFds {
                    got: fds.len(),
                    expected: 1,
                })?;
                // One of that name that is known is a later one.
                if let Some(before) = processes.remove(&pid) {
                    program.exited(before);
                }
                if let Some(known) = program.process(pid, &pidfd) {
                    // Two names for one process would make a list without end.
                    if processes.values().any(|other| *other == known) {
                        return Err(SessionError::OutOfOrder);
                    }
                    processes.insert(pid, known);
                }
                Ok(())
            }
            (ToDaemon::Objects { pid, changes }, Some(Role::Program { program, processes })) => {
                let taken = processes
                    .get(&pid)
                    .is_none_or(|known| program.objects(*known, changes));
                taken.then_some(()).ok_or(SessionError::TooManyChanges)
            }
            (ToDaemon::Memory {}, Some(Role::Program { program, .. })) => {
                let [connection] = fds.try_into().map_err(|fds: Vec<_>| WireError::WrongFds {
                    got: fds.len(),
                    expected: 1,
                })?;
                program.memory(connection);
                Ok(())
            }
            (ToDaemon::Exited { pid }, Some(Role::Program { program, processes })) => {
                if let Some(known) = processes.remove(&pid) {
                    program.exited(known);
                }
                Ok(())
            }
            (ToDaemon::Mailbox { id, op, args }, Some(Role::Vm { host, tenant, .. })) => {
                if host.mailbox(*tenant, Letter { id, op, args }) {
                    Ok(())
                } else {
                    Err(SessionError::MailboxBusy)
                }
            }
            (ToDaemon::MapMemory { id, region }, Some(Role::Vm { host, tenant, .. })) => {
                let [fd] = fds.try_into().map_err(|fds: Vec<_>| WireError::WrongFds {
                    got: fds.len(),
                    expected: 1,
                })?;
                change_memory(host, *tenant, id, Change::Map { region, fd })
            }
            (ToDaemon::UnmapMemory { id, gpa, bytes }, Some(Role::Vm { host, tenant, .. })) => {
                change_memory(host, *tenant, id, Change::Unmap { gpa, bytes })
            }
            (
                ToDaemon::GateDone {
                    channel,
                    seq,
                    trapped,
                },
                Some(Role::Vm { host, tenant, .. }),
            ) => {
                host.gate_done(*tenant, channel, seq, trapped);
                Ok(())
            }
            _ => Err(SessionError::OutOfOrder),
        }
    }

    /// Admits a VM on another thread: a GPU may take a second for it, and other VMs' doorbells must
    /// not wait.
    fn start(
        &mut self,
        number: u32,
        greeting: Greeting,
        ops: &mut EventOps,
    ) -> Result<(), SessionError> {
        // PANIC: none; `hear` holds the session
        let Some(session) = self.sessions.get(&number) else {
            return Ok(());
        };
        let limits = self.fleet.limits();
        let place = limits.take(Resource::Admissions, &session.holder, 1)?;
        self.begin(number, greeting, place, ops)
    }

    fn begin(
        &mut self,
        number: u32,
        greeting: Greeting,
        place: Held,
        ops: &mut EventOps,
    ) -> Result<(), SessionError> {
        // PANIC: none; the caller holds the session
        let Some(session) = self.sessions.get_mut(&number) else {
            return Ok(());
        };
        let stream = session.stream.try_clone().map_err(WireError::Socket)?;
        let wake = self.wake.try_clone().map_err(WireError::Socket)?;
        let (fleet, admitted) = (self.fleet.clone(), self.admitted.clone());
        let (uid, door) = (session.uid, session.door);
        let waiter = Waiter {
            session: number,
            account: session.holder.account.clone(),
            // Without an offer it speaks a version that has no message for it.
            can_wait: session.protocol.is_some(),
        };
        thread::Builder::new()
            .name("turnstile-admit".into())
            .spawn(move || {
                let admission = fleet.admit(greeting, stream, uid, door, &waiter);
                drop(place);
                // The loop is gone only with the daemon.
                if admitted.send((number, admission)).is_ok() {
                    let _ = wake.write(1);
                }
            })
            .map_err(WireError::Socket)?;
        session.role = Some(Role::Starting);
        let _ = ops.remove(Events::empty_raw(session.stream.as_raw_fd()));
        Ok(())
    }

    /// A VM was admitted or refused.
    pub(super) fn admitted(
        &mut self,
        number: u32,
        admission: Result<Admission, HostError>,
        ops: &mut EventOps,
    ) {
        let taken = match admission {
            Ok(Admission::Taken(taken)) => taken,
            Ok(Admission::Waits(greeting)) => return self.waits(number, greeting, ops),
            Err(error) => {
                let error = SessionError::Refused(chain(&error));
                self.end(number, ops, Some(&error));
                return;
            }
        };
        let Some(session) = self.sessions.get_mut(&number) else {
            self.fleet.leave(&[taken.host], taken.tenant);
            return;
        };
        let data = data_of(number, Source::Socket);
        let payer = (taken.gpu, taken.account);
        let kick = Kick::new(taken.kick, data_of(number, Source::Kick), payer);
        let watched = ops
            .add(Events::with_data(&session.stream, data, EventSet::IN))
            .and_then(|()| kick.watch(ops));
        session.role = Some(Role::Vm {
            host: taken.host,
            tenant: taken.tenant,
            kick,
        });
        if watched.is_err() {
            let error = SessionError::Refused("watching the VM's kick failed".into());
            self.end(number, ops, Some(&error));
        }
    }
}

impl Control {
    /// A VM waits in the queue from now on: its VMM is notified, and its connection watched.
    fn waits(&mut self, number: u32, greeting: Greeting, ops: &mut EventOps) {
        let Some(session) = self.sessions.get_mut(&number) else {
            self.fleet.leave_queue(number);
            return;
        };
        session.role = Some(Role::Waiting(greeting));
        let data = data_of(number, Source::Socket);
        let watched = ops.add(Events::with_data(&session.stream, data, EventSet::IN));
        let mut writer = FrameWriter::new();
        // The socket has room: its last frame was answered.
        let sent = writer
            .push(&ToVmm::Waiting {}, Vec::new())
            .and_then(|()| writer.flush(&session.stream));
        if watched.is_err() || !matches!(sent, Ok(true)) {
            let error = SessionError::Refused("its VMM cannot be notified that it waits".into());
            self.end(number, ops, Some(&error));
        }
    }

    /// Admits VMs of the queue that have a place.
    pub(super) fn admit_placed(&mut self, ops: &mut EventOps) {
        for number in self.fleet.placed_waiters() {
            // One that is placed while it is being queued is admitted by the next wake.
            let Some(session) = self.sessions.get_mut(&number) else {
                continue;
            };
            if !matches!(session.role, Some(Role::Waiting(_))) {
                continue;
            }
            let limits = self.fleet.limits();
            let Ok(place) = limits.take(Resource::Admissions, &session.holder, 1) else {
                // The end of another admission wakes the loop.
                continue;
            };
            let Some(Role::Waiting(greeting)) = session.role.take() else {
                continue;
            };
            if let Err(error) = self.begin(number, greeting, place, ops) {
                self.fleet.leave_queue(number);
                self.end(number, ops, Some(&error));
            }
        }
    }
}

fn change_memory(
    host: &Arc<Host>,
    tenant: TenantId,
    id: u64,
    change: Change,
) -> Result<(), SessionError> {
    let taken = dma::change_memory(host, tenant, id, change);
    taken.then_some(()).ok_or(SessionError::MemoryBusy)
}
