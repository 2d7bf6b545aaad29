//! Who wants the engine, of programs whose submissions nobody sees. Pure.
//!
//! ```text
//!   Away  -- its context becomes active --> Here -- for longer than STEADY, or always is --> wants
//!    ^                                       |
//!    '-- was free to come and stayed away for longer than ABSENCE, or was seen idle on the engine
//! ```
//!
//! A tenant that is held wants what it wanted when it was stopped: nothing of it can finish. One that was idle is never held,
//! so that it is seen when it comes back: the other's context is switched out for it, which is logged.

use std::collections::BTreeMap;

use turnstile_accounting::{Moment, Nanos, TenantId};

use super::habits::Habit;

/// Who is there for less than this has a little to do, and needs no turns.
pub const STEADY: Nanos = Nanos::from_ms(8);

/// Who is free to run and stays away for so long has nothing to do; for each that may be running.
///
/// SOURCE: facts sheet section 1: a time slice is 2.048 ms, so that among tenants that want the engine each comes back after
/// as many as there are others.
pub const ABSENCE: Nanos = Nanos::from_ms(3);

/// Who alone may run comes at once, unless it has nothing to do. SOURCE: suspending the one before takes 430 us, with which
/// it ends.
pub const ARRIVAL: Nanos = Nanos::from_ms(2);

/// Who is held and still on the engine keeps it from those who may run, for so long at most. SOURCE: `hands.rs`: 2 ms of looks, then two calls of
/// half a millisecond.
pub const LEAVING: Nanos = Nanos::from_ms(5);

/// Who was never seen idle for so long has no holes worth looking for.
pub const TRUSTED: Nanos = Nanos::from_ms(1_000);

/// One tenant.
#[derive(Clone, Copy, Debug)]
struct Tenant {
    /// It is stopped, and wanted the engine then.
    held: Option<bool>,
    held_at: Moment,
    /// Its context is on the engine.
    resident: bool,
    /// When it was last on the engine, or free to come.
    last: Moment,
    /// Since when it has come back again and again without a longer absence.
    here_since: Moment,
    /// It has work, as far as can be seen.
    here: bool,
    /// It was free to come since it was last there, and stayed away for too long.
    away: bool,
    /// When it was last seen to have none, while it could have run.
    idle_at: Moment,
    habit: Habit,
}

impl Tenant {
    /// It is free to come, and may.
    const fn is_near(&self) -> bool {
        self.here && !self.resident && self.held.is_none() && !self.away
    }

    /// It was last on the engine then, or free to come, or is so.
    fn was_near(&mut self, at: Moment) {
        self.last = self.last.max(at);
        self.away = false;
    }

    /// How long it has to be there until it wants turns: not at all, if it is for long whenever it is.
    fn steady(&self) -> Nanos {
        if self.habit.rests_long() && self.habit.works_for(STEADY) {
            Nanos::ZERO
        } else {
            STEADY
        }
    }
}

/// The demand of all tenants of a GPU.
#[derive(Debug, Default)]
pub struct Demand {
    tenants: BTreeMap<TenantId, Tenant>,
}

impl Demand {
    /// A tenant appears, without work.
    pub fn add(&mut self, tenant: TenantId, now: Moment) {
        let new = Tenant {
            held: None,
            held_at: now,
            resident: false,
            last: now,
            here_since: now,
            here: false,
            away: false,
            idle_at: now,
            habit: Habit::new(now),
        };
        self.tenants.insert(tenant, new);
    }

    /// A tenant is gone.
    pub fn remove(&mut self, tenant: TenantId) {
        self.tenants.remove(&tenant);
    }

    fn with(&mut self, tenant: TenantId, act: impl FnOnce(&mut Tenant)) {
        if let Some(tenant) = self.tenants.get_mut(&tenant) {
            act(tenant);
        }
    }

