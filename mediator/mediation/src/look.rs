//! Polls of an engine that divides its time by itself: its rule decides from the readings.

use turnstile_accounting::{Demand, DemandEvent, Moment, Nanos, Seen, TenantId};
use turnstile_gpu::Look;
use turnstile_policies::{Decision, LOOK_INTERVAL, Measured, Standing};

use super::{COMPUTE, GateOrder, Mediation};

/// Result of a poll.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Looked {
    /// How gates are to be moved.
    pub gates: Vec<GateOrder>,
    /// Time slices that differ from those in force.
    pub slices: Vec<(TenantId, Nanos)>,
    /// When the next poll is due.
    pub next: Moment,
    /// Whether the next poll has to read all that it can.
    pub exact: bool,
}

impl Mediation {
    /// What the rule keeps of a tenant; none where policies schedule.
    pub fn owed(&self, tenant: TenantId) -> Option<Standing> {
        self.owed.as_ref()?.standing(tenant)
    }

    /// Takes in a poll. Holds are in [`Mediation::take_holds`]. The ledger takes the poll's windows
    /// as periods ([`Mediation::period_end`]).
    pub fn look(&mut self, look: &Look) -> Looked {
        for seen in &look.seen {
            let demand = match seen.has_work {
                true => Demand::Queued,
                false => Demand::Nothing,
            };
            self.observe_demand(&DemandEvent {
                at: look.at,
                tenant: seen.tenant,
                engine: COMPUTE,
                demand,
            });
        }
        let mut looked = Looked {
            next: look.at + LOOK_INTERVAL,
            ..Looked::default()
        };
        let Some(owed) = &mut self.owed else {
            return looked;
        };
        // A tenant that waits for its memory does not wait for the engine.
        let tenants = &self.tenants;
        let waits = |tenant: &TenantId| tenants.get(tenant).is_some_and(|of| of.memory_waits);
        let seen = look.seen.iter().map(|seen| match waits(&seen.tenant) {
            true => Seen {
                has_work: false,
                idle: Seen::NEVER,
                ..*seen
            },
            false => *seen,
        });
        let seen: Vec<Seen> = seen.collect();
        let measured = look.windows.iter().map(|window| Measured {
            until: window.usage.window.to(),
            tenants: &window.readings,
        });
        let measured: Vec<Measured<'_>> = measured.collect();
        let orders = owed.look(look.at, &seen, &measured).clone();
        (looked.next, looked.exact) = (orders.next_look, orders.exact);
        for order in orders.tenants {
            let decision = order.hold.map_or(Decision::Admit, Decision::Hold);
            let stands = self.tenants.get(&order.tenant);
            if stands.is_some_and(|standing| !standing.stands_at(decision)) {
                let moved = self.carry_out(COMPUTE, order.tenant, decision, look.at);
                looked.gates.extend(moved);
            }
            if self.slices.insert(order.tenant, order.slice_ns) != Some(order.slice_ns) {
                looked.slices.push((order.tenant, order.slice_ns));
            }
        }
        looked
    }
}
