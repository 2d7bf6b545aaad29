//! The tenant of each process and of each of the driver's clients. Pure.
//!
//! A client belongs to the first process that names it; changes that another process reports are
//! refused. A program therefore cannot have another tenant's channels stopped in place of its own.
//! It can still name a client that no process has named.

use std::collections::{BTreeMap, BTreeSet};

use turnstile_accounting::TenantId;
use turnstile_vmm::wire::ObjectChange;

use crate::limits::{Held, LimitError};
use turnstile_host::process::Identity;

/// Processes of one program that use the GPU at a time.
const PROCESSES_MAX: usize = 1024;
/// Clients of one process; the CUDA driver makes a few.
const CLIENTS_MAX: usize = 256;

/// Why a process is not taken as a program's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ProcessError {
    /// It is no descendant of the launcher.
    #[error("the process does not descend from the one that connected, or has ended")]
    Stranger,
    /// Its descriptor is no pidfd, or names no process on this host.
    #[error("the descriptor names no process that this daemon can see")]
    NoProcess,
    /// It belongs to another tenant.
    #[error("the process belongs to {0}")]
    Taken(TenantId),
    /// Too many.
    #[error("the program has {PROCESSES_MAX} processes on the GPU, which is the limit")]
    TooMany,
    /// Its tenant or account has as many objects as it may have.
    #[error(transparent)]
    Limit(#[from] LimitError),
}

#[derive(Debug)]
struct Owned {
    identity: Identity,
    tenant: TenantId,
    /// With the place that each client takes.
    clients: BTreeMap<u32, Held>,
    /// The place of the process itself.
    _held: Option<Held>,
}

/// What a registry permits.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Permitted {
    pub(super) changes: Vec<ObjectChange>,
    /// A client of another process, if that was not logged yet.
    pub(super) refused: Option<u32>,
}

/// Processes of all programs.
#[derive(Debug, Default)]
pub(super) struct Registry {
    processes: BTreeMap<u32, Owned>,
    /// Client -> process.
    clients: BTreeMap<u32, u32>,
    /// Tenants with a refused change: logged once each.
    refused: BTreeSet<TenantId>,
}

impl Registry {
    /// Takes a process in.
    pub(super) fn admit(
        &mut self,
        tenant: TenantId,
        identity: Identity,
        held: Option<Held>,
    ) -> Result<(), ProcessError> {
        if let Some(known) = self.processes.get(&identity.pid) {
            if known.identity == identity {
                let same = known.tenant == tenant;
                return if same {
                    Ok(())
                } else {
                    Err(ProcessError::Taken(known.tenant))
                };
            }
            // Its number is used again: the previous process has ended, whatever its launcher
            // reported.
            self.exited(known.tenant, identity.pid);
        }
        let of_tenant = |owned: &&Owned| owned.tenant == tenant;
        if self.processes.values().filter(of_tenant).count() >= PROCESSES_MAX {
            return Err(ProcessError::TooMany);
        }
        let owned = Owned {
            identity,
            tenant,
            clients: BTreeMap::new(),
            _held: held,
        };
        self.processes.insert(identity.pid, owned);
        Ok(())
    }

    /// The process, if it is the tenant's.
    pub(super) fn identity(&self, tenant: TenantId, pid: u32) -> Option<Identity> {
        let owned = self.processes.get(&pid)?;
        (owned.tenant == tenant).then_some(owned.identity)
    }

    /// The part of `changes`, reported for process `pid`, that concerns clients of its own.
    /// `take` gives the place of a new client, if there is one.
    pub(super) fn permit(
        &mut self,
        pid: u32,
        changes: Vec<ObjectChange>,
        mut take: impl FnMut() -> Option<Held>,
    ) -> Permitted {
        let mut permitted = Permitted::default();
        let Some(owned) = self.processes.get_mut(&pid) else {
            return permitted;
        };
        for change in changes {
            let own = match change {
                ObjectChange::Made(object) => {
                    let room = owned.clients.len() < CLIENTS_MAX;
                    let free = !self.clients.contains_key(&object.client);
                    if free
                        && room
                        && let Some(held) = take()
                    {
                        self.clients.insert(object.client, pid);
                        owned.clients.insert(object.client, held);
                    }
                    owned.clients.contains_key(&object.client)
                }
                ObjectChange::Freed { client, handle } => {
                    let own = owned.clients.contains_key(&client);
                    if own && handle == client {
                        owned.clients.remove(&client);
                        self.clients.remove(&client);
                    }
                    own
                }
            };
            if own {
                permitted.changes.push(change);
            } else if let ObjectChange::Made(object) = change
                && self.refused.insert(owned.tenant)
            {
                permitted.refused = Some(object.client);
            }
        }
        permitted
    }

    /// A process has ended; whether it was the tenant's.
    pub(super) fn exited(&mut self, tenant: TenantId, pid: u32) -> bool {
        if self.identity(tenant, pid).is_none() {
            return false;
        }
        self.processes.remove(&pid);
        self.clients.retain(|_, of| *of != pid);
        true
    }

