//! No policy: every tenant is admitted, and the hardware's dispatcher decides.

use crate::params::{Cap, Membership, TenantParams, Weight};
use crate::policy::{Decision, PeriodUsage, Policy, PolicyError, TenantDecision};
use crate::roster::Roster;
use turnstile_accounting::{Moment, TenantId};

/// Admits every tenant.
#[derive(Debug, Default)]
pub struct AdmitAll {
    tenants: Roster<()>,
    decisions: Vec<TenantDecision>,
}

impl Policy for AdmitAll {
    fn add(
        &mut self,
        tenant: TenantId,
        _: Membership<'_>,
        _: TenantParams,
        _: Moment,
    ) -> Result<(), PolicyError> {
        self.tenants.add(tenant, ())
    }

    fn remove(&mut self, tenant: TenantId, _: Moment) -> Result<(), PolicyError> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Basis;
    use turnstile_accounting::{AccountId, Nanos};

    #[test]
    fn every_known_tenant_is_admitted() {
        let (known, unknown) = (TenantId(1), TenantId(2));
        let membership = Membership {
            account: AccountId(0),
            name: "vm",
        };
        let mut policy = AdmitAll::default();
        let params = TenantParams::default();
        policy.add(known, membership, params, Moment(0)).unwrap();
        assert_eq!(policy.woke(known, Moment(0)), Ok(Decision::Admit));
        assert_eq!(policy.set_weight(known, Weight::DEFAULT), Ok(()));
        assert_eq!(policy.set_cap(known, None), Ok(()));
        let refused = Err(PolicyError::Unknown(unknown));
        assert_eq!(policy.woke(unknown, Moment(0)).map(drop), refused);
        assert_eq!(policy.set_weight(unknown, Weight::DEFAULT), refused);
        assert_eq!(policy.set_cap(unknown, None), refused);
        assert_eq!(policy.remove(unknown, Moment(0)), refused);
        let usage = PeriodUsage {
            end: Moment(10),
            basis: Basis::Measured,
            poll_ns: Nanos(4),
            nonpoll_ns: Nanos(6),
            tenants: &[],
        };
        assert_eq!(usage.length_ns(), Nanos(10));
        let admit = TenantDecision {
            tenant: known,
            decision: Decision::Admit,
        };
        assert_eq!(policy.period_end(&usage), [admit]);
        assert_eq!(policy.period_end(&usage), [admit]);
        policy.remove(known, Moment(0)).unwrap();
        assert_eq!(policy.period_end(&usage), []);
        assert_eq!(
            (policy.decide(Moment(0)).len(), policy.decide_at()),
            (0, None)
        );
    }
}
