//! Why tenants are held: a tenant runs when no reason is left. Pure.

use std::collections::BTreeSet;

use turnstile_accounting::TenantId;

/// Why a tenant is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// Another tenant has a turn of its own, or a cap holds it.
    Rule,
    /// Its memory is away, or is about to be.
    Memory,
}

/// The reasons of all tenants.
#[derive(Debug, Default)]
pub struct Holds(BTreeSet<(TenantId, Reason)>);

impl Holds {
    /// A reason begins or ends. Whether the tenant is to be held from now on; none if that is no
    /// order, as it runs already. A tenant that is held is ordered so again: its channels may be
    /// more than before.
    pub fn set(&mut self, tenant: TenantId, reason: Reason, on: bool) -> Option<bool> {
        let before = self.any(tenant);
        match on {
            true => self.0.insert((tenant, reason)),
            false => self.0.remove(&(tenant, reason)),
        };
        let held = self.any(tenant);
        (held || before).then_some(held)
    }

    /// Tenants that are held for a reason.
    pub fn of(&self, reason: Reason) -> impl Iterator<Item = TenantId> + '_ {
        let for_it = move |(tenant, of): &(TenantId, Reason)| (*of == reason).then_some(*tenant);
        self.0.iter().filter_map(for_it)
    }

    /// A tenant is gone.
    pub fn forget(&mut self, tenant: TenantId) {
        self.0.retain(|(of, _)| *of != tenant);
    }

    fn any(&self, tenant: TenantId) -> bool {
        let reasons = [Reason::Rule, Reason::Memory];
        reasons
            .iter()
            .any(|reason| self.0.contains(&(tenant, *reason)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: TenantId = TenantId(1);

    #[test]
    fn a_tenant_runs_when_no_reason_is_left() {
        let mut holds = Holds::default();
        assert_eq!(holds.set(A, Reason::Rule, false), None, "it runs");
        assert_eq!(holds.set(A, Reason::Rule, true), Some(true));
        assert_eq!(holds.set(A, Reason::Memory, true), Some(true));
        assert_eq!(holds.set(A, Reason::Rule, false), Some(true), "its memory");
        assert_eq!(holds.set(A, Reason::Memory, false), Some(false));
        assert_eq!(holds.set(A, Reason::Memory, false), None);
        holds.set(A, Reason::Memory, true);
        assert_eq!(holds.of(Reason::Rule).count(), 0);
        assert_eq!(holds.of(Reason::Memory).collect::<Vec<_>>(), [A]);
        holds.forget(A);
        assert_eq!(holds.set(A, Reason::Memory, false), None);
    }
}
