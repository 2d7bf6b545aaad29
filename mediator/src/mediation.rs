//! The heart of the loop: usage in, gate orders out. Pure: the daemon and the virtual-time lab drive the same code.
//!
//! ```text
//!   meter -> Usage -> ledger
//!                \--> policy -> Decision -> GateOrder
//!   trapped doorbell -> woke --^     ^-- ran_dry <- an engine without work
//! ```
//!
//! A policy schedules one engine, the compute engine; the copy engines are accounted for.

use std::collections::BTreeMap;

use turnstile_accounting::entitled::{Due, Entitlements, Wish};
use turnstile_accounting::{
    EngineId, EngineUsage, Ledger, LedgerError, Metric, Moment, Nanos, Signals, TenantId, Usage,
};
use turnstile_policies::{
    Basis, Cap, Decision, HoldReason, PeriodUsage, Policy, PolicyError, TenantParams, TenantPeriod,
    Weight,
};
use turnstile_vmm::gate::GateState;

/// The engine that policies schedule.
pub const COMPUTE: EngineId = EngineId(0);

/// A tenant seen without work for so long has its gates watched instead of open.
pub const WATCH_AFTER: Nanos = Nanos::from_ms(20);

/// A tenant that had work this shortly before the end of a period counts as backlogged: one that launches and waits is
/// without work for a moment after each fence, and wants the engine all the same.
pub const GRACE: Nanos = Nanos::from_us(500);

/// All gates of a tenant are to be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateOrder {
    /// Whose gates.
    pub tenant: TenantId,
    /// Where to.
    pub state: GateState,
}

/// What a tenant's channels look like at the end of a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Activity {
    /// Whose channels.
    pub tenant: TenantId,
    /// Commands announced and not finished, all channels together.
    pub pending: u64,
    /// When one was last announced or finished; none before the first.
    pub last_active: Option<Moment>,
    /// What it was charged too much, as is known by now; negative: too little.
    pub overcharged_ns: i64,
}

/// How often a tenant was held back, and why; all of it only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Decisions about it.
    pub periods: u64,
    /// Periods in which it was held back for some time.
    pub throttled_periods: u64,
    /// Times that it was held back as it was ahead of its share.
    pub held_ahead: u64,
    /// Times that it was held back as it was another's turn.
    pub held_turn: u64,
    /// Times that it was held back as its quota was used up.
    pub held_capped: u64,
}

/// How a tenant stands.
#[derive(Clone, Copy, Debug)]
struct Standing {
    weight: Weight,
    cap: Option<Cap>,
    decision: Decision,
    /// Since when its gates are closed.
    held_from: Option<Moment>,
    /// It was admitted at some time in this period.
    admitted: bool,
    /// It was held back at some time in this period.
    throttled: bool,
    tally: Tally,
    /// A doorbell write was kept at one of its closed gates.
    kept: bool,
    /// It had work at the end of the last period, before or behind its gates.
    backlogged: bool,
    /// Since when it has been seen without work.
    idle_from: Option<Moment>,
    /// It stopped in this period: it did not want more than it had, whatever it wants now.
    stopped: bool,
    /// Not all of its memory is on the GPU: it waits for that and not for the engine.
    memory_waits: bool,
    gates: GateState,
}

/// Meters' usages, the policy and the ledger of one GPU.
#[derive(Debug)]
pub struct Mediation {
    policy: Box<dyn Policy>,
    ledger: Ledger,
    tenants: BTreeMap<TenantId, Standing>,
    due: Entitlements,
    /// Reused between periods.
    usage: Vec<TenantPeriod>,
    wishes: Vec<Wish>,
    orders: Vec<GateOrder>,
}

impl Mediation {
    /// A mediation without tenants, for a GPU with these engines.
    pub fn new(policy: Box<dyn Policy>, engines: impl IntoIterator<Item = EngineId>) -> Self {
        Self {
            policy,
            ledger: Ledger::new(engines, RECORDS_KEPT),
            tenants: BTreeMap::new(),
            due: Entitlements::default(),
            usage: Vec::new(),
            wishes: Vec::new(),
            orders: Vec::new(),
        }
    }

    /// A tenant appears; its gates begin watched.
    ///
    /// # Errors
    /// If it is known already.
    pub fn add(&mut self, tenant: TenantId, params: TenantParams) -> Result<(), PolicyError> {
        self.policy.add(tenant, params)?;
        let standing = Standing {
            weight: params.weight,
            cap: params.cap,
            decision: Decision::Admit,
            held_from: None,
            admitted: true,
            throttled: false,
            tally: Tally::default(),
            kept: false,
            backlogged: false,
            idle_from: None,
            stopped: false,
            memory_waits: false,
            gates: GateState::Watched,
        };
        self.tenants.insert(tenant, standing);
        Ok(())
    }

