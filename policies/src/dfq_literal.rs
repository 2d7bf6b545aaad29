//! Disengaged fair queuing as the LoGA paper prints it (A1.4), its flaws included.
//!
//! ```text
//! T     = t_poll + t_nonpoll;  vt[a] += t_app[a] / sum of t_app * T
//! t_sys = min vt[a] over all a with t_app[a] > 0
//! every a with t_app[a] = 0 and vt[a] < t_sys: vt[a] = t_sys
//! hold a  iff  vt[a] > t_sys + T
//! ```
//!
//! Kept for comparison. A tenant that was held is charged as if it had been admitted in the
//! non-poll phase too. So it may be held for ever. A tenant that uses little holds all others back,
//! and a tenant that waits behind its gate counts as idle. It has no weights and caps.

use crate::params::{Cap, Membership, TenantParams, Weight};
use crate::policy::{Decision, HoldReason, PeriodUsage, Policy, PolicyError, TenantDecision};
use crate::roster::Roster;
use turnstile_accounting::share::apportion;
use turnstile_accounting::{Moment, TenantId};

/// The paper's policy.
#[derive(Debug, Default)]
pub struct DfqLiteral {
    tenants: Roster<Tenant>,
    system_ns: u128,
    decisions: Vec<TenantDecision>,
}

#[derive(Debug)]
struct Tenant {
    virtual_ns: u128,
    active: bool,
    held: bool,
}

impl Tenant {
    const fn decision(&self) -> Decision {
        if self.held {
            Decision::Hold(HoldReason::Ahead)
        } else {
            Decision::Admit
        }
    }
}

impl Policy for DfqLiteral {
    fn add(
        &mut self,
        id: TenantId,
        _: Membership<'_>,
        _: TenantParams,
        _: Moment,
    ) -> Result<(), PolicyError> {
        let tenant = Tenant {
            virtual_ns: self.system_ns,
            active: false,
            held: false,
        };
        self.tenants.add(id, tenant)
    }

    fn remove(&mut self, tenant: TenantId, _: Moment) -> Result<(), PolicyError> {
        self.tenants.remove(tenant).map(drop)
    }

    fn set_weight(&mut self, tenant: TenantId, _: Weight) -> Result<(), PolicyError> {
        self.tenants.get(tenant).map(drop)
    }

    fn set_cap(&mut self, tenant: TenantId, _: Option<Cap>) -> Result<(), PolicyError> {
        self.tenants.get(tenant).map(drop)
    }

    /// The paper decides at the end of a poll phase only: the last decision stands.
    fn woke(&mut self, tenant: TenantId, _: Moment) -> Result<Decision, PolicyError> {
        self.tenants.get(tenant).map(Tenant::decision)
    }

    fn period_end(&mut self, usage: &PeriodUsage<'_>) -> &[TenantDecision] {
        let used: Vec<u64> = usage.tenants.iter().map(|t| t.used_ns.0).collect();
        let charges = apportion(usage.length_ns().0, &used);
        for tenant in self.tenants.values_mut() {
            tenant.active = false;
        }
        for (part, charge) in usage.tenants.iter().zip(charges) {
            if let Ok(tenant) = self.tenants.get_mut(part.tenant) {
                tenant.virtual_ns += u128::from(charge);
                tenant.active = part.used_ns.0 > 0;
            }
        }
        let active = self.tenants.iter().filter(|(_, tenant)| tenant.active);
        let behind = active.map(|(_, tenant)| tenant.virtual_ns).min();
        self.system_ns = behind.unwrap_or(self.system_ns);
        let limit = self.system_ns + u128::from(usage.length_ns().0);
        for tenant in self.tenants.values_mut() {
            if !tenant.active {
                tenant.virtual_ns = tenant.virtual_ns.max(self.system_ns);
            }
            tenant.held = tenant.virtual_ns > limit;
        }
        self.decisions.clear();
        let decided = |(id, tenant): (TenantId, &Tenant)| TenantDecision {
            tenant: id,
            decision: tenant.decision(),
        };
        self.decisions.extend(self.tenants.iter().map(decided));
        &self.decisions
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Basis, TenantPeriod};
    use turnstile_accounting::{AccountId, Nanos};

