//! For how long tenants work and rest, as they did lately: before that nobody need look whether one has stopped, or begun. Pure.
//!
//! Who breaks his habit is seen a little later: he who looks bounds by how much.

use turnstile_accounting::{Moment, Nanos};

/// So many lengths are remembered, and known before anything is expected of the next.
const REMEMBERED: usize = 8;
/// So many of them may be shorter than what is expected. SOURCE: the simulated engine: with none hardly a wake is spared (169 instead of 182 in a second, with one 155): now and
/// then one who works in bursts has the next at once.
const SHORTER: usize = 1;
/// Hosts that are busy pause for less. SOURCE: `simulated/pauses.rs`.
const LONG: Nanos = Nanos::from_ms(10);

/// The last lengths of something that happens again and again.
#[derive(Clone, Copy, Debug, Default)]
struct Lengths {
    last: [Nanos; REMEMBERED],
    /// How many there were.
    count: usize,
}

impl Lengths {
    fn add(&mut self, length: Nanos) {
        self.last[self.count % REMEMBERED] = length;
        self.count += 1;
    }

    /// All but so many of the last are longer; zero if there are not enough.
    fn all_but(&self, shorter: usize) -> Nanos {
        if self.count < REMEMBERED {
            return Nanos::ZERO;
        }
        let mut last = self.last;
        last.sort_unstable();
        last[shorter]
    }

    /// Three quarters of the second shortest, if there are enough.
    fn expected(&self) -> Nanos {
        Nanos(self.all_but(SHORTER).0 / 4 * 3)
    }
}

/// When one works and rests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Habit {
    worked: Lengths,
    rested: Lengths,
    /// He has worked, or rested, since then.
    since: Moment,
}

impl Habit {
    /// Of one who appears, and rests.
    pub(super) fn new(now: Moment) -> Self {
        Self {
            worked: Lengths::default(),
            rested: Lengths::default(),
            since: now,
        }
    }

    /// He was seen to begin.
    pub(super) fn began(&mut self, at: Moment) {
        self.rested.add(at.since(self.since));
        self.since = at;
    }

    /// He was seen to have stopped.
    pub(super) fn stopped(&mut self, at: Moment) {
        self.worked.add(at.since(self.since));
        self.since = at;
    }

    /// Whether he rests for so long that it is no pause.
    pub(super) fn rests_long(&self) -> bool {
        self.rested.all_but(REMEMBERED / 2) >= LONG
    }

    /// Whether he works for so long whenever he does.
    pub(super) fn works_for(&self, length: Nanos) -> bool {
        self.worked.all_but(SHORTER) >= length
    }

    /// For how much longer one who works is expected to.
    pub(super) fn works_on(&self, now: Moment) -> Nanos {
        let so_far = now.since(self.since);
        self.worked.expected().saturating_sub(so_far)
    }

    /// The same of one who rests.
    pub(super) fn rests_on(&self, now: Moment) -> Nanos {
        let so_far = now.since(self.since);
        self.rested.expected().saturating_sub(so_far)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Moment {
        Moment(ms * 1_000_000)
    }

    /// Rests of such lengths, with 40 ms of work behind each, and what is expected of the next ones.
    fn expected(rests: impl IntoIterator<Item = u64>) -> Vec<Nanos> {
        let mut habit = Habit::new(ms(0));
        let mut at = 0;
        let mut after = |rest: u64| {
            habit.began(ms(at + rest));
            at += rest + 40;
            habit.stopped(ms(at));
            habit.rests_on(ms(at))
        };
        rests.into_iter().map(&mut after).collect()
    }

    #[test]
    fn three_quarters_of_the_second_shortest_are_expected_of_who_has_shown_eight() {
        let all = expected([60, 80, 20, 70, 100, 90, 90, 90]);
        assert!(all[..7].iter().all(|none| *none == Nanos::ZERO));
        assert_eq!(all[7], Nanos::from_ms(45));
    }

    #[test]
    fn what_was_before_the_last_eight_is_forgotten() {
        let all = expected([8; 8].into_iter().chain([80; 40]));
        let short = all[7..]
            .iter()
            .take_while(|next| **next == Nanos::from_ms(6));
        assert_eq!(short.count(), 7);
        assert!(all[14..].iter().all(|next| *next == Nanos::from_ms(60)));
    }

    #[test]
    fn what_is_expected_is_less_as_time_goes_by() {
        let mut habit = Habit::new(ms(0));
        for round in 0..8 {
            habit.began(ms(round * 100 + 60));
            habit.stopped(ms(round * 100 + 100));
        }
        assert_eq!(habit.rests_on(ms(840)), Nanos::from_ms(5));
        assert_eq!(habit.rests_on(ms(850)), Nanos::ZERO);
        habit.began(ms(860));
        assert_eq!(habit.works_on(ms(870)), Nanos::from_ms(20));
    }
}
