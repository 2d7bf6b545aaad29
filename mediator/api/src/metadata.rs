//! Instance id, project and labels of tenants.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{Extension, Path, State};
use axum::http::HeaderMap;
use axum::response::Response;
use utoipa::ToSchema;
use uuid::Uuid;

use super::Shared;
use super::access::Caller;
use super::body::{Patch, Whole};
use super::etag::tagged;
use super::gate::RequestId;
use super::params::IfMatch;
use super::problem::Problem;
use super::vm::{Vm, VmMetadata};
use super::write::{Write, set};

/// Changes to what is set of a tenant. Null unsets: what the tenant brought is in force again. What
/// is left out stays as it is.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "a schema: the patch itself is merged as JSON")]
pub(super) struct MetadataPatch {
    /// Id of the instance.
    instance_id: Option<Uuid>,
    /// The project.
    #[schema(min_length = 1, max_length = 253)]
    project: Option<String>,
    /// Labels by key; null unsets one.
    labels: Option<BTreeMap<String, Option<String>>>,
}

/// Instance id, project and labels in force.
#[utoipa::path(
    get, path = "/v1/vms/{name}/metadata", operation_id = "get_metadata", tag = "vms", params(("name" = String, Path, description = "Name of the tenant")),
    responses(
        (status = 200, description = "What is in force", body = VmMetadata, headers(("ETag" = String))),
        (status = 304, description = "As in If-None-Match"),
        (status = "4XX", response = super::Refused),
    )
)]
pub(super) async fn get(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    Ok(tagged(&headers, &Vm::named(&shared, &name)?.metadata))
}

/// Sets instance id, project and labels in place of all that was set. What is not set stays as the
/// tenant brought it.
#[utoipa::path(
    put, path = "/v1/vms/{name}/metadata", operation_id = "put_metadata", tag = "vms",
    params(("name" = String, Path, description = "Name of the tenant"), IfMatch),
    request_body(content = VmMetadata, content_type = "application/json"),
    responses(
        (status = 200, description = "What is in force now", body = VmMetadata, headers(("ETag" = String))),
        (status = "4XX", response = super::Refused),
        (status = 503, response = super::Refused),
    )
)]
pub(super) async fn put(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Extension(id): Extension<RequestId>,
    Path(name): Path<String>,
    headers: HeaderMap,
    Whole(wanted): Whole<VmMetadata>,
) -> Result<Response, Problem> {
    let write = Write::new(caller, id, "metadata", name);
    enter(&shared, write, headers, |_| Ok(wanted)).await
}

/// Changes what is set of instance id, project and labels, by merge patch (RFC 7396).
#[utoipa::path(
    patch, path = "/v1/vms/{name}/metadata", operation_id = "patch_metadata", tag = "vms",
    params(("name" = String, Path, description = "Name of the tenant"), IfMatch),
    request_body(content = MetadataPatch, content_type = "application/merge-patch+json"),
    responses(
        (status = 200, description = "What is in force now", body = VmMetadata, headers(("ETag" = String))),
        (status = "4XX", response = super::Refused),
        (status = 503, response = super::Refused),
    )
)]
pub(super) async fn patch(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Extension(id): Extension<RequestId>,
    Path(name): Path<String>,
    headers: HeaderMap,
    patch: Patch,
) -> Result<Response, Problem> {
    let write = Write::new(caller, id, "metadata", name);
    enter(&shared, write, headers, move |set| patch.apply(set)).await
}

async fn enter(
    shared: &Arc<Shared>,
    write: Write,
    headers: HeaderMap,
    wanted: impl FnOnce(&VmMetadata) -> Result<VmMetadata, Problem> + Send + 'static,
) -> Result<Response, Problem> {
    let part = |vm: &super::vm::Vm| vm.metadata.clone();
    set(shared, write, headers, part, move |_, settings| {
        settings.metadata = wanted(&VmMetadata::of(&settings.metadata))?.checked()?;
        Ok(())
    })
    .await
}
