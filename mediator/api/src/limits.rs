//! Limits of tenants' GPU memory.

use std::sync::Arc;

use axum::extract::{Extension, Path, State};
use axum::http::HeaderMap;
use axum::response::Response;
use utoipa::ToSchema;

use super::Shared;
use super::access::Caller;
use super::body::{Patch, Whole};
use super::etag::tagged;
use super::gate::RequestId;
use super::params::IfMatch;
use super::problem::Problem;
use super::vm::Vm;
use super::write::{Write, set};
use turnstile_daemon::MemoryLimits;

/// A limit is not larger: 1 PiB.
pub(super) const LIMIT_MAX: u64 = 1 << 50;

/// Changes to the limits of a tenant's GPU memory. Null lifts a limit; what is left out stays as it
/// is.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "a schema: the patch itself is merged as JSON")]
pub(super) struct MemoryPatch {
    /// Bytes that are never taken from it.
    #[schema(maximum = 1_125_899_906_842_624_u64)]
    min_bytes: Option<u64>,
    /// Bytes above which its memory is taken first.
    #[schema(maximum = 1_125_899_906_842_624_u64)]
    high_bytes: Option<u64>,
    /// Bytes that it may allocate.
    #[schema(maximum = 1_125_899_906_842_624_u64)]
    max_bytes: Option<u64>,
}

/// Whether limits are in range; the host checks whether they rise.
pub(super) fn check(limits: &MemoryLimits) -> Result<(), Problem> {
    let named = [
        ("/min_bytes", Some(limits.min_bytes)),
        ("/high_bytes", limits.high_bytes),
        ("/max_bytes", limits.max_bytes),
    ];
    for (pointer, bytes) in named {
        if bytes.is_some_and(|bytes| bytes > LIMIT_MAX) {
            return Err(Problem::field(
                pointer,
                format!("At most {LIMIT_MAX} bytes"),
            ));
        }
    }
    Ok(())
}

/// Limits of a tenant's GPU memory, as they were set.
#[utoipa::path(
    get, path = "/v1/vms/{name}/memory", operation_id = "get_memory", tag = "vms", params(("name" = String, Path, description = "Name of the tenant")),
    responses(
        (status = 200, description = "The limits", body = MemoryLimits, headers(("ETag" = String))),
        (status = 304, description = "As in If-None-Match"),
        (status = "4XX", response = super::Refused),
    )
)]
pub(super) async fn get(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    Ok(tagged(&headers, &Vm::named(&shared, &name)?.limits))
}

/// Sets the limits of a tenant's GPU memory. A tenant keeps what it has beyond a new maximum, and
/// gets no more.
#[utoipa::path(
    put, path = "/v1/vms/{name}/memory", operation_id = "put_memory", tag = "vms",
    params(("name" = String, Path, description = "Name of the tenant"), IfMatch),
    request_body(content = MemoryLimits, content_type = "application/json"),
    responses(
        (status = 200, description = "As they are now", body = MemoryLimits, headers(("ETag" = String))),
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
    Whole(wanted): Whole<MemoryLimits>,
) -> Result<Response, Problem> {
    let write = Write::new(caller, id, "memory", name);
    enter(&shared, write, headers, move |_| Ok(wanted)).await
}

/// Changes the limits of a tenant's GPU memory, by merge patch (RFC 7396).
#[utoipa::path(
    patch, path = "/v1/vms/{name}/memory", operation_id = "patch_memory", tag = "vms",
    params(("name" = String, Path, description = "Name of the tenant"), IfMatch),
    request_body(content = MemoryPatch, content_type = "application/merge-patch+json"),
    responses(
        (status = 200, description = "As they are now", body = MemoryLimits, headers(("ETag" = String))),
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
    let write = Write::new(caller, id, "memory", name);
    enter(&shared, write, headers, move |vm| patch.apply(&vm.limits)).await
}

async fn enter(
    shared: &Arc<Shared>,
    write: Write,
    headers: HeaderMap,
    wanted: impl FnOnce(&Vm) -> Result<MemoryLimits, Problem> + Send + 'static,
) -> Result<Response, Problem> {
    set(
        shared,
        write,
        headers,
        |vm| vm.limits,
        move |vm, settings| {
            settings.memory = wanted(vm)?;
            check(&settings.memory)
        },
    )
    .await
}
