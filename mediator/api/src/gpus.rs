//! The GPUs of this host.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Extension, Path, Query, State};
use axum::http::HeaderMap;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Shared;
use super::access::Caller;
use super::etag::tagged;
use super::gate::RequestId;
use super::page::{Page, PageQuery};
use super::problem::Problem;
use super::write::{Write, detached};

/// Where the time of one engine went since the daemon began; the parts add up to `wall_ns`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Engine {
    /// Number.
    pub engine: u8,
    /// Whether it computes; the others copy.
    pub compute: bool,
    /// Charged to tenants.
    pub used_ns: u64,
    /// Stalled on tenants' faults.
    pub fault_ns: u64,
    /// Between contexts.
    pub switching_ns: u64,
    /// Nothing to execute.
    pub idle_ns: u64,
    /// Covered by no signal.
    pub unobserved_ns: u64,
    /// Between two periods.
    pub gap_ns: u64,
    /// Since the daemon began.
    pub wall_ns: u64,
}

/// The time that tenants are charged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Charge {
    /// In which they kept an engine busy.
    #[default]
    Worked,
    /// In which they were on an engine, as no signal shows when it was busy.
    Resident,
}

impl Charge {
    /// Its name in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Worked => "worked",
            Self::Resident => "resident",
        }
    }

    const fn of(worked: bool) -> Self {
        if worked { Self::Worked } else { Self::Resident }
    }
}

/// A GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
// FIELDS: a row of JSON: one fact each.
pub struct Gpu {
    /// Identity: the driver's UUID, or the name of the software GPU.
    pub id: String,
    /// Name of this host.
    pub node: String,
    /// Model.
    pub model: String,
    /// Whether it executes in software.
    pub software: bool,
    /// Scheduling policy.
    pub policy: String,
    /// Memory.
    pub memory_bytes: u64,
    /// Host memory behind it for tenants' memory that is not on it; zero if memory does not move.
    pub host_pool_bytes: u64,
    /// Tenants connected.
    pub vms: usize,
    /// Whether it is closed to further tenants.
    #[serde(default)]
    pub cordoned: bool,
    /// Whether an operator has taken it out of service.
    #[serde(default)]
    pub removed: bool,
    /// The time that tenants are charged.
    #[serde(default)]
    pub charge: Charge,
    /// Why nothing is known of it now; null while it answers.
    #[serde(default)]
    pub silent: Option<String>,
    /// What it cannot do on this host, with the remedy; null where nothing lacks.
    #[serde(default)]
    pub lacks: Option<String>,
    /// End of the last window, on the GPU's clock.
    pub at_ns: u64,
    /// Engines.
    pub engines: Vec<Engine>,
    /// Wall time less everything accounted for, all engines: zero, or time was lost.
    pub conservation_error_ns: u64,
    /// Usages that the ledger refused.
    pub ledger_errors: u64,
    /// Processes that use it and belong to no tenant.
    pub untracked_processes: usize,
}

impl Gpu {
    pub(super) fn at(shared: &Shared, place: usize) -> Self {
        let seen = shared.gpus.at(place);
        let snapshot = seen.snapshots.get();
        let capability = seen.host.gpu().capabilities();
        let engines = snapshot.engines.iter().map(|engine| {
            let totals = &engine.totals;
            Engine {
                engine: engine.engine.0,
                compute: engine.engine.0 < capability.compute_engines,
                used_ns: totals.used_ns.0,
                fault_ns: totals.fault_ns.0,
                switching_ns: totals.switching_ns.0,
                idle_ns: totals.idle_ns.0,
                unobserved_ns: totals.unobserved_ns.0,
                gap_ns: totals.gap_ns.0,
                wall_ns: totals.accounted_ns().0,
            }
        });
        Self {
            id: seen.identity.gpu.clone(),
            node: seen.identity.node.clone(),
            model: seen.identity.model.clone(),
            software: capability.software,
            policy: seen.host.policy().to_owned(),
            memory_bytes: capability.memory_bytes,
            host_pool_bytes: capability.host_pool_bytes,
            vms: snapshot.tenants.len(),
            cordoned: shared.fleet.is_closed(place),
            removed: seen.host.is_removed(),
            charge: Charge::of(capability.worked),
            silent: seen.host.silence(),
            lacks: snapshot.lacks.clone(),
            at_ns: snapshot.at.0,
            engines: engines.collect(),
            // CAST: a sum of times of one run
            conservation_error_ns: snapshot.conservation_error_ns as u64,
            ledger_errors: snapshot.ledger_errors,
            untracked_processes: snapshot.untracked.len(),
        }
    }
}

