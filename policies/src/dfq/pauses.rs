//! Statistics of a tenant's pauses.

use std::collections::VecDeque;
use turnstile_accounting::Nanos;

/// Pauses that are remembered.
const REMEMBERED: usize = 16;
/// One in `OUTLIER_EVERY` of them may be longer than usual.
const OUTLIER_EVERY: usize = 8;

/// A tenant's last pauses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pauses {
    lengths: VecDeque<Nanos>,
}

impl Pauses {
    /// Adds a pause that has ended.
    pub(crate) fn push(&mut self, length: Nanos) {
        if self.lengths.len() == REMEMBERED {
            self.lengths.pop_front();
        }
        self.lengths.push_back(length);
    }

    /// The longest pause without the outliers; none without a history.
    pub(crate) fn usual(&self) -> Option<Nanos> {
        let mut sorted: Vec<Nanos> = self.lengths.iter().copied().collect();
        sorted.sort_unstable();
        let outliers = sorted.len() / OUTLIER_EVERY;
        sorted.iter().rev().nth(outliers).copied()
    }

    /// The longest pause; none without a history.
    pub(crate) fn longest(&self) -> Option<Nanos> {
        self.lengths.iter().max().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(lengths: &[u64]) -> Pauses {
        let mut pauses = Pauses::default();
        lengths.iter().for_each(|ns| pauses.push(Nanos(*ns)));
        pauses
    }

    #[test]
    fn two_of_sixteen_pauses_may_be_longer_than_usual() {
        assert_eq!(of(&[]).usual(), None);
        assert_eq!(of(&[5, 3]).usual(), Some(Nanos(5)));
        assert_eq!(
            of(&[9, 1, 1, 1, 1, 1, 1]).usual(),
            Some(Nanos(9)),
            "seven have no outlier"
        );
        assert_eq!(of(&[9, 2, 1, 1, 1, 1, 1, 1]).usual(), Some(Nanos(2)));
        let mut lengths = vec![1; 14];
        lengths.extend([8, 9]);
        assert_eq!(of(&lengths).usual(), Some(Nanos(1)));
        assert_eq!(of(&lengths).longest(), Some(Nanos(9)));
        lengths.push(7);
        assert_eq!(
            of(&lengths).usual(),
            Some(Nanos(7)),
            "three of the last sixteen"
        );
        lengths.extend([1; 14]);
        assert_eq!(of(&lengths).longest(), Some(Nanos(9)));
        lengths.push(1);
        assert_eq!(
            of(&lengths).longest(),
            Some(Nanos(7)),
            "the nine is forgotten"
        );
    }
}
