//! Callbacks of the executor of holds.

use std::sync::Arc;
use std::time::Duration;

use turnstile_accounting::{Moment, TenantId};

use super::{Shared, lock};
use crate::hold::{Activity, ActivityProbe, Callbacks, Channel};
use crate::sets::Sets;
use crate::tenant::state::Event;

impl ActivityProbe for Shared {
    fn channel_activity(&self, tenant: TenantId) -> Option<Activity> {
        let probe = lock(&self.probe);
        let has_work = probe.has_work(tenant)?;
        let active = probe.tenants.get(&tenant)?.active.unwrap_or(Moment(0));
        Some(Activity { active, has_work })
    }

    fn was_resident(&self, tenant: TenantId, within: Duration) -> bool {
        let probe = lock(&self.probe);
        let active = probe.tenants.get(&tenant).and_then(|of| of.active);
        // CAST: less than a second.
        let within = within.as_nanos() as u64;
        active.is_some_and(|at| self.now().since(at).0 <= within)
            || probe.resident() == Some(tenant)
    }
}

impl Callbacks for Shared {
    fn channels_to_hold(&self, tenant: TenantId) -> Vec<Channel> {
        let lacks_memory = self.lacks_memory(tenant);
        let now = self.now();
        let mut probe = lock(&self.probe);
        probe.apply(tenant, Event::Hold, now);
        match lacks_memory {
            true => probe.processes.all_channels(tenant),
            false => probe.processes.compute_channels(tenant),
        }
    }

    fn all_channels(&self, tenant: TenantId) -> Vec<Channel> {
        lock(&self.probe).processes.all_channels(tenant)
    }

    fn runnable_channels(&self, tenant: TenantId) -> Vec<Channel> {
        let able = self.able.get().and_then(|able| able.get(&tenant));
        able.cloned().unwrap_or_default()
    }

    fn on_suspended(&self, tenant: TenantId) {
        self.happened(tenant, Event::Stopped);
    }

    fn take_engine(&self, tenant: TenantId) {
        if !lock(&self.probe).stays_resident(tenant) {
            return;
        }
        let mut preemptor = lock(&self.preemptor);
        if let Some(preemptor) = &mut *preemptor {
            preemptor.take();
        }
    }

    fn leave_engine(&self) {
        if let Some(preemptor) = &mut *lock(&self.preemptor) {
            preemptor.leave();
        }
    }

    fn repair_preemptor(&self) {
        let pid = lock(&self.preemptor).as_mut().and_then(|preemptor| {
            preemptor.mend();
            preemptor.pid()
        });
        lock(&self.probe).set_preemptor(pid);
    }

    fn on_running(&self, tenant: TenantId) {
        if let Some(sets) = self.sets() {
            sets.runs(tenant);
        }
        if let Ok(worker) = self.vms.of(tenant) {
            worker.set_suspended(false);
        }
        self.happened(tenant, Event::Release);
    }

    /// A tenant of which not all memory is on the card stays held.
    fn try_release(&self, tenant: TenantId) -> bool {
        self.sets().is_none_or(|sets| sets.release(tenant))
    }

    fn is_served(&self, tenant: TenantId) -> bool {
        let sets = self.sets();
        sets.is_some_and(|sets| sets.is_served(tenant))
    }

    fn on_held(&self, tenant: TenantId) -> bool {
        self.happened(tenant, Event::Stopped);
        self.sets().is_none_or(|sets| sets.held(tenant))
    }

    fn lacks_memory(&self, tenant: TenantId) -> bool {
        let lacks = |sets: &Arc<Sets>| sets.knows(tenant) && !sets.is_whole(tenant);
        self.sets().is_some_and(lacks)
    }

    fn resident(&self) -> Option<TenantId> {
        lock(&self.probe).resident()
    }
}
