use super::*;
use crate::policy::HoldReason;
use turnstile_accounting::Reading;

const A: TenantId = TenantId(1);
const B: TenantId = TenantId(2);
const C: TenantId = TenantId(3);
const MS: u64 = 1_000_000;

/// The rule, with tenants that each have their own account.
struct Rig {
    rule: Owed,
    now: Moment,
    /// Readings that were not delivered.
    kept: Vec<(Moment, Vec<Reading>)>,
}

impl Rig {
    fn new(tenants: &[TenantId]) -> Self {
        let mut rule = Owed::new(&Tuning::default());
        for id in tenants {
            let name = id.to_string();
            let membership = Membership {
                account: AccountId(id.0),
                name: &name,
            };
            rule.add(*id, membership, TenantParams::default(), Moment(0))
                .unwrap();
        }
        let mut rig = Self {
            rule,
            now: Moment(0),
            kept: Vec::new(),
        };
        let with_work = |tenant: &TenantId| Seen {
            tenant: *tenant,
            has_work: true,
            blocks: false,
            idle: Nanos::ZERO,
        };
        let seen: Vec<Seen> = tenants.iter().map(with_work).collect();
        rig.rule.look(Moment(0), &seen, &[]);
        rig
    }

    /// The next poll: tenants, whether they have work, and the percentage of the time that they
    /// worked.
    fn poll(&mut self, tenants: &[(TenantId, bool, u64)]) {
        self.keep(tenants);
        self.deliver(tenants);
    }

    /// Time passes up to the next poll, but its readings are not known yet.
    fn keep(&mut self, tenants: &[(TenantId, bool, u64)]) {
        let next = self.rule.next_look();
        let length = next.since(self.now);
        let reading = |(tenant, _, percent): &(TenantId, bool, u64)| Reading {
            tenant: *tenant,
            worked: Some(Nanos(length.0 * percent / 100)),
            resident: Some(Nanos(length.0 * percent / 100)),
            waited: Nanos::ZERO,
        };
        self.now = next;
        self.kept
            .push((next, tenants.iter().map(reading).collect()));
    }

    fn deliver(&mut self, tenants: &[(TenantId, bool, u64)]) {
        let seen = |(tenant, has_work, _): &(TenantId, bool, u64)| Seen {
            tenant: *tenant,
            has_work: *has_work,
            blocks: false,
            idle: if *has_work { Nanos::ZERO } else { Seen::NEVER },
        };
        let seen: Vec<Seen> = tenants.iter().map(seen).collect();
        let kept = std::mem::take(&mut self.kept);
        let measured = kept.iter().map(|(until, readings)| Measured {
            until: *until,
            tenants: readings,
        });
        let measured: Vec<_> = measured.collect();
        self.rule.look(self.now, &seen, &measured);
    }

    fn hold(&self, id: TenantId) -> Option<HoldReason> {
        let orders = &self.rule.orders().tenants;
        orders.iter().find(|order| order.tenant == id).unwrap().hold
    }

    fn alone(&self, id: TenantId) -> u32 {
        self.rule.standing(id).unwrap().alone_permille
    }
}

#[test]
fn a_tenant_that_is_owed_a_turn_has_one_and_shows_what_it_works_alone() {
    let mut rig = Rig::new(&[A, B]);
    while rig.hold(B).is_none() {
        rig.poll(&[(A, true, 10), (B, true, 80)]);
        assert!(rig.now < Moment(200 * MS), "A is owed nothing");
    }
    assert_eq!(rig.hold(B), Some(HoldReason::Turn));
    assert!(rig.rule.standing(A).unwrap().own_turn && !rig.rule.standing(B).unwrap().own_turn);
    assert_eq!(rig.rule.next_look().since(rig.now), Nanos(10 * MS));
    rig.poll(&[(A, true, 40), (B, true, 0)]);
    assert_eq!(rig.alone(A), 1_000, "the first half measures nothing");
    rig.poll(&[(A, true, 60), (B, true, 0)]);
    // All resident time was work: it works whenever it is resident.
    assert_eq!(rig.alone(A), 1_000);
}

#[test]
fn a_tenant_that_only_waits_is_not_waited_for() {
    let mut rig = Rig::new(&[A, B]);
    for _ in 0..100 {
        let turn = rig.rule.standing(A).unwrap().own_turn;
        rig.poll(&[(A, true, 0), (B, true, if turn { 0 } else { 100 })]);
    }
    assert_eq!(rig.alone(A), 0);
    let other = rig.rule.standing(B).unwrap();
    assert!(other.owed_ns < 0 && rig.hold(B).is_none(), "{other:?}");
}

