//! VMs that are declared before their VMMs connect: their sockets, drains and ends.
//!
//! In: the body of `POST /v1/vms` with an attachment, `DELETE`, drains of VMs and GPUs. Out: calls
//! of the fleet, after the state file has what they change.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Extension, Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use utoipa::IntoParams;

use super::Shared;
use super::access::Caller;
use super::gate::RequestId;
use super::gpus::Gpu;
use super::page::query;
use super::problem::Problem;
use super::vm::Vm;
use super::write::{Write, detached};
use turnstile_daemon::declared::{Declaration, KeptVm};
use turnstile_daemon::{DeclareError, DrainTerms, chain};

/// Time of a drain that names none, in seconds, and the most.
const TIMEOUT_S: u64 = 30;
const TIMEOUT_MAX_S: u64 = 86_400;

/// How long a drain may take.
#[derive(Clone, Copy, Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct DrainQuery {
    /// Seconds in which its tenant has to be found without work; 30 where absent.
    #[param(maximum = 86_400)]
    timeout_s: Option<u64>,
    /// Whether its tenant ends when that has passed; else it stays.
    force: Option<bool>,
}

impl DrainQuery {
    pub(super) fn terms(self) -> Result<DrainTerms, Problem> {
        let seconds = self.timeout_s.unwrap_or(TIMEOUT_S);
        if seconds > TIMEOUT_MAX_S {
            let detail = format!("timeout_s is at most {TIMEOUT_MAX_S}");
            return Err(Problem::new(StatusCode::BAD_REQUEST, detail));
        }
        Ok(DrainTerms {
            timeout: Duration::from_secs(seconds),
            force: self.force.unwrap_or(false),
        })
    }
}

impl From<DeclareError> for Problem {
    fn from(error: DeclareError) -> Self {
        let status = match error {
            DeclareError::NoVm(_) => StatusCode::NOT_FOUND,
            DeclareError::Door(_) => StatusCode::SERVICE_UNAVAILABLE,
            DeclareError::NoGpu(_) | DeclareError::Place(_) => StatusCode::UNPROCESSABLE_ENTITY,
            _ => StatusCode::CONFLICT,
        };
        Self::new(status, chain(&error))
    }
}

/// Declares a VM, and returns whether it is new. It is on the disk before it has a socket.
pub(super) async fn declare(
    shared: Arc<Shared>,
    write: Write,
    declared: Declaration,
) -> Result<(Vm, bool), Problem> {
    let turn = shared.turn().await;
    let name = declared.name.clone();
    let is_new = shared.fleet.check_declaration(&declared)?;
    if is_new {
        let mut kept = turn.kept();
        if kept.tenants.contains_key(&name) {
            let detail = format!("Something is set of {name}; forget it first");
            return Err(Problem::new(StatusCode::CONFLICT, detail));
        }
        let audit = turn.audit(&write, None, Some(&declared))?;
        kept.tenants.insert(name.clone(), declared.settings.clone());
        kept.vms.push(KeptVm {
            declared: declared.clone(),
            placed: None,
            attached: false,
        });
        turn.keep(kept).await?;
        let fleet = shared.fleet.clone();
        let made = tokio::task::spawn_blocking(move || fleet.declare(declared)).await;
        let made = made
            .map_err(|error| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()));
        if let Err(problem) = made.and_then(|made| Ok(made?)) {
            turn.keep(turn.kept()).await?;
            return Err(problem);
        }
        audit.emit(&shared.fleet);
    }
    shared.gpus.renew();
    Ok((Vm::named(&shared, &name)?, is_new))
}

