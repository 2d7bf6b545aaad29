//! Life cycle of a declared VM: its states, and the one table of legal moves.
//!
//! ```text
//!              place           attach
//!   Waiting ----------> Ready --------> Attached ------ detach -----> Lost
//!    ^   ^                |              |  ^  ^ <------ attach ------- |
//!    |   +--- displace ---+-----------------------------  displace ----+
//!    |                                   |  |  +-- resume --+
//!    +------ detach ------ Draining <-drain |               |
//!                             |             +---- end --> Ending -- detach --> Ended
//!                             +---------------- end --------^
//! ```
//!
//! *Waiting*: no GPU has room. *Ready*: a GPU has a place for it, and its socket takes a VMM.
//! *Attached*: it is a tenant. *Lost*: its VMM has gone; the place is kept. *Draining*: its tenant
//! ends once it has no work, and then the VM is placed anew. *Ending*: the same, and then the VM is
//! no more. A VM without a tenant ends at once.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// State of a declared VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Life {
    /// No GPU has room for it.
    Waiting,
    /// It has a place on a GPU, and no VMM has connected.
    Ready,
    /// Its VMM is connected.
    Attached,
    /// Its VMM has left, or the daemon was restarted; it may connect again.
    Lost,
    /// Its tenant ends once it has no work; then the VM is placed anew.
    Draining,
    /// Its tenant ends once it has no work; then the VM is removed.
    Ending,
    /// It is removed.
    Ended,
}

/// What moves a declared VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Move {
    /// A GPU has a place for it.
    Place,
    /// Its place is taken back.
    Displace,
    /// Its VMM was admitted.
    Attach,
    /// Its tenant is gone.
    Detach,
    /// Its tenant is to end, and the VM to be placed anew.
    Drain,
    /// The VM is to be removed.
    End,
    /// The time for its tenant to end has passed.
    Resume,
}

/// The legal moves.
const MOVES: [(Life, Move, Life); 17] = [
    (Life::Waiting, Move::Place, Life::Ready),
    (Life::Waiting, Move::End, Life::Ended),
    (Life::Ready, Move::Displace, Life::Waiting),
    (Life::Ready, Move::Attach, Life::Attached),
    (Life::Ready, Move::End, Life::Ended),
    (Life::Attached, Move::Detach, Life::Lost),
    (Life::Attached, Move::Drain, Life::Draining),
    (Life::Attached, Move::End, Life::Ending),
    (Life::Lost, Move::Displace, Life::Waiting),
    (Life::Lost, Move::Attach, Life::Attached),
    (Life::Lost, Move::End, Life::Ended),
    (Life::Draining, Move::Detach, Life::Waiting),
    (Life::Draining, Move::End, Life::Ending),
    (Life::Draining, Move::Resume, Life::Attached),
    (Life::Ending, Move::End, Life::Ending),
    (Life::Ending, Move::Detach, Life::Ended),
    (Life::Ending, Move::Resume, Life::Attached),
];

impl Life {
    /// The state after a move; none if the move is not legal here.
    pub(crate) fn after(self, by: Move) -> Option<Self> {
        let mut moves = MOVES.iter();
        moves
            .find(|(from, with, _)| (*from, *with) == (self, by))
            .map(|(_, _, to)| *to)
    }

    /// Whether it is a tenant.
    pub const fn has_tenant(self) -> bool {
        matches!(self, Self::Attached | Self::Draining | Self::Ending)
    }

    /// Whether it has a place on a GPU.
    pub const fn has_place(self) -> bool {
        !matches!(self, Self::Waiting | Self::Ended)
    }

    /// Its name in the API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Ready => "ready",
            Self::Attached => "attached",
            Self::Lost => "lost",
            Self::Draining => "draining",
            Self::Ending => "ending",
            Self::Ended => "ended",
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL: [Move; 7] = [
        Move::Place,
        Move::Displace,
        Move::Attach,
        Move::Detach,
        Move::Drain,
        Move::End,
        Move::Resume,
    ];

    /// What the moves so far mean, without a state.
    #[derive(Clone, Copy, Debug, Default)]
    struct Facts {
        place: bool,
        tenant: bool,
        /// The tenant is to end; whether the VM is, too.
        leaving: Option<bool>,
        ended: bool,
    }

    impl Facts {
        /// Whether a move means something now.
        fn permits(self, by: Move) -> bool {
            !self.ended
                && match by {
                    Move::Place => !self.place,
                    Move::Displace | Move::Attach => self.place && !self.tenant,
                    Move::Detach => self.tenant,
                    Move::Drain => self.tenant && self.leaving.is_none(),
                    Move::End => true,
                    Move::Resume => self.leaving.is_some(),
                }
        }

        fn make(&mut self, by: Move) {
            match by {
                Move::Place => self.place = true,
                Move::Displace => self.place = false,
                Move::Attach => self.tenant = true,
                Move::Drain => self.leaving = Some(false),
                Move::Resume => self.leaving = None,
                Move::End if self.tenant => self.leaving = Some(true),
                Move::End => (self.ended, self.place) = (true, false),
                Move::Detach => {
                    self.tenant = false;
                    if let Some(ends) = self.leaving.take() {
                        (self.ended, self.place) = (ends, false);
                    }
                }
            }
        }
    }

    proptest! {
        #[test]
        fn any_sequence_of_moves_keeps_place_tenant_and_end_in_step(
            moves in proptest::collection::vec(0..ALL.len(), 0..64),
        ) {
            let (mut life, mut facts) = (Life::Waiting, Facts::default());
            for by in moves.into_iter().map(|index| ALL[index]) {
                prop_assert_eq!(life.after(by).is_some(), facts.permits(by), "{:?} {:?}", life, by);
                if let Some(next) = life.after(by) {
                    (life, _) = (next, facts.make(by));
                }
                prop_assert_eq!(life.has_place(), facts.place, "{:?}", life);
                prop_assert_eq!(life.has_tenant(), facts.tenant, "{:?}", life);
                prop_assert_eq!(life == Life::Ended, facts.ended);
                // From wherever it is, two moves end it.
                let ending = life.after(Move::End).unwrap_or(life);
                prop_assert_eq!(ending.after(Move::Detach).unwrap_or(ending), Life::Ended);
            }
        }
    }

    #[test]
    fn table_has_each_move_of_a_state_once() {
        for (index, (from, by, _)) in MOVES.iter().enumerate() {
            let again = MOVES[index + 1..].iter();
            assert!(!again.into_iter().any(|row| (row.0, row.1) == (*from, *by)));
        }
    }
}
