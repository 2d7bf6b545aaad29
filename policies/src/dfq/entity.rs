//! What is scheduled at one level: an account among accounts, or a tenant within its account.

use crate::params::Weight;
use crate::virtual_time::{VirtualClock, VirtualSpan, VirtualTime};
use turnstile_accounting::{Moment, Nanos};

/// Whether an entity takes part in the choice of the next command.
///
/// ```text
///            arrives            pauses, and keeps its place
///   Absent ----------> Runnable ---------------------------> Pausing
///      ^                | ^  ^                                 | |
///      |    pauses      | |  +-------- arrives ----------------+ |
///      +----------------+ |                                      |
///      +------------------+------- its place expires ------------+
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It has no work and keeps no place.
    Absent,
    /// It has work that the engine could start now, or is executing.
    Runnable,
    /// It has no work, and its place in the queue is kept for a short pause.
    Pausing,
}

impl Standing {
    /// The legal transitions; only an entity that takes part can pause.
    pub(crate) const fn may_become(self, next: Self) -> bool {
        !matches!((self, next), (Self::Absent, Self::Pausing))
    }
}

/// Virtual time and standing of one entity.
#[derive(Clone, Debug)]
pub(crate) struct Entity {
    pub(crate) clock: VirtualClock,
    pub(crate) weight: Weight,
    standing: Standing,
    /// When the standing began.
    since: Moment,
    /// Virtual time of what it ran since its last pause, less the reserved time that this paid for.
    credit: VirtualSpan,
    /// The credit with which the pause began: its burst.
    burst: VirtualSpan,
}

impl Entity {
    /// An absent entity.
    pub(crate) const fn new(weight: Weight, at: VirtualTime) -> Self {
        Self {
            clock: VirtualClock::at(at),
            weight,
            standing: Standing::Absent,
            since: Moment(0),
            credit: VirtualSpan::ZERO,
            burst: VirtualSpan::ZERO,
        }
    }

    pub(crate) const fn at(&self) -> VirtualTime {
        self.clock.now()
    }

    /// Its weight as a divisor.
    pub(crate) fn share(&self) -> u64 {
        self.weight.get().into()
    }

    pub(crate) const fn standing(&self) -> Standing {
        self.standing
    }

    pub(crate) const fn since(&self) -> Moment {
        self.since
    }

    pub(crate) fn is_present(&self) -> bool {
        self.standing != Standing::Absent
    }

    pub(crate) fn is_runnable(&self) -> bool {
        self.standing == Standing::Runnable
    }

    fn set_standing(&mut self, next: Standing, now: Moment) {
        debug_assert!(self.standing.may_become(next));
        (self.standing, self.since) = (next, now);
    }

    /// Its work arrives: earlier service no longer pays for reserved time.
    pub(crate) fn arrive(&mut self, now: Moment, system: VirtualTime) {
        if !self.is_runnable() {
            self.credit = VirtualSpan::ZERO;
            self.go_on(now, system);
        }
    }

    /// It takes part again with work that it had before. An absent entity starts at `system` at
    /// least, so that no time is saved up.
    pub(crate) fn go_on(&mut self, now: Moment, system: VirtualTime) {
        match self.standing {
            Standing::Runnable => return,
            Standing::Absent => self.clock.raise(system),
            Standing::Pausing => {}
        }
        self.set_standing(Standing::Runnable, now);
    }

    /// Its work ends, and its place is kept.
    pub(crate) fn pause(&mut self, now: Moment) {
        self.burst = self.credit;
        self.set_standing(Standing::Pausing, now);
    }

    /// It no longer takes part.
    pub(crate) fn leave(&mut self, now: Moment) {
        self.set_standing(Standing::Absent, now);
    }

    /// Charges `service`.
    pub(crate) fn serve(&mut self, service: Nanos) {
        self.clock.charge(service, self.share());
        self.credit = self.credit + VirtualSpan::of(service, self.share());
    }

    /// Pays for `span` from its credit; returns the rest.
    fn spend(&mut self, span: VirtualSpan) -> VirtualSpan {
        let rest = span.saturating_sub(self.credit);
        self.credit = self.credit.saturating_sub(span);
        rest
    }

    /// The engine is left idle for it while others would advance by `span`. The part that its burst
    /// does not pay for counts as service.
    pub(crate) fn reserve(&mut self, span: VirtualSpan) {
        let rest = self.spend(span);
        self.clock.skip(rest);
    }

