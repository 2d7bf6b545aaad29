//! Polls of an engine that divides its time by itself: its rule decides from the readings.

use turnstile_accounting::{Demand, DemandEvent, Moment, Seen, TenantId};
use turnstile_gpu::{EngineReading, Order};
use turnstile_policies::{Decision, LOOK_INTERVAL, Measured, Standing};

use super::{COMPUTE, GateOrder, Mediation};

/// Result of a poll.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Polled {
    /// How gates are to be moved.
    pub gates: Vec<GateOrder>,
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

    /// Takes in a poll. Other orders are in [`Mediation::take_gpu_orders`]. The ledger takes the
    /// poll's windows as periods ([`Mediation::period_end`]).
    pub fn poll(&mut self, reading: &EngineReading) -> Polled {
        for seen in &reading.tenants {
            let demand = match seen.has_work {
                true => Demand::Queued,
                false => Demand::Nothing,
            };
            self.observe_demand(&DemandEvent {
                at: reading.at,
                tenant: seen.tenant,
                engine: COMPUTE,
                demand,
            });
        }
        let mut polled = Polled {
            next: reading.at + LOOK_INTERVAL,
            ..Polled::default()
        };
        let Some(owed) = &mut self.owed else {
            return polled;
        };
        // A tenant that waits for its memory does not wait for the engine.
        let tenants = &self.tenants;
        let waits = |tenant: &TenantId| tenants.get(tenant).is_some_and(|of| of.memory_waits);
        let seen = reading
            .tenants
            .iter()
            .map(|seen| match waits(&seen.tenant) {
                true => Seen {
                    has_work: false,
                    idle: Seen::NEVER,
                    ..*seen
                },
                false => *seen,
            });
        let seen: Vec<Seen> = seen.collect();
        let measured = reading.windows.iter().map(|window| Measured {
            until: window.usage.window.to(),
            tenants: &window.readings,
        });
        let measured: Vec<Measured<'_>> = measured.collect();
        let orders = owed.look(reading.at, &seen, &measured).clone();
        (polled.next, polled.exact) = (orders.next_look, orders.exact);
        for order in orders.tenants {
            let decision = order.hold.map_or(Decision::Admit, Decision::Hold);
            let stands = self.tenants.get(&order.tenant);
            if stands.is_some_and(|standing| !standing.stands_at(decision)) {
                let moved = self.carry_out(COMPUTE, order.tenant, decision, reading.at);
                polled.gates.extend(moved);
            }
            if self.slices.insert(order.tenant, order.slice_ns) != Some(order.slice_ns) {
                let slice = Order::Slice(order.tenant, order.slice_ns);
                self.gpu_orders.push(slice);
            }
        }
        polled
    }
}
