//! Metadata of connected tenants: what each brought, and what is in force.
//!
//! In: what a tenant brings when it connects, and what an operator sets of its name. Out: instance
//! id, project and labels in force, for the ledger, metrics, events and the API.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use turnstile_accounting::{Metadata, MetadataError, TenantId};
use turnstile_vmm::wire;

/// Metadata of a tenant that has none.
static NONE: LazyLock<Arc<Metadata>> = LazyLock::new(Arc::default);

/// Checks what a VMM or launcher sent.
pub(crate) fn checked(sent: wire::Metadata) -> Result<Metadata, MetadataError> {
    Metadata::new(sent.instance_id.as_deref(), sent.project, sent.labels)
}

/// The form in which a VMM or launcher sends metadata.
pub fn sent(metadata: &Metadata) -> wire::Metadata {
    wire::Metadata {
        instance_id: metadata.instance_id().map(|id| id.to_string()),
        project: metadata.project().map(str::to_owned),
        labels: metadata.labels().clone(),
    }
}

/// Metadata of connected tenants. A tenant that never had any takes no room.
#[derive(Debug, Default)]
pub(crate) struct Described {
    brought: BTreeMap<TenantId, Metadata>,
    in_force: BTreeMap<TenantId, Arc<Metadata>>,
}

impl Described {
    /// A tenant connects with these.
    pub(crate) fn connect(&mut self, tenant: TenantId, brought: Metadata) {
        if !brought.is_empty() {
            self.brought.insert(tenant, brought);
            self.set(tenant, &NONE);
        }
    }

    /// These are set of a tenant.
    pub(crate) fn set(&mut self, tenant: TenantId, set: &Metadata) {
        let brought = self.brought.get(&tenant).unwrap_or(&NONE);
        let in_force = brought.under(set);
        // Empty ones replace what was in force before.
        if !in_force.is_empty() || self.in_force.contains_key(&tenant) {
            self.in_force.insert(tenant, Arc::new(in_force));
        }
    }

    /// A tenant is gone.
    pub(crate) fn leave(&mut self, tenant: TenantId) {
        self.brought.remove(&tenant);
        self.in_force.remove(&tenant);
    }

    /// What is in force of a tenant.
    pub(crate) fn of(&self, tenant: TenantId) -> &Arc<Metadata> {
        self.in_force.get(&tenant).unwrap_or(&NONE)
    }

    /// What is in force of all tenants that have or had any.
    pub(crate) const fn all(&self) -> &BTreeMap<TenantId, Arc<Metadata>> {
        &self.in_force
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn project(name: &str) -> Metadata {
        Metadata::new(None, Some(name.to_owned()), BTreeMap::new()).unwrap()
    }

    #[test]
    fn what_is_set_comes_before_what_was_brought_and_ends_with_the_tenant() {
        let none = Metadata::default();
        let mut described = Described::default();
        let of = |described: &Described, tenant| {
            described.of(TenantId(tenant)).project().map(str::to_owned)
        };
        described.connect(TenantId(1), project("brought"));
        described.connect(TenantId(2), none.clone());
        described.connect(TenantId(3), project("brought"));
        described.set(TenantId(3), &project("set"));
        assert_eq!(described.all().len(), 2, "no room for a tenant without");
        let now = [1, 2, 3].map(|tenant| of(&described, tenant));
        assert_eq!(now, [Some("brought".into()), None, Some("set".into())]);
        described.set(TenantId(2), &project("set"));
        described.set(TenantId(3), &none);
        let now = [2, 3].map(|tenant| of(&described, tenant));
        assert_eq!(now, [Some("set".into()), Some("brought".into())]);
        described.set(TenantId(2), &none);
        assert!(
            described.all()[&TenantId(2)].is_empty(),
            "the ledger learns of it"
        );
        described.leave(TenantId(3));
        assert_eq!(of(&described, 3), None);
        assert_eq!(checked(sent(&project("a"))).unwrap(), project("a"));
    }
}
