//! The end of a period: charges, entitlements, decisions. Polls of an engine that divides its time
//! by itself: its rule decides from the readings.

use std::collections::BTreeMap;

use turnstile_accounting::{EngineUsage, Metric, Seen};
use turnstile_gpu::EngineReading;
use turnstile_policies::{Decision, LOOK_INTERVAL, Measured};

use super::{
    Account, Activity, Basis, COMPUTE, Cap, Claimant, Control, Demand, DemandEvent, Due,
    EngineEvent, EngineId, GRACE, GateOrder, GateState, LedgerError, Mediation, Moment, Nanos,
    Order, PeriodUsage, Polled, Quota, Signals, Standing, Tally, TenantId, TenantPeriod, Usage,
};

impl Mediation {
    /// A period ends: takes `observed` into the ledger, with the unobserved part before it of a
    /// polled meter. Decides, and returns how gates are to be moved. Orders for the dispatcher are
    /// in [`Mediation::take_gpu_orders`].
    ///
    /// # Errors
    /// If a usage does not balance: then nothing was charged for it, and the decisions stand.
    pub fn period_end(
        &mut self,
        extrapolated: Option<Usage>,
        observed: Usage,
        activity: &[Activity],
    ) -> Result<&[GateOrder], LedgerError> {
        let end = observed.window.to();
        let nonpoll_ns = extrapolated
            .as_ref()
            .map_or(Nanos::ZERO, |usage| usage.window.length());
        let basis = match observed.signals {
            Signals::Events | Signals::EventsAndCounters => Basis::Measured,
            Signals::Polled | Signals::Extrapolated => Basis::PollSample,
        };
        self.usage.clear();
        let compute = observed.engine(COMPUTE);
        let unseen = extrapolated
            .as_ref()
            .and_then(|usage| usage.engine(COMPUTE));
        for seen in activity {
            let Some(standing) = self.tenants.get_mut(&seen.tenant) else {
                continue;
            };
            if self.demand_known {
                standing.backlogged = standing.demand_for(COMPUTE) != Demand::Nothing;
            } else {
                standing.note_activity(seen, end);
            }
            if self.control == Control::Gates {
                // Also where a doorbell was rung without work.
                let backlogged = standing.backlogged && !standing.memory_waits;
                let demand = match backlogged {
                    true => standing.demand_for(COMPUTE).max(Demand::Executes),
                    false => Demand::Nothing,
                };
                for scheduled in &mut self.scheduled {
                    let event = EngineEvent::Demand(seen.tenant, demand);
                    scheduled.policy.observe(end, event);
                }
            }
            let used = used_ns(compute, seen.tenant);
            self.usage.push(TenantPeriod {
                tenant: seen.tenant,
                used_ns: used,
                charged_ns: used + used_ns(unseen, seen.tenant),
                admitted: standing.was_admitted,
                backlogged: standing.backlogged && !standing.memory_waits,
            });
        }
        let poll_ns = observed.window.length();
        let period_ns = poll_ns + nonpoll_ns;
        let wanted_ns = self.wanted(end, period_ns);
        for usage in extrapolated.into_iter().chain([observed]) {
            self.enter(usage, &wanted_ns, period_ns)?;
        }
        self.periods += 1;
        self.tenants.values_mut().for_each(Standing::end_period);
        let period = PeriodUsage {
            end,
            basis,
            poll_ns,
            nonpoll_ns,
            tenants: &self.usage,
        };
        let compute = self.scheduled.first_mut();
        let decisions = compute.map(|compute| compute.policy.period_end(&period).to_vec());
        let mut orders = std::mem::take(&mut self.orders);
        orders.clear();
        for decided in decisions.into_iter().flatten() {
            orders.extend(self.carry_out(COMPUTE, decided.tenant, decided.decision, end));
        }
        orders.extend(self.decide(end));
        self.tenants.values_mut().for_each(Standing::begin_period);
        self.watch_idle(end, &mut orders);
        self.orders = orders;
        Ok(&self.orders)
    }

