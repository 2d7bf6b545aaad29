//! Exclusive slices: fair queuing for a GPU on which tenants that are admitted together cost each other.
//!
//! Where a change of contexts takes tens of microseconds and comes with each launch, two tenants that both fill the engine
//! do more in turns than side by side. Time is cut into frames; in each frame everyone who waits for the engine has one
//! slice of it for himself, as long as the fluid ideal would serve him in what is left of the frame. Errors of a slice (it
//! began late, another had to drain) show in virtual time, and the next frame evens them out; what is known to have been charged wrongly,
//! and not made good yet, does so as well. Whoever uses the engine now and
//! then does not wait for turns: it is admitted beside the holder, and held only if it is ahead.
//!
//! ```text
//!   | A has the engine | B     | C  | A            | B     | C  |     weights 4:2:1
//!   |<------------ frame ---------->|<------------ frame -------->|
//! ```
//!
//! Who begins to wait in the middle of a frame has his slice of what is left of it at once, once in a frame; the one whose slice he
//! interrupts gets what he is still due afterwards. In the next frame he is the first. Who waited for long and only pauses has the
//! rest of his slice when he goes on, and turns keep their order: windows of a second would hold one turn more of somebody otherwise.
//!
//! Frames lie on multiples of their length in the GPU's time. The default divides a second: any window of a second holds as
//! many slices of each tenant as any other, wherever it begins. Where more than two waited lately, a second has one
//! frame more, less half a millisecond.
//!
//! # Properties
//! - *Conservation*, *no saving up*, *caps*: as in `dfq.rs`; virtual time is charged with what was used, and only with that.
//! - *Bounded lag*: who waits has a slice in each frame that evens out what he lacks, unless that is less than
//!   [`SLICE_MIN`]: then it is added to his slice in the next.
//! - *Bounded changes*: whoever stops and begins again costs two more changes of holders in a frame at most.
//! - *Bounded debt*: who had too much goes without for two frames' worth at most.
//! - *Work conserving*: one who waits alone is never held; [`Policy::ran_dry`] ends a slice that is not used, and lets in everyone who waits before anyone a second time who had no use for it.

use crate::member::Member;
use crate::params::{Cap, Membership, TenantParams, Weight};
use crate::policy::{
    Decision, HoldReason, PeriodUsage, Policy, PolicyError, TenantDecision, TenantPeriod,
};
use crate::roster::Roster;
use crate::table::Tuning;
use crate::virtual_time::{VirtualTime, pour};
use std::collections::BTreeMap;
use turnstile_accounting::{AccountId, Moment, Nanos, TenantId};

/// No slice is shorter. SOURCE: twice the time in which one tenant is stopped and another begins on an H200 (a suspending and
/// a resuming call of 430 us each).
pub const SLICE_MIN: Nanos = Nanos::from_ms(2);

/// Nobody is further ahead of those who wait than by so many frames; what he had beyond is forgiven. Otherwise one of small
/// weight who had the engine for a moment too long, when others began, would go without for many times as long.
const LEAD_MAX: u64 = 2;

/// Where more wait than these, a second has one frame more. SOURCE: measured on an H200, whose counters are latched each 100 ms: with six frames latches lie at five places of each,
/// with seven at ten, so that turns that follow each other can be told apart; two tenants are told apart at six already, and better (decision 035).
const PAIR: usize = 2;
/// Their frames are longer than that by this part of them. Otherwise latches lie at the same ten places of them for ever, where the same launch is under way each time, and how long launches
/// take follows from ten mixes. A window of a second may lack half a millisecond of one tenant for it. SOURCE: the simulated engine, four tenants for 30 s: charges are off by 0.25
/// instead of 0.39 % (root of the mean square; decision 049).
const DRIFT: u64 = 2_000;
const SECOND: Nanos = Nanos::from_ms(1_000);

/// How long slices are first ones after somebody new waits.
const FIRST_FOR: Nanos = Nanos::from_ms(500);

