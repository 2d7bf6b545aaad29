//! How one tenant stands: its decision, its demand, its gates.

use turnstile_accounting::{AccountId, Demand, EngineId, Moment, Nanos};
use turnstile_policies::{Cap, Decision, HoldReason, TenantParams, Weight};
use turnstile_vmm::gate::GateState;

use super::{COMPUTE, WATCH_AFTER};

/// How often a tenant was held, and why; all of it only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Decisions about it.
    pub periods: u64,
    /// Periods in which it was held for some time.
    pub throttled_periods: u64,
    /// Times that it was held as it was ahead of its share.
    pub held_ahead: u64,
    /// Times that it was held as it was another tenant's turn.
    pub held_turn: u64,
    /// Times that it was held as its quota was used up.
    pub held_capped: u64,
}

/// One tenant. It has more than ten fields: each belongs to a tenant alone, and one lock guards
/// all.
#[derive(Clone, Debug)]
// FIELDS: facts of a tenant that change at different times.
pub(super) struct Standing {
    pub(super) account: AccountId,
    pub(super) weight: Weight,
    pub(super) cap: Option<Cap>,
    decision: Decision,
    /// When its hold began, if it is held.
    held_from: Option<Moment>,
    /// It was admitted at some time in this period.
    pub(super) was_admitted: bool,
    /// It was held at some time in this period.
    throttled: bool,
    tally: Tally,
    /// Number of the period in which it appeared.
    first_period: u64,
    /// A doorbell write was kept at one of its closed gates.
    pub(super) kept: bool,
    /// What work it has, by engine.
    demand: Vec<Demand>,
    /// When it began to want the compute engine, if it does.
    wants_from: Option<Moment>,
    /// How long it wanted the compute engine in this period, but for the time since `wants_from`.
    wanted_ns: Nanos,
    /// It had work at the end of the last period, before or behind its gates.
    pub(super) backlogged: bool,
    /// When its work ended, if it has none.
    pub(super) idle_from: Option<Moment>,
    /// Not all of its memory is on the GPU: it waits for that and not for the engine.
    pub(super) memory_waits: bool,
    pub(super) gates: GateState,
}

impl Standing {
    /// A tenant that appears in the period of this number.
    pub(super) fn new(account: AccountId, params: TenantParams, first_period: u64) -> Self {
        Self {
            account,
            weight: params.weight,
            cap: params.cap,
            decision: Decision::Admit,
            held_from: None,
            was_admitted: true,
            throttled: false,
            tally: Tally::default(),
            first_period,
            kept: false,
            demand: Vec::new(),
            wants_from: None,
            wanted_ns: Nanos::ZERO,
            backlogged: false,
            idle_from: None,
            memory_waits: false,
            gates: GateState::Watched,
        }
    }

    /// Whether this is the decision that stands.
    pub(super) fn stands_at(&self, decision: Decision) -> bool {
        self.decision == decision
    }

    pub(super) fn is_admitted(&self) -> bool {
        self.decision == Decision::Admit
    }

    /// Since when it is held, if it is.
    pub(super) const fn held_from(&self) -> Option<Moment> {
        self.held_from
    }

    /// Whether it has been idle for long enough to have its gates watched.
    pub(super) fn is_idle_at(&self, now: Moment) -> bool {
        self.idle_from
            .is_some_and(|from| now.since(from) >= WATCH_AFTER)
    }

    /// Takes a decision; returns for how long it was held, if that is over.
    pub(super) fn decide(&mut self, decision: Decision, now: Moment) -> Option<Nanos> {
        self.decision = decision;
        let Decision::Hold(reason) = decision else {
            (self.was_admitted, self.kept) = (true, false);
            return self.held_from.take().map(|from| now.since(from));
        };
        self.throttled = true;
        if self.held_from.is_none() {
            self.held_from = Some(now);
            *match reason {
                HoldReason::Ahead => &mut self.tally.held_ahead,
                HoldReason::Turn => &mut self.tally.held_turn,
                HoldReason::Capped => &mut self.tally.held_capped,
            } += 1;
        }
        None
    }

    /// A period ended.
    pub(super) fn end_period(&mut self) {
        self.tally.throttled_periods += u64::from(self.throttled);
        (self.was_admitted, self.throttled) = (false, false);
    }

    /// A period begins with the decisions that were just taken.
    pub(super) fn begin_period(&mut self) {
        self.was_admitted |= self.is_admitted();
        self.throttled |= !self.is_admitted();
    }

    /// How often it was held, up to the period of this number.
    pub(super) const fn tally(&self, period: u64) -> Tally {
        Tally {
            periods: period - self.first_period,
            ..self.tally
        }
    }

    /// The GPU reports its demand for an engine.
    pub(super) fn set_demand(&mut self, at: Moment, engine: EngineId, demand: Demand) {
        let index = usize::from(engine.0);
        if self.demand.len() <= index {
            self.demand.resize(index + 1, Demand::Nothing);
        }
        self.demand[index] = demand;
        self.idle_from = match self.has_demand() {
            true => None,
            false => self.idle_from.or(Some(at)),
        };
        self.note_wanting(at);
    }

    /// Its demand for the compute engine may have changed at this moment.
    pub(super) fn note_wanting(&mut self, at: Moment) {
        let wants = self.demand_for(COMPUTE) != Demand::Nothing;
        match (wants, self.wants_from) {
            (true, None) => self.wants_from = Some(at),
            (false, Some(from)) => {
                self.wanted_ns += at.since(from);
                self.wants_from = None;
            }
            _ => {}
        }
    }

    /// Whether it has work for any engine.
    pub(super) fn has_demand(&self) -> bool {
        self.demand.iter().any(|demand| *demand != Demand::Nothing)
    }

    /// Its demand for an engine; none while it waits for its memory. A doorbell write that was kept
    /// counts as work for the compute engine: what it announces is not known.
    pub(super) fn demand_for(&self, engine: EngineId) -> Demand {
        let demand = self.demand.get(usize::from(engine.0)).copied();
        match self.memory_waits {
            true => Demand::Nothing,
            false if self.kept && engine == COMPUTE => Demand::Queued,
            false => demand.unwrap_or_default(),
        }
    }

    /// How long it wanted the compute engine until `now`, since this was last taken.
    pub(super) fn take_wanted(&mut self, now: Moment) -> Nanos {
        let mut wanted = std::mem::take(&mut self.wanted_ns);
        if let Some(from) = &mut self.wants_from {
            wanted += now.since(*from);
            *from = now.max(*from);
        }
        wanted
    }
}
