//! Settings of tenants before they connect, and their removal afterwards.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Extension, Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use utoipa::ToSchema;

use super::Shared;
use super::access::Caller;
use super::attachment::AttachmentBody;
use super::body::Whole;
use super::declare::{DrainQuery, declare, end_declared};
use super::etag::{expect, tagged_at};
use super::gate::RequestId;
use super::limits::check;
use super::page::query;
use super::params::IfMatch;
use super::problem::Problem;
use super::vm::{Scheduling, Vm, VmMetadata};
use super::write::{Write, carry_out, detached, there};
use turnstile_abi::CHUNK_BYTES;
use turnstile_daemon::declared::Declaration;
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
    /// Instance id, project and labels; where unset, as it brings them. A declared VM has an
    /// instance id.
    #[serde(default)]
    metadata: VmMetadata,
    /// The socket that the VM gets: it is then declared, and its VMM connects there alone.
    #[serde(default)]
    attachment: Option<AttachmentBody>,
    /// Of a declared VM: the account that it belongs to.
    #[serde(default)]
    account: Option<String>,
    /// Of a declared VM: the GPU that takes it.
    #[serde(default)]
    gpu: Option<String>,
    /// Of a declared VM: GPU memory that it may own.
    #[serde(default)]
    #[schema(minimum = 1)]
    gpu_memory_bytes: Option<u64>,
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

    /// What is declared; none if the VM gets no socket.
    fn declaration(&self, caller: &Caller) -> Result<Option<Declaration>, Problem> {
        let Some(attachment) = &self.attachment else {
            let of_declared = [
                ("/account", self.account.is_some()),
                ("/gpu", self.gpu.is_some()),
                ("/gpu_memory_bytes", self.gpu_memory_bytes.is_some()),
            ];
            return match of_declared.iter().find(|(_, is_set)| *is_set) {
                Some((pointer, _)) => {
                    Err(Problem::field(*pointer, "It is of VMs with an attachment"))
                }
                None => Ok(None),
            };
        };
        let settings = self.settings()?;
        let instance = settings.metadata.instance_id().ok_or_else(|| {
            let detail = "A VM with an attachment has an instance id";
            Problem::field("/metadata/instance_id", detail)
        })?;
        let account = self.account.as_ref();
        if account.is_some_and(|account| !is_tenant_name(account)) {
            return Err(Problem::field("/account", NAME_RULE));
        }
        let bytes = self.gpu_memory_bytes;
        if bytes.is_some_and(|bytes| bytes == 0 || !bytes.is_multiple_of(CHUNK_BYTES)) {
            let detail = format!("A positive multiple of {CHUNK_BYTES} is taken");
            return Err(Problem::field("/gpu_memory_bytes", detail));
        }
        Ok(Some(Declaration {
            name: self.name.clone(),
            instance,
            account: account.cloned(),
            gpu: self.gpu.clone(),
            gpu_memory_bytes: bytes,
            attachment: attachment.checked(caller)?,
            settings,
        }))
    }
}

/// Sets a tenant's settings before it connects; with an attachment, declares a VM, which gets a
/// socket of its own. The same again is no conflict.
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
    let place = format!("/v1/vms/{name}");
    if let Some(declared) = registration.declaration(&caller)? {
        let write = Write::new(caller, id, "vm", name);
        let (vm, is_new) = detached(declare(shared, write, declared)).await?;
        return Ok(tagged_at(&place, is_new, &vm));
    }
    let wanted = registration.settings()?;
    let known_before = shared.gpus.first().host.settings().contains_key(&name);
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
    let vm = carry_out(&shared, write, decide).await?;
    Ok(tagged_at(&place, !known_before, &vm))
}

/// Removes the settings of a tenant that is not connected. A declared VM is removed with its
/// socket: at once without a tenant, else once its tenant was drained.
#[utoipa::path(
    delete, path = "/v1/vms/{name}", operation_id = "forget_vm", tag = "vms",
    params(("name" = String, Path, description = "Name of the tenant"), DrainQuery, IfMatch),
    responses(
        (status = 202, description = "The declared VM while its tenant is drained", body = Vm),
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
    terms: Result<Query<DrainQuery>, QueryRejection>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let terms = query(terms)?.terms()?;
    if let Ok(vm) = Vm::named(&shared, &name)
        && vm.attachment.is_some()
    {
        expect(&headers, &vm, shared.in_force.get().strict)?;
        let write = Write::new(caller, id, "vm", name);
        return Ok(match detached(end_declared(shared, write, terms)).await? {
            Some(vm) => (StatusCode::ACCEPTED, Json(vm)).into_response(),
            None => StatusCode::NO_CONTENT.into_response(),
        });
    }
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
    carry_out(&shared, write, decide).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
