//! A claim as tenants: one for each of its GPUs.
//!
//! In: the kubelet's three names of a claim, and the claim as the API server has it. Out: the
//! tenants that it is, with name, instance id, weight and memory; or why it is refused. Names and
//! instance ids follow from the claim alone, so that they are found again without it.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use uuid::Uuid;

use super::config::{ConfigError, Entry, GpuConfig};
use super::names::{DRIVER, MEMORY, MEMORY_STEP_BYTES, SHARE, SHARE_MIN, SHARE_WHOLE};
use super::proto;
use super::quantity::whole;

/// Devices of one claim. SOURCE: resource.k8s.io/v1, AllocationResultsMaxSize.
pub(crate) const DEVICES_MAX: usize = 32;
/// Longest name of a tenant.
const NAME_BYTES_MAX: usize = 253;
/// Letters of a claim's uid in the names of its tenants.
const UID_LETTERS: usize = 8;

/// The names of a claim, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimId {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: Uuid,
}

/// A tenant: what a claim has of one GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// Its name.
    pub name: String,
    /// Its instance id.
    pub instance: Uuid,
    /// Request of the claim that it is for.
    pub request: String,
    /// The device.
    pub device: String,
    /// Which share of the device.
    pub share_id: Option<String>,
    /// Its weight.
    pub share: u64,
    /// GPU memory that it may own.
    pub memory_bytes: u64,
    /// What else is configured.
    pub config: GpuConfig,
}

/// What is read of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocated {
    /// Its tenants on this node.
    pub tenants: Vec<Tenant>,
    /// Names of the pods that it is reserved for.
    pub pods: Vec<String>,
}

/// Why a claim is refused.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// The kubelet's uid is none.
    #[error("{0:?} is no uid of a claim")]
    Uid(String),
    /// A namespace or name is none.
    #[error("{0:?} is no name of a claim or of its namespace")]
    Name(String),
    /// It is not what the API server keeps.
    #[error("Its status cannot be read")]
    Form(#[from] serde_json::Error),
    /// Another one has its name.
    #[error("The claim of this name has the uid {0}: it was made anew")]
    Other(String),
    /// Nothing is allocated.
    #[error("It is not allocated on this node, or not by {DRIVER}")]
    NotAllocated,
    /// More devices than a claim may have.
    #[error("It has {0} devices of one node; at most {DEVICES_MAX} are taken")]
    TooMany(usize),
    /// A share is too small or too large.
    #[error(
        "{device}: a share is a whole number from {SHARE_MIN} to {SHARE_WHOLE}, and this one is {share}; request capacity {SHARE} in that range"
    )]
    Share {
        /// The device.
        device: String,
        /// What was allocated.
        share: String,
    },
    /// An amount of memory is too small, or no multiple.
    #[error(
        "{device}: memory is a positive multiple of {MEMORY_STEP_BYTES} bytes, and this is {memory}; request capacity {MEMORY} in that step"
    )]
    Memory {
        /// The device.
        device: String,
        /// What was allocated.
        memory: String,
    },
    /// Administrative access has no share.
    #[error("{0}: administrative access gives no share of a GPU; leave adminAccess out")]
    Admin(String),
    /// Its configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    #[serde(default)]
    allocation: Option<Allocation>,
    #[serde(default)]
    reserved_for: Vec<Consumer>,
}

#[derive(Deserialize)]
struct Consumer {
    resource: String,
    name: String,
}

#[derive(Deserialize)]
struct Allocation {
    #[serde(default)]
    devices: Devices,
}

#[derive(Default, Deserialize)]
struct Devices {
    #[serde(default)]
    results: Vec<Row>,
    #[serde(default)]
    config: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    request: String,
    driver: String,
    pool: String,
    device: String,
    #[serde(rename = "shareID")]
    share_id: Option<String>,
    #[serde(default)]
    admin_access: Option<bool>,
    #[serde(default)]
    consumed_capacity: BTreeMap<String, String>,
}

impl Row {
    /// A consumed capacity; a domain before its name is the driver's.
    fn consumed(&self, capacity: &str) -> &str {
        let qualified = format!("{DRIVER}/{capacity}");
        let consumed = &self.consumed_capacity;
        let found = consumed.get(capacity).or_else(|| consumed.get(&qualified));
        found.map_or("absent", String::as_str)
    }
}

