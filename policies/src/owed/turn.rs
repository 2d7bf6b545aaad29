//! Own turns: time in which the other tenants of the engine are held for one node.
//!
//! ```text
//!              begin               half
//!   Together ---------> FirstHalf ------> SecondHalf
//!      ^                    |                  |
//!      +--------------------+------------------+   end, or cut
//! ```
//!
//! In: polls, and the readings between polls, late or not. Out: the holder of the turn, and the
//! measurement of a turn that has ended. The holder's queued work ends in the first half, so the
//! second half shows what it works alone.
//!
//! # Invariants
//! - At most one own turn runs.
//! - A turn with an unknown reading measures nothing.
//!
//! Called by `mod.rs` at each poll.

use super::alone::Alone;
use super::fraction::Fraction;
use super::gang::Window;
use std::collections::VecDeque;
use turnstile_accounting::{AccountId, Moment, Nanos, TenantId};

/// Length of an own turn. SOURCE: simulation `lab corun`.
pub(crate) const TURN: Nanos = Nanos::from_ms(20);
/// Length of an own turn if readings are later than [`LAG_MAX`]. SOURCE: simulation `lab corun`.
pub(crate) const LONG_TURN: Nanos = Nanos::from_ms(50);
/// A meter that is late by at most this is not late. SOURCE: simulation `lab corun`.
pub(crate) const LAG_MAX: Nanos = Nanos::from_ms(20);
/// An own turn ends after this even if no other tenant has work. SOURCE: simulation `lab corun`.
pub(crate) const TURN_MAX: Nanos = Nanos::from_ms(200);
/// A holder without work for this time ends its turn. SOURCE: simulation `lab corun`.
pub(crate) const HOLDER_IDLE_MAX: Nanos = Nanos::from_us(500);
/// A poll counts as on time if it is at most this early.
pub(crate) const EARLY: Nanos = Nanos::from_us(10);
/// Least time in which a rate is measured. SOURCE: simulation `lab corun`.
const MEASURE_MIN: Nanos = Nanos::from_ms(1);
/// If others were resident for one part in `OTHERS_PART` of the second half, the turn measures
/// nothing. SOURCE: simulation `lab corun`.
const OTHERS_PART: u64 = 10;

/// The node that an own turn is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// All tenants of the account are admitted together.
    Account(AccountId),
    Tenant(AccountId, TenantId),
}

impl Holder {
    pub(crate) const fn account(self) -> AccountId {
        match self {
            Self::Account(account) | Self::Tenant(account, _) => account,
        }
    }

    /// Whether the turn admits this tenant.
    pub(crate) fn admits(self, account: AccountId, tenant: TenantId) -> bool {
        match self {
            Self::Account(holder) => holder == account,
            Self::Tenant(_, holder) => holder == tenant,
        }
    }
}

/// Phase of the rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    #[default]
    Together,
    FirstHalf,
    SecondHalf,
}

/// What changes the phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Begin,
    Half,
    End,
}

impl Phase {
    /// The legal transitions: none if the step is not legal.
    pub(crate) const fn after(self, step: Step) -> Option<Self> {
        match (self, step) {
            (Self::Together, Step::Begin) => Some(Self::FirstHalf),
            (Self::FirstHalf, Step::Half) => Some(Self::SecondHalf),
            (Self::FirstHalf | Self::SecondHalf, Step::End) => Some(Self::Together),
            (Self::Together, Step::Half | Step::End)
            | (Self::FirstHalf, Step::Begin)
            | (Self::SecondHalf, Step::Begin | Step::Half) => None,
        }
    }
}

/// Readings of one half of a turn.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sums {
    /// Worked time of the holder.
    pub(crate) worked: Nanos,
    /// Resident time of the holder.
    pub(crate) resident: Nanos,
    /// Resident time of all other tenants.
    pub(crate) others: Nanos,
}

impl Sums {
    fn add(&mut self, other: Self) {
        let plus = |a: Nanos, b: Nanos| Nanos(a.0.saturating_add(b.0));
        self.worked = plus(self.worked, other.worked);
        self.resident = plus(self.resident, other.resident);
        self.others = plus(self.others, other.others);
    }
}

/// One own turn.
#[derive(Clone, Debug)]
pub(crate) struct OwnTurn {
    pub(crate) holder: Holder,
    pub(crate) from: Moment,
    pub(crate) length: Nanos,
    half: Option<Moment>,
    end: Option<Moment>,
    /// It ended because the holder had no work.
    ended_idle: bool,
    /// A reading of it is unknown.
    unknown: bool,
    first: Sums,
    second: Sums,
}

impl OwnTurn {
    fn new(holder: Holder, from: Moment, length: Nanos) -> Self {
        Self {
            holder,
            from,
            length,
            half: None,
            end: None,
            ended_idle: false,
            unknown: false,
            first: Sums::default(),
            second: Sums::default(),
        }
    }

