//! Turns of those whose sets do not fit on the card together.
//!
//! Each tenant has a clock: engine time by weight. A turn belongs to the one furthest behind; others may run beside him if
//! there is room and they are not ahead of him by more than a turn. It ends when it has lasted its length and another is
//! further behind, or when its leader wants the engine no more. Whoever is on the card counts as wanting the engine until he
//! has not for as long as bringing him back would take: a pause costs at most twice what it had to. Who did not want the engine starts where those who do are: nothing is saved up. A
//! leader who did not use his turn (a policy held him back, say) is charged half of it all the same, so that it ends.

use turnstile_accounting::{Moment, Nanos, TenantId};

/// A turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Turn {
    pub(super) leader: TenantId,
    /// Those who may run, the leader first.
    pub(super) members: Vec<TenantId>,
    /// When the leader's set was on the card; not yet, if none.
    pub(super) since: Option<Moment>,
    pub(super) length: Nanos,
    /// Engine time that the leader has had in it.
    pub(super) used: Nanos,
}

/// One who wants a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) tenant: TenantId,
    pub(super) clock: u128,
    pub(super) set_bytes: u64,
}

/// Nobody who pauses for less is taken for one who wants nothing.
pub(super) const PAUSE_MIN: Nanos = Nanos::from_ms(2);

impl Turn {
    /// Whether it has lasted its length.
    pub(super) fn is_spent(&self, now: Moment) -> bool {
        self.since
            .is_some_and(|since| now.since(since) >= self.length)
    }

    /// What its leader is to be charged for having had it and not used it.
    pub(super) fn unused(&self, now: Moment) -> Nanos {
        let had = self.since.map_or(Nanos::ZERO, |since| now.since(since));
        Nanos(had.0 / 2).saturating_sub(self.used)
    }
}

/// Clocks start evenly where there have been no turns for so long.
pub(super) const FORGET_AFTER: Nanos = Nanos::from_ms(1_000);

/// In the order in which they get turns.
pub(super) fn order(candidates: &mut [Candidate]) {
    candidates.sort_unstable_by_key(|one| (one.clock, one.tenant));
}

/// Who runs in the turn of the first candidate: he, and those after him whose sets fit too and who are ahead of him by at
/// most `ahead`.
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
