//! Drains: tenants that end once they have no work.
//!
//! In: the name of a VM or a GPU, and a time. Out: the end of each tenant that was found without
//! work in that time or, if it is forced, at its end. The control loop polls while there are any.

use std::time::{Duration, Instant};

use turnstile_accounting::TenantId;

use super::declared::DeclareError;
use super::{Fleet, Places};
use crate::declared::{Entry, Life, Move};

/// Interval of the search for draining tenants without work.
const DRAIN_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How tenants are drained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainTerms {
    /// Time that a tenant has until it is found without work.
    pub timeout: Duration,
    /// Whether a tenant ends when that has passed; else it stays.
    pub force: bool,
}

/// A tenant that is to end.
#[derive(Debug)]
pub(super) struct Draining {
    gpu: usize,
    name: String,
    until: Instant,
    force: bool,
    /// It was ended, and its connection is closing.
    ended: bool,
}

impl Fleet {
    /// Ends a VM's tenant once it has no work. A declared VM is then placed anew, or removed if
    /// `end`; without a tenant, at once. One without a place stays as it is.
    ///
    /// # Errors
    /// If there is no such VM.
    pub fn drain(&self, name: &str, terms: DrainTerms, end: bool) -> Result<(), DeclareError> {
        let mut places = self.places();
        let by = if end { Move::End } else { Move::Drain };
        let known = places.declared.iter_mut();
        let mut known = known.filter(|entry| entry.declared.name == name);
        let entry = known.next();
        let is_declared = entry.is_some();
        let ended = entry.and_then(|entry| self.make(entry, by)) == Some(Life::Ended);
        if ended {
            self.finish(&mut places, name);
            return Ok(());
        }
        let found = self.members.iter().enumerate();
        let mut found = found.filter_map(|(gpu, one)| Some((gpu, one.host.vm_named(name)?)));
        match found.next() {
            Some((gpu, tenant)) => {
                places.drain(gpu, tenant, name, terms);
                Ok(())
            }
            None if is_declared => {
                self.displace(&mut places, |entry| entry.declared.name == name);
                self.place_waiting(&mut places);
                Ok(())
            }
            None => Err(DeclareError::NoVm(name.to_owned())),
        }
    }

    /// Closes a GPU to further VMs and drains those on it; declared ones without a VMM are placed
    /// anew. Programs stay.
    pub fn drain_gpu(&self, gpu: usize, terms: DrainTerms) {
        let mut places = self.places();
        self.vacate(&mut places, gpu);
        for (tenant, name) in self.members[gpu].host.vms() {
            places.drain(gpu, tenant, &name, terms);
        }
        self.place_waiting(&mut places);
    }

    /// Takes a GPU out of service: closes it, and ends its tenants at once. Declared VMs are placed
    /// anew. The GPU is not accessed from then on, but to end contexts.
    pub fn remove_gpu(&self, gpu: usize) {
        let mut places = self.places();
        self.vacate(&mut places, gpu);
        places.drains.retain(|_, drain| drain.gpu != gpu);
        let Places { queue, gpus, .. } = &mut *places;
        queue.displace(gpus, gpu);
        self.members[gpu].host.remove();
        self.place_waiting(&mut places);
    }

    /// Brings a removed GPU back into service; it stays closed.
    pub fn restore_gpu(&self, gpu: usize) {
        let _places = self.places();
        self.members[gpu].host.restore();
    }

    /// Closes a GPU. Declared VMs on it drain; those without a tenant lose their places.
    fn vacate(&self, places: &mut Places, gpu: usize) {
        places.gpus.close(gpu, true);
        let is_on = |entry: &Entry| entry.placed.as_ref().map(|placed| placed.gpu) == Some(gpu);
        let tenants = places.declared.iter_mut();
        for entry in tenants.filter(|entry| is_on(entry) && entry.life.has_tenant()) {
            self.make(entry, Move::Drain);
        }
        self.displace(places, is_on);
    }

    /// Takes the places of these declared VMs back, where they have no tenant.
    fn displace(&self, places: &mut Places, which: impl Fn(&Entry) -> bool) {
        let Places { declared, gpus, .. } = places;
        for entry in declared.iter_mut().filter(|entry| which(entry)) {
            if self.make(entry, Move::Displace) == Some(Life::Waiting)
                && let Some(placed) = entry.placed.take()
            {
                gpus.release(&placed);
            }
        }
    }

    /// Ends draining tenants that have no work, or no more time. Returns when to poll again.
    pub(crate) fn poll_drains(&self, now: Instant) -> Option<Instant> {
        let mut places = self.places();
        let mut given_up = Vec::new();
        for (tenant, drain) in &mut places.drains {
            let host = &self.members[drain.gpu].host;
            let late = now >= drain.until;
            if drain.ended {
                continue;
            }
            if !host.has_work(*tenant) || (late && drain.force) {
                drain.ended = true;
                host.end(*tenant, "The VM was drained from its GPU");
            } else if late {
                given_up.push(*tenant);
            }
        }
        for tenant in given_up {
            let drain = places.drains.remove(&tenant);
            let mut all = places.declared.iter_mut();
            match all.find(|entry| entry.tenant == Some(tenant)) {
                Some(entry) => {
                    self.make(entry, Move::Resume);
                }
                None => {
                    let name = drain.map(|drain| drain.name).unwrap_or_default();
                    self.journal().add("vm_drain_failed", &name, None);
                }
            }
        }
        (!places.drains.is_empty()).then(|| now + DRAIN_POLL_INTERVAL)
    }
}

impl Places {
    /// Has a tenant drained; new terms hold from now on.
    fn drain(&mut self, gpu: usize, tenant: TenantId, name: &str, terms: DrainTerms) {
        let ended = self.drains.get(&tenant).is_some_and(|before| before.ended);
        let draining = Draining {
            gpu,
            name: name.to_owned(),
            until: Instant::now() + terms.timeout,
            force: terms.force,
            ended,
        };
        self.drains.insert(tenant, draining);
        if let Some(wake) = &self.wake {
            let _ = wake.write(1);
        }
    }
}