#[test]
fn an_own_turn_ends_when_its_tenant_has_no_work() {
    let mut rig = Rig::new(&[A, B]);
    while rig.hold(B).is_none() {
        rig.poll(&[(A, true, 10), (B, true, 80)]);
    }
    let start = rig.now;
    rig.poll(&[(A, false, 10), (B, true, 0)]);
    assert_eq!(rig.hold(B), None);
    assert_eq!(rig.now.since(start), Nanos(10 * MS));
}

#[test]
fn an_own_turn_goes_on_while_no_other_tenant_has_work() {
    let mut rig = Rig::new(&[A, B]);
    while rig.hold(B).is_none() {
        rig.poll(&[(A, true, 10), (B, true, 80)]);
    }
    let start = rig.now;
    while rig.rule.standing(A).unwrap().own_turn {
        rig.poll(&[(A, true, 100), (B, false, 0)]);
    }
    assert_eq!(rig.now.since(start), turn::TURN_MAX);
}

#[test]
fn a_small_tenant_is_not_held() {
    let mut rig = Rig::new(&[A, B, C]);
    while rig.now < Moment(1_500 * MS) || rig.hold(B).is_none() {
        let own_turn = rig.rule.standing(A).unwrap().own_turn;
        let (one, other) = if own_turn { (100, 0) } else { (10, 80) };
        rig.poll(&[(A, true, one), (B, true, other), (C, false, 1)]);
    }
    assert_eq!(rig.hold(B), Some(HoldReason::Turn));
    assert_eq!(rig.hold(C), None, "it is resident for 1 % and owed nothing");
}

#[test]
fn a_tenant_that_appears_in_an_own_turn_is_held_at_once() {
    let mut rig = Rig::new(&[A, B]);
    let membership = |account| Membership {
        account: AccountId(account),
        name: "new",
    };
    let params = TenantParams::default();
    let order = rig.rule.add(C, membership(3), params, rig.now).unwrap();
    assert_eq!(order.hold, None);
    while rig.hold(B).is_none() {
        rig.poll(&[(A, true, 10), (B, true, 80)]);
    }
    let other = rig.rule.add(TenantId(4), membership(4), params, rig.now);
    assert_eq!(other.unwrap().hold, Some(HoldReason::Turn));
    let sibling = rig.rule.add(TenantId(5), membership(1), params, rig.now);
    assert_eq!(sibling.unwrap().hold, None);
}

#[test]
fn late_readings_measure_the_turn_that_they_are_about() {
    let mut alone = Vec::new();
    for late in [false, true] {
        let mut rig = Rig::new(&[A, B]);
        while rig.hold(B).is_none() {
            rig.poll(&[(A, true, 10), (B, true, 80)]);
        }
        let turn = [(A, true, 50), (B, true, 0)];
        for poll in 0..2 {
            rig.keep(&turn);
            // Resident all the time, and working for half of it.
            for (_, readings) in &mut rig.kept {
                readings[0].resident = Some(Nanos(10 * MS));
            }
            let kept = if late {
                std::mem::take(&mut rig.kept)
            } else {
                Vec::new()
            };
            rig.deliver(&turn);
            rig.kept = kept;
            if late && poll == 0 {
                rig.rule.look(rig.now, &[], &[]);
            }
        }
        rig.poll(&[(A, true, 10), (B, true, 80)]);
        alone.push(rig.alone(A));
    }
    assert_eq!(alone[0] / 10, 65, "0.7 of the way from 1 to 0.5");
}

#[test]
fn time_that_is_not_known_is_neither_owed_nor_charged() {
    let mut rig = Rig::new(&[A, B]);
    rig.poll(&[(A, true, 30), (B, true, 60)]);
    let before = [A, B].map(|id| rig.rule.standing(id));
    for _ in 0..50 {
        rig.keep(&[(A, true, 0), (B, true, 90)]);
        let readings = &mut rig.kept.last_mut().unwrap().1;
        (readings[1].worked, readings[1].resident) = (None, None);
        rig.deliver(&[(A, true, 0), (B, true, 90)]);
        assert!(rig.hold(A).is_none() && rig.hold(B).is_none());
    }
    assert_eq!([A, B].map(|id| rig.rule.standing(id)), before);
}

