//! Reproducible ids: UUIDs of version 5, so that a second export of the same usage has the same
//! ids.

use crate::metadata::Metadata;
use crate::record::{GpuIdentity, Stretch, TenantIdentity, UnixNanos};
use crate::units::TenantId;
use uuid::Uuid;

/// The namespace of all ids: UUIDv5 of `turnstile.dev` in the DNS namespace.
pub const NAMESPACE: Uuid = Uuid::from_bytes([
    0xfe, 0xc1, 0xaa, 0xb2, 0x63, 0x61, 0x52, 0x31, 0xa8, 0x84, 0xfe, 0x8b, 0x9c, 0x76, 0x83, 0x08,
]);

/// The UUIDv5 of a kind and its parts, each part after a line feed. Parts never contain one, as
/// names are checked.
fn name(kind: &str, parts: &[&str]) -> Uuid {
    let mut text = kind.to_owned();
    for part in parts {
        text.push('\n');
        text.push_str(part);
    }
    Uuid::new_v5(&NAMESPACE, text.as_bytes())
}

/// Id of a tenant that has none of its own: from the host, the daemon's run and the tenant's number
/// in it. The name is no part of it, as another tenant may have the same name later.
pub fn tenant_id(node: &str, boot: Uuid, tenant: TenantId) -> Uuid {
    let number = tenant.0.to_string();
    name("tenant", &[node, &boot.to_string(), &number])
}

/// Id of what a tenant used before its name was known. It differs from [`tenant_id`], as an id has
/// one name.
pub fn unnamed_id(node: &str, boot: Uuid, tenant: TenantId) -> Uuid {
    let number = tenant.0.to_string();
    name("unnamed", &[node, &boot.to_string(), &number])
}

/// Id of a tenant as a resource in bills: the same for each run of the daemon, and another one
/// where another account uses the name or the instance's id. With an instance's id it is derived
/// from that and the account, so it is the same on each host. Without one it is derived from the
/// node, the account, the kind and the name: a tenant that is made anew under its name, in the same
/// account, is the same resource.
pub fn resource_id(node: &str, tenant: &TenantIdentity) -> Uuid {
    let account = tenant.account.as_deref().unwrap_or_default();
    if let Some(instance) = tenant.metadata.instance_id() {
        return name("instance", &[account, &instance.to_string()]);
    }
    name(
        "resource",
        &[node, account, tenant.kind.as_str(), &tenant.name],
    )
}

/// Id of metadata: one for each content.
pub fn metadata_id(metadata: &Metadata) -> Uuid {
    let instance = metadata.instance_id().map(|id| id.to_string());
    let mut parts = vec![
        instance.as_deref().unwrap_or_default(),
        metadata.project().unwrap_or_default(),
    ];
    let labels = metadata.labels().iter();
    parts.extend(labels.flat_map(|(key, value)| [key.as_str(), value.as_str()]));
    name("metadata", &parts)
}

/// Id of a tenant's record in a window.
pub fn event_id(gpu: &GpuIdentity, tenant: Uuid, stretch: &Stretch) -> Uuid {
    name(
        "usage",
        &[
            &gpu.node,
            &stretch.boot.to_string(),
            &gpu.gpu,
            &tenant.to_string(),
            &stretch.seq.to_string(),
            &stretch.start.0.to_string(),
        ],
    )
}

/// Id of an entry's record of the GPU: conservation, or a gap.
pub fn entry_id(gpu: &GpuIdentity, stretch: &Stretch) -> Uuid {
    name(
        "entry",
        &[
            &gpu.node,
            &stretch.boot.to_string(),
            &gpu.gpu,
            &stretch.seq.to_string(),
            &stretch.start.0.to_string(),
        ],
    )
}

/// Id of a row that sums a quantity of a resource's windows on a GPU under one weight and the same
/// metadata, over the charge period that begins at `start`. `kind` names the quantity.
pub fn charge_id(
    kind: &str,
    gpu: &GpuIdentity,
    (resource, weight, metadata): (Uuid, u32, &Metadata),
    start: UnixNanos,
) -> Uuid {
    let (resource, weight, start) = (
        resource.to_string(),
        weight.to_string(),
        start.0.to_string(),
    );
    let mut parts: Vec<&str> = vec![&gpu.node, &gpu.gpu, &resource, &weight, &start];
    let metadata = (!metadata.is_empty()).then(|| metadata_id(metadata).to_string());
    parts.extend(metadata.as_deref());
    name(kind, &parts)
}

