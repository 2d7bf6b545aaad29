//! The processes of each tenant, and the channels that the driver made for them. Pure.
//!
//! In: what the ioctl filter and the preloaded library report, and pids in the context-switch log.
//! Out: the tenant of a process, and the channels by which a tenant is held.
//!
//! # Invariants
//! - A handle is an allegation of its process: the driver may refuse it.
//! - Objects of a tenant are bounded by [`OBJECTS_MAX`], unknown processes by [`UNKNOWN_MAX`].

use std::collections::{BTreeMap, BTreeSet};

use turnstile_accounting::TenantId;
use turnstile_host::process;
use turnstile_vmm::wire::ObjectChange;

use crate::handles::Handles;
use crate::hold::Channel;

/// Channels and groups that are kept of all processes of a tenant. SOURCE: a CUDA context has about
/// 24 and takes about 520 MiB of the card, which has no room for 300.
const OBJECTS_MAX: usize = 8_192;

/// Processes without a tenant that are counted one by one.
const UNKNOWN_MAX: usize = 1_024;

/// The processes of all tenants.
#[derive(Debug, Default)]
pub(crate) struct Processes {
    tenants: BTreeMap<u32, TenantId>,
    pub(crate) handles: Handles,
    /// Tenants that have more objects than are kept, of which that was reported.
    crowded: BTreeSet<TenantId>,
    /// Processes without a tenant, and how often their contexts were loaded.
    unknown: BTreeMap<u32, u64>,
    /// Of these, those of which no ancestor belongs to a tenant.
    foreign: BTreeSet<u32>,
    changes: u64,
}

impl Processes {
    /// A process, and each that it starts, belongs to a tenant.
    pub(crate) fn assign(&mut self, pid: u32, tenant: TenantId) {
        self.tenants.insert(pid, tenant);
        self.unknown.remove(&pid);
        self.foreign.clear();
        self.changes += 1;
    }

    /// A process has ended.
    pub(crate) fn exited(&mut self, pid: u32) {
        self.tenants.remove(&pid);
        self.unknown.remove(&pid);
        self.handles.forget(pid);
        self.changes += 1;
    }

    /// A tenant is gone; returns its processes.
    pub(crate) fn remove(&mut self, tenant: TenantId) -> Vec<u32> {
        self.crowded.remove(&tenant);
        let gone = self.tenants.extract_if(.., |_, of| *of == tenant);
        let gone: Vec<u32> = gone.map(|(pid, _)| pid).collect();
        gone.iter().for_each(|pid| self.handles.forget(*pid));
        self.changes += 1;
        gone
    }

    /// Takes objects that were made for a process or freed. Whether that changes which channels a
    /// tenant has.
    pub(crate) fn changed(&mut self, tenant: TenantId, pid: u32, changes: &[ObjectChange]) -> bool {
        if self.tenant(pid) != Some(tenant) {
            self.assign(pid, tenant);
        }
        self.changes += 1;
        let others = self.pids(tenant).filter(|other| *other != pid);
        let others: usize = others.map(|other| self.handles.count(other)).sum();
        let mut any = false;
        for change in changes {
            let made = matches!(change, ObjectChange::Made(_));
            if made && others + self.handles.count(pid) >= OBJECTS_MAX {
                if self.crowded.insert(tenant) {
                    log::warn!(
                        "{tenant} has more than {OBJECTS_MAX} channels and groups; it is not held by the others"
                    );
                }
                continue;
            }
            match self.handles.apply(pid, change) {
                Ok(changed) => any |= changed,
                Err(error) => log::debug!("{error}"),
            }
        }
        any
    }

    /// The tenant of a process.
    pub(crate) fn tenant(&self, pid: u32) -> Option<TenantId> {
        self.tenants.get(&pid).copied()
    }

