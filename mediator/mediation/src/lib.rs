//! The heart of the loop: usage and demand in, orders for gates and holds out. Pure: the daemon and
//! the virtual-time lab drive the same code.
//!
//! ```text
//!   meter -> Usage --------------> ledger
//!                  \
//!   engine log, demand, doorbells -> policy of each engine -> Decision -> Order (dispatcher)
//!                                                                     \-> GateOrder (doorbell pages)
//! ```
//!
//! Where the GPU's dispatcher can hold a tenant on one engine ([`Control::Holds`]), each engine has
//! a policy of its own. Gates are then only watched while a tenant is idle. Elsewhere
//! ([`Control::Gates`]) the policy of the compute engine closes gates.
//!
//! Called by the accounting thread of a GPU and by the threads that report doorbells, under one
//! lock.
#![deny(unsafe_code)]

mod orders;
mod period;
#[cfg(test)]
mod polled_tests;
mod standing;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use turnstile_accounting::entitled::{Account, Claimant, Due, Entitlements, Quota};
use turnstile_accounting::{
    AccountId, Demand, DemandEvent, EngineId, EngineState, Ledger, LedgerError, Moment, Nanos,
    Signals, SwitchEvent, TenantId, Usage,
};
use turnstile_policies::{
    Basis, Cap, Debt, EngineEvent, Membership, Owed, PeriodUsage, Policy, PolicyError, PolicyRow,
    Rule, TenantParams, TenantPeriod, Tuning, Weight,
};
use turnstile_vmm::gate::GateState;

pub use orders::{Activity, Control, GateOrder, Polled};
use standing::Standing;
pub use standing::Tally;
pub use turnstile_gpu::COMPUTE;
use turnstile_gpu::{Capabilities, Order, Suspend};

/// A tenant without work for this long has its gates watched instead of open.
pub(crate) const WATCH_AFTER: Nanos = Nanos::from_ms(20);

/// Where a GPU does not report demand: a tenant that had work this shortly before the end of a
/// period counts as runnable.
pub const GRACE: Nanos = Nanos::from_us(500);

/// Minimum time between two decisions that a policy requests.
pub const REACTION_MIN: Nanos = Nanos::from_us(50);

/// How long it takes to stop a running kernel and start another. SOURCE: 3 to 13 us on an H200
/// (`turnstile bench suspend`), with room.
pub(crate) const PREEMPTION_NS: Nanos = Nanos::from_us(20);

/// One engine and the policy that schedules it.
#[derive(Debug)]
struct Scheduled {
    engine: EngineId,
    policy: Box<dyn Policy>,
    /// Number and time of the engine's last switch.
    last: Option<(u64, Moment)>,
}

/// Meters' usages, the policies and the ledger of one GPU.
#[derive(Debug)]
// FIELDS: what a period reads and writes together; three are buffers.
pub struct Mediation {
    control: Control,
    /// The compute engine first.
    scheduled: Vec<Scheduled>,
    /// The rule of a GPU that divides its engine by itself, in place of policies.
    owed: Option<Box<Owed>>,
    /// Time slices that were ordered.
    slices: BTreeMap<TenantId, Nanos>,
    /// The GPU reports what work tenants have for each engine.
    demand_known: bool,
    ledger: Ledger,
    tenants: BTreeMap<TenantId, Standing>,
    /// Accounts for which weight or cap was set.
    accounts: BTreeMap<AccountId, TenantParams>,
    due: Entitlements,
    /// Decisions taken at ends of periods.
    periods: u64,
    /// Orders that the GPU has not been given yet.
    gpu_orders: Vec<Order>,
    /// Reused between periods.
    usage: Vec<TenantPeriod>,
    claimants: Vec<Claimant>,
    orders: Vec<GateOrder>,
}

impl Mediation {
    /// A mediation without tenants, for a GPU with these engines that reports no demand: `policy`
    /// schedules the compute engine by gates.
    pub fn new(policy: Box<dyn Policy>, engines: impl IntoIterator<Item = EngineId>) -> Self {
        let scheduled = Scheduled {
            engine: COMPUTE,
            policy,
            last: None,
        };
        Self::of(Control::Gates, false, vec![scheduled], engines)
    }

