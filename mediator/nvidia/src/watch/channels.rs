//! Which channels are whose, as their processes say.

use std::collections::{BTreeMap, BTreeSet};

use turnstile_accounting::TenantId;
use turnstile_vmm::wire::ObjectChange;

use super::Watch;
use crate::hold::Channel;
use crate::userd::Place;

/// Channels and groups that are kept of all processes of a tenant: each is an allegation, and each is suspended and resumed. SOURCE: a CUDA
/// context has about 24 and takes about 520 MiB of the card, which has no room for 300.
const OBJECTS_MAX: usize = 8192;

impl Watch {
    /// Takes what a process was handed out; whether a tenant that is held has something new to be stopped.
    pub(crate) fn changed(&mut self, tenant: TenantId, pid: u32, changes: &[ObjectChange]) -> bool {
        if self.residency.tenant(pid) != Some(tenant) {
            self.assign(pid, tenant);
        }
        self.changes += 1;
        let others = self.pids(tenant).filter(|other| *other != pid);
        let others: usize = others.map(|other| self.handles.count(other)).sum();
        let mut any = false;
        for change in changes {
            let made = matches!(change, ObjectChange::Made(_));
            if made && others + self.handles.count(pid) >= OBJECTS_MAX {
                self.tell_crowded(tenant);
                continue;
            }
            match self.handles.apply(pid, change) {
                Ok(changed) => any |= changed,
                Err(error) => log::debug!("{error}"),
            }
        }
        any
    }

    /// Says once that a tenant has as much as is kept.
    fn tell_crowded(&mut self, tenant: TenantId) {
        if self.crowded.insert(tenant) {
            log::warn!(
                "{tenant} says that it has more than {OBJECTS_MAX} channels and groups; it is not held by the others"
            );
        }
    }

    /// Channels by which a tenant is held: those on the compute engine, of all its processes.
    pub(crate) fn channels(&self, tenant: TenantId) -> Vec<Channel> {
        let pids = self.pids(tenant);
        pids.flat_map(|pid| self.handles.compute_channels(pid))
            .collect()
    }

    /// All of its channels: those that copy have to be stopped too before its memory is taken.
    pub(crate) fn all_channels(&self, tenant: TenantId) -> Vec<Channel> {
        self.channels_but(tenant, &BTreeSet::new())
    }

    /// The same, but for those of these processes.
    pub(crate) fn channels_but(&self, tenant: TenantId, but: &BTreeSet<u32>) -> Vec<Channel> {
        let pids = self.pids(tenant).filter(|pid| !but.contains(pid));
        pids.flat_map(|pid| self.handles.all_channels(pid))
            .collect()
    }

    pub(crate) fn pids(&self, tenant: TenantId) -> impl Iterator<Item = u32> + '_ {
        let of = move |pid: &u32| self.residency.tenant(*pid) == Some(tenant);
        self.handles.pids().filter(of)
    }

    /// How often it changed so far who has which channels.
    pub(crate) const fn changes(&self) -> u64 {
        self.changes
    }

    /// The channels on the compute engine of each tenant that has some, and where they say how far they are; of those of whose channels that is known of all.
    pub(crate) fn places(&self) -> BTreeMap<TenantId, Vec<Place>> {
        let mut places: BTreeMap<TenantId, Vec<Place>> = BTreeMap::new();
        let mut unknown = BTreeSet::new();
        for pid in self.handles.pids() {
            let Some(tenant) = self.residency.tenant(pid) else {
                continue;
            };
            let userds = self.handles.compute_userds(pid);
            if userds.len() < self.handles.compute_channels(pid).len() {
                unknown.insert(tenant);
            }
            let place = |(client, userd)| Place { pid, client, userd };
            let of = places.entry(tenant).or_default();
            of.extend(userds.into_iter().map(place));
        }
        places.retain(|tenant, places| !unknown.contains(tenant) && !places.is_empty());
        places
    }
}

#[cfg(test)]
mod tests {
    use turnstile_accounting::Moment;
    use turnstile_vmm::wire::ProgramObject;

    use super::*;
    use crate::sys::abi::CLASS_CHANNEL_GROUP;

    #[test]
    fn a_tenant_has_so_many_channels_however_many_processes_it_has() {
        let (a, b) = (TenantId(1), TenantId(2));
        let mut watch = Watch::new(false);
        let made = |handle, class, parent| {
            ObjectChange::Made(ProgramObject {
                client: 1,
                handle,
                class,
                parent,
                engine: 1,
                userd: None,
            })
        };
        let mut changes = vec![made(1, CLASS_CHANNEL_GROUP, 0)];
        changes.extend((2..3001).map(|handle| made(handle, 0xc86f, 1)));
        watch.add(a, 1, Moment(0));
        watch.add(b, 9, Moment(0));
        for pid in 1..6 {
            watch.changed(a, pid, &changes);
        }
        assert_eq!(watch.channels(a).len(), OBJECTS_MAX - 3);
        assert!(watch.changed(b, 9, &changes), "others have their own");
        assert_eq!(watch.channels(b).len(), 2999);
        watch.exited(1);
        assert!(watch.changed(a, 5, &changes), "there is room again");
    }
}
