//! Programs as tenants: launchers' messages, checked against the kernel's process information.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use turnstile_accounting::TenantId;
use turnstile_vmm::wire::{CHANGES_MAX, FrameWriter, ObjectChange, ToDaemon, ToVmm, peer_pid};

use super::error::HostError;
use super::host::described::checked;
use super::host::peer::{Kind, Peer, Tenant};
use super::host::settings::Brought;
use super::host::{Host, State, refuse};
use super::registry::ProcessError;
use crate::accounts::Claim;
use crate::limits::{Holder, Resource, is_trusted};
use turnstile_gpu::ProgramEvent;
use turnstile_host::process::{self, Identity};

impl Host {
    /// Takes a program in: the tenant is what descends from the process at the other end, a process
    /// of `uid`.
    pub(super) fn admit_program(
        &self,
        program: ToDaemon,
        stream: UnixStream,
        uid: u32,
    ) -> Result<TenantId, HostError> {
        let mut writer = FrameWriter::new();
        let taken = self.take_program(program, &stream, uid, &mut writer);
        if let Err(error) = &taken {
            refuse(error, &stream);
        }
        taken
    }

    fn take_program(
        &self,
        program: ToDaemon,
        stream: &UnixStream,
        uid: u32,
        writer: &mut FrameWriter,
    ) -> Result<TenantId, HostError> {
        let ToDaemon::Program {
            protocol,
            name,
            weight,
            memory_max_bytes,
            movable,
            memory_min_bytes,
            memory_high_bytes,
            metadata,
        } = program
        else {
            return Err(HostError::NoHello);
        };
        let weight = self.permitted(protocol, &name, weight)?;
        let metadata = checked(metadata)?;
        let pid = peer_pid(stream).map_err(HostError::Peer)?;
        let root = Identity::of(pid).ok_or_else(|| HostError::Peer(gone()))?;
        let stream = stream.try_clone().map_err(HostError::Host)?;

        let mut state = self.lock();
        self.room(&state, &name)?;
        let outer = process::nearest(pid, process::parent, |pid| {
            let is_root = |root: Identity| root.pid == pid && root.is_there();
            let mut tenants = state.tenants.values();
            tenants.find(|tenant| tenant.root().is_some_and(is_root))
        });
        if let Some(outer) = outer {
            let name = outer.name.clone();
            return Err(HostError::Nested { name });
        }
        let claim = Claim {
            weight,
            default_weight: self.default_weight(),
            memory_bytes: memory_max_bytes,
        };
        let granted = state.join(&name, uid, claim)?;
        let memory_max_bytes = granted.memory_bytes;
        let mut seat = Seat::of(&mut state, &name);
        let state = &mut *seat.state;
        let tenant = self.number();
        let brought = Brought {
            weight: granted.weight,
            memory_bytes: match &state.memory {
                Some(memory) if movable => {
                    let most = memory.unreserved_bytes();
                    memory_max_bytes
                        .map_or(most, |max| max.min(self.gpu.capabilities().memory_bytes))
                }
                _ => 0,
            },
            min_bytes: memory_min_bytes.unwrap_or(0),
            high_bytes: memory_high_bytes,
        };
        let settings = state.set_of(&name);
        let in_force = settings.params(brought).weight;
        let entitlement = settings.memory.entitlement(brought, in_force);
        let mut max_bytes = memory_max_bytes;
        if let Some(memory) = state.memory.as_ref().filter(|_| movable) {
            memory.check(tenant, entitlement)?;
            max_bytes = Some(entitlement.max_bytes);
        }
        let started = ProgramEvent::Started {
            root: pid,
            memory_max_bytes: max_bytes,
        };
        self.gpu().program(tenant, started)?;
        let admitted = ToVmm::Admitted { tenant: tenant.0 };
        let answered = writer
            .push(&admitted, Vec::new())
            .and_then(|()| writer.flush(&stream));
        if let Err(error) = answered {
            self.gpu().destroy_context(tenant);
            return Err(error.into());
        }
        let writer = std::mem::take(writer);
        let peer = Peer { stream, writer };
        state.described.connect(tenant, metadata);
        state.connects(self.journal(), tenant, &name);
        let entry = Tenant {
            account: state.accounts.of(&name),
            name: name.clone(),
            peer,
            kind: Kind::Program(root),
            brought,
            holder: Holder {
                account: granted.account,
                tenant: Some(tenant),
                trusted: is_trusted(uid),
            },
        };
        state.insert(&*self.gpu, self.limits(), tenant, entry);
        seat.taken = true;
        Ok(tenant)
    }