/// GPUs of this host.
#[utoipa::path(
    get, path = "/v1/gpus", operation_id = "list_gpus", tag = "gpus", params(PageQuery),
    responses(
        (status = 200, description = "A page of GPUs", body = Page<Gpu>),
        (status = "4XX", response = super::Refused),
    )
)]
pub(super) async fn list(
    State(shared): State<Arc<Shared>>,
    query: Result<Query<PageQuery>, QueryRejection>,
) -> Result<Json<Page<Gpu>>, Problem> {
    let gpus = (0..shared.gpus.iter().len()).map(|place| Gpu::at(&shared, place));
    let named: BTreeMap<String, Gpu> = gpus.map(|gpu| (gpu.id.clone(), gpu)).collect();
    Page::of(query, named).map(Json)
}

/// One GPU.
#[utoipa::path(
    get, path = "/v1/gpus/{id}", operation_id = "get_gpu", tag = "gpus", params(("id" = String, Path, description = "Identity of the GPU")),
    responses(
        (status = 200, description = "The GPU", body = Gpu, headers(("ETag" = String))),
        (status = 304, description = "As in If-None-Match"),
        (status = "4XX", response = super::Refused),
    )
)]
pub(super) async fn get(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let place = shared.gpus.place_of(&id)?;
    Ok(tagged(&headers, &Gpu::at(&shared, place)))
}

/// Closes a GPU to further tenants, or opens it again, and answers with the GPU.
async fn close(shared: Arc<Shared>, write: Write, closed: bool) -> Result<Gpu, Problem> {
    let place = shared.gpus.place_of(&write.name)?;
    let turn = shared.turn().await;
    let before = shared.fleet.is_closed(place);
    if before != closed {
        let audit = turn.audit(&write, Some(&before), Some(&closed))?;
        let mut kept = turn.kept();
        if closed {
            kept.cordoned.insert(write.name.clone());
        } else {
            kept.cordoned.remove(&write.name);
            kept.removed.remove(&write.name);
        }
        turn.keep(kept).await?;
        if !closed {
            shared.fleet.restore_gpu(place);
        }
        shared.fleet.close(place, closed);
        audit.emit(&shared.fleet);
    }
    Ok(Gpu::at(&shared, place))
}

/// Takes a GPU out of service, and answers with the GPU.
async fn take_out(shared: Arc<Shared>, write: Write) -> Result<Gpu, Problem> {
    let place = shared.gpus.place_of(&write.name)?;
    let turn = shared.turn().await;
    if !shared.gpus.at(place).host.is_removed() {
        let audit = turn.audit(&write, Some(&false), Some(&true))?;
        let mut kept = turn.kept();
        kept.cordoned.insert(write.name.clone());
        kept.removed.insert(write.name.clone());
        turn.keep(kept).await?;
        shared.fleet.remove_gpu(place);
        // Places that were given back are not taken again by the next daemon.
        turn.keep(turn.kept()).await?;
        audit.emit(&shared.fleet);
        shared.gpus.renew();
    }
    Ok(Gpu::at(&shared, place))
}

/// Closes a GPU to further tenants; those on it stay. It holds over restarts of the daemon.
#[utoipa::path(
    put, path = "/v1/gpus/{id}/cordon", operation_id = "cordon_gpu", tag = "gpus", params(("id" = String, Path, description = "Identity of the GPU")),
    responses(
        (status = 200, description = "The GPU as it is now", body = Gpu),
        (status = "4XX", response = super::Refused),
        (status = 503, response = super::Refused),
    )
)]
pub(super) async fn cordon(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Extension(request): Extension<RequestId>,
    Path(id): Path<String>,
) -> Result<Json<Gpu>, Problem> {
    let write = Write::of_gpu(caller, request, id);
    detached(close(shared, write, true)).await.map(Json)
}

/// Opens a GPU to further tenants again, and takes it back if it was removed.
#[utoipa::path(
    delete, path = "/v1/gpus/{id}/cordon", operation_id = "uncordon_gpu", tag = "gpus", params(("id" = String, Path, description = "Identity of the GPU")),
    responses(
        (status = 200, description = "The GPU as it is now", body = Gpu),
        (status = "4XX", response = super::Refused),
        (status = 503, response = super::Refused),
    )
)]
pub(super) async fn uncordon(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Extension(request): Extension<RequestId>,
    Path(id): Path<String>,
) -> Result<Json<Gpu>, Problem> {
    let write = Write::of_gpu(caller, request, id);
    detached(close(shared, write, false)).await.map(Json)
}

/// Takes a GPU out of service: its tenants end at once, declared VMs are placed on other GPUs, and
/// it takes no other. It holds over restarts of the daemon, until the GPU is opened again.
#[utoipa::path(
    put, path = "/v1/gpus/{id}/removal", operation_id = "remove_gpu", tag = "gpus", params(("id" = String, Path, description = "Identity of the GPU")),
    responses(
        (status = 200, description = "The GPU as it is now", body = Gpu),
        (status = "4XX", response = super::Refused),
        (status = 503, response = super::Refused),
    )
)]
pub(super) async fn remove(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Extension(request): Extension<RequestId>,
    Path(id): Path<String>,
) -> Result<Json<Gpu>, Problem> {
    let mut write = Write::of_gpu(caller, request, id);
    write.part = "removed";
    detached(take_out(shared, write)).await.map(Json)
}