    /// How long one that wants the engine may stay away who left it then, by who could run.
    fn absence(&self, at: Moment) -> Nanos {
        let others = |tenant: &&Tenant| {
            (tenant.held.is_none() || at <= tenant.held_at) && tenant.here && !tenant.away
        };
        match self.tenants.values().filter(others).count() {
            0 | 1 => ARRIVAL,
            // CAST: tenants of a GPU are few.
            count => Nanos(ABSENCE.0 * count as u64),
        }
    }

    /// Its context came onto the engine.
    pub fn active(&mut self, tenant: TenantId, at: Moment) {
        let left = self.tenants.get(&tenant).map_or(at, |tenant| tenant.last);
        let absence = self.absence(left);
        self.with(tenant, |tenant| {
            if !tenant.here || at.since(tenant.last) > absence {
                tenant.here_since = at;
                if tenant.here {
                    tenant.idle_at = at;
                    tenant.habit.stopped(tenant.last);
                }
                tenant.habit.began(at);
            }
            tenant.here = true;
            tenant.resident = true;
            tenant.was_near(at);
        });
    }

    /// Its context left the engine. If it is held, those who may run could not come before.
    pub fn saved(&mut self, tenant: TenantId, at: Moment) {
        let mut leaves = false;
        self.with(tenant, |tenant| {
            leaves = tenant.resident && tenant.held.is_some();
            tenant.resident = false;
            tenant.was_near(at);
        });
        if leaves {
            let free = |other: &&mut Tenant| other.held.is_none();
            for other in self.tenants.values_mut().filter(free) {
                other.last = other.last.max(at);
            }
        }
    }

    /// Whether somebody who is held has yet to leave the engine.
    fn leaving(&self, now: Moment) -> bool {
        let leaves = |tenant: &Tenant| {
            tenant.resident && tenant.held.is_some() && now.since(tenant.held_at) < LEAVING
        };
        self.tenants.values().any(leaves)
    }

    /// It was stopped.
    pub fn held(&mut self, tenant: TenantId, at: Moment) {
        let wanted = self.wants(tenant, at);
        self.with(tenant, |tenant| {
            if tenant.held.is_none() {
                (tenant.held, tenant.held_at) = (Some(wanted), at);
            }
        });
    }

    /// It may run again.
    pub fn released(&mut self, tenant: TenantId, at: Moment) {
        self.with(tenant, |tenant| {
            if let Some(wanted) = tenant.held.take() {
                tenant.here = wanted;
                tenant.was_near(at);
            }
        });
    }

    /// It could have run, and the engine was seen without work.
    pub fn idle(&mut self, tenant: TenantId, at: Moment) {
        self.with(tenant, |tenant| {
            if tenant.held.is_none() {
                if tenant.here {
                    tenant.habit.stopped(at);
                }
                tenant.here = false;
                tenant.idle_at = at;
            }
        });
    }

    /// Who was on the engine by `at` was told. Who was free to come until then, and stayed away for too long, wants nothing until he comes: also if others are let in beside whom he might have
    /// stayed away for longer, or somebody is held and keeps the engine from him.
    pub fn caught_up(&mut self, at: Moment) {
        if self.leaving(at) {
            return;
        }
        let stays_away = |(_, tenant): &(&TenantId, &Tenant)| {
            tenant.is_near() && at.since(tenant.last) > self.absence(tenant.last)
        };
        let all = self.tenants.iter().filter(stays_away);
        let away: Vec<TenantId> = all.map(|(id, _)| *id).collect();
        for tenant in away {
            self.with(tenant, |tenant| tenant.away = true);
        }
    }

    /// It is on the engine, and the engine was seen at work.
    pub fn busy(&mut self, tenant: TenantId, at: Moment) {
        self.with(tenant, |tenant| {
            if tenant.resident && !tenant.here {
                tenant.here = true;
                tenant.here_since = at;
                tenant.habit.began(at);
            }
        });
    }

    /// It is taken to have begun.
    pub fn presume(&mut self, tenant: TenantId, at: Moment) {
        self.with(tenant, |tenant| {
            if tenant.held.is_none() && !tenant.here {
                (tenant.here, tenant.here_since) = (true, at);
                tenant.was_near(at);
                tenant.habit.began(at);
            }
        });
    }