    /// What the rule keeps of a tenant; none where policies schedule.
    pub fn owed(&self, tenant: TenantId) -> Option<turnstile_policies::Standing> {
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

    /// Gates of tenants that have become idle are watched.
    fn watch_idle(&mut self, end: Moment, orders: &mut Vec<GateOrder>) {
        let idle = |(_, standing): &(&TenantId, &Standing)| {
            standing.gates == GateState::Open && standing.is_idle_at(end)
        };
        let idle: Vec<TenantId> = self
            .tenants
            .iter()
            .filter(idle)
            .map(|(id, _)| *id)
            .collect();
        for tenant in idle {
            orders.extend(self.move_gates(tenant, GateState::Watched));
        }
    }

    /// Takes a usage into the ledger, and into what tenants were entitled to. Tenants wanted the
    /// engine for `wanted_ns` of `period_ns`.
    fn enter(
        &mut self,
        usage: Usage,
        wanted_ns: &BTreeMap<TenantId, Nanos>,
        period_ns: Nanos,
    ) -> Result<(), LedgerError> {
        let length = usage.window.length();
        let compute = usage.engine(COMPUTE);
        let quota = |cap: Option<Cap>| {
            cap.map(|cap| Quota {
                quota_ns: cap.quota_ns(),
                period_ns: cap.period_ns(),
            })
        };
        let accounts = &self.accounts;
        let claimant = |(tenant, standing): (&TenantId, &Standing)| {
            let set = accounts.get(&standing.account);
            let account = set.copied().unwrap_or_default();
            let wanted = wanted_ns.get(tenant).copied().unwrap_or_default();
            let wanted =
                u128::from(wanted.0) * u128::from(length.0) / u128::from(period_ns.0.max(1));
            Claimant {
                tenant: *tenant,
                account: Account {
                    id: standing.account,
                    weight: account.weight.get(),
                    quota: quota(account.cap),
                },
                weight: standing.weight.get(),
                quota: quota(standing.cap),
                used_ns: used_ns(compute, *tenant),
                // CAST: at most the window's length
                wanted_ns: Nanos(wanted as u64).min(length),
            }
        };
        self.claimants.clear();
        self.claimants.extend(self.tenants.iter().map(claimant));
        self.ledger.append(usage)?;
        self.due.window(length, &mut self.claimants);
        Ok(())
    }

    /// How long each tenant wanted the compute engine in the period of `length` that ends now.
    fn wanted(&mut self, end: Moment, length: Nanos) -> BTreeMap<TenantId, Nanos> {
        let known = self.demand_known;
        let wanted = |standing: &mut Standing| {
            let wants = standing.backlogged && !standing.memory_waits;
            match (known, wants) {
                (true, _) => standing.take_wanted(end),
                (false, true) => length,
                (false, false) => Nanos::ZERO,
            }
        };
        let tenants = self.tenants.iter_mut();
        tenants
            .map(|(id, standing)| (*id, wanted(standing)))
            .collect()
    }

    /// What a tenant was entitled to of the compute engine, and how long it waited for it.
    pub fn due(&self, tenant: TenantId) -> Due {
        self.due.of(tenant)
    }

    /// How often a tenant was held.
    pub fn tally(&self, tenant: TenantId) -> Tally {
        let standing = self.tenants.get(&tenant);
        standing.map_or(Tally::default(), |standing| standing.tally(self.periods))
    }

    /// Whether a tenant had work at the end of the last period.
    pub fn backlogged(&self, tenant: TenantId) -> bool {
        let standing = self.tenants.get(&tenant);
        standing.is_some_and(|standing| standing.backlogged)
    }

    /// Time for which a tenant is being held now, on top of what the ledger has.
    pub fn held_now(&self, tenant: TenantId, now: Moment) -> Nanos {
        let standing = self.tenants.get(&tenant);
        standing
            .and_then(Standing::held_from)
            .map_or(Nanos::ZERO, |from| now.since(from))
    }
}

impl Standing {
    /// Where the GPU reports no demand: takes the channels' state at the end of a period.
    fn note_activity(&mut self, seen: &Activity, end: Moment) {
        let recent = seen.last_active.is_some_and(|at| end.since(at) < GRACE);
        self.backlogged = seen.pending > 0 || self.kept || recent;
        self.idle_from = match (self.backlogged, self.idle_from) {
            (true, _) => None,
            (false, None) => Some(seen.last_active.unwrap_or(end)),
            (false, since) => since,
        };
    }
}

/// A tenant's time on an engine in a window.
fn used_ns(engine: Option<&EngineUsage>, tenant: TenantId) -> Nanos {
    engine
        .and_then(|engine| engine.tenants.iter().find(|part| part.tenant == tenant))
        .map_or(Nanos::ZERO, |part| part.metric_ns(Metric::Total))
}
