//! No policy: everybody is admitted, and the hardware's dispatcher decides.

use crate::params::{Cap, TenantParams, Weight};
use crate::policy::{Decision, PeriodUsage, Policy, PolicyError, TenantDecision};
use turnstile_accounting::{Moment, TenantId};

/// Admits everybody.
#[derive(Debug, Default)]
pub struct AdmitAll {
    /// By ascending id.
    decisions: Vec<TenantDecision>,
}

impl AdmitAll {
    fn find(&self, tenant: TenantId) -> Result<usize, PolicyError> {
        let index = self.decisions.binary_search_by_key(&tenant, |d| d.tenant);
        index.map_err(|_| PolicyError::Unknown(tenant))
    }
}

impl Policy for AdmitAll {
    fn name(&self) -> &'static str {
        "none"
    }

    fn add(&mut self, tenant: TenantId, _: TenantParams) -> Result<(), PolicyError> {
        match self.decisions.binary_search_by_key(&tenant, |d| d.tenant) {
            Ok(_) => Err(PolicyError::Known(tenant)),
            Err(index) => {
                self.decisions.insert(
                    index,
                    TenantDecision {
                        tenant,
                        decision: Decision::Admit,
                    },
                );
                Ok(())
            }
        }
    }

    fn remove(&mut self, tenant: TenantId) -> Result<(), PolicyError> {
        let index = self.find(tenant)?;
        self.decisions.remove(index);
        Ok(())
    }

    fn set_weight(&mut self, tenant: TenantId, _: Weight) -> Result<(), PolicyError> {
        self.find(tenant).map(drop)
    }

    fn set_cap(&mut self, tenant: TenantId, _: Option<Cap>) -> Result<(), PolicyError> {
        self.find(tenant).map(drop)
    }

    fn woke(&mut self, tenant: TenantId, _: Moment) -> Result<Decision, PolicyError> {
        self.find(tenant).map(|_| Decision::Admit)
    }

    fn ran_dry(&mut self, waiting: &[TenantId]) -> Option<TenantId> {
        waiting.first().copied()
    }

    fn period_end(&mut self, _: &PeriodUsage<'_>) -> &[TenantDecision] {
        &self.decisions
    }
}
