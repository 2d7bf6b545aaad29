//! The state of a tenant, as an enum with a table of moves. Pure.
//!
//! ```text
//!              work                 sched-in
//!   Idle ------------> Present ----------------> Resident
//!    ^ <------------------'  ^ <------ saved -------'  |
//!    |         idle          |                         |
//!    |                       |          hold           v hold
//!    '------ release ----- Suspended <-- stopped -- Preempting
//! ```
//!
//! In: channel status, the context-switch log, and orders to hold and to release. A tenant in
//! `Preempting` or `Suspended` has a lease that the watchdog knows; no other state has one.

use super::waits::Waits;
use turnstile_accounting::{Moment, Nanos};

/// The state of a tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum State {
    /// No channel of it has anything queued.
    #[default]
    Idle,
    /// It has work, and its context is not on the engine.
    Present,
    /// Its context is on the engine.
    Resident,
    /// It is to be held, and may still be on the engine.
    Preempting,
    /// It is held: its channels are off the schedule, and nothing of it runs.
    Suspended,
}

/// What happens to a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Event {
    /// A channel of it has something queued.
    Queued,
    /// No channel of it has.
    Empty,
    /// Its context was loaded.
    SchedIn,
    /// Its context was saved.
    Saved,
    /// It is to be held.
    Hold,
    /// Its channels were suspended.
    Stopped,
    /// It runs again, or was not held after all.
    Release,
}

impl State {
    /// The table of moves. What does not fit a state changes nothing: signals come from several
    /// sources, in any order.
    pub(crate) const fn after(self, event: Event) -> Self {
        match (self, event) {
            (Self::Idle, Event::Queued) => Self::Present,
            (Self::Idle | Self::Present, Event::SchedIn) => Self::Resident,
            (Self::Present | Self::Resident, Event::Empty) => Self::Idle,
            (Self::Resident, Event::Saved) => Self::Present,
            (Self::Idle | Self::Present | Self::Resident, Event::Hold) => Self::Preempting,
            (Self::Preempting, Event::Stopped) => Self::Suspended,
            (Self::Preempting | Self::Suspended, Event::Release) => Self::Present,
            (state, _) => state,
        }
    }

    /// Whether a lease has to cover it.
    pub(crate) const fn needs_lease(self) -> bool {
        matches!(self, Self::Preempting | Self::Suspended)
    }
}

/// A tenant as it was last read.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tenant {
    pub(crate) state: State,
    /// A channel of it had something queued at the last look.
    pub(crate) has_work: bool,
    /// When it last had work; none before the first time.
    pub(crate) active: Option<Moment>,
    /// Since when it is to be held; none while it runs.
    pub(crate) held: Option<Moment>,
    /// What it keeps from its neighbours while it waits.
    pub(crate) waits: Waits,
}

impl Tenant {
    /// Something happens to it at this moment.
    pub(crate) fn apply(&mut self, event: Event, at: Moment) {
        self.state = self.state.after(event);
        let holds = self.state.needs_lease();
        self.held = holds.then(|| self.held.unwrap_or(at));
    }

    /// Its channels were read at `now`, with something queued or not.
    pub(crate) fn observe_work(&mut self, has_work: bool, now: Moment) {
        self.has_work = has_work;
        let event = if has_work {
            Event::Queued
        } else {
            Event::Empty
        };
        self.apply(event, now);
        if has_work {
            self.worked_at(now);
        } else {
            self.waits = Waits::Harmless;
        }
    }

    /// It had work at this moment.
    pub(crate) fn worked_at(&mut self, at: Moment) {
        self.active = self.active.max(Some(at));
    }

    /// Time since it last had work.
    pub(crate) fn idle(&self, now: Moment) -> Nanos {
        self.active
            .map_or(turnstile_accounting::Seen::NEVER, |at| now.since(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const EVENTS: [Event; 7] = [
        Event::Queued,
        Event::Empty,
        Event::SchedIn,
        Event::Saved,
        Event::Hold,
        Event::Stopped,
        Event::Release,
    ];

    fn event() -> impl Strategy<Value = Event> {
        prop::sample::select(EVENTS.to_vec())
    }

    #[test]
    fn a_tenant_goes_through_all_states() {
        let mut state = State::default();
        let mut seen = vec![state];
        for event in [
            Event::Queued,
            Event::SchedIn,
            Event::Hold,
            Event::Stopped,
            Event::Release,
            Event::Empty,
        ] {
            state = state.after(event);
            seen.push(state);
        }
        let expected = [
            State::Idle,
            State::Present,
            State::Resident,
            State::Preempting,
            State::Suspended,
            State::Present,
            State::Idle,
        ];
        assert_eq!(seen, expected);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        /// 10^6 events: a tenant has a lease from its hold to its release and at no other time.
        #[test]
        fn a_suspended_tenant_has_a_lease(events in prop::collection::vec(event(), 50)) {
            let (mut state, mut ordered) = (State::default(), false);
            for event in events {
                state = state.after(event);
                match event {
                    Event::Hold => ordered = true,
                    Event::Release => ordered = false,
                    _ => {}
                }
                prop_assert_eq!(state.needs_lease(), ordered, "{:?} after {:?}", state, event);
            }
        }

        /// Work alone never holds a tenant, and never frees one.
        #[test]
        fn signals_do_not_move_a_hold(held in any::<bool>(), events in prop::collection::vec(event(), 50)) {
            let mut state = if held { State::Suspended } else { State::Idle };
            let signals = events.into_iter().filter(|event| !matches!(event, Event::Hold | Event::Release));
            for event in signals {
                state = state.after(event);
                prop_assert_eq!(state == State::Suspended, held);
            }
        }
    }
}
