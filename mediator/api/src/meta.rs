//! The daemon itself: whether it is well, and which it is.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Shared;
use super::problem::Problem;
use super::seen::Gpus;
use turnstile_vmm::wire::Protocols;

/// Which daemon this is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct Version {
    /// Version of the daemon.
    pub version: String,
    /// Version of this API.
    pub api: String,
    /// Newest protocol that VMMs and launchers may speak.
    pub protocol: u32,
    /// Oldest one.
    pub protocol_oldest: u32,
}

/// How the daemon is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct Health {
    /// End of the last accounted window, on the GPU's clock; of several GPUs, the earliest.
    pub at_ns: u64,
    /// Time that cannot be accounted for, of all GPUs; zero, or something is broken.
    pub conservation_error_ns: u64,
    /// The durable ledger; null without one.
    pub ledger: Option<LedgerState>,
}

/// How the durable ledger is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct LedgerState {
    /// Entries on the disk since the daemon began.
    pub written: u64,
    /// The last attempt to write failed; it is tried again.
    pub failing: bool,
    /// Periods that were refused, as they did not balance.
    pub refused: u64,
}

fn health(gpus: &Gpus) -> Health {
    let ledger = gpus.ledger_health().map(|health| LedgerState {
        written: health.written,
        failing: health.failing,
        refused: health.refused,
    });
    let each = gpus.iter().map(|seen| seen.snapshots.get());
    let (at_ns, error) = each.fold((u64::MAX, 0), |(at, error), host| {
        (at.min(host.at.0), error + host.conservation_error_ns)
    });
    Health {
        at_ns,
        // CAST: a sum of times of one run
        conservation_error_ns: error as u64,
        ledger,
    }
}

/// The daemon answers.
#[utoipa::path(
    get, path = "/healthz", tag = "daemon",
    responses(
        (status = 200, description = "It does", body = Health),
        (status = "4XX", response = super::Refused),
    )
)]
pub(super) async fn alive(State(shared): State<Arc<Shared>>) -> Json<Health> {
    Json(health(&shared.gpus))
}

/// Whether the daemon works: time is accounted for, and the ledger is written.
#[utoipa::path(
    get, path = "/readyz", tag = "daemon",
    responses(
        (status = 200, description = "It does", body = Health),
        (status = "4XX", response = super::Refused),
        (status = 503, response = super::Refused),
    )
)]
pub(super) async fn ready(State(shared): State<Arc<Shared>>) -> Response {
    if let Some((gpu, reason)) = shared.fleet.silence() {
        let gpu = &gpu.gpu;
        let detail =
            format!("The GPU {gpu} is silent, and its time is charged to no tenant: {reason}");
        return Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail).into_response();
    }
    let health = health(&shared.gpus);
    let mut reasons = shared.gpus.iter();
    let reason = reasons.find_map(|seen| seen.snapshots.get().ledger_reason.clone());
    if let Some(reason) = reason {
        let detail = format!("The ledger is not written, and tried again: {reason}");
        return Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail).into_response();
    }
    Json(health).into_response()
}

/// Versions.
#[utoipa::path(
    get, path = "/v1/version", tag = "daemon",
    responses(
        (status = 200, description = "Versions", body = Version),
        (status = "4XX", response = super::Refused),
    )
)]
pub(super) async fn version(State(shared): State<Arc<Shared>>) -> Json<Version> {
    Json(Version {
        version: shared.version.clone(),
        api: "v1".into(),
        protocol: Protocols::SPOKEN.newest,
        protocol_oldest: Protocols::SPOKEN.oldest,
    })
}
