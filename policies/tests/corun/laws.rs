//! The laws of `owed`, for any readings: no sequence of polls breaks them.
//!
//! The mediator reads the input of a poll, and no tenant can write a field of it. A tenant can only
//! have work or not, and work or not; these tests do both at random.

use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use turnstile_accounting::{AccountId, Moment, Nanos, Reading, Seen, TenantId};
use turnstile_policies::{
    CALM_INTERVAL, Cap, HoldReason, Measured, Membership, Owed, TenantParams, Tuning, Weight,
};

const MS: u64 = 1_000_000;
/// Longest own turn: that of a late meter.
const LONG_TURN_NS: i64 = 50_000_000;
/// Own turns that take most of the time end after a spell of this, and one window of 1 s.
const LONGEST_HOLD: Nanos = Nanos(61_200 * MS);

#[derive(Clone, Debug)]
enum Step {
    Poll {
        /// None: at the time that the rule requests.
        after: Option<u64>,
        seen: Vec<(bool, u64)>,
        readings: Vec<(Option<u64>, Option<u64>, u64)>,
        /// Readings are kept for a later poll, or lost.
        delivery: u8,
    },
    Add(u32, u8),
    Remove(u32),
    Weight(u32, u32),
    Cap(u32, Option<(u64, u64)>),
    Account(u32, u32, Option<(u64, u64)>),
    Target(u32, bool),
    Gang(u32, bool),
    Forget(u32, u8),
}

fn any_length() -> impl Strategy<Value = u64> {
    prop_oneof![0..40 * MS, Just(0), Just(u64::MAX), any::<u64>()]
}

fn any_cap() -> impl Strategy<Value = Option<(u64, u64)>> {
    prop::option::of((1..100 * MS, prop_oneof![1..1_000 * MS, Just(u64::MAX)]))
}

fn any_poll() -> impl Strategy<Value = Step> {
    let after = prop::option::of(prop_oneof![0..30 * MS, 0..5_000 * MS]);
    let seen = prop::collection::vec((any::<bool>(), any_length()), 6);
    let known = || prop::option::weighted(0.95, any_length());
    let readings = prop::collection::vec((known(), known(), any_length()), 6);
    (after, seen, readings, 0u8..8).prop_map(|(after, seen, readings, delivery)| Step::Poll {
        after,
        seen,
        readings,
        delivery,
    })
}

fn any_step() -> impl Strategy<Value = Step> {
    let tenant = || 0u32..6;
    prop_oneof![
        20 => any_poll(),
        2 => (0u32..3, 0u8..4).prop_map(|(a, n)| Step::Add(a, n)),
        1 => tenant().prop_map(Step::Remove),
        1 => (tenant(), 1u32..=10_000).prop_map(|(t, w)| Step::Weight(t, w)),
        1 => (tenant(), any_cap()).prop_map(|(t, cap)| Step::Cap(t, cap)),
        1 => (0u32..3, 1u32..=10_000, any_cap()).prop_map(|(a, w, c)| Step::Account(a, w, c)),
        1 => (tenant(), any::<bool>()).prop_map(|(t, target)| Step::Target(t, target)),
        1 => (tenant(), any::<bool>()).prop_map(|(t, gang)| Step::Gang(t, gang)),
        1 => (0u32..3, 0u8..4).prop_map(|(a, n)| Step::Forget(a, n)),
    ]
}

fn params(weight: u32, cap: Option<(u64, u64)>) -> TenantParams {
    TenantParams {
        weight: Weight::new(weight).unwrap(),
        cap: cap.map(|(quota, period)| Cap::new(Nanos(quota), Nanos(period)).unwrap()),
    }
}

/// The rule, and the state that the test keeps of it.
struct Checked {
    rule: Owed,
    now: Moment,
    accounts: BTreeMap<TenantId, AccountId>,
    /// Tenants and accounts that ever had a cap.
    capped: BTreeSet<TenantId>,
    capped_accounts: BTreeSet<AccountId>,
    /// Tenants that ever were gangs.
    gangs: BTreeSet<TenantId>,
    kept: Vec<(Moment, Vec<Reading>)>,
    held_since: BTreeMap<TenantId, Moment>,
    next_id: u32,
}

impl Checked {
    fn new() -> Self {
        Self {
            rule: Owed::new(&Tuning::default()),
            now: Moment(0),
            accounts: BTreeMap::new(),
            capped: BTreeSet::new(),
            capped_accounts: BTreeSet::new(),
            gangs: BTreeSet::new(),
            kept: Vec::new(),
            held_since: BTreeMap::new(),
            next_id: 0,
        }
    }

