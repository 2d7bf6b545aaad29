//! What goes into the mediation at the end of a period, and the orders that come out.

use turnstile_accounting::{EngineId, Moment, TenantId};
use turnstile_gpu::Order;
use turnstile_policies::Decision;
use turnstile_vmm::gate::GateState;

use super::{COMPUTE, Mediation};

/// How decisions reach a tenant's commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Gates close, and queued work is suspended as far as the GPU can.
    Gates,
    /// The dispatcher holds the tenant on one engine; gates stay open.
    Holds,
}

/// All gates of a tenant are to be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateOrder {
    /// The tenant.
    pub tenant: TenantId,
    /// Where to.
    pub state: GateState,
}

/// State of a tenant's channels at the end of a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Activity {
    /// The tenant.
    pub tenant: TenantId,
    /// Commands announced and not finished, all channels together.
    pub pending: u64,
    /// When one was last announced or finished; none before the first.
    pub last_active: Option<Moment>,
}

impl Mediation {
    /// Moves the orders for the GPU out: holds, and time slices that differ from those in force.
    pub fn take_gpu_orders(&mut self) -> Vec<Order> {
        std::mem::take(&mut self.gpu_orders)
    }

    pub(super) fn carry_out(
        &mut self,
        engine: EngineId,
        tenant: TenantId,
        decision: Decision,
        now: Moment,
    ) -> Option<GateOrder> {
        if self.control == Control::Holds {
            let held = decision != Decision::Admit;
            self.gpu_orders.push(Order::holding(tenant, engine, held));
        }
        match engine {
            COMPUTE => self.decide_compute(tenant, decision, now),
            _ => None,
        }
    }

    /// Notes a decision about the compute engine, and moves gates where they carry it out.
    pub(super) fn decide_compute(
        &mut self,
        tenant: TenantId,
        decision: Decision,
        now: Moment,
    ) -> Option<GateOrder> {
        let standing = self.tenants.get_mut(&tenant)?;
        if let Some(held_ns) = standing.decide(decision, now) {
            self.ledger.add_held(tenant, held_ns);
        }
        let state = match (self.control, decision) {
            (Control::Gates, Decision::Hold(_)) => GateState::Closed,
            _ if standing.is_idle_at(now) => GateState::Watched,
            _ => GateState::Open,
        };
        self.move_gates(tenant, state)
    }

    pub(super) fn move_gates(&mut self, tenant: TenantId, state: GateState) -> Option<GateOrder> {
        let standing = self.tenants.get_mut(&tenant)?;
        let moved = std::mem::replace(&mut standing.gates, state) != state;
        moved.then_some(GateOrder { tenant, state })
    }
}