/// Who waited for so long and stops for less than [`PAUSE`] has paused: what he is due is kept for him, and he goes on where he was. SOURCE: measured on an H200: now and then a
/// program that launches all the time does nothing for 3 to 10 ms, and it takes up to 8 ms until one who returns is known to wait.
const PAUSE: Nanos = Nanos::from_ms(30);
const LONG: Nanos = Nanos::from_ms(500);

/// Who may begin to wait is looked for so often while others have turns.
const LOOK: Nanos = Nanos::from_ms(10);
/// The same of those who have not waited for [`AWAY`]. They are admitted, so that the engine serves them meanwhile. SOURCE: measured on an H200: beside two idle tenants the turns of two others cost
/// 1.45 % of a core instead of 0.23, a period 130 us (decision 070).
const LOOK_AWAY: Nanos = Nanos::from_ms(30);
const AWAY: Nanos = SECOND;

/// Turns of the engine, by weighted virtual time.
#[derive(Debug)]
pub struct Slices {
    frame_ns: Nanos,
    first_slice_ns: Nanos,
    /// More than two waited within the last second, or until then.
    many: bool,
    many_until: Moment,
    /// Until then slices are as long as first ones.
    first_until: Moment,
    tenants: Roster<Tenant>,
    /// Weights of the accounts for which one was set.
    accounts: BTreeMap<AccountId, Weight>,
    /// Virtual time of whoever waits and is furthest behind.
    system: VirtualTime,
    /// Nobody may be further ahead who does not wait; none while nobody waits.
    level: Option<VirtualTime>,
    turn: Option<Turn>,
    /// The frame in which turns are being given.
    frame_begin: Moment,
    frame_end: Moment,
    /// When it is looked whether somebody else waits, if somebody may.
    look_at: Option<Moment>,
    /// Those who wait, for `pour`; kept for its memory.
    waiting: Vec<(VirtualTime, u64)>,
    decisions: Vec<TenantDecision>,
}

/// Who has the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Turn {
    holder: TenantId,
    until: Moment,
    /// He had just begun to wait: nobody else interrupts him.
    woke: bool,
}

type Tenant = Member<Own>;

/// Where he stands, without what he was charged too much, and his weight.
fn standing(tenant: &Tenant) -> (VirtualTime, u64) {
    let (at, weight) = tenant.standing();
    (at.without(tenant.own.overcharged_ns, weight), weight)
}

/// How long he is served up to this level.
fn slice(tenant: &Tenant, level: VirtualTime) -> Nanos {
    let (at, weight) = standing(tenant);
    at.service_until(level, weight)
}

/// He has had no slice yet, and it is worth a turn.
fn is_due(tenant: &Tenant, level: VirtualTime) -> bool {
    !tenant.own.served && slice(tenant, level) >= SLICE_MIN
}

/// What this policy keeps of a tenant.
#[derive(Debug)]
struct Own {
    account: AccountId,
    /// It was charged so much too much; negative: too little.
    overcharged_ns: i64,
    /// It had its slice of this frame, or has none in it.
    served: bool,
    /// It has waited beside others before.
    met: bool,
    /// It waits since then, but for pauses.
    since: Option<Moment>,
    /// It waited when this period ended, the last one in which it did.
    waited: Option<Moment>,
    /// It stopped waiting then, and may go on.
    stopped: Option<Moment>,
    /// It goes on after a pause that began then, and had no turn since.
    paused: Option<Moment>,
    /// It has begun to wait, and had no turn since.
    woken: bool,
    /// It had a turn before others in this frame, as it had begun to wait.
    woke: bool,
    decision: Decision,
}

impl Own {
    /// It does not wait, as of now.
    fn stops(&mut self, now: Moment) {
        (self.served, self.woken) = (false, false);
        let long = |since: &Moment| *since + LONG <= now;
        self.stopped = self
            .stopped
            .or_else(|| self.since.filter(long).and(Some(now)));
        if self.stopped.is_none() {
            self.since = None;
        }
    }
}