    /// A tenant is gone; its totals stay in the ledger until [`Self::settle`].
    ///
    /// # Errors
    /// If it is not known.
    pub fn remove(&mut self, tenant: TenantId) -> Result<(), PolicyError> {
        self.tenants.remove(&tenant);
        self.policy.remove(tenant)
    }

    /// Forgets the totals of a tenant that is gone, once its last window is closed.
    pub fn settle(&mut self, tenant: TenantId) {
        self.ledger.settle(tenant);
        self.due.forget(tenant);
    }

    /// Changes a weight; it applies at the next decision.
    ///
    /// # Errors
    /// If the tenant is not known.
    pub fn set_weight(&mut self, tenant: TenantId, weight: Weight) -> Result<(), PolicyError> {
        self.policy.set_weight(tenant, weight)?;
        if let Some(standing) = self.tenants.get_mut(&tenant) {
            standing.weight = weight;
        }
        Ok(())
    }

    /// Sets a tenant's upper limit, or lifts it; it applies at the next decision.
    ///
    /// # Errors
    /// If the tenant is not known.
    pub fn set_cap(&mut self, tenant: TenantId, cap: Option<Cap>) -> Result<(), PolicyError> {
        // The same again would begin with an unused quota.
        if self.cap(tenant) == cap {
            return Ok(());
        }
        self.policy.set_cap(tenant, cap)?;
        if let Some(standing) = self.tenants.get_mut(&tenant) {
            standing.cap = cap;
        }
        Ok(())
    }

    /// A tenant's upper limit, if it has one.
    pub fn cap(&self, tenant: TenantId) -> Option<Cap> {
        self.tenants.get(&tenant).and_then(|standing| standing.cap)
    }

    /// A tenant's weight.
    pub fn weight(&self, tenant: TenantId) -> Option<Weight> {
        self.tenants.get(&tenant).map(|standing| standing.weight)
    }

    /// Whether a tenant is let through.
    pub fn admitted(&self, tenant: TenantId) -> bool {
        self.tenants
            .get(&tenant)
            .is_some_and(|standing| standing.decision == Decision::Admit)
    }

    /// Whether a tenant was let through at some time of the period under way.
    pub fn was_admitted(&self, tenant: TenantId) -> bool {
        self.tenants
            .get(&tenant)
            .is_some_and(|standing| standing.admitted)
    }

    /// Whether a tenant had work at the end of the last period, or has kept a doorbell write since.
    pub fn wants(&self, tenant: TenantId) -> bool {
        self.tenants
            .get(&tenant)
            .is_some_and(|standing| standing.backlogged || standing.kept)
    }

    /// Which tenants wait for their memory. To the policy one that waits has no work: who runs meanwhile
    /// is not ahead of it (turns on the memory are fair by themselves), and an engine without work is not its.
    pub fn memory_waits(&mut self, waits: impl Fn(TenantId) -> bool) {
        for (tenant, standing) in &mut self.tenants {
            standing.memory_waits = waits(*tenant);
        }
    }

    /// Bytes were moved between GPU and host because of a tenant.
    pub fn charge_moved(&mut self, tenant: TenantId, bytes: u64, took: Nanos) {
        self.ledger.add_moved(tenant, bytes, took);
    }

    /// Where the gate of a channel that the tenant opens now has to stand.
    pub fn gates(&self, tenant: TenantId) -> Option<GateState> {
        self.tenants.get(&tenant).map(|standing| standing.gates)
    }

    /// Totals.
    pub const fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// A doorbell write trapped, at a watched or a closed gate of this tenant.
    pub fn woke(&mut self, tenant: TenantId, now: Moment) -> Option<GateOrder> {
        let decision = self.policy.woke(tenant, now).ok()?;
        let standing = self.tenants.get_mut(&tenant)?;
        standing.kept |= standing.gates == GateState::Closed;
        standing.idle_from = None;
        self.decide(tenant, decision, now)
    }

