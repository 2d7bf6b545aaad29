//! What operators set, and who they were: kept beside the entries for as long as these, and not sealed by them.

use crate::record::UnixNanos;
use serde::Serialize;
use uuid::Uuid;

/// Something was set of a tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// Number of the request; a change is kept once.
    pub request: Uuid,
    /// When.
    pub at: UnixNanos,
    /// On which host.
    pub node: String,
    /// In which run of its daemon.
    pub boot: Uuid,
    /// By whom, as the host's kernel or a certificate says.
    pub by: String,
    /// Name of the tenant.
    pub tenant: String,
    /// Which part of what is set of it.
    pub part: String,
    /// What was set before, as JSON.
    pub old: String,
    /// What is set now, as JSON.
    pub new: String,
}
