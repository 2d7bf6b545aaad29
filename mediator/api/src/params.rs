//! Parameters that several resources have, as the document describes them.
#![expect(dead_code, reason = "parts of the document")]

use utoipa::IntoParams;

/// Which version is meant by a write.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
pub(super) struct IfMatch {
    /// ETag of the version that is replaced or changed, or *
    #[param(rename = "If-Match", example = "*")]
    if_match: Option<String>,
}
