//! The host's state as the API shows it. All requests within a few milliseconds share one copy, so
//! that many readers cost the accounting thread no more than a few.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Deserialize;
use turnstile_accounting::record::GpuIdentity;
use turnstile_daemon::{Fleet, Host, HostSnapshot};
use utoipa::IntoParams;

use super::Shared;
use super::live::Live;
use super::problem::Problem;
use axum::http::StatusCode;

/// Lifetime of a copy: the host's lock is taken for one at most 200 times a second.
const FRESH: Duration = Duration::from_millis(5);

/// TIMEOUT: time for which a reader waits for the host's state. Then it gets the last copy: the
/// thread that has the state may wait for a device.
const PATIENCE: Duration = Duration::from_millis(5);

/// The last copy.
#[derive(Debug)]
struct Last {
    at: Instant,
    snapshot: Arc<HostSnapshot>,
    /// Whether nothing was set since.
    holds: bool,
}

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

/// Copies of one GPU's state.
#[derive(Debug)]
pub(super) struct Snapshots {
    host: Arc<Host>,
    last: Mutex<Option<Last>>,
}

impl Snapshots {
    pub(super) fn new(host: Arc<Host>) -> Self {
        let last = Mutex::new(None);
        Self { host, last }
    }

    /// The state, at most [`FRESH`] old unless it cannot be had in [`PATIENCE`], and never from
    /// before the last [`Self::renew`].
    pub(super) fn get(&self) -> Arc<HostSnapshot> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = last.as_ref().filter(|last| last.holds);
        if let Some(kept) = kept.filter(|kept| kept.at.elapsed() < FRESH) {
            return kept.snapshot.clone();
        }
        let snapshot = match kept {
            Some(kept) => match self.host.try_snapshot(PATIENCE) {
                Some(snapshot) => snapshot,
                None => return kept.snapshot.clone(),
            },
            None => self.host.snapshot(),
        };
        let snapshot = Arc::new(snapshot);
        *last = Some(Last {
            at: Instant::now(),
            snapshot: snapshot.clone(),
            holds: true,
        });
        snapshot
    }

    /// Something was changed: the next reader gets a new copy.
    pub(super) fn renew(&self) {
        if let Some(last) = &mut *self.last.lock().unwrap_or_else(PoisonError::into_inner) {
            last.holds = false;
        }
    }
}
