//! Spells of own turns: when owed time is void.
//!
//! Tenants that owe each other turns, although they fit together, would take turns without end.
//! After a spell of turns all owed time is void and the tenants run together. A tenant that suffers
//! from that is soon owed a turn again, and the next spell may last twice as long.

use super::fraction::Fraction;
use turnstile_accounting::{Moment, Nanos};

/// Own turns are counted over this time. SOURCE: simulation `lab corun`.
const SPELL_WINDOW: Nanos = Nanos::from_ms(1_000);
/// Own turns take more than this of each window of a spell. SOURCE: simulation `lab corun`.
const SPELL_FRACTION: Fraction = Fraction::percent(60);
/// Below this the next spell is short again. SOURCE: simulation `lab corun`.
const CALM_FRACTION: Fraction = Fraction::percent(20);
/// Windows of the longest spell. SOURCE: simulation `lab corun`.
pub(crate) const PATIENCE_MAX: u32 = 60;

/// Counts the windows in which own turns took most of the time.
#[derive(Clone, Debug)]
pub(crate) struct Spell {
    since: Option<Moment>,
    in_turns: Nanos,
    windows: u32,
    /// Windows after which owed time is void.
    patience: u32,
}

impl Default for Spell {
    fn default() -> Self {
        Self {
            since: None,
            in_turns: Nanos::ZERO,
            windows: 0,
            patience: 1,
        }
    }
}

impl Spell {
    /// Advances to `now`, in an own turn or not. Returns whether owed time is void.
    pub(crate) fn pass(&mut self, now: Moment, length: Nanos, in_turn: bool) -> bool {
        let since = *self
            .since
            .get_or_insert(Moment(now.0.saturating_sub(length.0)));
        if in_turn {
            self.in_turns = Nanos(self.in_turns.0.saturating_add(length.0));
        }
        let lasted = now.since(since);
        if lasted < SPELL_WINDOW {
            return false;
        }
        let fraction = Fraction::ratio(self.in_turns.0, lasted.0);
        (self.since, self.in_turns) = (Some(now), Nanos::ZERO);
        if fraction <= SPELL_FRACTION {
            self.windows = 0;
            if fraction < CALM_FRACTION {
                self.patience = 1;
            }
            return false;
        }
        self.windows += 1;
        let void = self.windows >= self.patience;
        if void {
            self.windows = 0;
            self.patience = (self.patience * 2).min(PATIENCE_MAX);
        }
        void
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The seconds after which owed time was void, with own turns for a percentage of each second.
    fn voids(spell: &mut Spell, from: u64, percent: &[u64]) -> Vec<u64> {
        let mut voids = Vec::new();
        for (second, percent) in (from..).zip(percent) {
            for step in 1..=100 {
                let now = Moment(second * 1_000_000_000 + step * 10_000_000);
                if spell.pass(now, Nanos::from_ms(10), step <= *percent) {
                    voids.push(second);
                }
            }
        }
        voids
    }

    #[test]
    fn spells_double_up_to_a_minute() {
        let mut spell = Spell::default();
        let voids = voids(&mut spell, 0, &[90; 250]);
        assert_eq!(voids, [0, 2, 6, 14, 30, 62, 122, 182, 242]);
    }

    #[test]
    fn a_second_with_few_turns_makes_the_next_spell_short() {
        let mut spell = Spell::default();
        assert_eq!(voids(&mut spell, 0, &[90, 90, 40, 90, 90]), [0, 4]);
        assert_eq!(voids(&mut spell, 5, &[10, 90, 90, 90]), [6, 8]);
        assert!(voids(&mut spell, 9, &[60; 10]).is_empty());
    }
}