impl Slices {
    /// A policy without tenants.
    pub fn new(tuning: &Tuning) -> Self {
        Self {
            frame_ns: tuning.frame_ns.max(SLICE_MIN),
            first_slice_ns: tuning.first_slice_ns,
            many: false,
            many_until: Moment(0),
            first_until: Moment(0),
            tenants: Roster::default(),
            accounts: BTreeMap::new(),
            system: VirtualTime::default(),
            level: None,
            turn: None,
            frame_begin: Moment(0),
            frame_end: Moment(0),
            look_at: None,
            waiting: Vec::new(),
            decisions: Vec::new(),
        }
    }

    fn charge(&mut self, usage: &PeriodUsage<'_>) {
        // CAST: a frame is shorter than 292 years.
        let most_ns = self.frame_ns.0.cast_signed();
        for tenant in self.tenants.values_mut() {
            (tenant.backlogged, tenant.own.overcharged_ns) = (false, 0);
        }
        for &TenantPeriod {
            tenant,
            used_ns,
            backlogged,
            overcharged_ns,
            ..
        } in usage.tenants
        {
            let Ok(tenant) = self.tenants.get_mut(tenant) else {
                continue; // removed within the period
            };
            tenant.charge(used_ns);
            tenant.backlogged = backlogged;
            tenant.own.overcharged_ns = overcharged_ns.clamp(-most_ns, most_ns);
            tenant.pass(Nanos::ZERO, used_ns);
        }
        for tenant in self.tenants.values_mut() {
            tenant.pass(usage.length_ns(), Nanos::ZERO);
        }
    }

