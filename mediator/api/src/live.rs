//! The live view: a sample of the host each second, kept for some minutes, and sent to subscribers.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Extension, Query, State};
use axum::http::header;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::{Json, body::Body};
use serde::{Deserialize, Serialize};
use tokio::time::MissedTickBehavior;
use tokio_stream::{Stream, StreamExt as _};
use utoipa::ToSchema;

use super::Shared;
use super::access::{Caller, Role};
use super::events::stream_of;
use super::notices::{Notice, Notices};
use super::page::query;
use super::problem::Problem;
use super::seen::{GpuQuery, Seen};
use crate::view::{Sample, View, WaitingSample};
use turnstile_daemon::WaitingVm;

/// Interval of samples.
const EVERY: Duration = Duration::from_secs(1);

/// Interval of comment lines, so that an idle connection is not taken for dead.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

impl Seen {
    fn sample(&self) -> Sample {
        let snapshot = self.snapshots.get();
        Sample::new(&self.identity.gpu, &snapshot, snapshot.ledger)
    }
}

impl Shared {
    /// VMs that wait for a place, in line.
    fn waiting(&self) -> Vec<WaitingSample> {
        let all = self.fleet.waiting().into_iter();
        let vm = |vm: WaitingVm| WaitingSample {
            name: vm.name,
            reason: vm.reason,
        };
        all.map(vm).collect()
    }
}

/// Takes a sample of each GPU each second, for ever, and reports what began as events.
pub(super) async fn poll(shared: Arc<Shared>) {
    let mut clock = tokio::time::interval(EVERY);
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut before: Vec<Option<Sample>> = vec![None; shared.gpus.iter().len()];
    let mut notices: Vec<Notices> = shared.gpus.iter().map(|_| Notices::default()).collect();
    loop {
        clock.tick().await;
        for (seen, before) in shared.gpus.iter().zip(&mut before) {
            let after = seen.sample();
            if let Some(before) = &before {
                seen.live.add(View::between(before, &after));
            }
            *before = Some(after);
        }
        for (seen, notices) in shared.gpus.iter().zip(&mut notices) {
            let journal = shared.fleet.journal();
            for Notice { kind, vm, reason } in notices.take(&seen.snapshots.get()) {
                journal.report(kind, &vm, &reason);
            }
        }
    }
}

/// The host, and what the caller may do here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HostInfo {
    /// Name of this host.
    pub node: String,
    /// Identity of the GPU; of several, the first one's.
    pub gpu: String,
    /// Identities of all GPUs.
    #[serde(default)]
    pub gpus: Vec<String>,
    /// Its model.
    pub gpu_model: String,
    /// Scheduling policy.
    pub policy: String,
    /// `viewer`, or `operator`.
    pub role: String,
    /// Version of the daemon.
    pub version: String,
}

/// The host, and what the caller may do here.
#[utoipa::path(
    get, path = "/v1/host", tag = "live",
    responses(
        (status = 200, description = "The host", body = HostInfo),
        (status = "4XX", response = super::Refused),
    )
)]
pub(super) async fn host(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
) -> Json<HostInfo> {
    let role = match caller.role {
        Role::Viewer => "viewer",
        Role::Operator | Role::Administrator => "operator",
    };
    let first = shared.gpus.first();
    let gpus = shared.gpus.iter();
    Json(HostInfo {
        node: first.identity.node.clone(),
        gpu: first.identity.gpu.clone(),
        gpus: gpus.map(|seen| seen.identity.gpu.clone()).collect(),
        gpu_model: first.identity.model.clone(),
        policy: first.host.policy().to_owned(),
        role: role.to_owned(),
        version: shared.version.clone(),
    })
}

/// Running totals now; the difference of two is what happened between them.
#[utoipa::path(
    get, path = "/v1/live/sample", tag = "live", params(GpuQuery),
    responses(
        (status = 200, description = "Totals", body = Sample),
        (status = "4XX", response = super::Refused),
    )
)]
pub(super) async fn sample(
    State(shared): State<Arc<Shared>>,
    of: Result<Query<GpuQuery>, QueryRejection>,
) -> Result<Json<Sample>, Problem> {
    let of = query(of)?;
    let mut sample = shared.gpus.named(of.gpu.as_deref())?.sample();
    sample.waiting = shared.waiting();
    Ok(Json(sample))
}

/// The last five minutes, a second each, the oldest first.
#[utoipa::path(
    get, path = "/v1/live/history", tag = "live", params(GpuQuery),
    responses(
        (status = 200, description = "Seconds", body = Vec<View>),
        (status = "4XX", response = super::Refused),
    )
)]
pub(super) async fn history(
    State(shared): State<Arc<Shared>>,
    of: Result<Query<GpuQuery>, QueryRejection>,
) -> Result<Response, Problem> {
    let of = query(of)?;
    let seen = shared.gpus.named(of.gpu.as_deref())?;
    let kept = seen.live.kept();
    let text = format!("[{}]", kept.join(","));
    let kind = [(header::CONTENT_TYPE, "application/json")];
    Ok((kind, Body::from(text)).into_response())
}

/// Each second as it has passed: server-sent events of the name `view`.
#[utoipa::path(
    get, path = "/v1/live", tag = "live", params(GpuQuery),
    responses(
        (status = 200, description = "Events without end, the data of each a View", content_type = "text/event-stream", body = String),
        (status = "4XX", response = super::Refused),
    )
)]
pub(super) async fn stream(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    of: Result<Query<GpuQuery>, QueryRejection>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Problem> {
    let of = query(of)?;
    let views = shared.gpus.named(of.gpu.as_deref())?.live.listen();
    let place = stream_of(shared.fleet.limits(), &caller)?;
    let events = views.map(move |text| {
        let _held = &place;
        Ok(Event::default().event("view").data(&*text))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)))
}
