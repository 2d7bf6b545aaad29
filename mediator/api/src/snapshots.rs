//! The host's state as the API shows it. All requests within a few milliseconds share one copy, so
//! that many readers cost the accounting thread no more than a few.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use turnstile_daemon::{Host, HostSnapshot};

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