    /// A mediation without tenants for a GPU that can do this, under the policy of `row`.
    pub fn for_gpu(row: &PolicyRow, tuning: &Tuning, gpu: &Capabilities) -> Self {
        let engines: Vec<EngineId> = (0..gpu.compute_engines + gpu.copy_engines)
            .map(EngineId)
            .collect();
        let control = match gpu.engine_holds && gpu.demand {
            true => Control::Holds,
            false => Control::Gates,
        };
        let stops = control == Control::Holds && gpu.suspend == Suspend::MidKernel;
        let compute = Tuning {
            preemption_ns: stops.then_some(PREEMPTION_NS),
            ..*tuning
        };
        // Copies are short and two engines take them: no engine is left idle for one.
        let copy = Tuning {
            patience_ns: Nanos::ZERO,
            ..*tuning
        };
        let schedules = |engine: &&EngineId| {
            **engine == COMPUTE || row.every_engine && control == Control::Holds
        };
        let (mut scheduled, mut owed) = (Vec::new(), None);
        for engine in engines.iter().filter(schedules) {
            match (row.make)(if *engine == COMPUTE { &compute } else { &copy }) {
                Rule::Events(policy) => scheduled.push(Scheduled {
                    engine: *engine,
                    policy,
                    last: None,
                }),
                Rule::Looks(rule) => owed = Some(rule),
                // The lab's own: no mediator offers it, and it decides nothing here.
                Rule::Lab(_) => {}
            }
        }
        let mut this = Self::of(control, gpu.demand, scheduled, engines);
        this.owed = owed;
        this
    }

    fn of(
        control: Control,
        demand_known: bool,
        scheduled: Vec<Scheduled>,
        engines: impl IntoIterator<Item = EngineId>,
    ) -> Self {
        Self {
            control,
            scheduled,
            owed: None,
            slices: BTreeMap::new(),
            demand_known,
            ledger: Ledger::new(engines, RECORDS_KEPT),
            tenants: BTreeMap::new(),
            accounts: BTreeMap::new(),
            due: Entitlements::default(),
            periods: 0,
            gpu_orders: Vec::new(),
            usage: Vec::new(),
            claimants: Vec::new(),
            orders: Vec::new(),
        }
    }

    /// How decisions reach tenants' commands.
    pub const fn control(&self) -> Control {
        self.control
    }

    /// Sets weight and cap of an account; they apply at the next decision.
    pub fn set_account(&mut self, account: AccountId, params: TenantParams) {
        self.accounts.insert(account, params);
        for scheduled in &mut self.scheduled {
            scheduled.policy.set_account(account, params);
        }
        if let Some(owed) = &mut self.owed {
            owed.set_account(account, params);
        }
    }

    /// What accounts and names are ahead by on each engine, for a later run.
    pub fn debts(&self) -> Vec<(EngineId, Debt)> {
        let of = |scheduled: &Scheduled| {
            let engine = scheduled.engine;
            let debts = scheduled.policy.debts().into_iter();
            debts.map(move |debt| (engine, debt)).collect::<Vec<_>>()
        };
        self.scheduled.iter().flat_map(of).collect()
    }

    /// An account, or a name without a tenant, is ahead by this from an earlier run.
    pub fn owe(&mut self, engine: EngineId, debt: &Debt, now: Moment) {
        let mut scheduled = self.scheduled.iter_mut();
        if let Some(scheduled) = scheduled.find(|scheduled| scheduled.engine == engine) {
            scheduled.policy.owe(debt, now);
        }
    }

    /// Drops what a name of an account is ahead by.
    pub fn forget_name(&mut self, account: AccountId, name: &str) {
        for scheduled in &mut self.scheduled {
            scheduled.policy.forget_name(account, name);
        }
        if let Some(owed) = &mut self.owed {
            owed.forget_name(account, name);
        }
    }

    /// A tenant appears; its gates begin watched.
    ///
    /// # Errors
    /// If it is known already.
    pub fn add(
        &mut self,
        tenant: TenantId,
        membership: Membership<'_>,
        params: TenantParams,
        now: Moment,
    ) -> Result<(), PolicyError> {
        for scheduled in &mut self.scheduled {
            scheduled.policy.add(tenant, membership, params, now)?;
        }
        if let Some(owed) = &mut self.owed {
            owed.add(tenant, membership, params, now)?;
        }
        let standing = Standing::new(membership.account, params, self.periods);
        self.tenants.insert(tenant, standing);
        Ok(())
    }