    /// Tenants that are held back.
    pub fn held(&self) -> impl Iterator<Item = TenantId> + '_ {
        let held = |standing: &Standing| standing.decision != Decision::Admit;
        self.tenants
            .iter()
            .filter_map(move |(tenant, standing)| held(standing).then_some(*tenant))
    }

    /// A tenant that is held back has commands queued, which its suspended channels do not run: it waits as one does
    /// whose doorbell was kept.
    pub fn queued(&mut self, tenant: TenantId) {
        if let Some(standing) = self.tenants.get_mut(&tenant) {
            standing.kept |= standing.decision != Decision::Admit;
        }
    }

    /// Whether tenants have work behind closed gates.
    pub fn anyone_waits(&self) -> bool {
        self.tenants.values().any(|standing| standing.kept)
    }

    /// The compute engine has nothing to do: lets one of those in who wait behind closed gates.
    pub fn ran_dry(&mut self, now: Moment) -> Option<GateOrder> {
        let waiting: Vec<TenantId> = self
            .tenants
            .iter()
            .filter(|(_, standing)| standing.kept && !standing.memory_waits)
            .map(|(tenant, _)| *tenant)
            .collect();
        let tenant = self.policy.ran_dry(&waiting, now)?;
        for (other, standing) in &mut self.tenants {
            standing.stopped |= !waiting.contains(other);
        }
        self.decide(tenant, Decision::Admit, now)
    }

    /// Whether the policy has more to decide when the engine ran dry.
    pub fn decides_when_dry(&self) -> bool {
        self.policy.decides_when_dry()
    }

    /// When the policy has to be asked again, if before the end of the period.
    pub fn decide_at(&self) -> Option<Moment> {
        self.policy.decide_at()
    }

    /// Carries one decision out.
    fn decide(&mut self, tenant: TenantId, decision: Decision, now: Moment) -> Option<GateOrder> {
        let standing = self.tenants.get_mut(&tenant)?;
        standing.decision = decision;
        let state = match decision {
            Decision::Admit => {
                standing.admitted = true;
                standing.kept = false;
                if let Some(from) = standing.held_from.take() {
                    self.ledger.add_held(tenant, now.since(from));
                }
                let idle = standing
                    .idle_from
                    .is_some_and(|from| now.since(from) >= WATCH_AFTER);
                if idle {
                    GateState::Watched
                } else {
                    GateState::Open
                }
            }
            Decision::Hold(reason) => {
                standing.throttled = true;
                if standing.held_from.is_none() {
                    standing.held_from = Some(now);
                    let tally = &mut standing.tally;
                    *match reason {
                        HoldReason::Ahead => &mut tally.held_ahead,
                        HoldReason::Turn => &mut tally.held_turn,
                        HoldReason::Capped => &mut tally.held_capped,
                    } += 1;
                }
                GateState::Closed
            }
        };
        let moved = std::mem::replace(&mut standing.gates, state) != state;
        moved.then_some(GateOrder { tenant, state })
    }

    /// A period ends with what a meter saw of it: takes `observed` (and, of a polled meter, the window extrapolated
    /// before it) into the ledger, asks the policy, and returns how gates are to be moved.
    ///
    /// # Errors
    /// If a usage does not balance: then nothing was charged for it, and the decisions stand as they were.
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
        for seen in activity {
            let Some(standing) = self.tenants.get_mut(&seen.tenant) else {
                continue;
            };
            let recent = seen.last_active.is_some_and(|at| end.since(at) < GRACE);
            let backlogged = seen.pending > 0 || standing.kept || recent;
            standing.backlogged = backlogged;
            standing.idle_from = match (backlogged, standing.idle_from) {
                (true, _) => None,
                (false, None) => Some(seen.last_active.unwrap_or(end)),
                (false, since) => since,
            };
            self.usage.push(TenantPeriod {
                tenant: seen.tenant,
                used_ns: used_ns(compute, seen.tenant),
                admitted: standing.admitted,
                backlogged: backlogged && !standing.memory_waits,
                overcharged_ns: seen.overcharged_ns,
            });
        }
        let poll_ns = observed.window.length();
        for usage in extrapolated.into_iter().chain([observed]) {
            self.enter(usage)?;
        }
        let period = PeriodUsage {
            end,
            basis,
            poll_ns,
            nonpoll_ns,
            tenants: &self.usage,
        };
        let decisions = self.policy.period_end(&period).to_vec();
        self.orders.clear();
        for decided in decisions {
            if let Some(standing) = self.tenants.get_mut(&decided.tenant) {
                (standing.admitted, standing.stopped) = (false, false);
                standing.tally.periods += 1;
                standing.tally.throttled_periods += u64::from(standing.throttled);
                standing.throttled = false;
            }
            if let Some(order) = self.decide(decided.tenant, decided.decision, end) {
                self.orders.push(order);
            }
        }
        Ok(&self.orders)
    }

    /// Takes a usage into the ledger, and into what tenants were due.
    fn enter(&mut self, usage: Usage) -> Result<(), LedgerError> {
        let length = usage.window.length();
        let compute = usage.engine(COMPUTE);
        let wish = |(tenant, standing): (&TenantId, &Standing)| Wish {
            tenant: *tenant,
            weight: standing.weight.get(),
            cap_ns: standing.cap.map(|cap| cap.within(length)),
            used_ns: used_ns(compute, *tenant),
            backlogged: standing.backlogged && !standing.memory_waits && !standing.stopped,
        };
        self.wishes.clear();
        self.wishes.extend(self.tenants.iter().map(wish));
        self.ledger.append(usage)?;
        self.due.window(length, &self.wishes);
        Ok(())
    }

    /// What a tenant was entitled to of the compute engine, and how long it waited for it.
    pub fn due(&self, tenant: TenantId) -> Due {
        self.due.of(tenant)
    }

    /// How often a tenant was held back.
    pub fn tally(&self, tenant: TenantId) -> Tally {
        let standing = self.tenants.get(&tenant);
        standing.map_or(Tally::default(), |standing| standing.tally)
    }

    /// Whether a tenant had work at the end of the last period.
    pub fn backlogged(&self, tenant: TenantId) -> bool {
        self.tenants
            .get(&tenant)
            .is_some_and(|standing| standing.backlogged)
    }

    /// Time for which a tenant is being held back now, on top of what the ledger has.
    pub fn held_now(&self, tenant: TenantId, now: Moment) -> Nanos {
        self.tenants
            .get(&tenant)
            .and_then(|standing| standing.held_from)
            .map_or(Nanos::ZERO, |from| now.since(from))
    }
}

