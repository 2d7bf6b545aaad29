//! Turns of tenants with sets that do not fit on the card together.
//!
//! Each tenant has a virtual time, its clock: engine time by weight. The tenant with the smallest
//! clock leads a turn. Others run beside it if their sets fit and their clocks are ahead of the
//! leader's by at most one turn. A turn ends when its length is over and another tenant's clock is
//! smaller, or when the leader no longer wants the engine.
//!
//! A running tenant counts as wanting the engine for some time after its last demand, if its set is
//! on the card. That time is what copying the set out and back in takes, at least `PAUSE_MIN`. A
//! pause therefore costs at most twice what it had to. A tenant that begins to want the engine has
//! its clock raised to the smallest clock of those that do: no credit is saved up.
//!
//! A leader that used less than half of its turn is charged up to that half, so that the turn ends.
//! It may have been held by a policy, for example.

use turnstile_accounting::{Moment, Nanos, TenantId};

/// A turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Turn {
    pub(super) leader: TenantId,
    /// Tenants that may run, the leader first.
    pub(super) members: Vec<TenantId>,
    /// When the leader's set was on the card; `None` until then.
    pub(super) since: Option<Moment>,
    pub(super) length: Nanos,
    /// Engine time that the leader has had in it.
    pub(super) used: Nanos,
}

/// A tenant that wants a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) tenant: TenantId,
    pub(super) clock: u128,
    pub(super) set_bytes: u64,
}

/// A tenant that pauses for less still counts as wanting the engine.
pub(super) const PAUSE_MIN: Nanos = Nanos::from_ms(2);

impl Turn {
    /// Whether it has lasted its length.
    pub(super) fn is_spent(&self, now: Moment) -> bool {
        self.since
            .is_some_and(|since| now.since(since) >= self.length)
    }

    /// What its leader is charged because it had the turn and did not use it.
    pub(super) fn unused(&self, now: Moment) -> Nanos {
        let had = self.since.map_or(Nanos::ZERO, |since| now.since(since));
        Nanos(had.0 / 2).saturating_sub(self.used)
    }
}

/// Time without turns after which all clocks are set equal.
pub(super) const FORGET_AFTER: Nanos = Nanos::from_ms(1_000);

/// Sorts candidates in the order in which they get turns.
pub(super) fn order(candidates: &mut [Candidate]) {
    candidates.sort_unstable_by_key(|one| (one.clock, one.tenant));
}

/// Tenants that run in the turn of the first candidate. A later candidate runs too if its set fits
/// and its clock is at most `ahead` ahead of the first one's.
pub(super) fn members(candidates: &[Candidate], room_bytes: u64, ahead: u128) -> Vec<TenantId> {
    let Some(leader) = candidates.first() else {
        return Vec::new();
    };
    let mut left = room_bytes.saturating_sub(leader.set_bytes);
    let mut chosen = vec![leader.tenant];
    for one in &candidates[1..] {
        if one.set_bytes <= left && one.clock <= leader.clock.saturating_add(ahead) {
            left -= one.set_bytes;
            chosen.push(one.tenant);
        }
    }
    chosen
}
