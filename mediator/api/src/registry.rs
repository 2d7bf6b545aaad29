//! Settings of tenants before they connect, and their removal afterwards.

use std::sync::Arc;

use axum::extract::{Extension, Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use utoipa::ToSchema;

use super::Shared;
use super::access::Caller;
use super::body::Whole;
use super::etag::{expect, tagged_at};
use super::gate::RequestId;
use super::limits::check;
use super::params::IfMatch;
use super::problem::Problem;
use super::vm::{Scheduling, Vm, VmMetadata};
use super::write::{Write, there};
use turnstile_daemon::{MemoryLimits, NAME_RULE, Settings, is_tenant_name};

/// A tenant that is expected.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Registration {
    /// Name that its VMM or launcher will give.
    #[schema(min_length = 1, max_length = 253, pattern = "^[A-Za-z0-9._+-]+$")]
    name: String,
    /// How it will be scheduled; if unset, as it requests itself.
    #[serde(default)]
    scheduling: Option<Scheduling>,
    /// Limits of its GPU memory.
    #[serde(default)]
    memory: Option<MemoryLimits>,
    /// Instance id, project and labels; where unset, as it brings them.
    #[serde(default)]
    metadata: VmMetadata,
}

impl Registration {
    fn settings(&self) -> Result<Settings, Problem> {
        let mut settings = Settings {
            memory: self.memory.unwrap_or_default(),
            metadata: self.metadata.clone().checked()?,
            ..Settings::default()
        };
        check(&settings.memory)?;
        if let Some(scheduling) = &self.scheduling {
            scheduling.enter(None, &mut settings)?;
        }
        Ok(settings)
    }
}

/// Sets a tenant's settings before it connects. The same again is no conflict.
#[utoipa::path(
    post, path = "/v1/vms", operation_id = "register_vm", tag = "vms",
    request_body(content = Registration, content_type = "application/json"),
    responses(
        (status = 200, description = "This was set already", body = Vm, headers(("ETag" = String))),
        (status = 201, description = "Set", body = Vm, headers(("ETag" = String), ("Location" = String))),
        (status = "4XX", response = super::Refused),
        (status = 503, response = super::Refused),
    )
)]
pub(super) async fn register(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Extension(id): Extension<RequestId>,
    Whole(registration): Whole<Registration>,
) -> Result<Response, Problem> {
    let name = registration.name.clone();
    if !is_tenant_name(&name) {
        return Err(Problem::field("/name", NAME_RULE));
    }
    let wanted = registration.settings()?;
    let known_before = shared.first().host.settings().contains_key(&name);
    let known = name.clone();
    let decide = move |_: Option<&Vm>, set: Option<Settings>| match set {
        None => Ok((Some(wanted), Ok(()))),
        Some(set) if set == wanted => Ok((Some(wanted), Ok(()))),
        _ => Err(Problem::new(
            StatusCode::CONFLICT,
            format!(
                "{known} is known, and other things are set of it; change its scheduling, memory and metadata"
            ),
        )),
    };
    let write = Write::new(caller, id, "vm", name.clone());
    let vm = shared.write(write, decide).await?;
    let place = format!("/v1/vms/{name}");
    Ok(tagged_at(&place, !known_before, &vm))
}

/// Removes the settings of a tenant that is not connected.
#[utoipa::path(
    delete, path = "/v1/vms/{name}", operation_id = "forget_vm", tag = "vms",
    params(("name" = String, Path, description = "Name of the tenant"), IfMatch),
    responses(
        (status = 204, description = "Forgotten"),
        (status = "4XX", response = super::Refused),
        (status = 503, response = super::Refused),
    )
)]
pub(super) async fn forget(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Extension(id): Extension<RequestId>,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let (strict, known) = (shared.in_force.get().strict, name.clone());
    let decide = move |vm: Option<&Vm>, _: Option<Settings>| {
        let vm = there(vm, &known)?;
        if vm.connected {
            return Err(Problem::new(
                StatusCode::CONFLICT,
                format!("{known} is connected; it is forgotten when its VM has ended"),
            ));
        }
        Ok((None, expect(&headers, vm, strict)))
    };
    let write = Write::new(caller, id, "vm", name);
    shared.write(write, decide).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