    fn pick(&self, index: u32) -> Option<TenantId> {
        self.accounts.keys().nth(index as usize).copied()
    }

    fn add(&mut self, account: AccountId, name: u8, params: TenantParams) {
        let id = TenantId(self.next_id);
        self.next_id += 1;
        let name = name.to_string();
        let membership = Membership {
            account,
            name: &name,
        };
        self.rule.add(id, membership, params, self.now).unwrap();
        self.accounts.insert(id, account);
    }

    fn remove(&mut self, id: TenantId) {
        self.rule.remove(id, self.now).unwrap();
        self.accounts.remove(&id);
        self.held_since.remove(&id);
    }

    /// Polls, and checks all laws.
    fn poll(&mut self, seen: &[Seen], ready: &[(Moment, Vec<Reading>)]) {
        let measured = ready.iter().map(|(until, readings)| Measured {
            until: *until,
            tenants: readings,
        });
        let measured: Vec<_> = measured.collect();
        let orders = self.rule.look(self.now, seen, &measured).clone();
        let next = orders.next_look;
        assert!(
            self.now < next && next <= self.now + CALM_INTERVAL,
            "{next:?}"
        );
        let listed: BTreeSet<_> = orders.tenants.iter().map(|order| order.tenant).collect();
        assert_eq!(
            listed,
            self.accounts.keys().copied().collect(),
            "each tenant has an order"
        );
        let own_turn = |id: TenantId| self.rule.standing(id).is_some_and(|s| s.own_turn);
        let holders: BTreeSet<_> = listed.iter().copied().filter(|id| own_turn(*id)).collect();
        let accounts: BTreeSet<_> = holders.iter().map(|id| self.accounts[id]).collect();
        assert!(accounts.len() <= 1, "one own turn at most: {holders:?}");
        let siblings = |id: &&TenantId| accounts.contains(&self.accounts[*id]);
        let all = listed.iter().filter(siblings).count();
        assert!(
            holders.len() <= 1 || holders.len() == all,
            "a tenant, or its account"
        );
        for order in &orders.tenants {
            let id = order.tenant;
            let account = self.accounts[&id];
            let standing = self.rule.standing(id).unwrap();
            let bounds = -LONG_TURN_NS..=3 * LONG_TURN_NS;
            assert!(bounds.contains(&standing.owed_ns), "{standing:?}");
            assert!(standing.alone_permille <= 1_000, "{standing:?}");
            assert!((250_000..=16 * MS).contains(&order.slice_ns.0), "{order:?}");
            match order.hold {
                None | Some(HoldReason::Capped) => {
                    self.held_since.remove(&id);
                }
                Some(reason) => {
                    assert_eq!(reason, HoldReason::Turn);
                    let waits = self.gangs.contains(&id);
                    let for_another = !holders.is_empty() && !holders.contains(&id);
                    assert!(waits || for_another, "{order:?}");
                    let since = *self.held_since.entry(id).or_insert(self.now);
                    assert!(
                        self.now.since(since) <= LONGEST_HOLD,
                        "{order:?} since {since:?}"
                    );
                }
            }
            if order.hold == Some(HoldReason::Capped) {
                let capped = self.capped.contains(&id) || self.capped_accounts.contains(&account);
                assert!(capped, "{order:?}");
            }
        }
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Poll {
                after,
                seen,
                readings,
                delivery,
            } => {
                let due = self.rule.next_look().max(self.now);
                let now = after.map_or(due, |after| self.now + Nanos(after));
                self.now = now;
                let ids: Vec<TenantId> = self.accounts.keys().copied().collect();
                let seen = ids.iter().zip(seen).map(|(id, (has_work, idle))| Seen {
                    tenant: *id,
                    has_work,
                    blocks: false,
                    idle: Nanos(idle),
                });
                let seen: Vec<Seen> = seen.collect();
                let reading = |(id, (worked, resident, waited))| Reading {
                    tenant: id,
                    worked: Option::map(worked, Nanos),
                    resident: Option::map(resident, Nanos),
                    waited: Nanos(waited),
                };
                let readings: Vec<Reading> = ids.into_iter().zip(readings).map(reading).collect();
                if delivery > 0 {
                    self.kept.push((now, readings));
                }
                let ready = if delivery == 1 {
                    Vec::new()
                } else {
                    std::mem::take(&mut self.kept)
                };
                self.poll(&seen, &ready);
            }
            Step::Add(account, name) if self.accounts.len() < 6 => {
                self.add(AccountId(account), name, TenantParams::default());
            }
            Step::Add(..) => {}
            Step::Remove(index) => {
                if let Some(id) = self.pick(index) {
                    self.remove(id);
                }
            }
            Step::Weight(index, weight) => {
                if let Some(id) = self.pick(index) {
                    self.rule
                        .set_weight(id, Weight::new(weight).unwrap())
                        .unwrap();
                }
            }
            Step::Cap(index, cap) => {
                if let Some(id) = self.pick(index) {
                    self.rule.set_cap(id, params(1, cap).cap).unwrap();
                    self.capped.insert(id);
                }
            }
            Step::Account(account, weight, cap) => {
                self.rule
                    .set_account(AccountId(account), params(weight, cap));
                self.capped_accounts.insert(AccountId(account));
            }
            Step::Target(index, target) => {
                if let Some(id) = self.pick(index) {
                    self.rule.set_target(id, target).unwrap();
                }
            }
            Step::Gang(index, gang) => {
                if let Some(id) = self.pick(index) {
                    self.rule.set_gang(id, gang).unwrap();
                    self.gangs.insert(id);
                }
            }
            Step::Forget(account, name) => {
                self.rule.forget_name(AccountId(account), &name.to_string());
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_sequence_of_polls_keeps_the_laws(steps in prop::collection::vec(any_step(), 1..200)) {
        let mut checked = Checked::new();
        for account in [0, 0, 1] {
            checked.add(AccountId(account), account as u8, TenantParams::default());
        }
        for step in steps {
            checked.apply(step);
        }
    }
}

/// A tenant with the same readings all the time, in percent.
fn any_constant() -> impl Strategy<Value = (u32, u64, u64, u64)> {
    let percent = || prop_oneof![Just(0u64), Just(100), 0..150u64];
    (1u32..=10_000, percent(), percent(), percent())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Liveness, with any readings of tenants in own turns and beside others, for 150 s.
    #[test]
    fn a_held_tenant_is_let_in_again(
        tenants in prop::collection::vec(any_constant(), 2..6), busy: bool, accounts in 1u32..4,
    ) {
        let mut checked = Checked::new();
        for (index, (weight, ..)) in tenants.iter().enumerate() {
            let account = AccountId(index as u32 % accounts);
            checked.add(account, index as u8, params(*weight, None));
        }
        let ids: Vec<TenantId> = checked.accounts.keys().copied().collect();
        while checked.now < Moment(150_000 * MS) {
            let next = checked.rule.next_look().max(Moment(1));
            let length = next.since(checked.now).0;
            checked.now = next;
            let seen = ids.iter().map(|id| Seen {
                tenant: *id,
                has_work: true,
                blocks: false,
                idle: Nanos::ZERO,
            });
            let seen: Vec<Seen> = seen.collect();
            let readings = ids.iter().zip(&tenants).map(|(id, (_, own, together, resident))| {
                let own_turn = checked.rule.standing(*id).is_some_and(|s| s.own_turn);
                let percent = if own_turn { *own } else { *together };
                let worked = Some(Nanos(length * percent / 100));
                let resident = if busy { length } else { length * resident / 100 };
                Reading { tenant: *id, worked, resident: Some(Nanos(resident)), waited: Nanos::ZERO }
            });
            let readings: Vec<Reading> = readings.collect();
            let now = checked.now;
            checked.poll(&seen, &[(now, readings)]);
        }
    }
}

/// A tenant that always has work, and never works, costs the other one own turn a minute.
#[test]
fn work_that_never_runs_is_not_waited_for() {
    let mut checked = Checked::new();
    for account in [1, 2] {
        checked.add(AccountId(account), 0, TenantParams::default());
    }
    let ids: Vec<TenantId> = checked.accounts.keys().copied().collect();
    let (mut held, mut last) = (Nanos::ZERO, Moment(0));
    while checked.now < Moment(60_000 * MS) {
        let next = checked.rule.next_look().max(Moment(1));
        let is_held = checked.held_since.contains_key(&ids[1]);
        let length = next.since(last);
        held = if is_held { held + length } else { held };
        (checked.now, last) = (next, next);
        let seen = [true, true].iter().zip(&ids).map(|(has_work, id)| Seen {
            tenant: *id,
            has_work: *has_work,
            blocks: false,
            idle: Nanos::ZERO,
        });
        let seen: Vec<Seen> = seen.collect();
        let worked = if is_held { Nanos::ZERO } else { length };
        let readings = ids
            .iter()
            .zip([Nanos::ZERO, worked])
            .map(|(id, worked)| Reading {
                tenant: *id,
                worked: Some(worked),
                resident: Some(worked),
                waited: length.saturating_sub(worked),
            });
        let readings: Vec<Reading> = readings.collect();
        checked.poll(&seen, &[(next, readings)]);
    }
    assert!(held <= Nanos(60 * MS), "{held}");
}
