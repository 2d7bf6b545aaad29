//! How many connections the daemon accepts, and for how long one may be silent.
//!
//! In goes the number of tenants of a host; out come the limits. For a new connection, in go the
//! users of all connections; out comes whether there is a place. The control loop calls it.

use std::time::Duration;

/// VMs that are admitted at a time.
const STARTING_MAX: usize = 32;

/// What connections may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Connections at a time, those without a Hello included.
    pub(super) sessions: usize,
    /// Those of one user that is neither root nor the daemon's own.
    pub(super) of_one: usize,
    /// Those of all such users; the remaining places are for root's VMMs.
    pub(super) of_others: usize,
    /// VMs that are admitted at a time.
    pub(super) starting: usize,
    /// TIMEOUT: a VMM or launcher sends its first frame as soon as it has connected.
    pub(super) greeting: Duration,
}

impl Bounds {
    /// For a host of `tenants_max` tenants: each has a connection and all may be one user's, with
    /// as many places again for short connections.
    pub(crate) fn of(tenants_max: usize) -> Self {
        let sessions = (4 * tenants_max).max(1_024);
        Self {
            sessions,
            of_one: sessions / 2,
            of_others: sessions / 4 * 3,
            starting: STARTING_MAX,
            greeting: Duration::from_secs(10),
        }
    }

    /// Whether there is a place for a user beside these.
    pub(super) fn place(&self, uid: u32, own: u32, others: impl Iterator<Item = u32>) -> bool {
        let trusted = |uid: u32| uid == 0 || uid == own;
        let (mut all, mut of_one, mut of_others) = (0, 0, 0);
        for other in others {
            all += 1;
            of_one += usize::from(other == uid);
            of_others += usize::from(!trusted(other));
        }
        all < self.sessions && (trusted(uid) || of_one < self.of_one && of_others < self.of_others)
    }
}