#[test]
fn readings_that_never_come_are_unknown() {
    let mut rig = Rig::new(&[A, B]);
    for _ in 0..500 {
        let next = rig.rule.next_look();
        rig.now = next;
        rig.deliver(&[(A, true, 0), (B, true, 0)]);
    }
    assert_eq!(rig.rule.standing(A).unwrap().owed_ns, 0);
    assert!(rig.rule.past.len() < 60, "{}", rig.rule.past.len());
}

#[test]
fn a_tenant_that_leaves_is_charged_for_its_last_work() {
    let mut rig = Rig::new(&[A, B]);
    rig.keep(&[(A, true, 100), (B, true, 0)]);
    rig.rule.remove(A, rig.now).unwrap();
    assert_eq!(
        rig.rule.set_weight(A, Weight::DEFAULT),
        Err(PolicyError::Unknown(A))
    );
    let membership = Membership {
        account: AccountId(1),
        name: "tenant 1",
    };
    rig.rule
        .add(C, membership, TenantParams::default(), rig.now)
        .unwrap();
    rig.deliver(&[(C, true, 0), (B, true, 0)]);
    assert!(rig.rule.standing(A).is_none());
    let account = rig.rule.accounts[&AccountId(1)].node.owed;
    assert!(account < -9 * MS as i64, "{account}");
    let owed = rig.rule.standing(C).unwrap().owed_ns;
    assert!(owed < 5 * MS as i64, "9.7 ms, less what is charged: {owed}");
}

#[test]
fn an_account_that_is_owed_most_comes_first_and_admits_its_tenants_together() {
    let mut rule = Owed::new(&Tuning::default());
    for (id, account) in [(A, 1), (B, 1), (C, 2)] {
        let name = id.to_string();
        let membership = Membership {
            account: AccountId(account),
            name: &name,
        };
        rule.add(id, membership, TenantParams::default(), Moment(0))
            .unwrap();
    }
    let mut rig = Rig {
        rule,
        now: Moment(0),
        kept: Vec::new(),
    };
    rig.rule.look(Moment(0), &[], &[]);
    while rig.hold(C).is_none() {
        rig.poll(&[(A, true, 5), (B, true, 5), (C, true, 80)]);
    }
    let own_turn = |id| rig.rule.standing(id).unwrap().own_turn;
    assert!(own_turn(A) && own_turn(B) && !own_turn(C));
    assert!(rig.hold(A).is_none() && rig.hold(B).is_none());
}

#[test]
fn a_capped_tenant_is_held_until_its_period_ends() {
    let mut rig = Rig::new(&[A, B]);
    let cap = Cap::new(Nanos(10 * MS), Nanos(50 * MS)).unwrap();
    rig.rule.set_cap(A, Some(cap)).unwrap();
    rig.poll(&[(A, true, 0), (B, true, 0)]);
    assert_eq!(
        rig.rule.next_look().since(rig.now),
        Nanos(10 * MS),
        "what is left"
    );
    rig.poll(&[(A, true, 100), (B, true, 0)]);
    assert_eq!(rig.hold(A), Some(HoldReason::Capped));
    while rig.hold(A).is_some() {
        rig.poll(&[(A, true, 0), (B, true, 100)]);
    }
    assert_eq!(rig.now, Moment(50 * MS));
    rig.rule.set_account(
        AccountId(2),
        TenantParams {
            cap: Some(cap),
            ..Default::default()
        },
    );
    while rig.hold(B).is_none() {
        rig.poll(&[(A, true, 0), (B, true, 100)]);
    }
    assert_eq!(rig.hold(B), Some(HoldReason::Capped));
    rig.rule.set_account(AccountId(2), TenantParams::default());
    rig.poll(&[(A, true, 0), (B, true, 0)]);
    assert_ne!(rig.hold(B), Some(HoldReason::Capped));
}