    /// The processes of a tenant that have channels or groups.
    pub(crate) fn pids(&self, tenant: TenantId) -> impl Iterator<Item = u32> + '_ {
        let of = move |pid: &u32| self.tenant(*pid) == Some(tenant);
        self.handles.pids().filter(of)
    }

    /// How often processes, channels or groups changed.
    pub(crate) const fn changes(&self) -> u64 {
        self.changes
    }

    /// The channels by which a tenant is held: those on the compute engine.
    pub(crate) fn compute_channels(&self, tenant: TenantId) -> Vec<Channel> {
        let channels = |pid| self.channels_of(pid);
        self.pids(tenant).flat_map(channels).collect()
    }

    /// All channels of a tenant, those that copy as well.
    pub(crate) fn all_channels(&self, tenant: TenantId) -> Vec<Channel> {
        self.all_channels_but(tenant, &BTreeSet::new())
    }

    /// The same without those of some processes.
    pub(crate) fn all_channels_but(&self, tenant: TenantId, but: &BTreeSet<u32>) -> Vec<Channel> {
        let pids = self.pids(tenant).filter(|pid| !but.contains(pid));
        pids.flat_map(|pid| self.all_channels_of(pid)).collect()
    }

    /// The compute channels of a process.
    pub(crate) fn channels_of(&self, pid: u32) -> Vec<Channel> {
        self.handles.compute_channels(pid)
    }

    /// All channels of a process, those that copy as well.
    pub(crate) fn all_channels_of(&self, pid: u32) -> Vec<Channel> {
        self.handles.all_channels(pid)
    }

    /// The channel groups of a process on the compute engine.
    pub(crate) fn groups_of(&self, pid: u32) -> Vec<Channel> {
        self.handles.compute_groups(pid)
    }

    /// The context of a process without a tenant was loaded: it belongs to the tenant of its
    /// nearest ancestor that has one. Returns that tenant.
    pub(crate) fn adopt(
        &mut self,
        pid: u32,
        parent: impl Fn(u32) -> Option<u32>,
    ) -> Option<TenantId> {
        if !self.foreign.contains(&pid) {
            let nearest = process::nearest(pid, parent, |pid| self.tenant(pid));
            if let Some(tenant) = nearest {
                self.assign(pid, tenant);
                return Some(tenant);
            }
            if self.foreign.len() < UNKNOWN_MAX {
                self.foreign.insert(pid);
            }
        }
        if self.unknown.len() < UNKNOWN_MAX || self.unknown.contains_key(&pid) {
            *self.unknown.entry(pid).or_default() += 1;
        }
        None
    }

    /// Processes without a tenant that used the engine, and how often.
    pub(crate) const fn unknown(&self) -> &BTreeMap<u32, u64> {
        &self.unknown
    }

    /// Drops unknown processes that have ended.
    pub(crate) fn forget_gone(&mut self, is_gone: impl Fn(u32) -> bool) {
        self.unknown.retain(|pid, _| !is_gone(*pid));
        self.foreign.retain(|pid| !is_gone(*pid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::abi::CLASS_CHANNEL_GROUP;
    use turnstile_vmm::wire::ProgramObject;

    const A: TenantId = TenantId(1);
    const B: TenantId = TenantId(2);

    fn made(handle: u32, class: u32, parent: u32) -> ObjectChange {
        ObjectChange::Made(ProgramObject {
            client: 1,
            handle,
            class,
            parent,
            engine: 1,
            userd: None,
        })
    }

    #[test]
    fn objects_of_a_tenant_are_bounded_over_all_its_processes() {
        let mut processes = Processes::default();
        let mut changes = vec![made(1, CLASS_CHANNEL_GROUP, 0)];
        changes.extend((2..3001).map(|handle| made(handle, 0xc86f, 1)));
        processes.assign(1, A);
        processes.assign(9, B);
        for pid in 1..6 {
            processes.changed(A, pid, &changes);
        }
        assert_eq!(processes.compute_channels(A).len(), OBJECTS_MAX - 3);
        assert!(
            processes.changed(B, 9, &changes),
            "each tenant has its own bound"
        );
        assert_eq!(processes.compute_channels(B).len(), 2999);
        processes.exited(1);
        assert!(processes.changed(A, 5, &changes), "there is room again");
    }

    #[test]
    fn a_child_of_a_tenant_is_adopted_and_a_foreign_process_is_counted() {
        let mut processes = Processes::default();
        processes.assign(10, A);
        let parent = |pid| (pid > 1).then_some(if pid == 12 { 11 } else { 10 });
        assert_eq!(processes.adopt(12, parent), Some(A));
        assert_eq!(processes.tenant(12), Some(A));
        assert_eq!(processes.adopt(77, |_| None), None);
        assert_eq!(processes.adopt(77, |_| None), None);
        assert_eq!(processes.unknown()[&77], 2);
        processes.forget_gone(|pid| pid == 77);
        assert!(processes.unknown().is_empty());
        assert_eq!(processes.remove(A), [10, 12]);
        assert_eq!(processes.tenant(12), None);
    }
}