    const A: TenantId = TenantId(1);
    const B: TenantId = TenantId(2);
    const VM: Membership<'_> = Membership {
        account: AccountId(0),
        name: "vm",
    };

    fn end(policy: &mut DfqLiteral, used: &[(TenantId, u64)]) -> Vec<(TenantId, u128, bool)> {
        let tenants: Vec<_> = used
            .iter()
            .map(|&(tenant, used)| TenantPeriod {
                tenant,
                used_ns: Nanos(used),
                charged_ns: Nanos(used),
                admitted: true,
                backlogged: true,
            })
            .collect();
        policy.period_end(&PeriodUsage {
            end: Moment(0),
            basis: Basis::PollSample,
            poll_ns: Nanos(100),
            nonpoll_ns: Nanos(500),
            tenants: &tenants,
        });
        policy
            .tenants
            .iter()
            .map(|(id, t)| (id, t.virtual_ns, t.held))
            .collect()
    }

    fn both() -> DfqLiteral {
        let mut policy = DfqLiteral::default();
        policy
            .add(A, VM, TenantParams::default(), Moment(0))
            .unwrap();
        policy
            .add(B, VM, TenantParams::default(), Moment(0))
            .unwrap();
        policy
    }

    #[test]
    fn half_of_the_observed_time_is_half_a_period() {
        let mut policy = both();
        assert_eq!(
            end(&mut policy, &[(A, 30), (B, 30)]),
            [(A, 300, false), (B, 300, false)]
        );
    }

    #[test]
    fn more_than_a_period_ahead_is_held() {
        let mut policy = both();
        end(&mut policy, &[(A, 90), (B, 10)]);
        assert_eq!(
            end(&mut policy, &[(A, 90), (B, 10)]),
            [(A, 1080, true), (B, 120, false)]
        );
    }

    #[test]
    fn an_idle_tenant_is_lifted() {
        let mut policy = both();
        assert_eq!(
            end(&mut policy, &[(A, 50)]),
            [(A, 600, false), (B, 600, false)]
        );
    }

    #[test]
    fn nothing_seen_is_nothing_charged() {
        let mut policy = both();
        assert_eq!(
            end(&mut policy, &[(A, 0), (B, 0)]),
            [(A, 0, false), (B, 0, false)]
        );
    }

    #[test]
    fn a_period_ahead_is_not_held_yet() {
        let mut policy = both();
        end(&mut policy, &[(A, 75), (B, 25)]);
        // A is at 450 + 450, B at 150 + 150: A is 600 ahead, as long as a period.
        let held = end(&mut policy, &[(A, 75), (B, 25)]);
        assert_eq!(held, [(A, 900, false), (B, 300, false)]);
    }

    #[test]
    fn a_held_tenant_is_held_until_the_end_of_a_period() {
        let mut policy = both();
        end(&mut policy, &[(A, 90), (B, 10)]);
        end(&mut policy, &[(A, 90), (B, 10)]);
        let hold = Ok(Decision::Hold(HoldReason::Ahead));
        assert_eq!(policy.woke(A, Moment(0)), hold);
        assert_eq!(policy.woke(B, Moment(0)), Ok(Decision::Admit));
        assert_eq!(policy.decide(Moment(0)), []);
        assert_eq!(policy.decide_at(), None);
    }

    /// Only tenants that ran in the poll phase define the least virtual time.
    #[test]
    fn one_that_did_not_run_holds_back_no_other() {
        let mut policy = both();
        end(&mut policy, &[(A, 50)]);
        end(&mut policy, &[(A, 50)]);
        let after = end(&mut policy, &[(A, 0), (B, 50)]);
        assert_eq!(after, [(A, 1_800, false), (B, 1_800, false)], "A is lifted");
        end(&mut policy, &[(A, 50)]);
        let after = end(&mut policy, &[(A, 50), (B, 0)]);
        assert_eq!(after, [(A, 3_000, false), (B, 3_000, false)]);
    }

    #[test]
    fn unknown_tenants_are_refused_and_parameters_ignored() {
        let mut policy = both();
        let known = policy.add(A, VM, TenantParams::default(), Moment(0));
        assert_eq!(known, Err(PolicyError::Known(A)));
        assert_eq!(policy.set_weight(A, Weight::DEFAULT), Ok(()));
        assert_eq!(policy.set_cap(A, None), Ok(()));
        assert_eq!(policy.remove(A, Moment(0)), Ok(()));
        let unknown = PolicyError::Unknown(A);
        assert_eq!(policy.remove(A, Moment(0)), Err(unknown));
        assert_eq!(policy.set_weight(A, Weight::DEFAULT), Err(unknown));
        assert_eq!(policy.set_cap(A, None), Err(unknown));
        assert_eq!(policy.woke(A, Moment(0)), Err(unknown));
    }
}