    fn waits(&self) -> impl Iterator<Item = (TenantId, &Tenant)> + '_ {
        self.tenants.iter().filter(|(_, tenant)| tenant.waits())
    }

    /// Those who begin to wait have done so lately, however long the period was: they lack no more than what the others had in that time.
    fn begin(&mut self, now: Moment) {
        // Periods may be longer than a pause.
        let long_ago = |stopped: Moment| now.since(stopped) >= PAUSE;
        for tenant in self.tenants.values_mut() {
            if tenant.own.stopped.is_some_and(long_ago) {
                (tenant.own.since, tenant.own.stopped) = (None, None);
            }
        }
        let lately = |(_, tenant): (TenantId, &Tenant)| {
            let (at, weight) = tenant.standing();
            // CAST: a hundredth of a second.
            at.without(LOOK.0.cast_signed(), weight)
        };
        let before = self
            .waits()
            .filter(|(_, tenant)| tenant.own.since.is_some());
        if let Some(lately) = before.map(lately).min() {
            let begins = |tenant: &&mut Tenant| tenant.waits() && tenant.own.since.is_none();
            let new = self.tenants.values_mut().filter(begins);
            new.for_each(|tenant| tenant.clock.raise(lately));
        }
    }

    /// Divides the weight of each account among those of its tenants that wait.
    fn set_shares(&mut self) {
        let mut waiting: BTreeMap<AccountId, u64> = BTreeMap::new();
        for (_, tenant) in self.waits() {
            *waiting.entry(tenant.own.account).or_default() += u64::from(tenant.weight.get());
        }
        let divided = waiting.len() > 1;
        for tenant in self.tenants.values_mut() {
            let account = self.accounts.get(&tenant.own.account).copied();
            let all = waiting.get(&tenant.own.account).copied();
            let divided = all.filter(|_| divided);
            tenant.divide(divided.map(|all| (account.unwrap_or_default(), all)));
        }
    }

    fn advance(&mut self, now: Moment) {
        self.set_shares();
        self.begin(now);
        let behind = self.waits().map(|(_, tenant)| tenant.clock.now()).min();
        // When nobody waits, nobody was hurt by those ahead: all start evenly again.
        let ahead = || {
            self.tenants
                .iter()
                .map(|(_, tenant)| tenant.clock.now())
                .max()
        };
        let system = behind.or_else(ahead).unwrap_or(self.system);
        self.system = self.system.max(system);
        let mut any_resumed = false;
        for tenant in self.tenants.values_mut() {
            if tenant.waits() {
                tenant.own.waited = Some(now);
                let stopped = tenant.own.stopped.take();
                any_resumed |= stopped.is_some();
                if tenant.own.since.is_none() || stopped.is_some() {
                    (tenant.own.woken, tenant.own.paused) = (!tenant.own.woke, stopped);
                    tenant.own.since.get_or_insert(now);
                }
                continue;
            }
            tenant.own.stops(now);
            if tenant.own.stopped.is_none() {
                tenant.clock.raise(self.system);
            }
        }
        if any_resumed {
            // Who was let in instead had no turn by that.
            self.nobody_served();
        }
        self.waiting.clear();
        let waiting = self.tenants.iter().filter(|(_, tenant)| tenant.waits());
        self.waiting
            .extend(waiting.map(|(_, tenant)| standing(tenant)));
        let weight: u64 = self.waiting.iter().map(|(_, weight)| weight).sum();
        if self.waiting.len() > PAIR {
            self.many_until = now + SECOND;
        }
        self.many = now < self.many_until;
        self.level = (weight > 0).then(|| self.system.after(self.frame_ns(), weight));
        if let Some(least) = self.waiting.iter().map(|(_, weight)| *weight).min() {
            let frames = Nanos(self.frame_ns().0.saturating_mul(LEAD_MAX));
            // One of small weight has to fall behind by a slice before it is given one.
            let slice = SLICE_MIN + SLICE_MIN;
            let most = self
                .system
                .after(frames, weight)
                .max(self.system.after(slice, least));
            for tenant in self.tenants.values_mut() {
                tenant.clock.cap(most);
            }
        }
    }

    /// Gives the next turn, if the last is over.
    fn take_turns(&mut self, now: Moment) {
        if self.waiting.len() < 2 {
            self.turn = None;
            return;
        }
        self.meet(now);
        if now >= self.frame_end {
            self.frame_end = self.end_of_frame(now);
            self.nobody_served();
            self.frame_begin = now;
            let all = self.tenants.values_mut();
            all.for_each(|tenant| tenant.own.woke = false);
        }
        let left = self.frame_end.since(now);
        if let Some(turn) = self.turn
            && self.goes_on(turn, now)
        {
            if turn.woke || !self.somebody_wakes(turn.holder, left) {
                return;
            }
            if let Ok(holder) = self.tenants.get_mut(turn.holder) {
                holder.own.served = false;
            }
        }
        let mut next = self.next_turn(now, left);
        if next.is_none() && left >= SLICE_MIN {
            // Some had no use for their slice: what is left is for all again.
            self.nobody_served();
            next = self.next_turn(now, left);
        }
        self.turn = next.or_else(|| self.rest_of_frame());
        let Some(Turn { holder, .. }) = self.turn else {
            return;
        };
        let steady = self
            .tenants
            .get(holder)
            .is_ok_and(|holder| self.is_steady(holder));
        if let Ok(holder) = self.tenants.get_mut(holder) {
            (holder.own.served, holder.own.woken) = (true, false);
            let paused = holder.own.paused.take().is_some();
            holder.own.woke |= !steady || paused;
        }
    }

    /// Whether a turn is not over yet.
    fn goes_on(&self, turn: Turn, now: Moment) -> bool {
        let holder = self.tenants.get(turn.holder);
        now < turn.until && holder.is_ok_and(|holder| holder.waits())
    }

    /// Whether somebody has begun to wait who is due a slice in what is left of the frame.
    fn somebody_wakes(&mut self, holder: TenantId, left: Nanos) -> bool {
        let Some(level) = pour(left, &mut self.waiting) else {
            return false;
        };
        let wakes = |(id, tenant): (TenantId, &Tenant)| {
            id != holder && self.interrupts(tenant) && is_due(tenant, level)
        };
        self.waits().any(wakes)
    }

    /// Those who wait beside others for the first time.
    fn meet(&mut self, now: Moment) {
        let new = |tenant: &&mut Tenant| tenant.waits() && !tenant.own.met;
        let mut any = false;
        for tenant in self.tenants.values_mut().filter(new) {
            tenant.own.met = true;
            any = true;
        }
        if any && self.first_slice_ns > Nanos::ZERO {
            self.first_until = now + FIRST_FOR;
        }
    }

    /// How long a frame is for those who wait.
    fn frame_ns(&self) -> Nanos {
        if !self.many {
            return self.frame_ns;
        }
        let frame_ns = SECOND.0 / (SECOND.0 / self.frame_ns.0 + 1);
        Nanos(frame_ns + frame_ns / DRIFT)
    }

    fn end_of_frame(&self, now: Moment) -> Moment {
        let first = now < self.first_until;
        // CAST: tenants of a GPU are few.
        let all_ns = self.first_slice_ns.0 * self.waiting.len() as u64;
        let frame_ns = self.frame_ns().0.max(if first { all_ns } else { 0 });
        Moment((now.0 / frame_ns + 1).saturating_mul(frame_ns))
    }

    fn nobody_served(&mut self) {
        self.tenants
            .values_mut()
            .for_each(|tenant| tenant.own.served = false);
    }

    /// The first who has a slice left in this frame, and until when.
    fn next_turn(&mut self, now: Moment, left: Nanos) -> Option<Turn> {
        let level = pour(left, &mut self.waiting)?;
        let mut due = self.waits().filter(|(_, tenant)| is_due(tenant, level));
        let (mut holder, mut tenant) = due.next()?;
        let mut alone = true;
        for (id, other) in due {
            alone = false;
            if self.rank(other) < self.rank(tenant) {
                (holder, tenant) = (id, other);
            }
        }
        // The last of a frame has what the others left.
        let until = if alone {
            self.frame_end
        } else {
            now + slice(tenant, level).min(left)
        };
        let woke = tenant.own.woken;
        Some(Turn {
            holder,
            until,
            woke,
        })
    }

    /// Whether one had waited for a frame when this one began; first slices are not disturbed.
    fn is_steady(&self, tenant: &Tenant) -> bool {
        let first = self.frame_begin < self.first_until;
        let since = tenant.own.since.filter(|_| !first);
        since.is_none_or(|since| since + self.frame_ns() <= self.frame_begin)
    }

    /// How soon it is to be looked whether somebody begins to wait; none if nobody may.
    fn look_within(&self, now: Moment) -> Option<Nanos> {
        let may_wake = |tenant: &&Tenant| !tenant.backlogged && !tenant.capped();
        let within = |tenant: &Tenant| match tenant.own.waited {
            Some(waited) if now.since(waited) < AWAY => LOOK,
            _ => LOOK_AWAY,
        };
        let tenants = self.tenants.iter().map(|(_, tenant)| tenant);
        tenants.filter(may_wake).map(within).min()
    }

    /// Whether one has just begun to wait, or goes on within the frame in which he paused.
    fn interrupts(&self, tenant: &Tenant) -> bool {
        let begins = || match tenant.own.paused {
            Some(paused) => paused >= self.frame_begin,
            None => !self.is_steady(tenant),
        };
        tenant.own.woken && begins()
    }

    /// Who goes before whom: who has just begun to wait, who began lately, all others in the order of their ids.
    fn rank(&self, tenant: &Tenant) -> u8 {
        let late = || !self.is_steady(tenant) && !tenant.own.woke;
        match self.interrupts(tenant) {
            true => 0,
            false if late() => 1,
            false => 2,
        }
    }

    /// Too little is left for another slice: whoever has the engine keeps it, or the one furthest behind has it.
    fn rest_of_frame(&self) -> Option<Turn> {
        let last = self.turn.map(|turn| turn.holder);
        let order =
            |(id, tenant): &(TenantId, &Tenant)| (last != Some(*id), tenant.clock.now(), *id);
        let (holder, _) = self.waits().min_by_key(order)?;
        Some(Turn {
            holder,
            until: self.frame_end,
            woke: false,
        })
    }

    fn decision_of(&self, id: TenantId, tenant: &Tenant) -> Decision {
        if tenant.capped() {
            return Decision::Hold(HoldReason::Capped);
        }
        match self.turn {
            Some(turn) if tenant.backlogged && turn.holder != id => {
                Decision::Hold(HoldReason::Turn)
            }
            _ if !tenant.backlogged
                && self.level.is_some_and(|level| tenant.clock.now() > level) =>
            {
                Decision::Hold(HoldReason::Ahead)
            }
            _ => Decision::Admit,
        }
    }
}

