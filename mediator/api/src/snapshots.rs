//! The host's state as the API shows it. All requests within a few milliseconds share one copy, so
//! that many readers cost the accounting thread no more than a few.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use turnstile_daemon::{Host, HostSnapshot};

/// Lifetime of a copy: the host's lock is taken for one at most 200 times a second.
const FRESH: Duration = Duration::from_millis(5);

/// Copies of one host's state.
#[derive(Debug)]
pub(super) struct Snapshots {
    host: Arc<Host>,
    last: Mutex<Option<(Instant, Arc<HostSnapshot>)>>,
}

impl Snapshots {
    pub(super) fn new(host: Arc<Host>) -> Self {
        let last = Mutex::new(None);
        Self { host, last }
    }

    /// The state, at most [`FRESH`] old and never from before the last [`Self::renew`].
    pub(super) fn get(&self) -> Arc<HostSnapshot> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, snapshot)) = &*last
            && at.elapsed() < FRESH
        {
            return snapshot.clone();
        }
        let snapshot = Arc::new(self.host.snapshot());
        *last = Some((Instant::now(), snapshot.clone()));
        snapshot
    }

    /// Something was changed: the next reader gets a new copy.
    pub(super) fn renew(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}
