//! The GPUs of the daemon as readers see them: identity, copies of the state, the last seconds.

use std::sync::Arc;

use axum::http::StatusCode;
use serde::Deserialize;
use turnstile_accounting::record::GpuIdentity;
use turnstile_daemon::{Fleet, Host};
use utoipa::IntoParams;

use super::Shared;
use super::problem::Problem;
use super::recent::Live;
use super::snapshots::Snapshots;

/// A GPU as readers see it.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(super) identity: GpuIdentity,
    pub(super) host: Arc<Host>,
    pub(super) snapshots: Snapshots,
    pub(super) live: Live,
}

/// Which GPU a request is about.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct GpuQuery {
    /// Identity of the GPU; without it, the first of `/v1/gpus`.
    pub(super) gpu: Option<String>,
}

impl Seen {
    /// Of all GPUs.
    pub(super) fn of(fleet: &Fleet) -> Vec<Self> {
        let seen = |member: &turnstile_daemon::Member| Self {
            identity: member.identity.clone(),
            host: member.host.clone(),
            snapshots: Snapshots::new(member.host.clone()),
            live: Live::default(),
        };
        fleet.members().iter().map(seen).collect()
    }
}

impl Shared {
    /// The place of a GPU among the daemon's.
    pub(super) fn place_of(&self, gpu: &str) -> Result<usize, Problem> {
        let mut places = self.gpus.iter();
        places
            .position(|seen| seen.identity.gpu == gpu)
            .ok_or_else(|| {
                let id: String = gpu.chars().take(64).collect();
                let has: Vec<&str> = self
                    .gpus
                    .iter()
                    .map(|one| one.identity.gpu.as_str())
                    .collect();
                let detail = format!("This daemon has no GPU {id:?}; it has {}", has.join(", "));
                Problem::new(StatusCode::NOT_FOUND, detail)
            })
    }

    /// The GPU that a request names, or the first one.
    pub(super) fn seen(&self, gpu: Option<&str>) -> Result<&Seen, Problem> {
        Ok(&self.gpus[gpu.map_or(Ok(0), |gpu| self.place_of(gpu))?])
    }

    /// The first GPU.
    pub(super) fn first(&self) -> &Seen {
        // PANIC: none; a fleet has a GPU
        &self.gpus[0]
    }

    /// Something was changed: the next reader gets new copies.
    pub(super) fn renew(&self) {
        self.gpus.iter().for_each(|seen| seen.snapshots.renew());
    }
}