    /// A tenant is gone; its totals stay in the ledger until [`Self::settle`].
    ///
    /// # Errors
    /// If it is not known.
    pub fn remove(&mut self, tenant: TenantId, now: Moment) -> Result<(), PolicyError> {
        self.tenants.remove(&tenant);
        self.slices.remove(&tenant);
        if let Some(owed) = &mut self.owed {
            owed.remove(tenant, now)?;
        }
        for scheduled in &mut self.scheduled {
            scheduled.policy.remove(tenant, now)?;
        }
        Ok(())
    }

    /// Drops the totals of a tenant that is gone, once its last window is closed.
    pub fn settle(&mut self, tenant: TenantId) {
        self.ledger.settle(tenant);
        self.due.forget(tenant);
    }

    /// Changes a weight; it applies at the next decision.
    ///
    /// # Errors
    /// If the tenant is not known.
    pub fn set_weight(&mut self, tenant: TenantId, weight: Weight) -> Result<(), PolicyError> {
        for scheduled in &mut self.scheduled {
            scheduled.policy.set_weight(tenant, weight)?;
        }
        if let Some(owed) = &mut self.owed {
            owed.set_weight(tenant, weight)?;
        }
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
        for scheduled in &mut self.scheduled {
            scheduled.policy.set_cap(tenant, cap)?;
        }
        if let Some(owed) = &mut self.owed {
            owed.set_cap(tenant, cap)?;
        }
        if let Some(standing) = self.tenants.get_mut(&tenant) {
            standing.cap = cap;
        }
        Ok(())
    }

    /// Sets whether a tenant has a latency target; it applies at the next poll. Without effect
    /// where the rule knows none.
    ///
    /// # Errors
    /// If the tenant is not known.
    pub fn set_target(&mut self, tenant: TenantId, target: bool) -> Result<(), PolicyError> {
        match &mut self.owed {
            Some(owed) => owed.set_target(tenant, target),
            None => Ok(()),
        }
    }

    /// Sets whether a tenant's turns coincide with those on other GPUs; it applies at the next
    /// poll. Without effect where the rule knows none.
    ///
    /// # Errors
    /// If the tenant is not known.
    pub fn set_gang(&mut self, tenant: TenantId, gang: bool) -> Result<(), PolicyError> {
        match &mut self.owed {
            Some(owed) => owed.set_gang(tenant, gang),
            None => Ok(()),
        }
    }

    fn standing(&self, tenant: TenantId) -> Option<&Standing> {
        self.tenants.get(&tenant)
    }

    /// A tenant's upper limit, if it has one.
    pub fn cap(&self, tenant: TenantId) -> Option<Cap> {
        self.standing(tenant)?.cap
    }

    /// A tenant's weight within its account.
    pub fn weight(&self, tenant: TenantId) -> Option<Weight> {
        Some(self.standing(tenant)?.weight)
    }

    /// A tenant's account.
    pub fn account(&self, tenant: TenantId) -> Option<AccountId> {
        Some(self.standing(tenant)?.account)
    }

    /// Whether a tenant is admitted to the compute engine.
    pub fn admitted(&self, tenant: TenantId) -> bool {
        self.standing(tenant).is_some_and(Standing::is_admitted)
    }

    /// Whether a tenant's queued work may go on as far as gates and suspension go: one that the
    /// dispatcher holds on an engine is not suspended.
    pub fn may_go_on(&self, tenant: TenantId) -> bool {
        self.control == Control::Holds || self.admitted(tenant)
    }

    /// Whether a tenant has work, or has kept a doorbell write.
    pub fn wants(&self, tenant: TenantId) -> bool {
        self.standing(tenant)
            .is_some_and(|standing| standing.backlogged || standing.kept || standing.has_demand())
    }

    /// Whether any tenant has work on any engine.
    pub fn any_wants(&self) -> bool {
        self.tenants.keys().any(|tenant| self.wants(*tenant))
    }

    /// Takes which tenants wait for their memory. To the policy one that waits has no work, and an
    /// engine without work is not its.
    pub fn memory_waits(&mut self, now: Moment, waits: impl Fn(TenantId) -> bool) {
        for (tenant, standing) in &mut self.tenants {
            let waits = waits(*tenant);
            if std::mem::replace(&mut standing.memory_waits, waits) == waits {
                continue;
            }
            for scheduled in &mut self.scheduled {
                let demand = standing.demand_for(scheduled.engine);
                let event = EngineEvent::Demand(*tenant, demand);
                scheduled.policy.observe(now, event);
            }
        }
    }

