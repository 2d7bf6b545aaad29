//! Whether all is in the log, as far as it was read, that comes of holding somebody, or of letting somebody go. Pure.

use turnstile_accounting::{Moment, Nanos, TenantId};

/// Who was held, or let go, is where he is to be so long after that. SOURCE: recordings of an H200: who waited for the engine when he was taken off the schedule came once more, up
/// to 2.4 ms after the call, for a time slice; the simulated engine charges as if the log were always read with this, and not with half of it.
const LEFT: Nanos = Nanos::from_ms(10);

/// Who is let go is there so long before that is known to be done, at most. SOURCE: measured on an H200: calls of 0.4 to 0.5 ms.
const CALL: Nanos = Nanos::from_ms(1);

#[derive(Clone, Copy, Debug)]
struct Move {
    at: Moment,
    /// Who was held may have waited for the engine then.
    waited: bool,
    /// Who was held last.
    leaves: Option<TenantId>,
    /// Who was let go.
    comes: Option<TenantId>,
}

impl Move {
    /// Whether it is he who is to be on the engine by then: who was let go, or, if nobody was, another than who was held.
    fn ends_with(&self, resident: TenantId) -> bool {
        self.comes.map_or_else(
            || self.leaves.is_some_and(|leaves| leaves != resident),
            |comes| comes == resident,
        )
    }
}

/// What is not in the log yet.
#[derive(Debug, Default)]
pub(super) struct Moves {
    open: Option<Move>,
}

impl Moves {
    /// This one was held, at whose side nobody else may have been on the engine (`alone`), or somebody may.
    pub(super) fn held(&mut self, tenant: TenantId, at: Moment, alone: bool) {
        self.open = Some(Move {
            at,
            waited: !alone || self.open.is_some_and(|open| open.waited),
            leaves: Some(tenant),
            comes: None,
        });
    }

    /// Somebody may run.
    pub(super) fn released(&mut self, tenant: TenantId, at: Moment) {
        self.open = Some(Move {
            at,
            waited: self.open.is_some_and(|open| open.waited),
            leaves: self.open.and_then(|open| open.leaves),
            comes: Some(tenant),
        });
    }

    /// All that was logged until `at` was read, by which this one, who may run, is on the engine since then. If it is he who was let go, or who came where another was held, and nobody waited
    /// beside them, nobody else comes.
    pub(super) fn caught_up(&mut self, at: Moment, resident: Option<(TenantId, Moment)>) {
        self.open.take_if(|open| {
            let came = resident
                .is_some_and(|(tenant, since)| since + CALL >= open.at && open.ends_with(tenant));
            came && !open.waited || at.since(open.at) >= LEFT
        });
    }

    /// Nothing is open.
    pub(super) const fn are_over(&self) -> bool {
        self.open.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: TenantId = TenantId(1);
    const B: TenantId = TenantId(2);

    fn ms(ms: u64) -> Moment {
        Moment(ms * 1_000_000)
    }

    #[test]
    fn a_handover_between_two_is_over_when_the_next_is_there() {
        let mut moves = Moves::default();
        assert!(moves.are_over());
        moves.held(A, ms(5), true);
        moves.released(B, ms(5));
        moves.caught_up(ms(6), Some((A, ms(6))));
        assert!(!moves.are_over(), "the one who was held is there still");
        moves.caught_up(ms(7), Some((B, ms(7))));
        assert!(moves.are_over());
    }

    #[test]
    fn who_waited_when_he_was_held_may_come_once_more() {
        let mut moves = Moves::default();
        moves.held(A, ms(5), false);
        moves.released(B, ms(5));
        moves.caught_up(ms(7), Some((B, ms(7))));
        assert!(!moves.are_over());
        moves.caught_up(ms(16), Some((B, ms(16))));
        assert!(moves.are_over());
    }

    #[test]
    fn who_comes_where_another_was_held_is_all_that_comes() {
        let mut moves = Moves::default();
        moves.held(A, ms(5), true);
        moves.caught_up(ms(6), Some((A, ms(6))));
        assert!(!moves.are_over());
        moves.caught_up(ms(6), Some((B, ms(6))));
        assert!(moves.are_over());
        moves.held(A, ms(5), false);
        moves.caught_up(ms(6), Some((B, ms(6))));
        assert!(!moves.are_over(), "the other may have waited");
    }

    #[test]
    fn who_was_there_long_before_by_what_was_read_has_not_come_yet() {
        let mut moves = Moves::default();
        moves.held(A, ms(25), true);
        moves.caught_up(ms(5), Some((B, ms(1))));
        assert!(
            !moves.are_over(),
            "A came in between, or he could not be held there"
        );
        moves.released(A, ms(55));
        moves.caught_up(ms(50), Some((A, ms(20))));
        assert!(!moves.are_over());
        moves.caught_up(ms(60), Some((A, Moment(54_800_000))));
        assert!(moves.are_over(), "the call was done a little later");
    }

    #[test]
    fn one_who_is_held_and_nobody_let_go_is_not_waited_for_in_vain() {
        let mut moves = Moves::default();
        moves.held(A, ms(5), true);
        moves.caught_up(ms(7), None);
        assert!(!moves.are_over(), "nobody is known to be there");
        moves.caught_up(ms(15), None);
        assert!(moves.are_over());
    }
}
