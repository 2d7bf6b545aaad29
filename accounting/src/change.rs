//! Changes to tenants' settings by operators. They are kept beside the entries, as long as these,
//! and are not part of the entries' digests.

use crate::record::UnixNanos;
use serde::Serialize;
use uuid::Uuid;

/// A setting of a tenant was changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// Number of the request; a change is stored once per number.
    pub request: Uuid,
    /// When it was changed.
    pub at: UnixNanos,
    /// The host.
    pub node: String,
    /// The run of its daemon.
    pub boot: Uuid,
    /// The operator, as the host's kernel or a certificate identifies it.
    pub by: String,
    /// Name of the tenant.
    pub tenant: String,
    /// The setting.
    pub part: String,
    /// The value before, as JSON.
    pub old: String,
    /// The value after, as JSON.
    pub new: String,
}
