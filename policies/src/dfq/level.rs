//! The choice at one level: which of the entities with work may start next, and for which pausing
//! entities the engine is left idle.
//!
//! In: the entities that take part. Out: [`Level::allows`], [`Level::reserved_for`]. Between two
//! calls of [`Level::update`] only the reservation is kept: an engine that was left idle for some
//! entities stays idle until one of them has work or all their places have expired.

use super::entity::{Entity, Standing};
use crate::virtual_time::{VirtualSpan, VirtualTime};
use turnstile_accounting::{Moment, Nanos};

/// The constants of the rule, from the tuning and the GPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// The longest pause for which a place is kept; zero keeps none.
    pub(crate) patience: Nanos,
    /// Service by which an entity may be ahead of another when its command starts.
    pub(crate) ahead: Nanos,
    /// As `ahead`, if the other has a command to be started.
    pub(crate) order: Nanos,
    /// Duration of a preemption; none if a running kernel cannot be stopped.
    pub(crate) preemption: Option<Nanos>,
}

/// Service by which a running entity may get ahead of a waiting one before it is preempted.
pub(crate) const QUANTUM: Nanos = Nanos::from_ms(2);

impl Rules {
    /// Pauses up to this length are shorter than two preemptions: the engine is left idle in them.
    pub(crate) fn tiny(&self) -> Nanos {
        Nanos(2 * self.preemption.unwrap_or(Nanos::ZERO).0)
    }
}

/// `service` as virtual time of the lighter of two entities. It bounds their difference: the
/// lighter one is off by `service` at most, and the heavier one by no larger part of its share.
pub(crate) fn lead(service: Nanos, one: u64, other: u64) -> VirtualSpan {
    VirtualSpan::of(service, one.min(other))
}

/// An entity as passed to [`Level::update`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part<'a, K> {
    pub(crate) key: K,
    pub(crate) entity: &'a Entity,
    /// A command of it waits to be started.
    pub(crate) queued: bool,
    /// Its longest remembered pause.
    pub(crate) longest: Option<Nanos>,
}

/// One entity that takes part.
#[derive(Clone, Copy, Debug)]
struct Contender<K> {
    key: K,
    at: VirtualTime,
    weight: u64,
    standing: Standing,
    /// Service by which others may be ahead of it; none if there is no bound.
    ahead: Option<Nanos>,
    /// It pauses without credit: it advances with a running entity that is later than this.
    follows: Option<VirtualTime>,
}

impl<K> Contender<K> {
    /// The latest virtual time at which an entity of `weight` may start beside this one; none if it
    /// does not bound it.
    fn bound(&self, weight: u64) -> Option<VirtualTime> {
        Some(self.at + lead(self.ahead?, self.weight, weight))
    }

    fn passed_by(&self, at: VirtualTime, weight: u64) -> bool {
        self.bound(weight).is_some_and(|bound| at > bound)
    }
}

/// The engine is left idle for some entities.
#[derive(Clone, Debug)]
struct Reservation<K> {
    left_for: Vec<K>,
    /// Entities at this virtual time or later are not started.
    barrier: VirtualTime,
}

/// The entities of one level.
#[derive(Clone, Debug)]
pub(crate) struct Level<K> {
    contenders: Vec<Contender<K>>,
    /// Of entities that bound others: weight, bound on being ahead, the least virtual time.
    floors: Vec<(u64, Nanos, VirtualTime)>,
    reservation: Option<Reservation<K>>,
    /// When the first tiny pause ceases to be tiny.
    lapses_at: Option<Moment>,
}

impl<K> Default for Level<K> {
    fn default() -> Self {
        Self {
            contenders: Vec::new(),
            floors: Vec::new(),
            reservation: None,
            lapses_at: None,
        }
    }
}