impl Policy for Slices {
    fn name(&self) -> &'static str {
        "slices"
    }

    fn set_account(&mut self, account: AccountId, params: TenantParams) {
        self.accounts.insert(account, params.weight);
    }

    fn add(
        &mut self,
        id: TenantId,
        membership: Membership<'_>,
        params: TenantParams,
        _: Moment,
    ) -> Result<(), PolicyError> {
        let own = Own {
            account: membership.account,
            overcharged_ns: 0,
            served: false,
            met: false,
            since: None,
            waited: None,
            stopped: None,
            paused: None,
            woken: false,
            woke: false,
            decision: Decision::Admit,
        };
        let tenant = Tenant::new(params, self.system, own);
        self.tenants.add(id, tenant)
    }

    fn remove(&mut self, id: TenantId, _: Moment) -> Result<(), PolicyError> {
        self.tenants.remove(id)?;
        self.turn = self.turn.filter(|turn| turn.holder != id);
        Ok(())
    }

    fn set_weight(&mut self, id: TenantId, weight: Weight) -> Result<(), PolicyError> {
        self.tenants.get_mut(id)?.set_weight(weight);
        Ok(())
    }

    fn set_cap(&mut self, id: TenantId, cap: Option<Cap>) -> Result<(), PolicyError> {
        self.tenants.get_mut(id)?.set_cap(cap);
        Ok(())
    }

    fn woke(&mut self, id: TenantId, _: Moment) -> Result<Decision, PolicyError> {
        let (system, level) = (self.system, self.level);
        let tenant = self.tenants.get_mut(id)?;
        if !tenant.backlogged {
            if tenant.own.stopped.is_none() {
                tenant.clock.raise(system);
            }
            let ahead = level.is_some_and(|level| tenant.clock.now() > level);
            tenant.own.decision = match (tenant.capped(), ahead) {
                (true, _) => Decision::Hold(HoldReason::Capped),
                (false, true) => Decision::Hold(HoldReason::Ahead),
                (false, false) => Decision::Admit,
            };
        }
        Ok(tenant.own.decision)
    }

    fn ran_dry(&mut self, waiting: &[TenantId], now: Moment) -> Option<TenantId> {
        let id = self.tenants.let_in(waiting, now)?;
        for (other, tenant) in self.tenants.iter_mut() {
            if tenant.backlogged && !waiting.contains(&other) {
                tenant.backlogged = false;
                tenant.own.stops(now);
            }
        }
        match &mut self.turn {
            // Nobody else has turns.
            turn if waiting.len() == 1 => *turn = None,
            Some(turn) => turn.holder = id,
            None => {}
        }
        if let Ok(tenant) = self.tenants.get_mut(id) {
            tenant.own.served = true;
            tenant.own.decision = Decision::Admit;
        }
        Some(id)
    }

    fn decides_when_dry(&self) -> bool {
        self.turn.is_some()
    }

    fn period_end(&mut self, usage: &PeriodUsage<'_>) -> &[TenantDecision] {
        self.charge(usage);
        self.advance(usage.end);
        self.take_turns(usage.end);
        self.look_at = self.look_within(usage.end).map(|within| usage.end + within);
        let mut decisions = core::mem::take(&mut self.decisions);
        decisions.clear();
        decisions.extend(self.tenants.iter().map(|(id, tenant)| TenantDecision {
            tenant: id,
            decision: self.decision_of(id, tenant),
        }));
        for (tenant, decided) in self.tenants.values_mut().zip(&decisions) {
            tenant.own.decision = decided.decision;
        }
        self.decisions = decisions;
        &self.decisions
    }

    fn decide_at(&self) -> Option<Moment> {
        let end = self.turn?.until.min(self.frame_end);
        Some(self.look_at.map_or(end, |look_at| look_at.min(end)))
    }
}

#[cfg(test)]
mod tests;
