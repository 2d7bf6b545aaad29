//! State of an account or a tenant in the rule: the time that it is owed.
//!
//! In: its part, whether it was present, and what it worked since the last poll. Out: `owed`.
//!
//! # Invariants
//! - `owed` is at most 3 units, and at least minus the larger of one unit and one turn.
//! - A node that was not present is owed nothing more.
//!
//! Called by `settle.rs` once per poll for each node.

use super::alone::Load;
use super::fraction::Fraction;
use crate::cap::Quota;
use turnstile_accounting::{Moment, Nanos};

/// The fraction of its part that a node is promised. The rest covers changes between tenants, so
/// that owed time does not grow while all tenants work as much as possible.
/// SOURCE: simulation `lab corun`.
const PROMISED: Fraction = Fraction::percent(97);
/// Least unit of owed time, so that a small part has room for one command.
/// SOURCE: simulation `lab corun`.
const UNIT_MIN: Nanos = Nanos::from_ms(4);
/// A node is owed at most this many units. SOURCE: simulation `lab corun`.
const UNITS_MAX: i64 = 3;
/// A node that is owed less than this gets no own turn. SOURCE: simulation `lab corun`.
const THRESHOLD_MIN: Nanos = Nanos::from_ms(2);

/// An account among accounts, or a tenant within its account.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// Its part of what it would have worked alone, less what it worked; in nanoseconds.
    pub(crate) owed: i64,
    /// The fraction of the engine's time that it would work if it were alone.
    pub(crate) alone: Fraction,
    /// When its last own turn ended.
    pub(crate) own_turn_at: Option<Moment>,
    pub(crate) load: Load,
    pub(crate) quota: Option<Quota>,
}

/// What a node did between two polls.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stretch {
    pub(crate) length: Nanos,
    pub(crate) part: Fraction,
    pub(crate) present: bool,
    /// An own turn ran, of the node, of its account or of one of its tenants.
    pub(crate) in_own_turn: bool,
    pub(crate) worked: Worked,
    /// Length of an own turn.
    pub(crate) turn: Nanos,
}

/// Charge of a node.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Worked {
    /// The time that was read.
    Read(Nanos),
    /// What it works alone: in an own turn of an account with several live tenants, or of one of
    /// them.
    Alone,
}

impl Node {
    /// A new node: it is taken to saturate the engine.
    pub(crate) fn new(owed: i64, quota: Option<Quota>) -> Self {
        Self {
            owed,
            alone: Fraction::ONE,
            own_turn_at: None,
            load: Load::default(),
            quota,
        }
    }

    /// Adds what the node is owed for a stretch, and subtracts what it worked.
    pub(crate) fn settle(&mut self, stretch: &Stretch) {
        self.forget_alone(stretch.length);
        let alone = self.alone.of(stretch.length);
        let worked = match stretch.worked {
            Worked::Read(worked) => worked,
            Worked::Alone => alone,
        };
        let earned = if stretch.present {
            PROMISED.of(stretch.part.of(alone))
        } else {
            Nanos::ZERO
        };
        let unit = signed(unit(stretch.part, stretch.turn));
        let least = if stretch.in_own_turn {
            -signed(stretch.turn)
        } else {
            self.owed
        };
        let owed = self.owed.saturating_add(signed(earned));
        let owed = owed.saturating_sub(signed(worked));
        self.owed = owed.clamp(least.min(-unit), UNITS_MAX.saturating_mul(unit));
    }

    /// Whether it is owed enough for an own turn.
    pub(crate) fn is_owed_turn(&self, part: Fraction, turn: Nanos) -> bool {
        let threshold = part.of(self.alone.of(turn)).max(THRESHOLD_MIN);
        self.alone > Fraction::ZERO && self.owed > signed(threshold)
    }

    /// The least time until it is owed a turn, if it works nothing.
    pub(crate) fn until_owed(&self, part: Fraction, turn: Nanos) -> Nanos {
        let threshold = part.of(self.alone.of(turn)).max(THRESHOLD_MIN);
        let missing = signed(threshold).saturating_sub(self.owed).max(0);
        let earns = PROMISED.times(part).times(self.alone);
        let until = earns.divide(missing);
        // CAST: not negative.
        Nanos(until.min(i128::from(i64::MAX)) as u64)
    }

    /// Whether its quota is used up.
    pub(crate) fn is_capped(&self) -> bool {
        self.quota.as_ref().is_some_and(Quota::exhausted)
    }
}

/// The unit of owed time of a part.
fn unit(part: Fraction, turn: Nanos) -> Nanos {
    part.min(Fraction::ONE).of(turn).max(UNIT_MIN)
}

/// A length of time as a signed number of nanoseconds.
pub(crate) fn signed(length: Nanos) -> i64 {
    i64::try_from(length.0).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TURN: Nanos = Nanos::from_ms(20);
    const MS: i64 = 1_000_000;

    fn stretch(worked_ms: u64, in_own_turn: bool) -> Stretch {
        Stretch {
            length: TURN,
            part: Fraction::percent(50),
            present: true,
            in_own_turn,
            worked: Worked::Read(Nanos::from_ms(worked_ms)),
            turn: TURN,
        }
    }

    #[test]
    fn a_present_node_is_owed_its_part_less_what_it_worked() {
        let mut node = Node::new(0, None);
        node.settle(&stretch(2, false));
        assert!((node.owed - 7_700_000).abs() < 10, "{}", node.owed);
        assert!(!node.is_owed_turn(Fraction::percent(50), TURN));
        node.settle(&stretch(2, false));
        assert!(node.is_owed_turn(Fraction::percent(50), TURN));
        let mut absent = Node::new(0, None);
        absent.settle(&Stretch {
            present: false,
            ..stretch(2, false)
        });
        assert_eq!(absent.owed, -2 * MS);
    }

    #[test]
    fn owed_time_is_within_its_bounds() {
        let mut node = Node::new(0, None);
        (0..100).for_each(|_| node.settle(&stretch(0, false)));
        assert_eq!(node.owed, 30 * MS, "three units");
        (0..100).for_each(|_| node.settle(&stretch(20, false)));
        assert_eq!(node.owed, -10 * MS, "one unit");
        (0..100).for_each(|_| node.settle(&stretch(20, true)));
        assert_eq!(node.owed, -20 * MS, "one turn");
        node.settle(&stretch(20, false));
        assert_eq!(node.owed, -20 * MS, "what own turns took stays");
    }

    #[test]
    fn a_node_that_only_waits_is_owed_nothing() {
        let mut node = Node::new(0, None);
        node.alone = Fraction::ZERO;
        node.settle(&stretch(0, false));
        assert_eq!((node.owed, node.alone), (0, Fraction::ZERO));
        node.owed = 30 * MS;
        assert!(!node.is_owed_turn(Fraction::percent(50), TURN));
    }
}
