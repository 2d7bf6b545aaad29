//! Programs as tenants: launchers' messages, checked against the kernel's process information.
//!
//! In go messages of a launcher; out go events for the GPUs that its program is on. The fleet
//! chooses these GPUs; the control loop calls [`Program`].

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Instant;

use turnstile_accounting::{Metadata, TenantId};
use turnstile_policies::Weight;
use turnstile_vmm::wire::{CHANGES_MAX, FrameWriter, ObjectChange, ToVmm};

use super::admission::Starting;
use super::error::HostError;
use super::host::Host;
use super::host::peer::{Kind, Peer, Tenant};
use super::host::settings::Brought;
use super::registry::ProcessError;
use crate::accounts::Claim;
use crate::limits::{Holder, Resource, is_trusted};
use turnstile_gpu::ProgramEvent;
use turnstile_host::process::{self, Identity};

/// What a launcher claims for its program, checked as far as no GPU decides.
#[derive(Debug)]
pub(super) struct Claimed {
    pub(super) name: String,
    pub(super) weight: Option<Weight>,
    pub(super) memory_max_bytes: Option<u64>,
    pub(super) movable: bool,
    pub(super) memory_min_bytes: Option<u64>,
    pub(super) memory_high_bytes: Option<u64>,
    pub(super) metadata: Metadata,
    /// The process at the other end, and its user.
    pub(super) root: Identity,
    pub(super) uid: u32,
}

fn report(host: &Host, tenant: TenantId, event: ProgramEvent<'_>) {
    if let Err(refusal) = host.gpu().program(tenant, event) {
        log::debug!("{tenant}: {refusal}");
    }
}

/// A program on one GPU, taken back there unless it enters.
pub(super) struct Entering<'a> {
    starting: Starting<'a>,
    brought: Brought,
    account: Arc<str>,
}

impl<'a> Entering<'a> {
    /// Begins to take a program in on a GPU. It is taken back unless it enters.
    pub(super) fn prepare(
        host: &'a Host,
        claimed: &Claimed,
        tenant: TenantId,
    ) -> Result<Self, HostError> {
        let name = &claimed.name;
        let memory_max_bytes = claimed.memory_max_bytes;
        let mut guard = host.lock();
        let state = &mut *guard;
        host.room(state, name)?;
        let claim = Claim {
            weight: claimed.weight,
            default_weight: host.default_weight(),
            memory_bytes: memory_max_bytes,
        };
        let granted = state
            .accounts
            .join(&mut state.mediation, name, claimed.uid, claim)?;
        state.starting.insert(name.clone(), tenant);
        drop(guard);
        let starting = Starting::of(host, name, tenant);
        let state = host.lock();
        let memory_max_bytes = granted.memory_bytes;
        let memory = state.memory.as_ref().filter(|_| claimed.movable);
        let brought = Brought {
            weight: granted.weight,
            memory_bytes: memory.map_or(0, |memory| {
                let most = memory.unreserved_bytes();
                memory_max_bytes.map_or(most, |max| max.min(host.gpu.capabilities().memory_bytes))
            }),
            min_bytes: claimed.memory_min_bytes.unwrap_or(0),
            high_bytes: claimed.memory_high_bytes,
        };
        let settings = state.set_of(name);
        let in_force = settings.params(brought).weight;
        let entitlement = settings.memory.entitlement(brought, in_force);
        let mut max_bytes = memory_max_bytes;
        let checked = memory.map_or(Ok(()), |memory| {
            max_bytes = Some(entitlement.max_bytes);
            memory.check(tenant, entitlement)
        });
        // The guard of the name takes the lock when it is dropped.
        drop(state);
        checked?;
        let started = ProgramEvent::Started {
            root: claimed.root.pid,
            memory_max_bytes: max_bytes,
        };
        host.gpu().program(tenant, started)?;
        Ok(Self {
            starting,
            brought,
            account: granted.account,
        })
    }

    /// The program is a tenant of this GPU from now on.
    pub(super) fn enter(self, claimed: &Claimed, stream: UnixStream) {
        let Starting { host, tenant, .. } = self.starting;
        let name = &claimed.name;
        let mut state = host.lock();
        state.described.connect(tenant, claimed.metadata.clone());
        state.connects(host.journal(), tenant, name);
        let entry = Tenant {
            account: state.accounts.of(name),
            name: name.clone(),
            peer: Peer {
                stream,
                writer: FrameWriter::new(),
            },
            kind: Kind::Program(claimed.root),
            brought: self.brought,
            holder: Holder {
                account: self.account.clone(),
                tenant: Some(tenant),
                trusted: is_trusted(claimed.uid),
            },
        };
        state.insert(&*host.gpu, host.limits(), tenant, entry);
    }
}

impl Drop for Entering<'_> {
    fn drop(&mut self) {
        let Starting { host, tenant, .. } = self.starting;
        let entered = host.lock().tenants.contains_key(&tenant);
        if !entered {
            host.gpu().destroy_context(tenant);
        }
    }
}

/// A program that was taken in: one tenant, with an entity on each of its GPUs.
#[derive(Debug)]
pub(super) struct Program {
    /// At least one. The first one's state names its processes, and answers the launcher.
    hosts: Vec<Arc<Host>>,
    tenant: TenantId,
}

