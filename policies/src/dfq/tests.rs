//! The policy as a whole, event by event; shares over time are in `tests/simulated`.

mod caps;
mod periods;
mod preemption;
mod tenants;
mod time;

use super::*;

const A: TenantId = TenantId(1);
const B: TenantId = TenantId(2);
const C: TenantId = TenantId(3);
const US: u64 = 1_000;

/// A policy on an engine that is idle at first; times are in microseconds.
struct Run {
    dfq: Dfq,
    now: Moment,
}

impl Run {
    fn new() -> Self {
        Self::tuned(&Tuning::default())
    }

    /// Where stopping a kernel takes 20 us.
    fn that_stops() -> Self {
        Self::tuned(&Tuning {
            preemption_ns: Some(Nanos::from_us(20)),
            ..Tuning::default()
        })
    }

    fn tuned(tuning: &Tuning) -> Self {
        let mut run = Self {
            dfq: Dfq::new(tuning),
            now: Moment(0),
        };
        run.state(EngineState::Idle);
        run
    }

    fn at(&mut self, us: u64) -> &mut Self {
        self.now = Moment(us * US);
        self
    }

    fn add(&mut self, tenant: TenantId, account: u32, weight: u32) -> &mut Self {
        let name = format!("{tenant}");
        self.add_named(tenant, account, weight, &name)
    }

    fn add_named(&mut self, tenant: TenantId, account: u32, weight: u32, name: &str) -> &mut Self {
        let membership = Membership {
            account: AccountId(account),
            name,
        };
        let params = TenantParams {
            weight: Weight::new(weight).unwrap(),
            cap: None,
        };
        self.dfq.add(tenant, membership, params, self.now).unwrap();
        self
    }

    fn account(&mut self, account: u32, weight: u32, cap: Option<Cap>) -> &mut Self {
        let weight = Weight::new(weight).unwrap();
        let params = TenantParams { weight, cap };
        self.dfq.set_account(AccountId(account), params);
        self
    }

    fn state(&mut self, state: EngineState) -> &mut Self {
        self.dfq.observe(self.now, EngineEvent::State(state));
        self
    }

    fn demand(&mut self, tenant: TenantId, demand: Demand) -> &mut Self {
        let event = EngineEvent::Demand(tenant, demand);
        self.dfq.observe(self.now, event);
        self
    }

    fn queue(&mut self, tenant: TenantId) -> &mut Self {
        self.demand(tenant, Demand::Queued)
    }

    fn sleep(&mut self, tenant: TenantId) -> &mut Self {
        self.demand(tenant, Demand::Nothing)
    }

    /// The tenant's command runs from now on.
    fn run(&mut self, tenant: TenantId) -> &mut Self {
        self.state(EngineState::Running(tenant))
    }

    fn idle(&mut self) -> &mut Self {
        self.state(EngineState::Idle)
    }

    /// Updates the policy to now; returns the tenants that are held.
    fn held(&mut self) -> Vec<TenantId> {
        self.dfq.decide(self.now);
        self.dfq.held.keys().copied().collect()
    }

    /// Virtual time of an account in microseconds at the default weight, rounded down.
    fn account_at(&self, account: u32) -> u64 {
        us(self.dfq.accounts[&AccountId(account)].entity.at())
    }

    fn tenant_at(&self, tenant: TenantId) -> u64 {
        let account = &self.dfq.accounts[&self.dfq.owners[&tenant]];
        us(account.tenants[&tenant].entity.at())
    }

    /// When to decide again, in microseconds, rounded down.
    fn decide_at(&self) -> Option<u64> {
        self.dfq.decide_at().map(|at| at.0 / US)
    }
}

fn us(at: VirtualTime) -> u64 {
    VirtualTime::default().service_until(at, 100).0 / US
}

fn cap(quota_us: u64, period_us: u64) -> Option<Cap> {
    Some(Cap::new(Nanos::from_us(quota_us), Nanos::from_us(period_us)).unwrap())
}
