//! Carries out orders of the policy, and writes what each VM may read of its standing.
//!
//! In go orders and the state of the engines; out go gate moves to VMMs, suspensions to the GPU,
//! and status pages. The host and the admission of tenants call this, under the lock.

use turnstile_abi::regs::status;
use turnstile_accounting::{Moment, TenantId};
use turnstile_gpu::{DoorbellChange, Gpu, Order};
use turnstile_mediation::{Control, GateOrder};
use turnstile_policies::Weight;

use super::memory::Memory;
use super::peer::Kind;
use super::state::State;
use super::{engines, split};
use crate::tenant::pages::StatusView;

impl State {
    /// Moves VMs' gates, then suspends or resumes queued work.
    pub(crate) fn carry_out(&mut self, gpu: &dyn Gpu, orders: &[GateOrder]) {
        let orders = orders.iter().filter_map(|order| self.gates(gpu, *order));
        let mut orders: Vec<Order> = orders.collect();
        if self.mediation.control() == Control::Holds {
            // Gates are watched or open: what is queued is the dispatcher's.
            orders.clear();
        }
        let mut all = self.mediation.take_gpu_orders();
        all.extend(orders);
        if !all.is_empty() {
            gpu.carry_out(&all);
        }
    }

    /// Moves a VM's gates; a program has channels of its own only. Returns whether the tenant is to
    /// be suspended or resumed, if either.
    fn gates(&mut self, gpu: &dyn Gpu, GateOrder { tenant, state }: GateOrder) -> Option<Order> {
        let entry = self.tenants.get_mut(&tenant)?;
        log::trace!("{tenant}: {state:?}");
        if let Some((vm, vmm)) = entry.vm() {
            let channels: Vec<u32> = vm.gates.channels().collect();
            for channel in channels {
                if let Some(request) = vm.gates.set(channel, state) {
                    vmm.send_move(request);
                }
            }
            gpu.doorbells_changed(tenant, DoorbellChange::AnyOpen(vm.gates.any_open()));
        }
        if state == turnstile_vmm::gate::GateState::Closed {
            return Some(Order::Suspend(tenant));
        }
        // A tenant is not resumed before all of its memory is on the card.
        let lacks = |memory: &Memory| !memory.may_run(tenant);
        let stays = self.memory.as_ref().is_some_and(lacks);
        (!stays).then_some(Order::Resume(tenant))
    }

    pub(super) fn write_status(&mut self, gpu: &dyn Gpu, at: Moment) {
        use status::engine_state::{IDLE, OTHER, OWN};
        let running: Vec<Option<TenantId>> = engines(gpu)
            .map(|engine| gpu.engine_status(engine).running)
            .collect();
        let ledger = self.mediation.ledger();
        for (tenant, entry) in &self.tenants {
            let Kind::Vm(vm) = &entry.kind else { continue };
            let totals = ledger.tenant(*tenant);
            let (compute, copy) = split(&totals.engines);
            let mut view = StatusView {
                compute_ns: compute.used_ns.0,
                copy_ns: copy.used_ns.0,
                weight: self.mediation.weight(*tenant).map_or(0, Weight::get),
                admitted: self.mediation.admitted(*tenant),
                held_ns: (totals.held_ns + self.mediation.held_now(*tenant, at)).0,
                updated_at_ns: at.0,
                ..StatusView::default()
            };
            for (shown, running) in view.engines.iter_mut().zip(&running) {
                *shown = match running {
                    None => IDLE,
                    Some(own) if own == tenant => OWN,
                    Some(_) => OTHER,
                };
            }
            vm.status.write(&view);
        }
    }
}
