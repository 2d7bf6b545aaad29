//! The tenant of each channel group, by the group's number in the engine status. Pure.
//!
//! It is learnt from the log, and used once two readings agree.

use std::collections::BTreeMap;

use turnstile_accounting::TenantId;

use super::observe::Group;

/// Readings of the log that have to agree: the last record may not have arrived yet.
const AGREED: u32 = 2;

/// Map from groups to tenants.
#[derive(Debug, Default)]
pub(super) struct Groups(BTreeMap<Group, (TenantId, u32)>);

impl Groups {
    /// Takes a reading: the group was resident before and after the log was read, and by the log
    /// this tenant was.
    pub(super) fn learn(&mut self, group: Group, tenant: TenantId) {
        let (of, agreed) = self.0.entry(group).or_insert((tenant, 0));
        *agreed = if *of == tenant {
            (*agreed + 1).min(AGREED)
        } else {
            1
        };
        *of = tenant;
    }

    /// The tenant of a group.
    pub(super) fn tenant(&self, group: Group) -> Option<TenantId> {
        let (tenant, agreed) = self.0.get(&group)?;
        (*agreed >= AGREED).then_some(*tenant)
    }

    /// Removes a tenant that is gone: its group numbers may be reused.
    pub(super) fn forget(&mut self, tenant: TenantId) {
        self.0.retain(|_, (of, _)| *of != tenant);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: TenantId = TenantId(1);
    const B: TenantId = TenantId(2);

    #[test]
    fn group_has_an_owner_after_two_equal_reports_in_a_row() {
        let mut groups = Groups::default();
        let group = Group::new(7);
        groups.learn(group, A);
        assert_eq!(groups.tenant(group), None, "the log may be late");
        groups.learn(group, A);
        assert_eq!(groups.tenant(group), Some(A));
        groups.learn(group, B);
        assert_eq!(groups.tenant(group), None);
        groups.learn(group, B);
        assert_eq!(groups.tenant(group), Some(B));
        groups.forget(A);
        assert_eq!(groups.tenant(group), Some(B));
        groups.forget(B);
        assert_eq!(groups.tenant(group), None);
    }
}