    /// Whether it wants the engine, as far as can be seen.
    pub fn wants(&self, tenant: TenantId, now: Moment) -> bool {
        let absence = self.absence(now);
        self.tenants.get(&tenant).is_some_and(|tenant| {
            tenant.held.unwrap_or_else(|| {
                let late = !tenant.resident && now.since(tenant.last) > absence;
                let near = !tenant.away && (!late || self.leaving(now));
                tenant.here && near && now.since(tenant.here_since) >= tenant.steady()
            })
        })
    }

    /// How long it has to be there, when it begins, until it wants turns.
    pub fn steady(&self, tenant: TenantId) -> Nanos {
        self.tenants.get(&tenant).map_or(STEADY, Tenant::steady)
    }

    /// Whether there is one tenant, or none.
    pub fn is_alone(&self) -> bool {
        self.tenants.len() < 2
    }

    /// Whether it is one of them.
    pub fn knows(&self, tenant: TenantId) -> bool {
        self.tenants.contains_key(&tenant)
    }

    /// All of them.
    pub fn tenants(&self) -> impl Iterator<Item = TenantId> + '_ {
        self.tenants.keys().copied()
    }

    /// Those that want it.
    pub fn wanting(&self, now: Moment) -> impl Iterator<Item = TenantId> + '_ {
        self.tenants
            .keys()
            .copied()
            .filter(move |tenant| self.wants(*tenant, now))
    }

    /// For how long it has had work without having been seen idle.
    pub fn busy_for(&self, tenant: TenantId, now: Moment) -> Nanos {
        let here = self.tenants.get(&tenant).filter(|tenant| tenant.here);
        here.map_or(Nanos::ZERO, |tenant| now.since(tenant.idle_at))
    }

    /// For how much longer it is expected to work, by what it did lately.
    pub fn works_on(&self, tenant: TenantId, now: Moment) -> Nanos {
        let here = self.tenants.get(&tenant).filter(|tenant| tenant.here);
        here.map_or(Nanos::ZERO, |tenant| tenant.habit.works_on(now))
    }

    /// For how long nobody is expected to begin, by what they did lately. Who has not worked for long may be about to share the engine, or to stop.
    /// `by` says for how long one who rests, and is expected to for so long, need not be looked for.
    pub fn rests_on(&self, now: Moment, by: impl Fn(TenantId, Nanos) -> Nanos) -> Nanos {
        let others = self
            .tenants
            .iter()
            .filter(|(id, _)| !self.trusted(**id, now));
        let rests_on = others.map(|(id, tenant)| {
            let rests = (!tenant.here).then(|| by(*id, tenant.habit.rests_on(now)));
            rests.unwrap_or(Nanos::ZERO)
        });
        rests_on.min().unwrap_or(Nanos::ZERO)
    }

    /// Whether one who may run has no work, as far as can be seen.
    pub fn rests(&self, tenant: TenantId) -> bool {
        let tenant = self.tenants.get(&tenant);
        tenant.is_some_and(|tenant| tenant.held.is_none() && !tenant.here)
    }

    /// Since when that was seen.
    pub fn rests_since(&self, tenant: TenantId) -> Option<Moment> {
        let rests = self.tenants.get(&tenant).filter(|_| self.rests(tenant));
        rests.map(|tenant| tenant.idle_at)
    }

    /// Whether it may not run.
    pub fn is_held(&self, tenant: TenantId) -> bool {
        let tenant = self.tenants.get(&tenant);
        tenant.is_some_and(|tenant| tenant.held.is_some())
    }

    /// Whether it works and rests for long, again and again.
    pub fn is_bursty(&self, tenant: TenantId) -> bool {
        let tenant = self.tenants.get(&tenant);
        tenant.is_some_and(|tenant| tenant.habit.rests_long())
    }

    /// Whether that is so long that its idleness need not be looked for.
    pub fn trusted(&self, tenant: TenantId, now: Moment) -> bool {
        self.busy_for(tenant, now) >= TRUSTED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: TenantId = TenantId(1);
    const B: TenantId = TenantId(2);

    const fn ms(ms: u64) -> Moment {
        Moment(ms * 1_000_000)
    }

    fn demand() -> Demand {
        let mut demand = Demand::default();
        demand.add(A, ms(0));
        demand.add(B, ms(0));
        demand
    }

    /// A is on the engine from the first millisecond on, but for B's turns of 1 ms each so many.
    fn side_by_side(demand: &mut Demand, from: u64, to: u64, every: u64) {
        for at in from..to {
            if at % every == 0 {
                demand.saved(A, ms(at));
                demand.active(B, ms(at));
            } else if at % every == 1 {
                demand.saved(B, ms(at));
                demand.active(A, ms(at));
            }
        }
    }

    #[test]
    fn who_comes_back_at_once_wants_the_engine_and_who_comes_now_and_then_does_not() {
        let mut demand = demand();
        demand.active(A, ms(0));
        side_by_side(&mut demand, 1, 100, 3);
        assert!(demand.wants(A, ms(100)) && demand.wants(B, ms(100)));
        side_by_side(&mut demand, 100, 300, 20);
        assert!(demand.wants(A, ms(300)));
        for at in 281..300 {
            assert!(!demand.wants(B, ms(at)), "{at}");
        }
    }

    /// Works for these, in ms, resting 60 ms in between.
    fn worked(lengths: &[u64]) -> (Demand, u64) {
        let mut demand = Demand::default();
        demand.add(A, ms(0));
        let mut at = 60;
        for length in lengths {
            demand.active(A, ms(at));
            demand.idle(A, ms(at + length));
            at += length + 60;
        }
        demand.active(A, ms(at));
        (demand, at)
    }

    #[test]
    fn who_works_for_long_whenever_he_does_wants_turns_at_once() {
        let (demand, at) = worked(&[40; 8]);
        assert!(demand.wants(A, ms(at)));
        assert_eq!(demand.steady(A), Nanos::ZERO);
        // Once he may have had less to do.
        let (demand, at) = worked(&[40, 40, 40, 1, 40, 40, 40, 40]);
        assert!(demand.wants(A, ms(at)));
        for lengths in [&[40, 40, 40, 1, 40, 40, 1, 40][..], &[40; 7], &[5; 8]] {
            let (demand, at) = worked(lengths);
            assert!(!demand.wants(A, ms(at)), "{lengths:?}");
            assert!(demand.wants(A, ms(at) + STEADY));
        }
    }

    #[test]
    fn who_is_presumed_to_have_begun_wants_turns_until_he_is_seen_not_to_have() {
        let (mut demand, at) = worked(&[40; 8]);
        demand.idle(A, ms(at + 40));
        demand.saved(A, ms(at + 41));
        demand.presume(A, ms(at + 100));
        assert!(demand.wants(A, ms(at + 100)) && !demand.rests(A));
        assert!(!demand.wants(A, ms(at + 103)), "he did not come");
        demand.idle(A, ms(at + 103));
        assert!(!demand.wants(A, ms(at + 103)) && demand.rests(A));
        // And if he does, he has since he was presumed to.
        demand.presume(A, ms(at + 200));
        demand.active(A, ms(at + 201));
        assert!(demand.wants(A, ms(at + 230)));
    }

    #[test]
    fn a_held_tenant_wants_what_it_wanted() {
        let mut demand = demand();
        demand.active(A, ms(0));
        assert!(!demand.wants(A, ms(5)));
        demand.held(A, ms(20));
        demand.saved(A, ms(20));
        assert!(demand.wants(A, ms(5_000)));
        assert!(!demand.wants(B, ms(5_000)));
        demand.released(A, ms(5_000));
        assert!(demand.wants(A, ms(5_001)), "it has a moment to come");
        assert!(!demand.wants(A, ms(5_010)), "and did not");
        demand.active(A, ms(5_050));
        assert!(!demand.wants(A, ms(5_051)));
        assert!(demand.wants(A, ms(5_059)));
    }

    #[test]
    fn who_was_free_to_come_and_did_not_wants_nothing_when_another_has_yet_to_leave() {
        let mut demand = demand();
        demand.active(A, ms(0));
        demand.saved(A, ms(50));
        demand.active(B, ms(50));
        demand.caught_up(ms(51));
        assert!(demand.wants(A, ms(51)), "he may come back");
        demand.caught_up(ms(60));
        assert!(!demand.wants(A, ms(60)));
        demand.held(B, ms(100));
        assert!(!demand.wants(A, ms(101)), "while B leaves");
        demand.saved(B, ms(102));
        assert!(!demand.wants(A, ms(102)), "and when he has left");
        demand.active(A, ms(103));
        assert!(demand.wants(A, ms(111)), "until he comes");
        // He who is stopped could not come.
        demand.caught_up(ms(1_000));
        assert!(demand.wants(B, ms(1_000)));
    }

    #[test]
    fn who_cannot_come_yet_is_not_away() {
        let mut demand = demand();
        demand.active(A, ms(0));
        demand.held(A, ms(50));
        demand.saved(A, ms(51));
        demand.active(B, ms(51));
        // B has to leave, and stays on the engine for longer than anybody waits for another.
        demand.held(B, ms(100));
        demand.released(A, ms(100));
        assert!(demand.wants(A, ms(104)));
        demand.saved(B, ms(104));
        demand.active(A, ms(105));
        assert!(demand.wants(A, ms(105)) && demand.wants(A, ms(109)));
        // One whose context stays because nobody comes is no excuse for ever.
        demand.held(A, ms(200));
        demand.released(B, ms(200));
        assert!(demand.wants(B, ms(204)) && !demand.wants(B, ms(206)));
    }

    #[test]
    fn one_that_is_seen_idle_on_the_engine_wants_nothing_until_it_is_seen_at_work() {
        let mut demand = demand();
        demand.active(A, ms(0));
        assert!(demand.wants(A, ms(100)));
        demand.idle(A, ms(100));
        assert!(!demand.wants(A, ms(101)));
        demand.busy(A, ms(200));
        assert!(!demand.wants(A, ms(201)) && demand.wants(A, ms(208)));
    }

    #[test]
    fn who_works_now_and_then_is_expected_to_work_and_rest_as_long_as_he_did() {
        let rests_on = |demand: &Demand, at| demand.rests_on(ms(at), |_, habit| habit);
        let mut demand = demand();
        demand.active(A, ms(0));
        for round in 0..8 {
            demand.active(B, ms(round * 100 + 50));
            demand.saved(B, ms(round * 100 + 60));
            demand.active(B, ms(round * 100 + 62));
            demand.idle(B, ms(round * 100 + 90));
        }
        assert_eq!(rests_on(&demand, 790), Nanos::ZERO, "A may stop");
        // Then A has been there for a second.
        for round in 8..11 {
            demand.active(B, ms(round * 100 + 50));
            demand.idle(B, ms(round * 100 + 90));
        }
        assert_eq!(rests_on(&demand, 1_100), Nanos::from_ms(35));
        demand.active(B, ms(1_150));
        assert_eq!(rests_on(&demand, 1_151), Nanos::ZERO);
        assert_eq!(demand.works_on(B, ms(1_160)), Nanos::from_ms(20));
        assert_eq!(demand.works_on(A, ms(1_160)), Nanos::ZERO);
    }

    #[test]
    fn trust_takes_a_second_without_a_hole() {
        let mut demand = demand();
        demand.active(A, ms(0));
        assert!(!demand.trusted(A, ms(999)) && demand.trusted(A, ms(1_000)));
        assert_eq!(demand.busy_for(A, ms(700)), Nanos::from_ms(700));
        demand.idle(A, ms(1_500));
        assert_eq!(demand.busy_for(A, ms(1_600)), Nanos::ZERO);
        demand.busy(A, ms(1_501));
        assert_eq!(demand.busy_for(A, ms(1_600)), Nanos::from_ms(100));
        assert!(!demand.trusted(A, ms(2_400)) && demand.trusted(A, ms(2_501)));
    }
}
