//! What a VMM or launcher reports of a tenant beside its name, unchecked.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Instance id, project and labels. The daemon checks them: see `docs/LEDGER.md` for the limits. A
/// daemon that does not know them refuses a greeting that has any.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Metadata {
    /// UUID of the instance: of one VM from its creation to its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance_id: Option<String>,
    /// The project.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// The labels, by key.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

impl Metadata {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