impl Program {
    pub(super) const fn new(hosts: Vec<Arc<Host>>, tenant: TenantId) -> Self {
        Self { hosts, tenant }
    }

    pub(super) const fn tenant(&self) -> TenantId {
        self.tenant
    }

    /// The GPUs that it is on.
    pub(super) fn hosts(&self) -> &[Arc<Host>] {
        &self.hosts
    }

    fn first(&self) -> &Host {
        // PANIC: none; a program has a GPU
        &self.hosts[0]
    }

    fn take_process(&self, pidfd: &OwnedFd) -> Result<u32, ProcessError> {
        let (host, tenant) = (self.first(), self.tenant);
        let known = || process::of_pidfd(pidfd);
        let pid = known().ok_or(ProcessError::NoProcess)?;
        let identity = Identity::of(pid).ok_or(ProcessError::Stranger)?;
        let root = host.lock().tenants.get(&tenant).and_then(Tenant::root);
        let root = root.ok_or(ProcessError::Stranger)?;
        // The pid is read again: the process that had this number when its identity was read has it
        // still.
        if !identity.descends_from(root) || known() != Some(pid) {
            return Err(ProcessError::Stranger);
        }
        let state = host.lock();
        let entry = state.tenants.get(&tenant).ok_or(ProcessError::Stranger)?;
        let held = host.limits().take(Resource::Objects, &entry.holder, 1)?;
        host.common.registry().admit(tenant, identity, Some(held))?;
        Ok(pid)
    }

    fn take_memory(&self, connection: OwnedFd) -> Result<(), String> {
        let (host, tenant) = (self.first(), self.tenant);
        let peer = rustix::net::sockopt::socket_peercred(&connection);
        let peer = peer.map_err(|errno| errno.to_string())?;
        let identity = Identity::of(peer.pid.as_raw_pid().unsigned_abs());
        let root = host.lock().tenants.get(&tenant).and_then(Tenant::root);
        // The process that connected may have ended since; then none of its memory has to move.
        let own = identity
            .zip(root)
            .is_some_and(|(own, root)| own.descends_from(root));
        if !own {
            return Err(ProcessError::Stranger.to_string());
        }
        let memory = ProgramEvent::Memory(connection);
        host.gpu()
            .program(tenant, memory)
            .map_err(|refusal| refusal.to_string())
    }

    /// The changes that a process of a program may report. None if it has ended.
    fn permit(&self, pid: u32, changes: Vec<ObjectChange>) -> Option<Vec<ObjectChange>> {
        let (host, tenant) = (self.first(), self.tenant);
        let state = host.lock();
        let entry = state.tenants.get(&tenant)?;
        let mut registry = host.common.registry();
        let same = registry.identity(tenant, pid);
        same.filter(|identity| identity.is_there())?;
        let take = || host.limits().take(Resource::Objects, &entry.holder, 1).ok();
        let permitted = registry.permit(pid, changes, take);
        drop(registry);
        let logs = permitted.refused.is_some()
            && host
                .limits()
                .permits(Resource::LogLines, &entry.holder, Instant::now());
        drop(state);
        if let Some(client) = permitted.refused.filter(|_| logs) {
            log::warn!(
                "{tenant}: process {pid} names client {client:#x}, which is another process's; refused (logged once)"
            );
        }
        Some(permitted.changes)
    }

    /// A launcher reports a process of its program. Returns the process's number on this host.
    pub(super) fn process(&self, pid: u32, pidfd: &OwnedFd) -> Option<u32> {
        let taken = self.take_process(pidfd);
        if let Err(error) = &taken {
            let mut state = self.first().lock();
            if let Some(entry) = state.tenants.get_mut(&self.tenant) {
                let text = error.to_string();
                entry.peer.send(&ToVmm::ProcessRefused { pid, text });
            }
        }
        taken.ok()
    }

    /// A process of it has memory that can move, and this connection. Its memory is on one GPU.
    pub(super) fn memory(&self, connection: OwnedFd) {
        let (host, tenant) = (self.first(), self.tenant);
        let taken = self.take_memory(connection);
        let holder = host.lock().tenants.get(&tenant).map(|t| t.holder.clone());
        if let (Err(why), Some(holder)) = (taken, holder)
            && host
                .limits()
                .permits(Resource::LogLines, &holder, Instant::now())
        {
            log::warn!("Memory of a process of {tenant} does not move: {why}");
        }
    }

    /// What the driver did for a process of it; false if the launcher broke the rules.
    pub(super) fn objects(&self, pid: u32, changes: Vec<ObjectChange>) -> bool {
        if changes.len() > CHANGES_MAX {
            return false;
        }
        // A process that has ended is reported by its launcher.
        let permitted = self.permit(pid, changes);
        let changes = permitted.unwrap_or_default();
        for host in self.hosts.iter().filter(|_| !changes.is_empty()) {
            let changes = &changes;
            report(host, self.tenant, ProgramEvent::Changed { pid, changes });
        }
        true
    }

    /// A process of it has ended.
    pub(super) fn exited(&self, pid: u32) {
        let known = self.first().common.registry().exited(self.tenant, pid);
        for host in self.hosts.iter().filter(|_| known) {
            report(host, self.tenant, ProgramEvent::Exited { pid });
        }
    }
}

pub(super) fn gone() -> std::io::Error {
    std::io::ErrorKind::NotFound.into()
}