    /// A tenant is gone; its processes.
    pub(super) fn left(&mut self, tenant: TenantId) -> Vec<u32> {
        self.refused.remove(&tenant);
        let of_tenant = |(pid, owned): (&u32, &Owned)| (owned.tenant == tenant).then_some(*pid);
        let pids: Vec<u32> = self.processes.iter().filter_map(of_tenant).collect();
        for pid in &pids {
            self.exited(tenant, *pid);
        }
        pids
    }

    /// Processes of a tenant.
    pub(super) fn count(&self, tenant: TenantId) -> usize {
        self.processes
            .values()
            .filter(|owned| owned.tenant == tenant)
            .count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{Holder, Limits, Resource, rows};
    use turnstile_vmm::wire::ProgramObject;

    const A: TenantId = TenantId(1);
    const B: TenantId = TenantId(2);

    fn process(pid: u32) -> Identity {
        Identity { pid, started: 7 }
    }

    fn made(client: u32, handle: u32) -> ObjectChange {
        ObjectChange::Made(ProgramObject {
            client,
            handle,
            class: 0xc86f,
            parent: 1,
            engine: 0,
            userd: None,
        })
    }

    fn permit(registry: &mut Registry, pid: u32, changes: Vec<ObjectChange>) -> Permitted {
        let limits = Limits::new(rows(256));
        let holder = Holder {
            account: "a".into(),
            tenant: None,
            trusted: true,
        };
        let take = || limits.take(Resource::Objects, &holder, 1).ok();
        registry.permit(pid, changes, take)
    }

    fn registry() -> Registry {
        let mut registry = Registry::default();
        registry.admit(A, process(10), None).unwrap();
        registry.admit(A, process(11), None).unwrap();
        registry.admit(B, process(20), None).unwrap();
        registry
    }

    #[test]
    fn the_first_to_name_a_client_has_it() {
        let mut registry = registry();
        let first = permit(&mut registry, 10, vec![made(100, 1)]);
        assert_eq!((first.changes.len(), first.refused), (1, None));
        for other in [11, 20] {
            let others = permit(
                &mut registry,
                other,
                vec![made(100, 1), made(200 + other, 1)],
            );
            assert_eq!(others.changes, [made(200 + other, 1)]);
            assert_eq!(others.refused, Some(100));
            let again = permit(&mut registry, other, vec![made(100, 2)]);
            assert_eq!(again, Permitted::default(), "said once");
        }
        let freed = ObjectChange::Freed {
            client: 100,
            handle: 1,
        };
        assert!(permit(&mut registry, 20, vec![freed]).changes.is_empty());
        assert_eq!(permit(&mut registry, 10, vec![freed]).changes, [freed]);
    }

    #[test]
    fn what_has_ended_can_be_named_again() {
        let mut registry = registry();
        permit(&mut registry, 10, vec![made(100, 1), made(101, 1)]);
        let freed = ObjectChange::Freed {
            client: 101,
            handle: 101,
        };
        permit(&mut registry, 10, vec![freed]);
        assert_eq!(
            permit(&mut registry, 20, vec![made(101, 1)]).changes.len(),
            1
        );
        assert!(!registry.exited(B, 10), "not B's");
        assert!(registry.exited(A, 10));
        assert_eq!(
            permit(&mut registry, 20, vec![made(100, 1)]).changes.len(),
            1
        );
        assert_eq!(registry.left(B), [20]);
        assert_eq!(
            permit(&mut registry, 11, vec![made(100, 1)]).changes.len(),
            1
        );
        assert_eq!(registry.count(A), 1);
    }

    #[test]
    fn a_process_is_one_tenants_until_its_number_is_anothers() {
        let mut registry = registry();
        assert_eq!(registry.admit(A, process(10), None), Ok(()));
        assert_eq!(
            registry.admit(B, process(10), None),
            Err(ProcessError::Taken(A))
        );
        permit(&mut registry, 10, vec![made(100, 1)]);
        let later = Identity {
            started: 8,
            ..process(10)
        };
        assert_eq!(registry.admit(B, later, None), Ok(()));
        assert_eq!(registry.identity(A, 10), None);
        assert_eq!(
            permit(&mut registry, 10, vec![made(100, 1)]).changes.len(),
            1
        );
    }

    #[test]
    fn both_are_bounded() {
        let mut registry = Registry::default();
        for pid in 0..PROCESSES_MAX as u32 {
            registry.admit(A, process(pid), None).unwrap();
        }
        let more = process(PROCESSES_MAX as u32);
        assert_eq!(registry.admit(A, more, None), Err(ProcessError::TooMany));
        assert_eq!(registry.admit(B, more, None), Ok(()));
        let changes = (0..2 * CLIENTS_MAX as u32).map(|client| made(client, 1));
        assert_eq!(
            permit(&mut registry, 5, changes.collect()).changes.len(),
            CLIENTS_MAX
        );
    }
}
