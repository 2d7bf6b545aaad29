//! A tenant of a policy that charges virtual time: what all such policies keep of it, and what is the policy's own.

use crate::cap::Quota;
use crate::params::{Cap, TenantParams, Weight};
use crate::roster::Roster;
use crate::virtual_time::{VirtualClock, VirtualTime};
use turnstile_accounting::{Moment, Nanos, TenantId};

/// Shares of a weight are kept to this fraction.
const SHARE_UNIT: u64 = 1_024;

/// One tenant.
#[derive(Debug)]
pub(crate) struct Member<T> {
    pub(crate) weight: Weight,
    /// Its weight against all others, in units of 1 / [`SHARE_UNIT`].
    share: u64,
    pub(crate) quota: Option<Quota>,
    pub(crate) clock: VirtualClock,
    /// It wants the engine, as far as we were told.
    pub(crate) backlogged: bool,
    /// It was let in then, as the engine ran dry, and has used nothing since.
    let_in: Option<Moment>,
    /// What the policy keeps beside.
    pub(crate) own: T,
}

impl<T> Member<T> {
    /// One that appears, without work.
    pub(crate) fn new(params: TenantParams, at: VirtualTime, own: T) -> Self {
        Self {
            weight: params.weight,
            share: u64::from(params.weight.get()) * SHARE_UNIT,
            quota: params.cap.map(Quota::new),
            clock: VirtualClock::at(at),
            backlogged: false,
            let_in: None,
            own,
        }
    }

    pub(crate) fn set_weight(&mut self, weight: Weight) {
        self.weight = weight;
        self.divide(None);
    }

    /// Of its account's weight it has its part of what all of `all` have, if there are other
    /// accounts.
    pub(crate) fn divide(&mut self, divided: Option<(Weight, u64)>) {
        let own = u64::from(self.weight.get()) * SHARE_UNIT;
        self.share = match divided {
            Some((account, all)) => (own * u64::from(account.get()) / all.max(1)).max(1),
            None => own,
        };
    }

    pub(crate) fn set_cap(&mut self, cap: Option<Cap>) {
        self.quota = cap.map(Quota::new);
    }

    /// It used so much.
    pub(crate) fn charge(&mut self, used: Nanos) {
        self.clock.charge(used, self.share);
        if used > Nanos::ZERO {
            self.let_in = None;
        }
    }

    /// Time passed in which it used `used`, for its cap.
    pub(crate) fn pass(&mut self, length: Nanos, used: Nanos) {
        if let Some(quota) = &mut self.quota {
            quota.pass(length, used);
        }
    }

    pub(crate) fn capped(&self) -> bool {
        self.quota.is_some_and(|quota| quota.exhausted())
    }

    /// It wants the engine and may have it.
    pub(crate) fn waits(&self) -> bool {
        self.backlogged && !self.capped()
    }

    /// Where it stands, and its weight, for `pour`.
    pub(crate) fn standing(&self) -> (VirtualTime, u64) {
        (self.clock.now(), self.share)
    }
}

impl<T> Roster<Member<T>> {
    /// The engine ran dry: whom to let in of those who wait, the one furthest behind. Who was let in before, and had no use for it, goes behind all others: what is told of him may be wrong, and
    /// he would keep the engine from those who do.
    pub(crate) fn let_in(&mut self, waiting: &[TenantId], now: Moment) -> Option<TenantId> {
        let known = waiting
            .iter()
            .filter_map(|&id| Some((id, self.get(id).ok()?)));
        let (id, _) = known
            .filter(|(_, tenant)| !tenant.capped())
            .min_by_key(|(id, tenant)| (tenant.let_in, tenant.clock.now(), *id))?;
        self.get_mut(id).ok()?.let_in = Some(now);
        Some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: TenantId = TenantId(1);
    const B: TenantId = TenantId(2);
    const C: TenantId = TenantId(3);

    fn member(weight: u32, cap: Option<Cap>) -> Member<()> {
        let weight = Weight::new(weight).unwrap();
        Member::new(TenantParams { weight, cap }, VirtualTime::default(), ())
    }

    fn cap() -> Option<Cap> {
        Some(Cap::new(Nanos(20), Nanos(100)).unwrap())
    }

    #[test]
    fn a_member_divides_the_weight_of_its_account() {
        let mut member = member(100, None);
        assert_eq!(member.standing().1, 100 * SHARE_UNIT);
        member.divide(Some((Weight::new(300).unwrap(), 400)));
        assert_eq!(member.standing().1, 75 * SHARE_UNIT);
        member.divide(Some((Weight::new(1).unwrap(), 0)));
        assert_eq!(member.standing().1, 100 * SHARE_UNIT);
        member.divide(Some((Weight::new(1).unwrap(), u64::MAX)));
        assert_eq!(member.standing().1, 1, "never nothing");
        member.set_weight(Weight::new(50).unwrap());
        assert_eq!(member.standing().1, 50 * SHARE_UNIT);
        member.charge(Nanos(10));
        let charged = VirtualTime::default().after(Nanos(10), 50 * SHARE_UNIT);
        assert_eq!(member.standing().0, charged);
    }

    #[test]
    fn a_member_waits_while_it_has_work_and_quota() {
        let mut member = member(100, cap());
        assert!(!member.waits());
        member.backlogged = true;
        assert!(member.waits());
        member.pass(Nanos(10), Nanos(20));
        assert!(member.capped() && !member.waits());
        member.set_cap(cap());
        assert!(!member.capped());
        member.pass(Nanos(10), Nanos(20));
        member.set_cap(None);
        assert!(member.waits());
        member.pass(Nanos(10), Nanos(20));
        assert!(!member.capped());
    }

    #[test]
    fn a_dry_engine_goes_to_the_one_furthest_behind_that_used_it() {
        let mut roster: Roster<Member<()>> = Roster::default();
        for (id, used) in [(A, 2), (B, 1), (C, 3)] {
            let mut member = member(100, (id == C).then(cap).flatten());
            member.charge(Nanos(used));
            roster.add(id, member).unwrap();
        }
        let all = [A, B, C, TenantId(9)];
        let let_in = |roster: &mut Roster<Member<()>>, at| roster.let_in(&all, Moment(at));
        assert_eq!(let_in(&mut roster, 1), Some(B));
        assert_eq!(let_in(&mut roster, 2), Some(A), "B had no use for it");
        assert_eq!(let_in(&mut roster, 3), Some(C));
        assert_eq!(let_in(&mut roster, 4), Some(B), "the longest ago");
        roster.get_mut(B).unwrap().charge(Nanos(0));
        roster.get_mut(C).unwrap().charge(Nanos(5));
        assert_eq!(let_in(&mut roster, 5), Some(C), "it used the engine");
        roster.get_mut(C).unwrap().charge(Nanos(1));
        roster.get_mut(C).unwrap().pass(Nanos(1), Nanos(20));
        assert_eq!(let_in(&mut roster, 6), Some(A), "C is capped");
        assert_eq!(roster.let_in(&[], Moment(7)), None);
    }
}