impl ClaimId {
    /// Checks what the kubelet sent.
    ///
    /// # Errors
    /// If it is no claim's: its parts become paths and names of tenants.
    pub fn new(claim: &proto::Claim) -> Result<Self, ClaimError> {
        let uid = Uuid::parse_str(&claim.uid).map_err(|_| ClaimError::Uid(claim.uid.clone()))?;
        let permitted = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
        for (name, bytes_max) in [(&claim.namespace, 63), (&claim.name, NAME_BYTES_MAX)] {
            let is_name = (1..=bytes_max).contains(&name.len()) && name.chars().all(permitted);
            if !is_name {
                return Err(ClaimError::Name(name.clone()));
            }
        }
        Ok(Self {
            namespace: claim.namespace.clone(),
            name: claim.name.clone(),
            uid,
        })
    }

    /// Name and instance id of the tenant on the claim's GPU with this number. The first one has
    /// the claim's own instance id.
    pub(crate) fn tenant(&self, number: usize) -> (String, Uuid) {
        let hex = self.uid.simple().to_string();
        let end = match number {
            0 => format!(".{}", &hex[..UID_LETTERS]),
            _ => format!(".{}.{number}", &hex[..UID_LETTERS]),
        };
        let begin = format!("{}.{}", self.namespace, self.name);
        let kept = begin.len().min(NAME_BYTES_MAX - end.len());
        let uid = self.uid.hyphenated().to_string();
        let text = match number {
            0 => uid,
            _ => format!("{uid}/{number}"),
        };
        let instance = Uuid::new_v5(&Uuid::NAMESPACE_OID, text.as_bytes());
        (format!("{}{end}", &begin[..kept]), instance)
    }

    /// The tenants that it is on the devices of `pool`.
    ///
    /// # Errors
    /// If it is another claim, not allocated here, or something of it is not taken.
    pub(crate) fn allocated(
        &self,
        uid: Option<&str>,
        data: &Value,
        pool: &str,
    ) -> Result<Allocated, ClaimError> {
        let found = uid.unwrap_or_default();
        if Uuid::parse_str(found) != Ok(self.uid) {
            return Err(ClaimError::Other(found.to_owned()));
        }
        let status = data.get("status").ok_or(ClaimError::NotAllocated)?;
        let status = Status::deserialize(status)?;
        let devices = status.allocation.ok_or(ClaimError::NotAllocated)?.devices;
        let is_here = |row: &&Row| row.driver == DRIVER && row.pool == pool;
        let rows: Vec<&Row> = devices.results.iter().filter(is_here).collect();
        match rows.len() {
            0 => return Err(ClaimError::NotAllocated),
            count if count > DEVICES_MAX => return Err(ClaimError::TooMany(count)),
            _ => {}
        }
        let numbered = rows.into_iter().enumerate();
        let tenants = numbered.map(|(number, row)| self.of_row(number, row, &devices.config));
        let mut pods = status.reserved_for;
        pods.retain(|consumer| consumer.resource == "pods");
        Ok(Allocated {
            tenants: tenants.collect::<Result<_, _>>()?,
            pods: pods.into_iter().map(|pod| pod.name).collect(),
        })
    }