    fn covers(&self, until: Moment) -> bool {
        self.from < until && self.end.is_none_or(|end| until <= end)
    }

    fn add(&mut self, until: Moment, part: Sums) {
        if self.half.is_none_or(|half| until <= half) {
            self.first.add(part);
        } else {
            self.second.add(part);
        }
    }

    /// Whether its half is over.
    pub(crate) fn is_half_over(&self, now: Moment) -> bool {
        now.since(self.from).0.saturating_add(EARLY.0) >= self.length.0 / 2
    }

    /// Whether its length is over.
    pub(crate) fn is_over(&self, now: Moment) -> bool {
        now.since(self.from).0.saturating_add(EARLY.0) >= self.length.0
    }

    /// Its measurement.
    fn measure(&self) -> Option<Alone> {
        let end = self.end.filter(|_| !self.unknown)?;
        let lasted = end.since(self.from);
        let mut whole = self.first;
        whole.add(self.second);
        if whole.worked == Nanos::ZERO && !self.ended_idle {
            let is_most = |time: Nanos| time.0.saturating_mul(2) > lasted.0;
            let free = lasted.saturating_sub(whole.others);
            let idle = free.saturating_sub(whole.resident);
            // A context stays on an engine that no other tenant uses, at work or not.
            return match (is_most(idle), is_most(free)) {
                (true, _) => Some(Alone::OnlyWaits),
                (false, true) => Some(Alone::Works(Fraction::ZERO)),
                (false, false) => None,
            };
        }
        if self.ended_idle {
            let until = lasted.saturating_sub(HOLDER_IDLE_MAX);
            let long = until > MEASURE_MIN;
            return long.then(|| Alone::Works(Fraction::ratio(whole.worked.0, until.0)));
        }
        let second = end.since(self.half?);
        let mixed = self.second.others.0.saturating_mul(OTHERS_PART) > second.0;
        let Sums {
            worked, resident, ..
        } = self.second;
        let rate = Fraction::ratio(worked.0, resident.max(MEASURE_MIN).0);
        (second.0 >= self.length.0 / 4 && !mixed).then_some(Alone::Works(rate))
    }
}

/// The current own turn, and ended ones with readings that are not known yet.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    phase: Phase,
    current: Option<OwnTurn>,
    ended: VecDeque<OwnTurn>,
    /// The window of the last poll, while a gang and another tenant take part.
    pub(crate) window: Option<Window>,
}

impl Turns {
    pub(crate) const fn current(&self) -> Option<&OwnTurn> {
        self.current.as_ref()
    }

    pub(crate) fn holder(&self) -> Option<Holder> {
        self.current.as_ref().map(|turn| turn.holder)
    }

    /// Begins a turn, if none runs.
    pub(crate) fn begin(&mut self, holder: Holder, now: Moment, length: Nanos) {
        if let Some(phase) = self.phase.after(Step::Begin) {
            self.phase = phase;
            self.current = Some(OwnTurn::new(holder, now, length));
        }
    }

    /// Ends the first half at this poll, if it runs.
    pub(crate) fn half(&mut self, now: Moment) {
        if let Some(phase) = self.phase.after(Step::Half) {
            self.phase = phase;
            if let Some(turn) = &mut self.current {
                turn.half = Some(now);
            }
        }
    }

    /// Ends the turn at this poll; its measurement follows when all its readings are known.
    pub(crate) fn end(&mut self, now: Moment, ended_idle: bool) {
        if let Some(mut turn) = self.cut() {
            (turn.end, turn.ended_idle) = (Some(now), ended_idle);
            self.ended.push_back(turn);
        }
    }

    /// Ends the turn without a measurement.
    pub(crate) fn cut(&mut self) -> Option<OwnTurn> {
        self.phase = self.phase.after(Step::End)?;
        self.current.take()
    }

    /// Adds the readings up to the poll at `until`.
    pub(crate) fn add(&mut self, until: Moment, part: Sums) {
        if let Some(turn) = self.covering(until) {
            turn.add(until, part);
        }
    }

    /// The readings up to the poll at `until` are unknown.
    pub(crate) fn note_unknown(&mut self, until: Moment) {
        if let Some(turn) = self.covering(until) {
            turn.unknown = true;
        }
    }

    fn covering(&mut self, until: Moment) -> Option<&mut OwnTurn> {
        let all = self.ended.iter_mut().chain(self.current.as_mut());
        all.into_iter().find(|turn| turn.covers(until))
    }

    /// The next turn with all readings known up to `settled`, and its measurement.
    pub(crate) fn measured(&mut self, settled: Moment) -> Option<(Holder, Option<Alone>)> {
        let end = self.ended.front()?.end?;
        if settled < end {
            return None;
        }
        let turn = self.ended.pop_front()?;
        Some((turn.holder, turn.measure()))
    }
}

#[cfg(test)]
mod tests;
