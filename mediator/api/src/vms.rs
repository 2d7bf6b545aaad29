//! Tenants, VMs and programs, and how they are scheduled: what a request reads or changes.

use std::sync::Arc;

use axum::extract::{Extension, Path, Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};

use super::Shared;
use super::access::Caller;
use super::body::{Patch, Whole};
use super::etag::tagged;
use super::gate::RequestId;
use super::page::{Page, PageQuery};
use super::params::IfMatch;
use super::problem::Problem;
use super::vm::{Scheduling, SchedulingPatch, Vm};
use super::write::{Write, set};

/// A tenant in JSON, with room to spare.
const VM_JSON_BYTES: usize = 1_024;

/// Tenants by name.
#[utoipa::path(
    get, path = "/v1/vms", operation_id = "list_vms", tag = "vms", params(PageQuery),
    responses(
        (status = 200, description = "A page of tenants", body = Page<Vm>),
        (status = "4XX", response = super::Refused),
    )
)]
pub(super) async fn list(
    State(shared): State<Arc<Shared>>,
    query: Result<Query<PageQuery>, axum::extract::rejection::QueryRejection>,
) -> Result<Response, Problem> {
    let page = Page::of(query, Vm::all(&shared))?;
    // A buffer that grows step by step would be copied as often.
    let mut body = Vec::with_capacity(VM_JSON_BYTES * (1 + page.items.len()));
    serde_json::to_writer(&mut body, &page)
        .map_err(|error| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    Ok(([(CONTENT_TYPE, "application/json")], body).into_response())
}

/// One tenant.
#[utoipa::path(
    get, path = "/v1/vms/{name}", operation_id = "get_vm", tag = "vms", params(("name" = String, Path, description = "Name of the tenant")),
    responses(
        (status = 200, description = "The tenant", body = Vm, headers(("ETag" = String))),
        (status = 304, description = "As in If-None-Match"),
        (status = "4XX", response = super::Refused),
    )
)]
pub(super) async fn get(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    Ok(tagged(&headers, &Vm::named(&shared, &name)?))
}

/// How a tenant is scheduled.
#[utoipa::path(
    get, path = "/v1/vms/{name}/scheduling", operation_id = "get_scheduling", tag = "vms", params(("name" = String, Path, description = "Name of the tenant")),
    responses(
        (status = 200, description = "Weight and limit", body = Scheduling, headers(("ETag" = String))),
        (status = 304, description = "As in If-None-Match"),
        (status = "4XX", response = super::Refused),
    )
)]
pub(super) async fn scheduling(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    Ok(tagged(&headers, &Vm::named(&shared, &name)?.scheduling))
}

/// Sets how a tenant is scheduled; holds from the next decision on.
#[utoipa::path(
    put, path = "/v1/vms/{name}/scheduling", tag = "vms",
    params(("name" = String, Path, description = "Name of the tenant"), IfMatch),
    request_body(content = Scheduling, content_type = "application/json"),
    responses(
        (status = 200, description = "As it is now", body = Scheduling, headers(("ETag" = String))),
        (status = "4XX", response = super::Refused),
        (status = 503, response = super::Refused),
    )
)]
pub(super) async fn put_scheduling(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Extension(id): Extension<RequestId>,
    Path(name): Path<String>,
    headers: HeaderMap,
    Whole(wanted): Whole<Scheduling>,
) -> Result<Response, Problem> {
    let write = Write::new(caller, id, "scheduling", name);
    set(
        &shared,
        write,
        headers,
        |vm| vm.scheduling,
        move |_, settings| wanted.enter(None, settings),
    )
    .await
}

/// Changes how a tenant is scheduled, by merge patch (RFC 7396); holds from the next decision on.
#[utoipa::path(
    patch, path = "/v1/vms/{name}/scheduling", tag = "vms",
    params(("name" = String, Path, description = "Name of the tenant"), IfMatch),
    request_body(content = SchedulingPatch, content_type = "application/merge-patch+json"),
    responses(
        (status = 200, description = "As it is now", body = Scheduling, headers(("ETag" = String))),
        (status = "4XX", response = super::Refused),
        (status = 503, response = super::Refused),
    )
)]
pub(super) async fn patch_scheduling(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Extension(id): Extension<RequestId>,
    Path(name): Path<String>,
    headers: HeaderMap,
    patch: Patch,
) -> Result<Response, Problem> {
    let write = Write::new(caller, id, "scheduling", name);
    set(
        &shared,
        write,
        headers,
        |vm| vm.scheduling,
        move |vm, settings| {
            let wanted: Scheduling = patch.apply(&vm.scheduling)?;
            wanted.enter(Some((&vm.scheduling, &patch)), settings)
        },
    )
    .await
}