#[test]
fn a_target_shortens_the_slices_of_others() {
    let mut rig = Rig::new(&[A, B]);
    let slice = |rig: &Rig, index: usize| rig.rule.orders().tenants[index].slice_ns.0 / 1_000;
    rig.rule.set_account(
        AccountId(1),
        TenantParams {
            weight: Weight::new(300).unwrap(),
            cap: None,
        },
    );
    let both = [(A, true, 60), (B, true, 30)];
    rig.poll(&both);
    assert_eq!((slice(&rig, 0), slice(&rig, 1)), (6_144, 2_048));
    rig.rule.set_target(B, true).unwrap();
    rig.poll(&both);
    assert_eq!((slice(&rig, 0), slice(&rig, 1)), (250, 2_048));
    rig.rule.set_target(B, false).unwrap();
    rig.poll(&both);
    assert_eq!(slice(&rig, 0), 6_144);
}

#[test]
fn tenants_are_known_once() {
    let mut rig = Rig::new(&[A]);
    let membership = Membership {
        account: AccountId(1),
        name: "a",
    };
    let again = rig
        .rule
        .add(A, membership, TenantParams::default(), Moment(0));
    assert_eq!(again, Err(PolicyError::Known(A)));
    assert_eq!(rig.rule.remove(B, Moment(0)), Err(PolicyError::Unknown(B)));
    assert_eq!(rig.rule.set_cap(B, None), Err(PolicyError::Unknown(B)));
    assert_eq!(rig.rule.set_target(B, true), Err(PolicyError::Unknown(B)));
    assert!(rig.rule.standing(B).is_none());
}

#[test]
fn polls_at_the_end_of_time_do_not_panic() {
    let mut rig = Rig::new(&[A, B]);
    let cap = Cap::new(Nanos(1), Nanos(u64::MAX)).ok();
    rig.rule.set_cap(A, cap).unwrap();
    for now in [u64::MAX - 1, u64::MAX, 0, u64::MAX] {
        let seen = [A, B].map(|tenant| Seen {
            tenant,
            has_work: true,
            blocks: false,
            idle: Nanos::ZERO,
        });
        let readings = [A, B].map(|tenant| Reading {
            tenant,
            worked: Some(Nanos(u64::MAX)),
            resident: Some(Nanos(u64::MAX)),
            waited: Nanos(u64::MAX),
        });
        let measured = Measured {
            until: Moment(now),
            tenants: &readings,
        };
        rig.rule.look(Moment(now), &seen, &[measured]);
        assert_eq!(rig.rule.next_look(), Moment(u64::MAX));
    }
}

#[test]
fn a_tenant_that_keeps_the_host_unit_has_the_shortest_slice_until_it_works() {
    let mut rig = Rig::new(&[A, B]);
    let slices = |rig: &mut Rig, blocks: bool, at: u64| -> Vec<Nanos> {
        let seen = [A, B].map(|tenant| Seen {
            tenant,
            blocks: blocks && tenant == B,
            has_work: true,
            idle: Nanos::ZERO,
        });
        let orders = rig.rule.look(Moment(at * MS), &seen, &[]);
        orders.tenants.iter().map(|order| order.slice_ns).collect()
    };
    let usual = slices(&mut rig, false, 20);
    assert_eq!(slices(&mut rig, true, 40), [usual[0], Nanos::from_us(20)]);
    assert_eq!(slices(&mut rig, false, 60), usual);
}

/// A tenant that copies and waits keeps the engine in its own turns, and works 0.2 % of them: more
/// seldom than it is read.
#[test]
fn a_tenant_that_is_resident_without_work_has_few_own_turns() {
    let mut rig = Rig::new(&[A, B]);
    let (mut in_turns, end) = (0, 20_000 * MS);
    while rig.now.0 < end {
        let next = rig.rule.next_look();
        let length = next.since(rig.now);
        let own = rig.rule.standing(B).unwrap().own_turn;
        let worked = if own { 0 } else { length.0 };
        if own && rig.now.0 > end / 2 {
            in_turns += length.0;
        }
        let seen = [A, B].map(|tenant| Seen {
            tenant,
            has_work: true,
            blocks: false,
            idle: Nanos::ZERO,
        });
        let reading = |tenant, worked, resident| Reading {
            tenant,
            worked: Some(Nanos(worked)),
            resident: Some(Nanos(resident)),
            waited: Nanos::ZERO,
        };
        let readings = [reading(A, worked, worked), reading(B, 0, length.0 - worked)];
        let measured = Measured {
            until: next,
            tenants: &readings,
        };
        rig.rule.look(next, &seen, &[measured]);
        rig.now = next;
    }
    assert!(in_turns < end / 40, "{} ms of 10 s", in_turns / MS);
}