/// A tenant's time on an engine in a window.
fn used_ns(engine: Option<&EngineUsage>, tenant: TenantId) -> Nanos {
    engine
        .and_then(|engine| engine.tenants.iter().find(|part| part.tenant == tenant))
        .map_or(Nanos::ZERO, |part| part.metric_ns(Metric::Total))
}

/// Windows that the in-memory ledger remembers.
const RECORDS_KEPT: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use turnstile_accounting::{EngineState, EventMeter, Meter, Observation, SwitchEvent, Window};
    use turnstile_policies::{Tuning, policy_by_name};

    const A: TenantId = TenantId(1);
    const B: TenantId = TenantId(2);
    const PERIOD: Nanos = Nanos::from_ms(10);

    /// A mediation with the default policy, fed by an event meter as the daemon feeds it.
    struct Bench {
        mediation: Mediation,
        meter: EventMeter,
        at: Moment,
        seq: u64,
    }

    impl Bench {
        fn new(policy: &str) -> Self {
            let policy = (policy_by_name(policy).unwrap().make)(&Tuning::default());
            let mut mediation = Mediation::new(policy, [COMPUTE]);
            for tenant in [A, B] {
                mediation.add(tenant, TenantParams::default()).unwrap();
            }
            Self {
                mediation,
                meter: EventMeter::new([COMPUTE]),
                at: Moment(0),
                seq: 0,
            }
        }

        fn log(&mut self, at: Moment, state: EngineState) {
            let event = SwitchEvent {
                at,
                engine: COMPUTE,
                seq: self.seq,
                state,
            };
            self.seq += 1;
            self.meter.observe(Observation::Switch(event));
        }

        /// A period in which `used` ran one after the other; those in `busy` have work at its end.
        fn period(&mut self, used: &[(TenantId, u64)], busy: &[TenantId]) -> Vec<GateOrder> {
            let mut at = self.at;
            for (tenant, ms) in used {
                self.log(at, EngineState::Running(*tenant));
                at = at + Nanos::from_ms(*ms);
            }
            self.log(at, EngineState::Idle);
            let usage = self.meter.close(Window::starting(self.at, PERIOD));
            self.at = self.at + PERIOD;
            let activity = [A, B].map(|tenant| Activity {
                tenant,
                pending: busy.contains(&tenant).into(),
                last_active: busy.contains(&tenant).then_some(self.at),
                overcharged_ns: 0,
            });
            self.mediation
                .period_end(None, usage, &activity)
                .unwrap()
                .to_vec()
        }
    }

    fn order(tenant: TenantId, state: GateState) -> GateOrder {
        GateOrder { tenant, state }
    }

    #[test]
    fn who_is_ahead_is_closed_and_opened_again_when_even() {
        let mut bench = Bench::new("dfq");
        let orders = bench.period(&[(A, 9), (B, 1)], &[A, B]);
        assert_eq!(
            orders,
            [order(A, GateState::Open), order(B, GateState::Open)]
        );
        let orders = bench.period(&[(A, 9), (B, 1)], &[A, B]);
        assert_eq!(
            orders,
            [order(A, GateState::Closed)],
            "16 ms ahead, 10 ms to be given"
        );
        let orders = bench.period(&[(B, 8)], &[A, B]);
        assert_eq!(orders, [order(A, GateState::Open)]);
        let held = bench.mediation.ledger().tenant(A).held_ns;
        assert_eq!(held, PERIOD);
    }

    #[test]
    fn what_is_due_follows_weights_and_waiting_is_time_with_work_off_the_engine() {
        let mut bench = Bench::new("dfq");
        bench
            .mediation
            .set_weight(A, Weight::new(300).unwrap())
            .unwrap();
        bench.period(&[(A, 2), (B, 6)], &[A, B]);
        bench.period(&[(B, 5)], &[B]);
        let due = |tenant| {
            let due = bench.mediation.due(tenant);
            (due.entitled_ns.0 / 1_000_000, due.waited_ns.0 / 1_000_000)
        };
        assert_eq!(due(A), (6, 8));
        assert_eq!(due(B), (2 + 5, 4 + 5));
    }

    #[test]
    fn without_a_policy_nobody_is_closed() {
        let mut bench = Bench::new("none");
        for _ in 0..5 {
            let orders = bench.period(&[(A, 9), (B, 1)], &[A, B]);
            assert!(
                orders.iter().all(|order| order.state == GateState::Open),
                "{orders:?}"
            );
        }
    }

    #[test]
    fn an_idle_tenant_is_watched_and_opens_when_it_wakes() {
        let mut bench = Bench::new("dfq");
        bench.period(&[(A, 1)], &[A]);
        let mut orders = Vec::new();
        for _ in 0..4 {
            orders.extend(bench.period(&[], &[]));
        }
        assert!(orders.contains(&order(A, GateState::Watched)), "{orders:?}");
        assert_eq!(
            bench.mediation.woke(A, bench.at),
            Some(order(A, GateState::Open))
        );
        assert_eq!(bench.mediation.woke(A, bench.at), None, "it stands open");
    }

    #[test]
    fn an_engine_that_ran_dry_lets_in_who_waits_behind_a_closed_gate() {
        let mut bench = Bench::new("dfq");
        bench.period(&[(A, 9), (B, 1)], &[A, B]);
        bench.period(&[(A, 9), (B, 1)], &[A, B]);
        assert!(!bench.mediation.anyone_waits());
        assert_eq!(bench.mediation.ran_dry(bench.at), None, "nobody waits");
        assert_eq!(bench.mediation.woke(A, bench.at), None, "it stays closed");
        assert!(bench.mediation.anyone_waits());
        assert_eq!(
            bench.mediation.ran_dry(bench.at),
            Some(order(A, GateState::Open))
        );
        assert!(!bench.mediation.anyone_waits());
    }

    #[test]
    fn who_stopped_in_a_period_was_due_what_he_had_also_if_he_is_back_at_its_end() {
        let mut bench = Bench::new("dfq");
        bench.period(&[(A, 9), (B, 1)], &[A, B]);
        bench.period(&[(A, 9), (B, 1)], &[A, B]);
        bench.mediation.woke(A, bench.at);
        let due_ms = |bench: &Bench| bench.mediation.due(B).entitled_ns.0 / 1_000_000;
        let before = due_ms(&bench);
        // B has nothing to do, and A is let in.
        bench.mediation.ran_dry(bench.at).unwrap();
        bench.period(&[(B, 1), (A, 6)], &[A, B]);
        assert_eq!(due_ms(&bench), before + 1);
        bench.period(&[(B, 1), (A, 6)], &[A, B]);
        assert_eq!(
            due_ms(&bench),
            before + 1 + 3,
            "he wants half of the seven again"
        );
    }

    #[test]
    fn a_usage_that_does_not_balance_charges_nothing() {
        let mut bench = Bench::new("dfq");
        bench.period(&[(A, 5)], &[A]);
        let before = bench.mediation.ledger().tenant(A);
        let mut usage = bench.meter.close(Window::starting(bench.at, PERIOD));
        usage.engines[0].idle_ns += Nanos(1);
        assert!(bench.mediation.period_end(None, usage, &[]).is_err());
        assert_eq!(bench.mediation.ledger().tenant(A), before);
    }
}