    fn of_row(&self, number: usize, row: &Row, config: &[Entry]) -> Result<Tenant, ClaimError> {
        let device = || row.device.clone();
        if row.admin_access == Some(true) {
            return Err(ClaimError::Admin(device()));
        }
        let (share, memory) = (row.consumed(SHARE), row.consumed(MEMORY));
        let in_range = |share: &u64| (SHARE_MIN..=SHARE_WHOLE).contains(share);
        let is_taken = |bytes: &u64| *bytes > 0 && bytes.is_multiple_of(MEMORY_STEP_BYTES);
        let (name, instance) = self.tenant(number);
        Ok(Tenant {
            name,
            instance,
            request: row.request.clone(),
            share: whole(share)
                .filter(in_range)
                .ok_or_else(|| ClaimError::Share {
                    device: device(),
                    share: share.to_owned(),
                })?,
            memory_bytes: whole(memory)
                .filter(is_taken)
                .ok_or_else(|| ClaimError::Memory {
                    device: device(),
                    memory: memory.to_owned(),
                })?,
            device: device(),
            share_id: row.share_id.clone(),
            config: GpuConfig::of(config, &row.request)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const UID: &str = "1f0c2a9e-0d7b-4c55-9b1e-2f8f6f0a1b2c";

    fn id(namespace: &str, name: &str, uid: &str) -> Result<ClaimId, ClaimError> {
        ClaimId::new(&proto::Claim {
            namespace: namespace.into(),
            uid: uid.into(),
            name: name.into(),
        })
    }

    fn row(device: &str, share: &str, memory: &str) -> Value {
        json!({
            "request": "gpu", "driver": DRIVER, "pool": "node", "device": device,
            "shareID": "0c6b6cb0-1a5b-4b0e-9f1a-000000000001",
            "consumedCapacity": { "share": share, "turnstile.dev/memory": memory },
        })
    }

    fn read(rows: &[Value]) -> Result<Allocated, ClaimError> {
        let data = json!({ "status": {
            "allocation": { "devices": { "results": rows } },
            "reservedFor": [{ "resource": "pods", "name": "train-0", "uid": "x" }],
        }});
        let id = id("team", "train", UID).unwrap();
        id.allocated(Some(UID), &data, "node")
    }

    #[test]
    fn claim_is_one_tenant_for_each_of_its_gpus() {
        let mut elsewhere = row("gpu-9", "50", "1Gi");
        elsewhere["pool"] = "other".into();
        let mut foreign = row("gpu-9", "50", "1Gi");
        foreign["driver"] = "gpu.nvidia.com".into();
        let rows = [
            elsewhere,
            row("gpu-0", "50", "1Gi"),
            foreign,
            row("gpu-1", "7", "2Mi"),
        ];
        let Allocated { tenants, pods } = read(&rows).unwrap();
        let names: Vec<&str> = tenants.iter().map(|tenant| tenant.name.as_str()).collect();
        assert_eq!(names, ["team.train.1f0c2a9e", "team.train.1f0c2a9e.1"]);
        assert_eq!(pods, ["train-0"]);
        let of = |number: usize| (tenants[number].share, tenants[number].memory_bytes);
        assert_eq!((of(0), of(1)), ((50, 1 << 30), (7, 2 << 20)));
        assert_ne!(tenants[0].instance, tenants[1].instance);
        let again = read(&rows).unwrap();
        assert_eq!(again.tenants, tenants);
        assert_eq!(tenants[0].instance.get_version_num(), 5);
    }

    #[test]
    fn amount_outside_of_its_range_is_refused_with_the_range() {
        for share in ["0", "101", "500m", "absent"] {
            let why = read(&[row("gpu-0", share, "1Gi")]).unwrap_err().to_string();
            assert!(
                why.contains("from 1 to 100") && why.contains(share),
                "{why}"
            );
        }
        for memory in ["0", "1", "3Mi"] {
            let why = read(&[row("gpu-0", "1", memory)]).unwrap_err().to_string();
            assert!(why.contains("2097152") && why.contains(memory), "{why}");
        }
        let mut admin = row("gpu-0", "1", "2Mi");
        admin["adminAccess"] = true.into();
        assert!(matches!(read(&[admin]), Err(ClaimError::Admin(_))));
        assert!(matches!(read(&[]), Err(ClaimError::NotAllocated)));
        let many = vec![row("gpu-0", "1", "2Mi"); DEVICES_MAX + 1];
        assert!(matches!(read(&many), Err(ClaimError::TooMany(33))));
    }

    #[test]
    fn claim_that_was_made_anew_is_another() {
        let id = id("team", "train", UID).unwrap();
        let other = Uuid::new_v4().to_string();
        let read = id.allocated(Some(&other), &json!({}), "node");
        assert!(matches!(read, Err(ClaimError::Other(uid)) if uid == other));
    }

    #[test]
    fn names_that_are_no_claims_are_refused_and_long_ones_are_cut() {
        for (namespace, name, uid) in [
            ("team", "../../etc", UID),
            ("team/a", "train", UID),
            ("", "train", UID),
            ("team", "train", "../x"),
        ] {
            assert!(
                id(namespace, name, uid).is_err(),
                "{namespace} {name} {uid}"
            );
        }
        let long = id(&"n".repeat(63), &"c".repeat(253), UID).unwrap();
        let names = [0, 31].map(|number| long.tenant(number).0);
        assert!(names.iter().all(|name| name.len() == NAME_BYTES_MAX));
        assert!(names[0].ends_with(".1f0c2a9e") && names[1].ends_with(".1f0c2a9e.31"));
    }
}