impl<K: Copy + PartialEq> Level<K> {
    /// Takes the entities' state at `now`.
    pub(crate) fn update<'a>(
        &mut self,
        rules: &Rules,
        now: Moment,
        engine_idle: bool,
        parts: impl Iterator<Item = Part<'a, K>>,
    ) where
        K: 'a,
    {
        self.contenders.clear();
        self.floors.clear();
        self.lapses_at = None;
        for Part {
            key,
            entity,
            queued,
            longest,
        } in parts
        {
            let keeps = rules.preemption.is_none();
            let lapses_at = entity.since() + rules.tiny();
            let tiny = longest.is_some_and(|longest| longest <= rules.tiny()) && now < lapses_at;
            let ahead = match entity.standing() {
                Standing::Absent => continue,
                Standing::Runnable if queued => Some(rules.order),
                Standing::Runnable => keeps.then_some(rules.ahead),
                Standing::Pausing => {
                    if tiny {
                        let first = self.lapses_at.unwrap_or(lapses_at);
                        self.lapses_at = Some(first.min(lapses_at));
                    }
                    (keeps || tiny).then_some(rules.ahead)
                }
            };
            let contender = Contender {
                key,
                at: entity.at(),
                weight: entity.share(),
                standing: entity.standing(),
                ahead,
                follows: entity.follows_beyond().filter(|_| keeps),
            };
            self.contenders.push(contender);
            if let Some(ahead) = ahead {
                self.lower_floor(contender.weight, ahead, contender.at);
            }
        }
        self.update_reservation(engine_idle, rules.preemption.is_none());
    }

    fn lower_floor(&mut self, weight: u64, ahead: Nanos, at: VirtualTime) {
        let like = |floor: &&mut (u64, Nanos, VirtualTime)| (floor.0, floor.1) == (weight, ahead);
        match self.floors.iter_mut().find(like) {
            Some(floor) => floor.2 = floor.2.min(at),
            None => self.floors.push((weight, ahead, at)),
        }
    }

    fn update_reservation(&mut self, engine_idle: bool, keeps: bool) {
        let before = self.reservation.take().filter(|_| engine_idle && keeps);
        let left_before = |key: K| {
            before
                .as_ref()
                .is_some_and(|reservation| reservation.left_for.contains(&key))
        };
        let pausing = |c: &&Contender<K>| c.standing == Standing::Pausing;
        let applies = self
            .contenders
            .iter()
            .filter(pausing)
            .any(|c| left_before(c.key));
        self.reservation = before.clone().filter(|_| applies);
        if !engine_idle || self.runnable().any(|c| self.allows(c.at, c.weight)) {
            return;
        }
        let Some(first) = self.runnable().min_by_key(|c| c.at).copied() else {
            return;
        };
        let left_for: Vec<K> = self
            .contenders
            .iter()
            .filter(pausing)
            .filter(|c| c.passed_by(first.at, first.weight) || left_before(c.key))
            .map(|c| c.key)
            .collect();
        let barrier = self
            .reservation
            .as_ref()
            .map_or(first.at, |reservation| reservation.barrier);
        if !left_for.is_empty() {
            self.reservation = Some(Reservation { left_for, barrier });
        }
    }

    fn runnable(&self) -> impl Iterator<Item = &Contender<K>> {
        let runnable = |c: &&Contender<K>| c.standing == Standing::Runnable;
        self.contenders.iter().filter(runnable)
    }

    /// The latest virtual time at which an entity of this weight may be started; none if no other
    /// entity bounds it.
    pub(crate) fn limit(&self, weight: u64) -> Option<VirtualTime> {
        let floors = self.floors.iter();
        floors
            .map(|(other, ahead, at)| *at + lead(*ahead, *other, weight))
            .min()
    }

    /// Whether a command of an entity at `at` may start.
    pub(crate) fn allows(&self, at: VirtualTime, weight: u64) -> bool {
        let reservation = self.reservation.as_ref();
        self.limit(weight).is_none_or(|limit| at <= limit)
            && reservation.is_none_or(|reservation| at < reservation.barrier)
    }

    /// The entities for which the engine is left idle.
    pub(crate) fn reserved_for(&self) -> &[K] {
        self.reservation
            .as_ref()
            .map_or(&[], |reservation| &reservation.left_for)
    }

    /// When the first tiny pause ceases to be tiny: it bounds others until then.
    pub(crate) const fn lapses_at(&self) -> Option<Moment> {
        self.lapses_at
    }

    /// Sum of the weights of entities with work.
    pub(crate) fn runnable_weight(&self) -> u64 {
        self.runnable().map(|c| c.weight).sum()
    }

    /// Whether some entity pauses and keeps its place.
    pub(crate) fn any_pausing(&self) -> bool {
        let pausing = |c: &Contender<K>| c.standing == Standing::Pausing;
        self.contenders.iter().any(pausing)
    }

    /// Service of `running` until the result of [`Level::allows`] changes for an entity, or until
    /// it is a `quantum` ahead of a waiting one; none if service changes nothing.
    pub(crate) fn changes_within(
        &self,
        running: K,
        entity: &Entity,
        quantum: Nanos,
    ) -> Option<Nanos> {
        let (at, weight) = (entity.at(), entity.share());
        let others = || self.contenders.iter().filter(|c| c.key != running);
        let waiting = || others().filter(|c| c.standing == Standing::Runnable);
        let own = self.contenders.iter().find(|c| c.key == running);
        let own_ahead = own.and_then(|c| c.ahead);
        // The weight at which the running entity gains on another. It passes an entity that
        // advances with it later, and never one of the same rate. Otherwise a decision would be due
        // each nanosecond.
        let total = self.runnable_weight();
        let gains = |c: &Contender<K>| match c.follows.is_some_and(|beyond| at > beyond) {
            true => (weight * total).checked_div(total.saturating_sub(weight)),
            false => Some(weight),
        };
        let passes = others().filter_map(|c| Some((c.bound(weight)?, gains(c)?)));
        let preempted = waiting().map(|c| c.at + lead(quantum, c.weight, weight));
        // Another entity is admitted once this one is within `span` of it.
        let lets_in = waiting().filter_map(|c| {
            let span = lead(own_ahead?, weight, c.weight);
            (c.at > at + span).then(|| c.at.back(span))
        });
        passes
            .chain(preempted.chain(lets_in).map(|then| (then, weight)))
            .filter(|(then, _)| *then >= at)
            // Rounded up: at the exact moment nothing has changed yet.
            .map(|(then, gained)| at.service_until(then, gained) + Nanos(1))
            .min()
    }

    /// The entities with work that `running` is a `quantum` ahead of.
    pub(crate) fn overtaken(
        &self,
        running: K,
        entity: &Entity,
        quantum: Nanos,
    ) -> impl Iterator<Item = K> {
        let (at, weight) = (entity.at(), entity.share());
        let waiting = self.runnable().filter(move |c| c.key != running);
        let passed = move |c: &&Contender<K>| at >= c.at + lead(quantum, c.weight, weight);
        waiting.filter(passed).map(|c| c.key)
    }
}

#[cfg(test)]
mod tests;
