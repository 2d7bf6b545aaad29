//! The GPUs of the daemon as readers see them: identity, copies of the state, the last seconds.

use std::sync::Arc;

use axum::http::StatusCode;
use serde::Deserialize;
use turnstile_accounting::record::GpuIdentity;
use turnstile_daemon::{Fleet, Host, LedgerHealth};
use utoipa::IntoParams;

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

/// The GPUs, in the fleet's order; at least one.
#[derive(Debug)]
pub(crate) struct Gpus(Vec<Seen>);

impl Gpus {
    pub(super) fn of(fleet: &Fleet) -> Self {
        let seen = |member: &turnstile_daemon::Member| Seen {
            identity: member.identity.clone(),
            host: member.host.clone(),
            snapshots: Snapshots::new(member.host.clone()),
            live: Live::default(),
        };
        Self(fleet.members().iter().map(seen).collect())
    }

    pub(super) fn iter(&self) -> std::slice::Iter<'_, Seen> {
        self.0.iter()
    }

    /// The GPU at a place of the fleet.
    pub(super) fn at(&self, place: usize) -> &Seen {
        &self.0[place]
    }

    /// The place of a GPU among the daemon's.
    pub(super) fn place_of(&self, gpu: &str) -> Result<usize, Problem> {
        let place = self.iter().position(|seen| seen.identity.gpu == gpu);
        place.ok_or_else(|| {
            let id: String = gpu.chars().take(64).collect();
            let has: Vec<&str> = self.iter().map(|one| one.identity.gpu.as_str()).collect();
            let detail = format!("This daemon has no GPU {id:?}; it has {}", has.join(", "));
            Problem::new(StatusCode::NOT_FOUND, detail)
        })
    }

    /// The GPU that a request names, or the first one.
    pub(super) fn named(&self, gpu: Option<&str>) -> Result<&Seen, Problem> {
        Ok(self.at(gpu.map_or(Ok(0), |gpu| self.place_of(gpu))?))
    }

    /// The first GPU.
    pub(super) fn first(&self) -> &Seen {
        // PANIC: none; a fleet has a GPU
        self.at(0)
    }

    /// Something was changed: the next reader gets new copies.
    pub(super) fn renew(&self) {
        self.iter().for_each(|seen| seen.snapshots.renew());
    }

    /// How the durable ledgers of all GPUs stand together; none without one.
    pub(super) fn ledger_health(&self) -> Option<LedgerHealth> {
        let each = self.iter();
        let each = each.filter_map(|seen| seen.snapshots.get().ledger);
        each.reduce(|a, b| LedgerHealth {
            written: a.written + b.written,
            failing: a.failing || b.failing,
            refused: a.refused + b.refused,
            behind_ns: a.behind_ns.max(b.behind_ns),
            window_ns: a.window_ns,
        })
    }
}
