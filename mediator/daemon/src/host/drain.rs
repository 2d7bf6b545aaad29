//! The host's part of a drain: which VMs there are, whether one has work, and its end.

use turnstile_accounting::TenantId;
use turnstile_vmm::wire::ToVmm;

use super::peer::{Kind, Tenant};
use super::{Host, engines};

impl Host {
    /// The VM of this name, if it is connected.
    pub(crate) fn vm_named(&self, name: &str) -> Option<TenantId> {
        let mut vms = self.vms().into_iter();
        vms.find(|(_, of)| of == name).map(|(tenant, _)| tenant)
    }

    /// VMs that are connected, and their names.
    pub(crate) fn vms(&self) -> Vec<(TenantId, String)> {
        let state = self.lock();
        let is_vm = |entry: &Tenant| matches!(entry.kind, Kind::Vm(_));
        let vms = state.tenants.iter().filter(|(_, entry)| is_vm(entry));
        vms.map(|(tenant, entry)| (*tenant, entry.name.clone()))
            .collect()
    }

    /// Whether a tenant has work: queued, kept at a gate, or on an engine.
    pub(crate) fn has_work(&self, tenant: TenantId) -> bool {
        let runs = |engine| self.gpu.engine_status(engine).running == Some(tenant);
        self.lock().mediation.wants(tenant)
            || self.pending(tenant) > 0
            || engines(&*self.gpu).any(runs)
    }

    /// Ends a tenant: its VMM gets the reason, and the control loop then sees the connection end.
    pub(crate) fn end(&self, tenant: TenantId, reason: &str) {
        let mut state = self.lock();
        if let Some(entry) = state.tenants.get_mut(&tenant) {
            let text = reason.to_owned();
            entry.peer.send(&ToVmm::Refused { text });
            entry.peer.give_up();
        }
    }
}