    /// Bytes were moved between GPU and host because of a tenant.
    pub fn charge_moved(&mut self, tenant: TenantId, bytes: u64, took: Nanos) {
        self.ledger.add_moved(tenant, bytes, took);
    }

    /// Where the gate of a channel that the tenant opens now has to stand.
    pub fn gates(&self, tenant: TenantId) -> Option<GateState> {
        Some(self.standing(tenant)?.gates)
    }

    /// Totals.
    pub const fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Takes what the engines did and what tenants wanted of them, each in order of time.
    /// `switches` is empty where a meter polls instead.
    pub fn observe(&mut self, switches: &[SwitchEvent], demand: &[DemandEvent]) {
        let mut switches = switches.iter().peekable();
        for event in demand {
            while let Some(switch) = switches.next_if(|switch| switch.at < event.at) {
                self.observe_switch(switch);
            }
            self.observe_demand(event);
        }
        switches.for_each(|switch| self.observe_switch(switch));
    }

    fn observe_switch(&mut self, switch: &SwitchEvent) {
        let mut all = self.scheduled.iter_mut();
        if let Some(scheduled) = all.find(|scheduled| scheduled.engine == switch.engine) {
            // Records were lost: the state before them ended at an unknown moment, so the time in
            // between is charged to no tenant.
            if let Some((seq, at)) = scheduled.last
                && switch.seq != seq.wrapping_add(1)
            {
                let unknown = EngineEvent::State(EngineState::Idle);
                scheduled.policy.observe(at, unknown);
            }
            scheduled.last = Some((switch.seq, switch.at));
            let event = EngineEvent::State(switch.state);
            scheduled.policy.observe(switch.at, event);
        }
    }

    fn observe_demand(&mut self, event: &DemandEvent) {
        let Some(standing) = self.tenants.get_mut(&event.tenant) else {
            return;
        };
        standing.set_demand(event.at, event.engine, event.demand);
        let demand = standing.demand_for(event.engine);
        let mut all = self.scheduled.iter_mut();
        if let Some(scheduled) = all.find(|scheduled| scheduled.engine == event.engine) {
            let demand = EngineEvent::Demand(event.tenant, demand);
            scheduled.policy.observe(event.at, demand);
        }
    }

    /// A doorbell write trapped, at a watched or a closed gate of this tenant.
    pub fn woke(&mut self, tenant: TenantId, now: Moment) -> Option<GateOrder> {
        let standing = self.tenants.get_mut(&tenant)?;
        if self.control == Control::Holds {
            // The GPU reports what work it is. It may have finished it already, or there was none:
            // then the gates are watched again, unless more follows.
            standing.idle_from = (!standing.has_demand()).then_some(now);
            return self.move_gates(tenant, GateState::Open);
        }
        standing.idle_from = None;
        standing.kept |= standing.gates == GateState::Closed;
        standing.note_wanting(now);
        let decision = self.scheduled.first_mut()?.policy.woke(tenant, now).ok()?;
        self.decide_compute(tenant, decision, now)
    }

    /// Tenants that are held on the compute engine.
    pub fn held(&self) -> impl Iterator<Item = TenantId> + '_ {
        let held = |(_, standing): &(&TenantId, &Standing)| !standing.is_admitted();
        self.tenants.iter().filter(held).map(|(tenant, _)| *tenant)
    }

    /// When a decision is due, if before the end of the period.
    pub fn decide_at(&self) -> Option<Moment> {
        let all = self.scheduled.iter();
        all.filter_map(|scheduled| scheduled.policy.decide_at())
            .min()
    }

    /// Decides anew from what was observed. Orders for gates are returned, those for the dispatcher
    /// are in [`Self::take_gpu_orders`].
    pub fn decide(&mut self, now: Moment) -> Vec<GateOrder> {
        let mut orders = Vec::new();
        for index in 0..self.scheduled.len() {
            let scheduled = &mut self.scheduled[index];
            let engine = scheduled.engine;
            for decided in scheduled.policy.decide(now).to_vec() {
                orders.extend(self.carry_out(engine, decided.tenant, decided.decision, now));
            }
        }
        orders
    }
}

/// Windows that the in-memory ledger remembers.
const RECORDS_KEPT: usize = 256;
