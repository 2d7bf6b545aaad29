//! No policy: everybody is admitted, and the hardware's dispatcher decides.

use crate::params::{Cap, TenantParams, Weight};
use crate::policy::{Decision, PeriodUsage, Policy, PolicyError, TenantDecision};
use crate::roster::Roster;
use turnstile_accounting::{Moment, TenantId};

/// Admits everybody.
#[derive(Debug, Default)]
pub struct AdmitAll {
    tenants: Roster<()>,
    decisions: Vec<TenantDecision>,
}

impl Policy for AdmitAll {
    fn name(&self) -> &'static str {
        "none"
    }

    fn add(&mut self, tenant: TenantId, _: TenantParams) -> Result<(), PolicyError> {
        self.tenants.add(tenant, ())
    }

    fn remove(&mut self, tenant: TenantId) -> Result<(), PolicyError> {
        self.tenants.remove(tenant)
    }

    fn set_weight(&mut self, tenant: TenantId, _: Weight) -> Result<(), PolicyError> {
        self.tenants.get(tenant).copied()
    }

    fn set_cap(&mut self, tenant: TenantId, _: Option<Cap>) -> Result<(), PolicyError> {
        self.tenants.get(tenant).copied()
    }

    fn woke(&mut self, tenant: TenantId, _: Moment) -> Result<Decision, PolicyError> {
        self.tenants.get(tenant).map(|()| Decision::Admit)
    }

    fn ran_dry(&mut self, waiting: &[TenantId], _: Moment) -> Option<TenantId> {
        waiting.first().copied()
    }

    fn period_end(&mut self, _: &PeriodUsage<'_>) -> &[TenantDecision] {
        self.decisions.clear();
        let admit = |(tenant, ()): (TenantId, &())| TenantDecision {
            tenant,
            decision: Decision::Admit,
        };
        self.decisions.extend(self.tenants.iter().map(admit));
        &self.decisions
    }
}
