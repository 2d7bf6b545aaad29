//! What `/v1/usage` answers: sums of tenants, and time without a record.
//!
//! Quantities have the names of the ledger. The handler makes these values, and the client of the
//! command line reads them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

/// What one tenant used of one GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
// FIELDS: a row of JSON: one quantity each.
pub struct TenantUsed {
    /// Id in the ledger, never used again.
    pub id: Uuid,
    /// Id as a resource in bills: the same for each run of the daemon.
    #[serde(default)]
    pub resource_id: Uuid,
    /// Name.
    pub name: String,
    /// `vm` or `program`.
    pub kind: String,
    /// Name of its account; null in what was written before there were accounts.
    #[serde(default)]
    pub account: Option<String>,
    /// Id of its instance, if it has one.
    #[serde(default)]
    pub instance_id: Option<Uuid>,
    /// Its last project.
    #[serde(default)]
    pub project: Option<String>,
    /// Its last labels.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Host.
    pub node: String,
    /// GPU.
    pub gpu: String,
    /// Windows in which it was connected.
    pub windows: u64,
    /// Time on the compute engines: what is billed.
    pub engine_ns: u64,
    /// The part of it that was observed.
    #[serde(default)]
    pub observed_ns: u64,
    /// The part of it that was estimated.
    #[serde(default)]
    pub estimated_ns: u64,
    /// Neither engine nor copy time is off by more.
    #[serde(default)]
    pub error_bound_ns: u64,
    /// Time on the copy engines.
    pub copy_ns: u64,
    /// Bytes that the copy engines moved in that time; null where the GPU does not count them.
    pub copy_bytes: Option<u64>,
    /// Time for which it was held.
    pub held_ns: u64,
    /// Time with work to do in which it did not run.
    pub waiting_ns: u64,
    /// GPU memory over time, as a decimal number in a text; null where the GPU does not report it.
    pub memory_byte_ns: Option<String>,
    /// GPU memory that cannot move, now and not over time. Null where memory does not move, and for
    /// a tenant that is not connected.
    pub pinned_bytes: Option<u64>,
}

/// What all tenants used between two times.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Used {
    /// From this time.
    pub from: String,
    /// To this time.
    pub to: String,
    /// By GPU and tenant.
    pub items: Vec<TenantUsed>,
    /// Windows and gaps.
    pub entries: u64,
    /// Time without a record, of all causes.
    pub unknown_ns: u64,
    /// The same by GPU and cause.
    pub unknown: Vec<UnknownTime>,
}

/// Time of a GPU of which the ledger does not know the user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UnknownTime {
    /// Host.
    pub node: String,
    /// GPU.
    pub gpu: String,
    /// `down`, `missed` or `overflow` of a gap; `unobserved` in a window; `unrecorded` outside of
    /// the ledger.
    pub cause: String,
    /// Beginning of its first part.
    pub start: String,
    /// End of its last part.
    pub end: String,
    /// Its length.
    pub unknown_ns: u64,
}