/// Id of time of a GPU without a record, from `start` on. `cause` distinguishes it from other
/// records of the same time.
pub fn unknown_id(cause: &str, gpu: &GpuIdentity, start: UnixNanos) -> Uuid {
    name(cause, &[&gpu.node, &gpu.gpu, &start.0.to_string()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::TenantKind;
    use crate::units::{Moment, Nanos};
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::Arc;

    #[test]
    fn namespace_is_the_uuid_v5_of_the_project_domain() {
        assert_eq!(
            NAMESPACE,
            Uuid::new_v5(&Uuid::NAMESPACE_DNS, b"turnstile.dev")
        );
    }

    #[test]
    fn every_part_of_a_name_counts_and_the_same_parts_name_the_same() {
        let gpu = GpuIdentity {
            node: "n".into(),
            gpu: "g".into(),
            model: "m".into(),
        };
        let stretch = Stretch {
            seq: 1,
            boot: Uuid::nil(),
            start: UnixNanos(5),
            end: UnixNanos(6),
            from: Moment(0),
            length_ns: Nanos(1),
        };
        let tenant = tenant_id("n", Uuid::nil(), TenantId(1));
        let id = event_id(&gpu, tenant, &stretch);
        assert_eq!(id, event_id(&gpu, tenant, &stretch));
        assert_ne!(id, event_id(&gpu, Uuid::nil(), &stretch));
        assert_ne!(id, event_id(&gpu, tenant, &Stretch { seq: 2, ..stretch }));
        let later = Stretch {
            boot: Uuid::max(),
            ..stretch
        };
        assert_ne!(id, event_id(&gpu, tenant, &later));
        let other = GpuIdentity {
            gpu: "h".into(),
            ..gpu.clone()
        };
        assert_ne!(id, event_id(&other, tenant, &stretch));
        assert_ne!(entry_id(&gpu, &stretch), entry_id(&other, &stretch));
        assert_ne!(tenant, tenant_id("n", Uuid::nil(), TenantId(2)));
        assert_ne!(tenant, unnamed_id("n", Uuid::nil(), TenantId(1)));
        let none = Metadata::default();
        let labels = |value: &str| [("a".to_owned(), value.to_owned())].into();
        let [one, two] = ["1", "2"].map(|v| Metadata::new(None, None, labels(v)).unwrap());
        let ids = [
            charge_id("charge", &gpu, (tenant, 100, &one), stretch.start),
            charge_id("charge", &gpu, (tenant, 100, &two), stretch.start),
            charge_id("charge", &gpu, (tenant, 100, &none), stretch.start),
            charge_id("copies", &gpu, (tenant, 100, &none), stretch.start),
            charge_id("charge", &other, (tenant, 100, &none), stretch.start),
            charge_id("charge", &gpu, (id, 100, &none), stretch.start),
            charge_id("charge", &gpu, (tenant, 101, &none), stretch.start),
            charge_id("charge", &gpu, (tenant, 100, &none), stretch.end),
            unknown_id("down", &gpu, stretch.start),
            unknown_id("missed", &gpu, stretch.start),
            unknown_id("down", &other, stretch.start),
            unknown_id("down", &gpu, stretch.end),
        ];
        assert_eq!(ids.into_iter().collect::<BTreeSet<_>>().len(), ids.len());
    }

    #[test]
    fn resource_is_the_same_in_each_run_and_another_for_another_account() {
        let tenant = |name: &str, account: Option<&str>, id: u128| TenantIdentity {
            id: Uuid::from_u128(id),
            name: name.into(),
            kind: TenantKind::Vm,
            account: account.map(str::to_owned),
            metadata: Arc::default(),
        };
        let first = resource_id("n", &tenant("web", Some("gold"), 1));
        assert_eq!(first, resource_id("n", &tenant("web", Some("gold"), 2)));
        let program = TenantIdentity {
            kind: TenantKind::Program,
            ..tenant("web", Some("gold"), 1)
        };
        let others = [
            resource_id("n", &tenant("web", Some("silver"), 1)),
            resource_id("n", &tenant("web", None, 1)),
            resource_id("n", &tenant("db", Some("gold"), 1)),
            resource_id("m", &tenant("web", Some("gold"), 1)),
            resource_id("n", &program),
        ];
        assert!(!others.contains(&first));
        assert_eq!(others.into_iter().collect::<BTreeSet<_>>().len(), 5);
    }

    #[test]
    fn instance_is_the_resource_whatever_its_name_and_host_but_not_in_another_account() {
        let instance = |id: &str, name: &str, account: &str| TenantIdentity {
            id: Uuid::nil(),
            name: name.into(),
            kind: TenantKind::Vm,
            account: Some(account.into()),
            metadata: Arc::new(Metadata::new(Some(id), None, BTreeMap::new()).unwrap()),
        };
        let (a, b) = (
            "6f1c2a9e-0d7b-4c55-9b1e-2f8f6f0a1b2c",
            "6f1c2a9e-0d7b-4c55-9b1e-2f8f6f0a1b2d",
        );
        let first = resource_id("n", &instance(a, "web", "gold"));
        assert_eq!(first, resource_id("m", &instance(a, "web-2", "gold")));
        assert_ne!(first, resource_id("n", &instance(b, "web", "gold")));
        assert_ne!(first, resource_id("n", &instance(a, "web", "silver")));
    }
}