    /// It pauses while an entity at `runner` runs that was ahead of it by more than its burst. The
    /// part that its burst does not pay for counts, up to the virtual time of the running entity.
    pub(crate) fn pause_behind(&mut self, span: VirtualSpan, runner: VirtualTime) {
        let rest = self.spend(span);
        if self.at() < runner {
            self.clock.skip(rest);
            self.clock.cap(runner);
        }
    }

    /// While it pauses without credit: the virtual time beyond which it advances with a running
    /// entity ([`Entity::pause_behind`]).
    pub(crate) fn follows_beyond(&self) -> Option<VirtualTime> {
        let pays = self.standing != Standing::Pausing || self.credit > VirtualSpan::ZERO;
        (!pays).then(|| self.beyond_burst())
    }

    /// The virtual time from which on an entity counts as ahead by more than this entity's burst.
    pub(crate) fn beyond_burst(&self) -> VirtualTime {
        self.at() + self.burst
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: Nanos = Nanos::from_ms(1);

    fn span(ms: u64) -> VirtualSpan {
        VirtualSpan::of(Nanos::from_ms(ms), 100)
    }

    fn point(ms: u64) -> VirtualTime {
        VirtualTime::default() + span(ms)
    }

    #[test]
    fn only_a_present_entity_can_pause() {
        use Standing::{Absent, Pausing, Runnable};
        let moves = |from: Standing| [Absent, Runnable, Pausing].map(|to| from.may_become(to));
        assert_eq!(moves(Absent), [true, true, false]);
        assert_eq!(moves(Runnable), [true; 3]);
        assert_eq!(moves(Pausing), [true; 3]);
    }

    #[test]
    fn an_absent_entity_saves_nothing_up_and_keeps_its_debt() {
        let mut entity = Entity::new(Weight::DEFAULT, point(3));
        entity.arrive(Moment(0), point(5));
        assert_eq!(
            (entity.at(), entity.standing()),
            (point(5), Standing::Runnable)
        );
        entity.leave(Moment(1));
        entity.arrive(Moment(2), point(4));
        assert_eq!((entity.at(), entity.since()), (point(5), Moment(2)));
    }

    #[test]
    fn a_pausing_entity_keeps_its_place() {
        let mut entity = Entity::new(Weight::DEFAULT, point(1));
        entity.arrive(Moment(0), point(0));
        entity.pause(Moment(1));
        entity.arrive(Moment(2), point(9));
        assert_eq!(entity.at(), point(1));
        assert!(entity.is_runnable() && entity.is_present());
    }

    #[test]
    fn reserved_time_is_free_up_to_the_burst() {
        let mut entity = Entity::new(Weight::DEFAULT, point(0));
        entity.arrive(Moment(0), point(0));
        entity.serve(MS);
        entity.pause(Moment(1));
        assert_eq!(entity.beyond_burst(), point(2));
        entity.reserve(span(1));
        assert_eq!(entity.at(), point(1));
        entity.reserve(span(2));
        assert_eq!(entity.at(), point(3));
    }

    #[test]
    fn a_pause_behind_a_running_entity_ends_at_its_place() {
        let mut entity = Entity::new(Weight::DEFAULT, point(0));
        entity.arrive(Moment(0), point(0));
        entity.serve(MS);
        entity.pause(Moment(1));
        entity.pause_behind(span(3), point(2));
        assert_eq!(
            entity.at(),
            point(2),
            "one of three was free, and two ends at the runner"
        );
        entity.pause_behind(span(3), point(2));
        assert_eq!(entity.at(), point(2));
        entity.pause_behind(span(3), point(1));
        assert_eq!(entity.at(), point(2), "never back");
    }

    proptest! {
        /// Whatever happens to an entity, its virtual time never decreases.
        #[test]
        fn virtual_time_never_decreases(moves in prop::collection::vec((0u8..6, 0u64..20), 1..200)) {
            let mut entity = Entity::new(Weight::DEFAULT, point(0));
            for (now, (step, ms)) in (0..).map(Moment).zip(moves) {
                let before = entity.at();
                match step {
                    0 => entity.arrive(now, point(ms)),
                    1 if entity.is_present() => entity.pause(now),
                    2 => entity.leave(now),
                    3 => entity.serve(Nanos::from_ms(ms)),
                    4 => entity.reserve(span(ms)),
                    _ => entity.pause_behind(span(ms), point(ms)),
                }
                prop_assert!(entity.at() >= before);
            }
        }
    }
}