/// Removes a declared VM: none if that is done, else as it is while its tenant is drained. It
/// is not on the disk any more by then.
pub(super) async fn end_declared(
    shared: Arc<Shared>,
    write: Write,
    terms: DrainTerms,
) -> Result<Option<Vm>, Problem> {
    let turn = shared.turn().await;
    let name = &write.name;
    let mut kept = turn.kept();
    let of_it = |vm: &KeptVm| vm.declared.name == *name;
    let known = kept.vms.iter().find(|vm| of_it(vm)).cloned();
    let audit = turn.audit(&write, known.as_ref().map(|vm| &vm.declared), None)?;
    kept.vms.retain(|vm| !of_it(vm));
    kept.tenants.remove(name);
    kept.names.remove(name);
    turn.keep(kept).await?;
    shared.fleet.drain(name, terms, true)?;
    audit.emit(&shared.fleet);
    shared.gpus.renew();
    Ok(Vm::named(&shared, name).ok())
}

async fn carry_out_drain(
    shared: Arc<Shared>,
    write: Write,
    terms: DrainTerms,
) -> Result<Vm, Problem> {
    let turn = shared.turn().await;
    let audit = turn.audit(&write, None, Some(&terms.timeout.as_secs()))?;
    shared.fleet.drain(&write.name, terms, false)?;
    // A place that was given back is not taken again by the next daemon.
    turn.keep(turn.kept()).await?;
    audit.emit(&shared.fleet);
    shared.gpus.renew();
    Vm::named(&shared, &write.name)
}

async fn carry_out_gpu_drain(
    shared: Arc<Shared>,
    write: Write,
    terms: DrainTerms,
) -> Result<Gpu, Problem> {
    let place = shared.gpus.place_of(&write.name)?;
    let turn = shared.turn().await;
    let audit = turn.audit(&write, Some(&shared.fleet.is_closed(place)), Some(&true))?;
    let mut kept = turn.kept();
    kept.cordoned.insert(write.name.clone());
    turn.keep(kept).await?;
    shared.fleet.drain_gpu(place, terms);
    // Places that were given back are not taken again by the next daemon.
    turn.keep(turn.kept()).await?;
    audit.emit(&shared.fleet);
    shared.gpus.renew();
    Ok(Gpu::at(&shared, place))
}

/// Ends the tenant of a VM once it has no work. A declared VM is then placed anew; without a
/// tenant, at once.
#[utoipa::path(
    post, path = "/v1/vms/{name}/drain", operation_id = "drain_vm", tag = "vms",
    params(("name" = String, Path, description = "Name of the tenant"), DrainQuery),
    responses(
        (status = 202, description = "The VM as it is now", body = Vm),
        (status = "4XX", response = super::Refused),
        (status = 503, response = super::Refused),
    )
)]
pub(super) async fn drain(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Extension(id): Extension<RequestId>,
    Path(name): Path<String>,
    terms: Result<Query<DrainQuery>, QueryRejection>,
) -> Result<Response, Problem> {
    let terms = query(terms)?.terms()?;
    let write = Write::new(caller, id, "drain", name);
    let vm = detached(carry_out_drain(shared, write, terms)).await?;
    Ok((StatusCode::ACCEPTED, Json(vm)).into_response())
}

/// Closes a GPU to further VMs, and drains those on it. Programs on it stay.
#[utoipa::path(
    put, path = "/v1/gpus/{id}/drain", operation_id = "drain_gpu", tag = "gpus",
    params(("id" = String, Path, description = "Identity of the GPU"), DrainQuery),
    responses(
        (status = 202, description = "The GPU as it is now", body = Gpu),
        (status = "4XX", response = super::Refused),
        (status = 503, response = super::Refused),
    )
)]
pub(super) async fn drain_gpu(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Extension(request): Extension<RequestId>,
    Path(id): Path<String>,
    terms: Result<Query<DrainQuery>, QueryRejection>,
) -> Result<Response, Problem> {
    let terms = query(terms)?.terms()?;
    let write = Write::of_gpu(caller, request, id);
    let gpu = detached(carry_out_gpu_drain(shared, write, terms)).await?;
    Ok((StatusCode::ACCEPTED, Json(gpu)).into_response())
}