    /// A launcher reports a process of its program. Returns the process's number on this host.
    pub(super) fn program_process(
        &self,
        tenant: TenantId,
        pid: u32,
        pidfd: &OwnedFd,
    ) -> Option<u32> {
        let taken = self.take_process(tenant, pidfd);
        if let Err(error) = &taken {
            let mut state = self.lock();
            if let Some(entry) = state.tenants.get_mut(&tenant) {
                let text = error.to_string();
                entry.peer.send(&ToVmm::ProcessRefused { pid, text });
            }
        }
        taken.ok()
    }

    fn take_process(&self, tenant: TenantId, pidfd: &OwnedFd) -> Result<u32, ProcessError> {
        let known = || process::of_pidfd(pidfd);
        let pid = known().ok_or(ProcessError::NoProcess)?;
        let identity = Identity::of(pid).ok_or(ProcessError::Stranger)?;
        let root = self.lock().tenants.get(&tenant).and_then(Tenant::root);
        let root = root.ok_or(ProcessError::Stranger)?;
        // The pid is read again: the process that had this number when its identity was read has it
        // still.
        if !identity.descends_from(root) || known() != Some(pid) {
            return Err(ProcessError::Stranger);
        }
        let mut state = self.lock();
        let entry = state.tenants.get(&tenant).ok_or(ProcessError::Stranger)?;
        let held = self.limits().take(Resource::Objects, &entry.holder, 1)?;
        state.registry.admit(tenant, identity, Some(held))?;
        Ok(pid)
    }

    /// A process of a program has memory that can move, and this connection.
    pub(super) fn program_memory(&self, tenant: TenantId, connection: OwnedFd) {
        let taken = self.take_memory(tenant, connection);
        let holder = self.lock().tenants.get(&tenant).map(|t| t.holder.clone());
        if let (Err(why), Some(holder)) = (taken, holder)
            && self
                .limits()
                .permits(Resource::LogLines, &holder, Instant::now())
        {
            log::warn!("Memory of a process of {tenant} does not move: {why}");
        }
    }

    fn take_memory(&self, tenant: TenantId, connection: OwnedFd) -> Result<(), String> {
        let peer = rustix::net::sockopt::socket_peercred(&connection);
        let peer = peer.map_err(|errno| errno.to_string())?;
        let identity = Identity::of(peer.pid.as_raw_pid().unsigned_abs());
        let root = self.lock().tenants.get(&tenant).and_then(Tenant::root);
        // The process that connected may have ended since; then none of its memory has to move.
        let own = identity
            .zip(root)
            .is_some_and(|(own, root)| own.descends_from(root));
        if !own {
            return Err(ProcessError::Stranger.to_string());
        }
        let memory = ProgramEvent::Memory(connection);
        self.gpu()
            .program(tenant, memory)
            .map_err(|refusal| refusal.to_string())
    }

    /// What the driver did for a process of a program; false if the launcher broke the rules.
    pub(super) fn program_objects(
        &self,
        tenant: TenantId,
        pid: u32,
        changes: Vec<ObjectChange>,
    ) -> bool {
        if changes.len() > CHANGES_MAX {
            return false;
        }
        let mut guard = self.lock();
        let state = &mut *guard;
        let same = state.registry.identity(tenant, pid);
        if !same.is_some_and(Identity::is_there) {
            // It has ended; its launcher will report that.
            return true;
        }
        let Some(entry) = state.tenants.get(&tenant) else {
            return true;
        };
        let take = || self.limits().take(Resource::Objects, &entry.holder, 1).ok();
        let permitted = state.registry.permit(pid, changes, take);
        let logs = permitted.refused.is_some()
            && self
                .limits()
                .permits(Resource::LogLines, &entry.holder, Instant::now());
        drop(guard);
        if let Some(client) = permitted.refused.filter(|_| logs) {
            log::warn!(
                "{tenant}: process {pid} names client {client:#x}, which is another process's; refused (logged once)"
            );
        }
        if !permitted.changes.is_empty() {
            let changes = &permitted.changes;
            self.report(tenant, ProgramEvent::Changed { pid, changes });
        }
        true
    }

    /// A process of a program has ended.
    pub(super) fn program_exited(&self, tenant: TenantId, pid: u32) {
        let known = self.lock().registry.exited(tenant, pid);
        if known {
            self.report(tenant, ProgramEvent::Exited { pid });
        }
    }

    fn report(&self, tenant: TenantId, event: ProgramEvent<'_>) {
        if let Err(refusal) = self.gpu().program(tenant, event) {
            log::debug!("{tenant}: {refusal}");
        }
    }
}

/// A seat in an account, given back if the program is not admitted.
struct Seat<'a> {
    state: &'a mut State,
    name: &'a str,
    taken: bool,
}

impl<'a> Seat<'a> {
    const fn of(state: &'a mut State, name: &'a str) -> Self {
        Self {
            state,
            name,
            taken: false,
        }
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        if !self.taken {
            self.state.accounts.book.leave(self.name);
        }
    }
}

fn gone() -> std::io::Error {
    std::io::ErrorKind::NotFound.into()
}
